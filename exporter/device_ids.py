"""PURE: what a device id of the kubelet names, in every grammar that device plugins use.

Why it exists: who holds what is matched by device id, never by resource name, and each device plugin spells its
ids in its own way. An id that is not understood gives a reason, never a guess.
"""

import functools
import re
from dataclasses import dataclass, replace

NVIDIA_RESOURCE = "nvidia.com/"
NVIDIA_DRA_DRIVER = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True)
class MigPlace:
    """A GPU instance by what it was made from: NVML's id of the profile, and the first memory slice that it takes.

    slices: how many compute slices the profile's name says; None = the id has no name in it.
    """

    profile_id: int
    start: int
    slices: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceId:
    """Either ``gpu`` (a GPU's uuid) or ``minor`` (N of /dev/nvidiaN) or ``mig`` (an instance's uuid) is set.

    gpu_instance or place narrows a GPU to one instance, compute_instance that to a part. replica: one of several who
    share it.
    """

    gpu: str = ""
    minor: int | None = None
    mig: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    place: MigPlace | None = None
    replica: bool = False
    some_instance: bool = False
    """An instance of the GPU, but the id does not tell which."""

    @property
    def is_mig(self) -> bool:
        """Whether it names an instance and not the whole GPU."""
        return bool(self.mig or self.place or self.some_instance) or self.gpu_instance is not None


_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_OLD_MIG = re.compile(r"MIG-(?P<gpu>GPU-[^/]+)/(?P<gi>\d+)/(?P<ci>\d+)")
_HAMI = re.compile(rf"(?P<id>(?:GPU|MIG)-{_UUID})-\d+")
_UUIDS = re.compile(r"(?P<kind>GPU|MIG)-[^/:\s]+")
_MINOR = re.compile(r"nvidia(?P<minor>\d+)(?:/gi(?P<gi>\d+))?(?P<vgpu>/vgpu\d+)?")
_DRA = re.compile(r"gpu-(?P<minor>\d+)(?P<mig>-mig-.+)?")
# with the profile's name in it by drivers that make instances on demand, else with the size as the last number
_DRA_MIG = re.compile(r"-mig-(?:(?P<name>[0-9a-z-]*g[0-9a-z-]*)-(?P<id>\d+)-(?P<at>\d+)|(?P<id_>\d+)-(?P<at_>\d+)-\d+)")
_SLICES = re.compile(r"(?:\d+c[.]?)?(?P<slices>\d+)g")
_DRA_NAMES = re.compile(r"gpu-\d+(-mig-.+)?|(GPU|MIG)-.+")


# a node has some hundred ids at most, and the same ones from poll to poll
@functools.lru_cache(maxsize=1024)
def parse_device_id(text: str, resource: str = NVIDIA_DRA_DRIVER) -> DeviceId | None:
    """Read one id: GPU and MIG uuids, ``::N``, ``nvidiaN/giM/vgpuK``, HAMi's ``uuid-N``, DRA's ``gpu-N[-mig-...]``.

    resource: the resource, or the driver of the claim, that it is an id of; what another driver calls ``gpu-0`` may be
    another vendor's. None = of no known form.
    """
    bare, separator, _ = text.partition("::")
    if separator:
        whole = parse_device_id(bare, resource)
        return whole and replace(whole, replica=True)
    if match := _HAMI.fullmatch(text):
        return _uuid(match["id"], replica=True)
    if match := _OLD_MIG.fullmatch(text):
        return DeviceId(gpu=match["gpu"], gpu_instance=int(match["gi"]), compute_instance=int(match["ci"]))
    if _UUIDS.fullmatch(text):
        return _uuid(text, replica=False)
    if match := _MINOR.fullmatch(text):
        instance = None if match["gi"] is None else int(match["gi"])
        return DeviceId(minor=int(match["minor"]), gpu_instance=instance, replica=bool(match["vgpu"]))
    return _claimed(text) if _is_nvidias(resource) else None


def is_nvidia(device_id: str, resource: str) -> bool:
    """Whether it is for us to explain why this device can't be attributed: other vendors' devices are not."""
    return _is_nvidias(resource) or bool(_UUIDS.match(device_id))


def slices_of(profile: str) -> int | None:
    """Compute slices in a profile's name: ``4g.71gb``, ``1c.4g.71gb``, ``1g24gb-me``; None = it tells none."""
    match = _SLICES.match(profile)
    return int(match["slices"]) if match else None


def cdi_device(name: str) -> str:
    """Device in a CDI name such as ``k8s.gpu.nvidia.com/claim=UID-gpu-0``; "" if none is told."""
    tail = name.rpartition("=")[2]
    match = _DRA_NAMES.search(tail)
    return match[0] if match else ""


def cdi_driver(name: str) -> str:
    """Driver in a CDI name such as ``k8s.gpu.nvidia.com/claim=...``."""
    return name.partition("/")[0].removeprefix("k8s.")


def _is_nvidias(resource: str) -> bool:
    return resource.startswith(NVIDIA_RESOURCE) or resource == NVIDIA_DRA_DRIVER


def _uuid(text: str, *, replica: bool) -> DeviceId:
    if text.startswith("MIG-"):
        return DeviceId(mig=text, replica=replica)
    return DeviceId(gpu=text, replica=replica)


def _claimed(text: str) -> DeviceId | None:
    match = _DRA.fullmatch(text)
    if match is None:
        return None
    minor, mig = int(match["minor"]), match["mig"]
    if not mig:
        return DeviceId(minor=minor)
    place = _DRA_MIG.fullmatch(mig)
    if place is None:
        return DeviceId(minor=minor, some_instance=True)
    profile_id, start = (int(place[key] or place[f"{key}_"]) for key in ("id", "at"))
    return DeviceId(minor=minor, place=MigPlace(profile_id, start, slices_of(place["name"] or "")))
