"""The instances of a GPU in MIG mode, found anew at each poll.

Why it exists: instances come and go while the exporter runs, their places in the driver's list have gaps, and a handle
kept over a poll may by then belong to another instance.
"""

from collections.abc import Callable

import pynvml

from exporter.nvml.calls import Absent, GpuCalls, Handle, Memory, insist
from exporter.readings import AbsentReason, MigReading

SmActive = Callable[[int, str], float | None]
"""GPU instance, profile -> part of the time in which its SMs had work; None = not known."""


def instances(gpu: GpuCalls, sm_active: SmActive) -> tuple[MigReading, ...] | Absent:
    """Return every compute instance; memory is asked for once per GPU instance. Raises GpuError, DriverError."""
    places = gpu.first(("nvmlDeviceGetMaxMigDeviceCount", pynvml.nvmlDeviceGetMaxMigDeviceCount))
    if isinstance(places, Absent):
        return places
    memories: dict[int, Memory | Absent] = {}
    found = []
    for place in range(places):
        handle = insist(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu.handle, place)
        # an empty place says nothing about the next one
        reading = None if isinstance(handle, Absent) else _instance(gpu, handle, memories, sm_active)
        if reading is not None:
            found.append(reading)
    return tuple(found)


def _instance(
    gpu: GpuCalls, handle: Handle, memories: dict[int, Memory | Absent], sm_active: SmActive
) -> MigReading | None:
    uuid = insist(pynvml.nvmlDeviceGetUUID, handle)
    gpu_instance = insist(pynvml.nvmlDeviceGetGpuInstanceId, handle)
    compute_instance = insist(pynvml.nvmlDeviceGetComputeInstanceId, handle)
    if isinstance(uuid, Absent) or isinstance(gpu_instance, Absent) or isinstance(compute_instance, Absent):
        return None  # it has just gone
    profile = _profile(insist(pynvml.nvmlDeviceGetName, handle))
    if gpu_instance not in memories:
        memories[gpu_instance] = gpu.memory_of(handle)
    memory = memories[gpu_instance]
    known = None if isinstance(memory, Absent) else memory
    return MigReading(
        str(uuid),
        gpu_instance,
        compute_instance,
        profile,
        memory_total_bytes=None if known is None else known.total,
        memory_used_bytes=None if known is None else known.used,
        memory_free_bytes=None if known is None else known.free,
        memory_reserved_bytes=None if known is None else known.reserved,
        sm_active_ratio=sm_active(gpu_instance, profile),
    )


def _profile(name: str | Absent) -> str:
    """``NVIDIA H200 MIG 1c.4g.71gb`` -> ``1c.4g.71gb``."""
    return "" if isinstance(name, Absent) else str(name).rpartition(" MIG ")[2]


def because_split(value: object) -> object:
    """Return MIG as the reason where a split GPU does not support something."""
    unsupported = isinstance(value, Absent) and value.reason is AbsentReason.NOT_SUPPORTED
    return Absent(AbsentReason.MIG_ENABLED) if unsupported else value
