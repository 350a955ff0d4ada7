"""PURE: the kubelet's allocations and the readings -> which container holds what part of which GPU, and how alone.

Why it exists: whose use something is, is decided here once; the container series and the counters of GPU-seconds
both follow it. What cannot be told gives a reason.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from exporter.device_ids import DeviceId, MigPlace, is_nvidia, parse_device_id, slices_of
from exporter.readings import Allocation, GpuReading, MigReading, Snapshot

# why a container's use of a device is not published: labels of gpuscale_container_attribution
SHARED_GPU = "shared_gpu"
MIG_DEVICE = "mig_device"
MIG_PLACE_UNKNOWN = "mig_place_unknown"
GPU_ABSENT = "gpu_absent"
UNKNOWN_DEVICE = "unknown_device"
NO_DATA = "no_data"

Holder = tuple[str, str, str]
"""namespace, pod, container"""
Slot = int | None
"""A GPU instance of a GPU; None = the whole GPU."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one container holds in one slot. holders: how many containers share the slot, this one included."""

    slot: Slot
    instance: MigReading | None
    holders: int
    exclusive: bool
    """Nobody else can be using it: one holder, no replica, all compute instances of the GPU instance."""
    own_parts: frozenset[int] = frozenset()
    """Compute instances of the slot that nobody else holds."""


@dataclass(frozen=True, slots=True)
class Holding:
    """All that one container holds of one readable GPU. pids None = its processes are not known."""

    gpu: GpuReading
    holder: Holder
    pieces: tuple[Piece, ...]
    pids: frozenset[int] | None

    @property
    def exclusive(self) -> bool:
        """Whether nobody else uses what it holds."""
        return all(piece.exclusive for piece in self.pieces)

    @property
    def whole(self) -> bool:
        """Whether it holds the GPU and not instances of it."""
        return any(piece.slot is None for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Unheld:
    """A device of a container that cannot be attributed: its GPU's uuid, or the id itself, and why."""

    device: str
    holder: Holder
    reason: str


@dataclass(frozen=True, slots=True)
class Holdings:
    """Who holds what of a node at one moment: found once a poll, because everybody who speaks of containers asks."""

    held: tuple[Holding, ...] = ()
    unheld: tuple[Unheld, ...] = ()

    def with_pids(self, pids: Mapping[Holder, Collection[int]]) -> "Holdings":
        """Say the same, with the processes of the holders where they are known."""
        known = {holder: frozenset(of) for holder, of in pids.items()}
        held = (Holding(one.gpu, one.holder, one.pieces, known.get(one.holder, one.pids)) for one in self.held)
        return Holdings(tuple(held), self.unheld)

    def told_of(self, gpus: Mapping[str, GpuReading]) -> "Holdings":
        """Say the same of other readings of these GPUs, by uuid."""
        held = (Holding(gpus[one.gpu.uuid], one.holder, one.pieces, one.pids) for one in self.held)
        return Holdings(tuple(held), self.unheld)


@dataclass(slots=True)
class _Claim:
    whole: bool = True
    """False once an id is a replica of the thing rather than the thing."""
    parts: set[int | None] = field(default_factory=set)
    """Compute instances; None = the whole GPU instance."""


class Devices:
    """The GPUs of the node by everything that a device id can name them by."""

    def __init__(self, gpus: Iterable[GpuReading]) -> None:
        self.gpus = {gpu.uuid: gpu for gpu in gpus}
        self._minors = _by_minor(self.gpus.values())
        self._instances = {mig.uuid: (gpu, mig) for gpu in self.gpus.values() for mig in gpu.mig}

    def find(self, device: DeviceId) -> tuple[GpuReading, MigReading | None] | None:
        """Return the GPU, and the instance where one is named; None = it is not on this node."""
        if device.mig:
            return self._instances.get(device.mig)
        gpu = self.gpus.get(device.gpu) if device.minor is None else self._minors.get(device.minor)
        if gpu is None:
            return None
        if device.place is not None:
            return gpu, _at(gpu, device.place)
        if device.gpu_instance is None:
            return gpu, None
        wanted = (device.gpu_instance, device.compute_instance)
        found = (m for m in gpu.mig if wanted in {(m.gpu_instance, m.compute_instance), (m.gpu_instance, None)})
        instance = next(found, None)
        return None if instance is None and gpu.fault is None else (gpu, instance)


def _at(gpu: GpuReading, place: MigPlace) -> MigReading | None:
    """Return the one instance that lies there; a place with several compute instances names none of them."""
    found = [mig for mig in gpu.mig if (mig.profile_id, mig.placement_start) == (place.profile_id, place.start)]
    fits = len(found) == 1 and place.slices in {None, slices_of(found[0].profile)}
    return found[0] if fits else None


def _by_minor(gpus: Collection[GpuReading]) -> dict[int, GpuReading]:
    """Take the index only for a GPU that does not tell its number, as a lost one, and never against one that does."""
    told = {int(gpu.facts["minor_number"]): gpu for gpu in gpus if gpu.facts.get("minor_number", "").isdecimal()}
    known = {gpu.uuid for gpu in told.values()}
    return {gpu.index: gpu for gpu in gpus if gpu.uuid not in known} | told


def holdings(allocations: Iterable[Allocation], gpus: Iterable[GpuReading]) -> Holdings:
    """Return what each container holds of each readable GPU, and the devices of which nothing can be said."""
    devices = Devices(gpus)
    claims: dict[tuple[str, Slot], dict[Holder, _Claim]] = defaultdict(lambda: defaultdict(_Claim))
    pids: dict[Holder, frozenset[int]] = {}
    unheld: list[Unheld] = []
    for allocation in allocations:
        holder = (allocation.namespace, allocation.pod, allocation.container)
        if allocation.pids is not None:
            pids[holder] = pids.get(holder, frozenset()) | set(allocation.pids)
        failed = (_claim(text, allocation.resource, holder, devices, claims) for text in allocation.device_ids)
        unheld += [one for one in failed if one]
    return Holdings(tuple(_held(claims, pids, devices.gpus)), tuple(unheld))


def held_at(snapshot: Snapshot) -> Holdings:
    """Return the holdings of one moment; none while the allocations are not known."""
    return holdings(snapshot.allocations or (), snapshot.gpus)


def _claim(
    text: str,
    resource: str,
    holder: Holder,
    devices: Devices,
    claims: Mapping[tuple[str, Slot], Mapping[Holder, _Claim]],
) -> Unheld | None:
    device = parse_device_id(text, resource)
    found = devices.find(device) if device else None
    if device is None or found is None:
        reason = MIG_DEVICE if device and device.is_mig else UNKNOWN_DEVICE
        shown = device.gpu if device and device.gpu and not device.is_mig else text
        return Unheld(shown, holder, reason) if is_nvidia(text, resource) else None
    gpu, instance = found
    if gpu.fault is not None:
        return Unheld(gpu.uuid, holder, GPU_ABSENT)
    if instance is None and (gpu.mig or device.is_mig):
        unplaced = device.place is not None and any(mig.placement_start is None for mig in gpu.mig)
        return Unheld(text, holder, MIG_PLACE_UNKNOWN if unplaced else MIG_DEVICE)
    claim = claims[gpu.uuid, instance.gpu_instance if instance else None][holder]
    claim.whole = claim.whole and not device.replica
    claim.parts.add(instance.compute_instance if instance and not _names_all(device) else None)
    return None


def _names_all(device: DeviceId) -> bool:
    return not device.mig and device.compute_instance is None


def _own_parts(holder: Holder, holders: Mapping[Holder, _Claim]) -> frozenset[int]:
    others = {part for other, claim in holders.items() if other != holder for part in claim.parts}
    mine = holders[holder]
    # who holds the whole GPU instance holds each of its parts
    if None in others or not mine.whole:
        return frozenset()
    return frozenset(part for part in mine.parts - others if part is not None)


def _held(
    claims: Mapping[tuple[str, Slot], Mapping[Holder, _Claim]],
    pids: Mapping[Holder, frozenset[int]],
    gpus: Mapping[str, GpuReading],
) -> Iterable[Holding]:
    pieces: dict[tuple[str, Holder], list[Piece]] = defaultdict(list)
    for (uuid, slot), holders in claims.items():
        within = [mig for mig in gpus[uuid].mig if mig.gpu_instance == slot]
        for holder, claim in holders.items():
            complete = claim.parts >= {None} or claim.parts >= {mig.compute_instance for mig in within}
            exclusive = len(holders) == 1 and claim.whole and complete
            own = _own_parts(holder, holders)
            pieces[uuid, holder].append(Piece(slot, within[0] if within else None, len(holders), exclusive, own))
    for (uuid, holder), held in pieces.items():
        yield Holding(gpus[uuid], holder, tuple(held), pids.get(holder))
