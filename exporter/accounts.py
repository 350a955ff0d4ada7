"""GPU-seconds, added up from poll to poll: allocated, busy and SM-active, per container and per GPU.

Why it exists: what a container was given, and what it made of it, is a sum over time. Whoever scrapes rarely, or
not for an hour, gets it from counters; gauges would have to be guessed between scrapes.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from exporter import catalogue_seconds as c
from exporter.believable import believable, sum_known
from exporter.exposition import Families, Labels
from exporter.holdings import Holder, Holding, Holdings, Piece
from exporter.metric import Metric
from exporter.readings import GpuReading, Snapshot

_Key = tuple[str, Holder]


@dataclass(frozen=True, slots=True)
class Share:
    """One container's part of one GPU at one moment, each in GPUs (0-1). None = not known."""

    gpu: GpuReading
    holder: Holder
    allocated: float | None
    busy: float | None
    sm_active: float | None


def shares(who: Holdings) -> tuple[Share, ...]:
    """PURE: every container's part of every readable GPU. Over the containers of a GPU, no figure exceeds 1."""
    return tuple(Share(h.gpu, h.holder, _allocated(h), _busy(h), _sm_active(h)) for h in who.held)


def busy_ratio(gpu: GpuReading) -> float | None:
    """Part of the time (0-1) in which the GPU was busy; None = not known."""
    percent = gpu.utilization_percent
    return None if gpu.fault or percent is None or not believable(percent, 0, 100) else percent / 100


def _allocated(holding: Holding) -> float | None:
    sizes = (_size(piece, holding.gpu) for piece in holding.pieces)
    parts = (None if s is None else s / p.holders for s, p in zip(sizes, holding.pieces, strict=True))
    return sum_known(parts, 1)


def _size(piece: Piece, gpu: GpuReading) -> float | None:
    """How much of a GPU it is: of an instance, its part of the board's memory."""
    if piece.instance is None:
        return 1.0
    part, whole = piece.instance.memory_total_bytes, gpu.memory_total_bytes
    return part / whole if part is not None and whole and believable(part, 0, whole) else None


def _busy(holding: Holding) -> float | None:
    busy = busy_ratio(holding.gpu)
    if busy is None or not holding.whole:
        return None
    part = _part_of_processes(holding)
    if part is not None:
        return busy * part
    return busy if holding.exclusive else None


def _part_of_processes(holding: Holding) -> float | None:
    """Which part (0-1) of all processes' utilisation is the container's own; None = not known."""
    processes, pids = holding.gpu.processes, holding.pids
    if processes is None or pids is None:
        return None
    everyone = sum_known((p.utilization_percent for p in processes), 100)
    mine = sum_known((p.utilization_percent for p in processes if p.pid in pids), 100)
    if everyone is None or mine is None:
        return None
    if everyone:
        return mine / everyone
    # busy by nobody: a sampling gap of a container that is alone with its own processes, else nobody's
    return None if holding.exclusive and pids else 0.0


def _sm_active(holding: Holding) -> float | None:
    if not holding.exclusive:
        return None
    return sum_known((_active(piece, holding.gpu) for piece in holding.pieces), 1)


def _active(piece: Piece, gpu: GpuReading) -> float | None:
    ratio, size = (piece.instance or gpu).sm_active_ratio, _size(piece, gpu)
    return ratio * size if ratio is not None and size is not None and believable(ratio, 0, 1) else None


@dataclass(slots=True)
class _Sums:
    allocated: float = 0.0
    busy: float = 0.0
    sm_active: float = 0.0


@dataclass(slots=True)
class _GpuSums:
    busy: float = 0.0
    unattributed: float = 0.0


@dataclass(slots=True)
class Accounts:
    """The sums since the start. They end with what they are about, so that pods that come and go leave nothing.

    longest_seconds: at most this much of the time between two polls counts; more was seen by nobody.
    """

    longest_seconds: float
    _containers: dict[_Key, _Sums] = field(default_factory=lambda: defaultdict(_Sums))
    _gpus: dict[str, _GpuSums] = field(default_factory=lambda: defaultdict(_GpuSums))
    _last: float | None = None

    def add(self, snapshot: Snapshot, who: Holdings, at: float, node: str) -> Families:
        """Add what passed since the last call; ``at`` in monotonic seconds. Returns the counters that are known now.

        who: the holdings of this snapshot.
        """
        seconds = 0.0 if self._last is None else min(max(0.0, at - self._last), self.longest_seconds)
        self._last = at
        found = shares(who)
        values: dict[Metric, dict[Labels, float]] = defaultdict(dict)
        attributed: dict[str, float] = defaultdict(float)
        for share in found:
            attributed[share.gpu.uuid] += share.busy or 0.0
            self._add_container(share, seconds, (node, share.gpu.uuid, share.gpu.name, *share.holder), values)
        for gpu, busy in _known_busy(snapshot):
            sums = self._gpus[gpu.uuid]
            sums.busy += busy * seconds
            sums.unattributed += max(0.0, busy - attributed[gpu.uuid]) * seconds
            values[c.NODE_BUSY_SECONDS][(node, gpu.uuid, gpu.name)] = sums.busy
            values[c.NODE_UNATTRIBUTED_SECONDS][(node, gpu.uuid, gpu.name)] = sums.unattributed
        self._forget(snapshot)
        return values

    def _add_container(
        self, share: Share, seconds: float, labels: Labels, values: dict[Metric, dict[Labels, float]]
    ) -> None:
        sums = self._containers[share.gpu.uuid, share.holder]
        if share.allocated is not None:
            sums.allocated += share.allocated * seconds
            values[c.CONTAINER_ALLOCATED_SECONDS][labels] = sums.allocated
        if share.busy is not None:
            sums.busy += share.busy * seconds
            values[c.CONTAINER_BUSY_SECONDS][labels] = sums.busy
        if share.sm_active is not None:
            sums.sm_active += share.sm_active * seconds
            values[c.CONTAINER_SM_ACTIVE_SECONDS][labels] = sums.sm_active

    def _forget(self, snapshot: Snapshot) -> None:
        gpus = {gpu.uuid for gpu in snapshot.gpus}
        for uuid in self._gpus.keys() - gpus:
            del self._gpus[uuid]
        # while the kubelet is silent nobody has ended; nobody is added either
        if snapshot.allocations is None:
            return
        holders = {(a.namespace, a.pod, a.container) for a in snapshot.allocations}
        for key in [key for key in self._containers if key[0] not in gpus or key[1] not in holders]:
            del self._containers[key]


def _known_busy(snapshot: Snapshot) -> Iterator[tuple[GpuReading, float]]:
    for gpu in snapshot.gpus:
        busy = busy_ratio(gpu)
        if busy is not None:
            yield gpu, busy
