"""The exporter's metrics about itself, by prometheus_client in a registry of their own."""

import re
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from exporter.exposition import Texts

_COUNTER_HEAD = re.compile(r"^(# (?:HELP|TYPE) [^ ]+)_total( )", re.MULTILINE)


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

    def render(self) -> Texts:
        """Write the current values in both formats."""
        plain = generate_latest(self._registry).decode()
        # the formats differ in the heads of counters alone, and writing both would be a fifth of a poll's page
        return Texts(plain, _COUNTER_HEAD.sub(r"\1\2", plain))
