"""PURE: Snapshot -> samples, and all conversion of units.

Why it exists: what may be published, in which unit and about whom is decided here and nowhere else. A value
that is not known, or cannot be true, is not published; why is a series of its own.
"""

import dataclasses
from collections import defaultdict
from typing import Any

from exporter import catalogue as c
from exporter import samples_boards
from exporter.believable import PIB, believable, percent
from exporter.containers import BYTES_PER_MEGABYTE, container_samples
from exporter.exposition import Families, Labels
from exporter.health import DEFAULT_POLICY, HealthPolicy, Verdict, judge
from exporter.holdings import Holdings
from exporter.readings import AbsentReason, GpuReading, Snapshot, SourceState

# field of GpuReading -> family, divisor, smallest and largest value (in the reading's unit) that can be true
NODE_FIELDS: tuple[tuple[str, c.Metric, float, float, float], ...] = (
    ("utilization_percent", c.NODE_USAGE, 1, 0, 100),
    ("memory_free_bytes", c.NODE_MEMORY_FREE, BYTES_PER_MEGABYTE, 0, PIB),
    ("memory_total_bytes", c.NODE_MEMORY_CAPACITY, BYTES_PER_MEGABYTE, 1, PIB),
    ("memory_used_bytes", c.NODE_MEMORY_USED, BYTES_PER_MEGABYTE, 0, PIB),
    ("memory_reserved_bytes", c.NODE_MEMORY_RESERVED, BYTES_PER_MEGABYTE, 0, PIB),
    ("memory_utilization_percent", c.NODE_MEMORY_CONTROLLER_USAGE, 1, 0, 100),
    ("temperature_celsius", c.NODE_TEMPERATURE, 1, 0, 200),
    ("power_watts", c.NODE_POWER, 1, 0, 10_000),
)
# these are parts of the total: more than the total cannot be true
_PARTS_OF_TOTAL = ("memory_free_bytes", "memory_used_bytes", "memory_reserved_bytes")

_NODE_FIELD_NAMES = frozenset(row[0] for row in NODE_FIELDS)
_INFO_FACTS = ("minor_number", "pci_bus_id", "architecture")
_BOARD_FACTS = ("serial", "vbios_version")

_Samples = dict[c.Metric, dict[Labels, float]]


def collect(
    snapshot: Snapshot, who: Holdings, node: str, health_policy: HealthPolicy = DEFAULT_POLICY
) -> tuple[Families, Families]:
    """Return the samples of health, and those of values (node and container families), of one node at one moment.

    who: the holdings of this snapshot.
    """
    health: _Samples = defaultdict(dict)
    values: _Samples = defaultdict(dict)
    _node_health(snapshot, node, health)
    known: dict[str, GpuReading] = {}
    for gpu in snapshot.gpus:
        _gpu_health(gpu, node, health)
        _verdict(judge(gpu, snapshot.taken_at, health_policy), (node, gpu.uuid, gpu.name), health)
        if gpu.fault is None:
            known[gpu.uuid] = _gpu_values(gpu, node, snapshot.driver_version, health, values)
    container_samples(who, known, node, health, values)
    return health, values


def withdrawn(snapshot: Snapshot) -> Snapshot:
    """Leave what may still be said of a snapshot that is too old: which GPUs there were, and that nothing is known."""
    stale = SourceState(up=False, reason="stale", message="the last poll is too long ago; its values are withdrawn")
    gpus = tuple(GpuReading(g.uuid, g.index, g.name, fault=AbsentReason.STALE) for g in snapshot.gpus)
    return dataclasses.replace(
        snapshot, gpus=gpus, allocations=None, driver=stale, kubelet=stale, processes=stale, unresolved_processes={}
    )


def _node_health(snapshot: Snapshot, node: str, health: _Samples) -> None:
    health[c.DRIVER_UP][(node, snapshot.driver.reason)] = int(snapshot.driver.up)
    health[c.KUBELET_UP][(node, snapshot.kubelet.reason)] = int(snapshot.kubelet.up)
    health[c.PROCESSES_UP][(node, snapshot.processes.reason)] = int(snapshot.processes.up)
    for reason, count in snapshot.unresolved_processes.items():
        health[c.UNRESOLVED_PROCESSES][(node, reason)] = count
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
    doubted: dict[str, Any] = {}
    for field, metric, divisor, smallest, largest in NODE_FIELDS:
        value = getattr(gpu, field)
        limit = _limit(field, gpu, largest)
        if believable(value, smallest, limit):
            values[metric][labels] = value / divisor
        else:
            doubted |= {} if value is None else {field: None}
            health[c.GPU_CAPABILITY][(node, gpu.uuid, field, _why(gpu, field))] = 0
    # few have anything to doubt, and a copy of a reading costs as much as all its series
    believed = dataclasses.replace(gpu, **doubted) if doubted else gpu
    used_percent = percent(believed.memory_used_bytes, believed.memory_total_bytes)
    if used_percent is not None:
        values[c.NODE_MEMORY_USAGE][labels] = used_percent
    place = (gpu.facts.get(fact, "") for fact in _INFO_FACTS)
    values[c.NODE_INFO][(*labels, str(gpu.index), driver, *place, _unified(gpu))] = 1
    values[c.NODE_BOARD_INFO][(*labels, *(gpu.facts.get(fact, "") for fact in _BOARD_FACTS))] = 1
    _further(gpu, node, health, values)
    return believed


def _unified(gpu: GpuReading) -> str:
    if gpu.memory_unified:
        return "true"
    return "false" if gpu.memory_total_bytes is not None else ""


def _further(gpu: GpuReading, node: str, health: _Samples, values: _Samples) -> None:
    wrong = samples_boards.board(gpu, node, values)
    samples_boards.instances(gpu, node, values)
    why = dict.fromkeys(wrong, AbsentReason.OUT_OF_RANGE.value)
    why |= {field: reason.value for field, reason in gpu.absent.items() if field not in _NODE_FIELD_NAMES}
    for field, reason in why.items():
        health[c.GPU_CAPABILITY][(node, gpu.uuid, field, reason)] = 0


def _limit(field: str, gpu: GpuReading, largest: float) -> float:
    if field in _PARTS_OF_TOTAL and believable(gpu.memory_total_bytes, 1, largest):
        return float(gpu.memory_total_bytes or 0)
    return largest


def _why(gpu: GpuReading, field: str) -> str:
    if getattr(gpu, field) is not None:
        return AbsentReason.OUT_OF_RANGE.value
    return gpu.absent.get(field, AbsentReason.NOT_SUPPORTED).value
