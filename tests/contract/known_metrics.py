"""Every metric that can be in a Prometheus of ours, with its labels: exporter, rules, controller."""

from collections.abc import Mapping

from controller.telemetry import Telemetry
from exporter.catalogue import BY_NAME

TARGET_LABELS = {"job", "instance", "namespace", "pod", "container"}
_CONTROLLER_TARGET = {"job", "instance", "pod", "container"}


def labels_of(name: str) -> set[str]:
    """Labels of a metric. Raises AssertionError for one that nobody publishes."""
    if name in BY_NAME:
        return set(BY_NAME[name].labels) | {"job", "instance"}
    controller = _controller()
    assert name in controller, f"nobody publishes {name}"
    return controller[name] | _CONTROLLER_TARGET


def _controller() -> Mapping[str, set[str]]:
    """Read the registry of a fresh Telemetry: each name that it has taken, with the labels of its collector."""
    registry = Telemetry().registry
    found = {name: set(collector._labelnames) for name, collector in registry._names_to_collectors.items()}
    buckets = {name: labels | {"le"} for name, labels in found.items() if name.endswith("_bucket")}
    return found | buckets
