"""The instances of a GPU in MIG mode, found anew at each poll.

Why it exists: instances come and go while the exporter runs, their places in the driver's list have gaps, and a handle
kept over a poll may by then belong to another instance.
"""

from collections.abc import Callable, Iterable

import pynvml

from exporter.nvml.calls import Absent, GpuCalls, Handle, Memory, insist
from exporter.readings import AbsentReason, MigReading

SmActive = Callable[[int, str], float | None]
"""GPU instance, profile -> part of the time in which its SMs had work; None = not known."""


_Place = tuple[int, int]
"""id of the profile, first memory slice"""
_LASTING = frozenset({AbsentReason.NOT_SUPPORTED, AbsentReason.NO_PERMISSION})


class Places:
    """Where the GPU instances of one GPU lie. Asked for once per instance: one that is made anew has another uuid."""

    def __init__(self) -> None:
        self._known: dict[str, _Place | Absent] = {}

    def of(self, gpu: GpuCalls, uuid: str, gpu_instance: int) -> _Place | Absent:
        """Return where the instance with that uuid lies, or why the driver does not tell. Raises as ``instances``."""
        known = self._known.get(uuid)
        if known is not None:
            return known
        place = _place(gpu, gpu_instance)
        if not isinstance(place, Absent) or place.reason in _LASTING:
            self._known[uuid] = place
        return place

    def keep(self, uuids: Iterable[str]) -> None:
        """Forget all other instances."""
        self._known = {uuid: self._known[uuid] for uuid in uuids if uuid in self._known}


def instances(gpu: GpuCalls, sm_active: SmActive, places: Places) -> tuple[MigReading, ...] | Absent:
    """Return every compute instance; memory is asked for once per GPU instance. Raises GpuError, DriverError."""
    slots = gpu.first(("nvmlDeviceGetMaxMigDeviceCount", pynvml.nvmlDeviceGetMaxMigDeviceCount))
    if isinstance(slots, Absent):
        return slots
    memories: dict[int, Memory | Absent] = {}
    found = []
    for slot in range(slots):
        handle = insist(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu.handle, slot)
        # an empty slot says nothing about the next one
        reading = None if isinstance(handle, Absent) else _instance(gpu, handle, memories, sm_active, places)
        if reading is not None:
            found.append(reading)
    places.keep(reading.uuid for reading in found)
    return tuple(found)


def _place(gpu: GpuCalls, gpu_instance: int) -> _Place | Absent:
    name = "nvmlDeviceGetGpuInstanceById"
    handle = gpu.first((name, lambda board: pynvml.nvmlDeviceGetGpuInstanceById(board, gpu_instance)))
    if isinstance(handle, Absent):
        return handle
    info = insist(pynvml.nvmlGpuInstanceGetInfo, handle)
    return info if isinstance(info, Absent) else (int(info.profileId), int(info.placement.start))


def _instance(
    gpu: GpuCalls, handle: Handle, memories: dict[int, Memory | Absent], sm_active: SmActive, places: Places
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
    place = places.of(gpu, str(uuid), gpu_instance)
    profile_id, start = (None, None) if isinstance(place, Absent) else place
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
        profile_id=profile_id,
        placement_start=start,
    )


def _profile(name: str | Absent) -> str:
    """``NVIDIA H200 MIG 1c.4g.71gb`` -> ``1c.4g.71gb``."""
    return "" if isinstance(name, Absent) else str(name).rpartition(" MIG ")[2]


def because_split(value: object) -> object:
    """Return MIG as the reason where a split GPU does not support something."""
    unsupported = isinstance(value, Absent) and value.reason is AbsentReason.NOT_SUPPORTED
    return Absent(AbsentReason.MIG_ENABLED) if unsupported else value
