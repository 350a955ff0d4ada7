"""The exporter's metrics about itself, by prometheus_client in a registry of their own."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from exporter.exposition import Labels, Renderer, Texts
from exporter.metric import Kind, Metric


def installed_version() -> str:
    """Return the version of the installed distribution; "unknown" when run from a bare source tree."""
    try:
        return version("gpuscale")
    except PackageNotFoundError:
        return "unknown"


class ProcessMetrics:
    """CPU, memory, files, garbage collection and version of this process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        info = Gauge(
            "gpuscale_exporter_info",
            "Always 1. The version of this exporter.",
            ("version",),
            registry=self._registry,
        )
        info.labels(installed_version()).set(1)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

        self._metrics: dict[str, Metric] = {}
        self._renderer = Renderer(())

    def render(self) -> Texts:
        """Write the current values in both formats."""
        values: dict[Metric, dict[Labels, float]] = {}
        for family in self._registry.collect():
            for sample in family.samples:
                metric = self._metrics.get(sample.name) or self._known(sample.name, family, sample.labels)
                values.setdefault(metric, {})[tuple(sample.labels[name] for name in metric.labels)] = sample.value
        return self._renderer.render(values)

    def _known(self, name: str, family: Family, labels: Iterable[str]) -> Metric:
        kind: Kind = "counter" if family.type == "counter" else "gauge"
        metric = self._metrics[name] = Metric(
            name, "self", "", kind, tuple(sorted(labels)), family.documentation, "prometheus_client"
        )
        # ours writes each value once, and only what has changed: a stock writer would be a fifth of a poll's page
        self._renderer = Renderer(tuple(self._metrics.values()))
        return metric
