"""PURE: holdings -> the container series, and why one is missing.

Why it exists: apart from samples.py, which speaks of GPUs. Device facts stay on the device: a container has only what
its processes, or what it holds alone, can prove.
"""

from collections.abc import Mapping

from exporter import catalogue as c
from exporter.believable import PIB, at_most, percent, sum_known
from exporter.exposition import Labels
from exporter.holdings import NO_DATA, SHARED_GPU, Holding, Holdings
from exporter.readings import GpuReading

BYTES_PER_MEGABYTE = 2**20
_Samples = dict[c.Metric, dict[Labels, float]]


def container_samples(
    who: Holdings, gpus: Mapping[str, GpuReading], node: str, health: _Samples, values: _Samples
) -> None:
    """Add one series per container, GPU and family. gpus: uuid -> each readable one, with believable values only."""
    for failed in who.unheld:
        health[c.CONTAINER_ATTRIBUTION][(node, failed.device, *failed.holder, failed.reason)] = 0
    for holding in who.told_of(gpus).held:
        reason = _publish(holding, node, values)
        health[c.CONTAINER_ATTRIBUTION][(node, holding.gpu.uuid, *holding.holder, reason)] = int(not reason)


def _publish(holding: Holding, node: str, values: _Samples) -> str:
    """Publish one container's use of one GPU. Returns why nothing could be said of it, or ""."""
    gpu = holding.gpu
    usage, used = _by_process(gpu, holding.pids) if holding.whole else (None, _of_instances(holding))
    total: float | None = gpu.memory_total_bytes
    reserved: float | None = None
    if holding.exclusive:
        total, reserved = _size(holding, "memory_total_bytes"), _size(holding, "memory_reserved_bytes")
        usage = gpu.utilization_percent if usage is None and holding.whole else usage
        used = _used_alone(holding) if used is None else at_most(used, total)
    published = {
        c.CONTAINER_USAGE: usage,
        c.CONTAINER_MEMORY_USED: _megabytes(used),
        c.CONTAINER_MEMORY_USAGE: percent(used, total),
    }
    if holding.exclusive:
        published[c.CONTAINER_MEMORY_CAPACITY] = _megabytes(total)
        published[c.CONTAINER_MEMORY_FREE] = _megabytes(_can_take(holding, _left(total, reserved, used)))
    for metric, value in published.items():
        if value is not None:
            values[metric][(node, gpu.uuid, gpu.name, *holding.holder)] = value
    if usage is None and used is None:
        return NO_DATA if holding.exclusive else SHARED_GPU
    return ""


def _size(holding: Holding, field: str) -> float | None:
    """Add up a memory figure over all that is held: the GPU, or its instances, each once."""
    things = [piece.instance or holding.gpu for piece in holding.pieces]
    return sum_known((getattr(thing, field) for thing in things), PIB)


def _by_process(gpu: GpuReading, pids: frozenset[int] | None) -> tuple[float | None, float | None]:
    """Utilisation (percent, at most 100) and memory (bytes) of these processes on this GPU; None = not known."""
    if pids is None or gpu.processes is None:
        return None, None
    mine = [process for process in gpu.processes if process.pid in pids]
    usage = sum_known((process.utilization_percent for process in mine), 100)
    used = sum_known((process.memory_used_bytes for process in mine), gpu.memory_total_bytes or PIB)
    # memory that processes share is counted for each of them
    return at_most(usage, 100.0), at_most(used, gpu.memory_total_bytes)


def _of_instances(holding: Holding) -> float | None:
    """Memory (bytes) of the container's processes on instances that it shares; None = not known.

    Its own are those in compute instances that nobody else holds, where the driver tells in which each runs.
    """
    pids = _in_own_parts(holding) if holding.pids is None else holding.pids
    mine = any(p.pid in pids for p in holding.gpu.processes or ())
    # the board's list may leave out what runs on its instances: no process does not prove that none runs
    return _by_process(holding.gpu, pids)[1] if mine and not holding.exclusive else None


def _in_own_parts(holding: Holding) -> frozenset[int]:
    own = {(piece.slot, part) for piece in holding.pieces for part in piece.own_parts}
    return frozenset(p.pid for p in holding.gpu.processes or () if (p.gpu_instance, p.compute_instance) in own)


def _used_alone(holding: Holding) -> float | None:
    gpu = holding.gpu
    # a driver asked from another pid namespace lists no processes: an empty list does not prove that none runs
    if holding.whole and gpu.processes:
        used = sum_known((process.memory_used_bytes for process in gpu.processes), gpu.memory_total_bytes or PIB)
        if used is not None:
            return at_most(used, gpu.memory_total_bytes)
    return _size(holding, "memory_used_bytes")


def _left(total: float | None, reserved: float | None, used: float | None) -> float | None:
    return None if total is None or used is None else max(0.0, total - (reserved or 0) - used)


def _can_take(holding: Holding, left: float | None) -> float | None:
    """Of unified memory the host takes too: no more is left than is free."""
    return at_most(left, holding.gpu.memory_free_bytes) if holding.gpu.memory_unified else left


def _megabytes(size: float | None) -> float | None:
    return None if size is None else size / BYTES_PER_MEGABYTE
