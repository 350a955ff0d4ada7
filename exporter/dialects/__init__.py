"""Other exporters' names for the same snapshot; only details that no native family has cost calls of their own.

Why it exists: dashboards, alerts and autoscalers are written for other exporters' names. They work unchanged, in
exactly their units, while the native names keep their own meaning on ``/metrics/native``.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from exporter import catalogue
from exporter.believable import believed
from exporter.dialects import aom, cce, dcgm, nvidia_smi
from exporter.dialects.rows import Row, Samples, View
from exporter.exposition import Families
from exporter.holdings import Holder, Holdings, Slot
from exporter.metric import Metric
from exporter.readings import Snapshot


@dataclass(frozen=True, slots=True)
class Dialect:
    """One exporter's way of speaking: the rows that it may print, and what prints them."""

    name: str
    title: str
    rows: tuple[Row, ...]
    speak: Callable[[View, Samples], None]
    detailed: bool = False
    """Whether rows of it are read from GpuReading.details."""


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("aom", "Huawei Cloud AOM", aom.ROWS, aom.speak),
        Dialect("dcgm", "NVIDIA dcgm-exporter", dcgm.ROWS, dcgm.speak, detailed=True),
        Dialect("nvidia_smi", "nvidia_gpu_exporter", nvidia_smi.ROWS, nvidia_smi.speak, detailed=True),
        Dialect("cce", "CCE AI suite (NVIDIA GPU)", cce.ROWS, cce.speak),
    )
}


@dataclass(frozen=True, slots=True)
class Spoken:
    """The dialects that one exporter speaks; ``labels`` are those that only the settings know."""

    names: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def detailed(self) -> bool:
        """Whether one of them asks for facts that are not read otherwise."""
        return any(DIALECTS[name].detailed for name in self.names)

    @property
    def order(self) -> tuple[Metric, ...]:
        """Every family that may be printed, in the order of printing."""
        return tuple(row.metric for name in self.names for row in DIALECTS[name].rows)

    @property
    def replaced(self) -> frozenset[Metric]:
        """The native families that give way, because a dialect has another meaning for their names."""
        names = {metric.name for metric in self.order}
        return frozenset(metric for metric in catalogue.CATALOGUE if metric.name in names)

    def families(self, snapshot: Snapshot, who: Holdings, node: str, values: Families) -> Families:
        """Say one snapshot in these dialects. ``who`` and ``values`` are its holdings and its native samples."""
        if not self.names:
            return {}
        gpus = tuple(believed(gpu) for gpu in snapshot.gpus if gpu.fault is None)
        view = View(snapshot, node, gpus, _holders(who), values, self.labels)
        samples: Samples = defaultdict(dict)
        for name in self.names:
            DIALECTS[name].speak(view, samples)
        return samples


def _holders(who: Holdings) -> dict[tuple[str, Slot], tuple[Holder, ...]]:
    found: dict[tuple[str, Slot], tuple[Holder, ...]] = {}
    for holding in who.held:
        for piece in holding.pieces:
            thing = (holding.gpu.uuid, piece.slot)
            found[thing] = (*found.get(thing, ()), holding.holder)
    return found
