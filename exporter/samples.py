"""PURE: Snapshot -> samples, and all conversion of units.

Why it exists: what may be published, in which unit and about whom is decided here and nowhere else. A value
that is not known, or cannot be true, is not published; why is a series of its own.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from exporter import catalogue as c
from exporter import samples_boards
from exporter.exposition import Families, Labels
from exporter.health import DEFAULT_POLICY, HealthPolicy, Verdict, judge
from exporter.readings import AbsentReason, Allocation, GpuReading, Snapshot, SourceState

BYTES_PER_MEGABYTE = 2**20

# field of GpuReading -> family, divisor, smallest and largest value (in the reading's unit) that can be true
_PIB = 2.0**50
NODE_FIELDS: tuple[tuple[str, c.Metric, float, float, float], ...] = (
    ("utilization_percent", c.NODE_USAGE, 1, 0, 100),
    ("memory_free_bytes", c.NODE_MEMORY_FREE, BYTES_PER_MEGABYTE, 0, _PIB),
    ("memory_total_bytes", c.NODE_MEMORY_CAPACITY, BYTES_PER_MEGABYTE, 1, _PIB),
    ("memory_used_bytes", c.NODE_MEMORY_USED, BYTES_PER_MEGABYTE, 0, _PIB),
    ("memory_reserved_bytes", c.NODE_MEMORY_RESERVED, BYTES_PER_MEGABYTE, 0, _PIB),
    ("memory_utilization_percent", c.NODE_MEMORY_CONTROLLER_USAGE, 1, 0, 100),
    ("temperature_celsius", c.NODE_TEMPERATURE, 1, 0, 200),
    ("power_watts", c.NODE_POWER, 1, 0, 10_000),
)
# these are parts of the total: more than the total cannot be true
_PARTS_OF_TOTAL = ("memory_free_bytes", "memory_used_bytes", "memory_reserved_bytes")

_NODE_FIELD_NAMES = frozenset(row[0] for row in NODE_FIELDS)
_INFO_FACTS = c.NODE_INFO.labels[c.NODE_INFO.labels.index("driver_version") + 1 :]

# why a container's use of a device is not published: labels of gpuscale_container_attribution
SHARED_GPU = "shared_gpu"
MIG_DEVICE = "mig_device"
GPU_ABSENT = "gpu_absent"
UNKNOWN_DEVICE = "unknown_device"
NO_DATA = "no_data"

_Samples = dict[c.Metric, dict[Labels, float]]
_Holder = tuple[str, str, str]  # namespace, pod, container


def collect(snapshot: Snapshot, node: str, health_policy: HealthPolicy = DEFAULT_POLICY) -> tuple[Families, Families]:
    """Return the samples of health, and those of values (node and container families), of one node at one moment."""
    health: _Samples = defaultdict(dict)
    values: _Samples = defaultdict(dict)
    _node_health(snapshot, node, health)
    known: dict[str, GpuReading] = {}
    for gpu in snapshot.gpus:
        _gpu_health(gpu, node, health)
        _verdict(judge(gpu, snapshot.taken_at, health_policy), (node, gpu.uuid, gpu.name), health)
        if gpu.fault is None:
            known[gpu.uuid] = _gpu_values(gpu, node, snapshot.driver_version, health, values)
    _containers(snapshot, node, known, health, values)
    return health, values


def withdrawn(snapshot: Snapshot) -> Snapshot:
    """Leave what may still be said of a snapshot that is too old: which GPUs there were, and that nothing is known."""
    stale = SourceState(up=False, reason="stale", message="the last poll is too long ago; its values are withdrawn")
    gpus = tuple(GpuReading(g.uuid, g.index, g.name, fault=AbsentReason.STALE) for g in snapshot.gpus)
    return dataclasses.replace(snapshot, gpus=gpus, allocations=None, driver=stale, kubelet=stale)


def _node_health(snapshot: Snapshot, node: str, health: _Samples) -> None:
    health[c.DRIVER_UP][(node, snapshot.driver.reason)] = int(snapshot.driver.up)
    health[c.KUBELET_UP][(node, snapshot.kubelet.reason)] = int(snapshot.kubelet.up)
    health[c.GPUS_EXPECTED][(node,)] = len(snapshot.gpus)
    health[c.GPUS_SEEN][(node,)] = sum(gpu.fault is None for gpu in snapshot.gpus)
    health[c.SNAPSHOT_TIMESTAMP][(node,)] = snapshot.taken_at
    health[c.POLL_DURATION][(node,)] = snapshot.poll_seconds
    health[c.POLLS][(node,)] = snapshot.polls
    health[c.DRIVER_FAILURES][(node,)] = snapshot.driver_failures


def _gpu_health(gpu: GpuReading, node: str, health: _Samples) -> None:
    labels = (node, gpu.uuid, gpu.name)
    health[c.GPU_UP][labels] = int(gpu.fault is None)
    if gpu.fault is not None:
        health[c.GPU_ABSENT][(*labels, gpu.fault.value)] = 1
    if gpu.fault is None or gpu.read_seconds:
        health[c.GPU_READ_SECONDS][(node, gpu.uuid)] = gpu.read_seconds


def _verdict(verdict: Verdict | None, labels: Labels, health: _Samples) -> None:
    if verdict is None:
        return
    health[c.GPU_HEALTH][labels] = int(verdict.level)
    for finding in verdict.findings:
        health[c.GPU_HEALTH_REASON][(*labels, finding.reason)] = int(finding.level)


def _gpu_values(gpu: GpuReading, node: str, driver: str, health: _Samples, values: _Samples) -> GpuReading:
    """Publish one readable GPU. Returns the reading with every field that cannot be true set to None."""
    labels = (node, gpu.uuid, gpu.name)
    believed: dict[str, Any] = {}
    for field, metric, divisor, smallest, largest in NODE_FIELDS:
        value = getattr(gpu, field)
        limit = _limit(field, gpu, largest)
        if _believable(value, smallest, limit):
            believed[field] = value
            values[metric][labels] = value / divisor
        else:
            believed[field] = None
            health[c.GPU_CAPABILITY][(node, gpu.uuid, field, _why(gpu, field))] = 0
    used_percent = _percent(believed["memory_used_bytes"], believed["memory_total_bytes"])
    if used_percent is not None:
        values[c.NODE_MEMORY_USAGE][labels] = used_percent
    values[c.NODE_INFO][(*labels, str(gpu.index), driver, *(gpu.facts.get(fact, "") for fact in _INFO_FACTS))] = 1
    _further(gpu, node, health, values)
    return dataclasses.replace(gpu, **believed)


def _further(gpu: GpuReading, node: str, health: _Samples, values: _Samples) -> None:
    wrong = samples_boards.board(gpu, node, values)
    samples_boards.instances(gpu, node, values)
    why = dict.fromkeys(wrong, AbsentReason.OUT_OF_RANGE.value)
    why |= {field: reason.value for field, reason in gpu.absent.items() if field not in _NODE_FIELD_NAMES}
    for field, reason in why.items():
        health[c.GPU_CAPABILITY][(node, gpu.uuid, field, reason)] = 0


def _limit(field: str, gpu: GpuReading, largest: float) -> float:
    if field in _PARTS_OF_TOTAL and _believable(gpu.memory_total_bytes, 1, largest):
        return float(gpu.memory_total_bytes or 0)
    return largest


def _believable(value: float | None, smallest: float, largest: float) -> bool:
    # NaN fails both comparisons, infinity the second
    return value is not None and smallest <= value <= largest


def _why(gpu: GpuReading, field: str) -> str:
    if getattr(gpu, field) is not None:
        return AbsentReason.OUT_OF_RANGE.value
    return gpu.absent.get(field, AbsentReason.NOT_SUPPORTED).value


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


@dataclasses.dataclass(slots=True)
class _Claim:
    """What one container holds of one GPU, over all its ids of that GPU."""

    whole: bool = True
    """False once an id is a replica of the GPU rather than the GPU."""
    pids: set[int] | None = None


def _containers(
    snapshot: Snapshot, node: str, known: dict[str, GpuReading], health: _Samples, values: _Samples
) -> None:
    absent = {gpu.uuid for gpu in snapshot.gpus} - known.keys()
    claims: dict[str, dict[_Holder, _Claim]] = defaultdict(dict)
    for allocation in snapshot.allocations or ():
        holder = (allocation.namespace, allocation.pod, allocation.container)
        for device in allocation.device_ids:
            uuid, whole = _parse(device)
            if uuid in known:
                _add(claims[uuid].setdefault(holder, _Claim()), whole, allocation)
            elif reason := _unattributable(device, uuid, absent, allocation.resource):
                health[c.CONTAINER_ATTRIBUTION][(node, uuid, *holder, reason)] = 0
    for uuid, holders in claims.items():
        alone = len(holders) == 1
        for holder, claim in holders.items():
            reason = _container(known[uuid], node, holder, claim, values, alone=alone)
            health[c.CONTAINER_ATTRIBUTION][(node, uuid, *holder, reason)] = int(not reason)


def _parse(device_id: str) -> tuple[str, bool]:
    """Split a kubelet's device id into the uuid in it, and whether the id stands for the whole device."""
    uuid, replica, _ = device_id.partition("::")
    return uuid, not replica


def _add(claim: _Claim, whole: bool, allocation: Allocation) -> None:  # noqa: FBT001 - follows from _parse
    claim.whole = claim.whole and whole
    if allocation.pids is not None:
        claim.pids = (claim.pids or set()) | set(allocation.pids)


def _unattributable(device: str, uuid: str, absent: set[str], resource: str) -> str:
    if device.startswith("MIG-"):
        return MIG_DEVICE
    if uuid in absent:
        return GPU_ABSENT
    # other vendors' devices are none of our business; an unknown GPU is
    return UNKNOWN_DEVICE if device.startswith("GPU-") or resource.startswith("nvidia.com/") else ""


def _container(gpu: GpuReading, node: str, holder: _Holder, claim: _Claim, values: _Samples, *, alone: bool) -> str:
    """Publish one container's use of one GPU. Returns why nothing could be said of it, or ""."""
    exclusive = alone and claim.whole
    usage, used = _by_process(gpu, claim.pids)
    if exclusive:
        usage = gpu.utilization_percent if usage is None else usage
        used = _used_alone(gpu) if used is None else used
    total = gpu.memory_total_bytes
    labels = (node, gpu.uuid, gpu.name, *holder)
    published = {
        c.CONTAINER_USAGE: usage,
        c.CONTAINER_MEMORY_USED: _megabytes(used),
        c.CONTAINER_MEMORY_USAGE: _percent(used, total),
    }
    if exclusive:
        published[c.CONTAINER_MEMORY_CAPACITY] = _megabytes(total)
        published[c.CONTAINER_MEMORY_FREE] = _megabytes(_left(total, gpu.memory_reserved_bytes, used))
    for metric, value in published.items():
        if value is not None:
            values[metric][labels] = value
    if usage is None and used is None:
        return NO_DATA if exclusive else SHARED_GPU
    return ""


def _by_process(gpu: GpuReading, pids: set[int] | None) -> tuple[float | None, float | None]:
    """Utilisation (percent, at most 100) and memory (bytes) of these processes on this GPU; None = not known."""
    if pids is None or gpu.processes is None:
        return None, None
    mine = [process for process in gpu.processes if process.pid in pids]
    usage = _sum_known((process.utilization_percent for process in mine), 100)
    used = _sum_known((process.memory_used_bytes for process in mine), gpu.memory_total_bytes or _PIB)
    return (None if usage is None else min(usage, 100.0)), _within(used, gpu.memory_total_bytes)


def _used_alone(gpu: GpuReading) -> float | None:
    # a driver asked from another pid namespace lists no processes: an empty list does not prove that none runs
    if gpu.processes:
        used = _sum_known((process.memory_used_bytes for process in gpu.processes), gpu.memory_total_bytes or _PIB)
        if used is not None:
            return _within(used, gpu.memory_total_bytes)
    return gpu.memory_used_bytes


def _sum_known(parts: Iterable[float | None], largest: float) -> float | None:
    """Add up, or None if one part is unknown or cannot be true."""
    total = 0.0
    for part in parts:
        if part is None or not _believable(part, 0, largest):
            return None
        total += part
    return total


def _within(used: float | None, total: float | None) -> float | None:
    # memory that processes share is counted for each of them
    return used if used is None or total is None else min(used, total)


def _left(total: float | None, reserved: float | None, used: float | None) -> float | None:
    return None if total is None or used is None else max(0.0, total - (reserved or 0) - used)


def _megabytes(size: float | None) -> float | None:
    return None if size is None else size / BYTES_PER_MEGABYTE
