"""Facts to publish, and what a published text says: shared by the exporter's tests."""

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from exporter.exposition import OPENMETRICS_END, Renderer
from exporter.holdings import held_at
from exporter.readings import Allocation, GpuReading, ProcessReading, Snapshot, SourceState
from exporter.samples import collect

MIB = 2**20
UP = SourceState(up=True)
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def gpu(uuid: str = "GPU-a", **changed: Any) -> GpuReading:
    facts: dict[str, Any] = {
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total_bytes": 80000 * MIB,
        "memory_used_bytes": 20000 * MIB,
        "memory_free_bytes": 59000 * MIB,
        "memory_reserved_bytes": 1000 * MIB,
        "utilization_percent": 55,
        "memory_utilization_percent": 30,
        "temperature_celsius": 48,
        "power_watts": 350.5,
        "read_seconds": 0.004,
    }
    return GpuReading(uuid, **(facts | changed))


def process(pid: int, uuid: str = "GPU-a", mib: int | None = 8192, busy: float | None = 40) -> ProcessReading:
    return ProcessReading(pid, uuid, None if mib is None else mib * MIB, busy, "python")


def holds(pod: str, *ids: str, pids: tuple[int, ...] | None = None, container: str = "main") -> Allocation:
    return Allocation("ml", pod, container, "nvidia.com/gpu", ids, pids)


def snapshot(*gpus: GpuReading, allocations: tuple[Allocation, ...] | None = (), **changed: Any) -> Snapshot:
    facts: dict[str, Any] = {
        "taken_at": 1700000000.5,
        "driver": UP,
        "kubelet": UP,
        "driver_version": "550.54.15",
        "poll_seconds": 0.015625,
        "polls": 7,
    }
    return Snapshot(gpus=gpus, allocations=allocations, **(facts | changed))


def published(of: Snapshot, node: str = "n1") -> Series:
    """Every series of that snapshot, as Prometheus' own parser reads it from the text."""
    health, values = collect(of, held_at(of), node)
    return read(Renderer().render({**values, **health}).plain)


def read(text: str) -> Series:
    return _series(parse_plain(text))


def read_openmetrics(text: str) -> Series:
    assert text.endswith(OPENMETRICS_END)
    return _series(parse_openmetrics(text))


def _series(families: Any) -> Series:
    found: Series = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is printed twice"
            found[key] = sample.value
    return found


def values(series: Series, name: str, **labels: str) -> list[float]:
    """The values of a family whose labels include these, in the order of their label sets."""
    wanted = set(labels.items())
    rows = [(sorted(have), value) for (known, have), value in series.items() if known == name and wanted <= have]
    return [value for _, value in sorted(rows)]


def names(series: Series) -> set[str]:
    return {name for name, _ in series}
