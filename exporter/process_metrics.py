"""The exporter's metrics about itself, by prometheus_client in a registry of their own."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from exporter.exposition import OPENMETRICS_END, Texts


def installed_version() -> str:
    """Return the version of the installed distribution; "unknown" when run from a bare source tree."""
    try:
        return version("gpuscale")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class _Collected:
    """What one look at the process found, so that both formats say the same."""

    families: tuple[MetricFamily, ...]

    def collect(self) -> tuple[MetricFamily, ...]:
        return self.families


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
        collected = _Collected(tuple(self._registry.collect()))
        plain = generate_latest(collected).decode()
        openmetrics = generate_openmetrics(collected).decode()  # type: ignore[no-untyped-call]
        return Texts(plain, openmetrics.removesuffix(OPENMETRICS_END))
