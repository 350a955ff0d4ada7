"""PURE: what a device id of the kubelet names, in every grammar that device plugins use.

Why it exists: who holds what is matched by device id, never by resource name, and each device plugin spells its
ids in its own way. An id that is not understood gives a reason, never a guess.
"""

import re
from dataclasses import dataclass, replace

NVIDIA_RESOURCE = "nvidia.com/"
NVIDIA_DRA_DRIVER = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True)
class DeviceId:
    """Either ``gpu`` (a GPU's uuid) or ``minor`` (N of /dev/nvidiaN) or ``mig`` (an instance's uuid) is set.

    gpu_instance narrows a GPU to one instance, compute_instance that to a part. replica: one of several who share it.
    """

    gpu: str = ""
    minor: int | None = None
    mig: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    replica: bool = False
    some_instance: bool = False
    """An instance of the GPU, but the id does not tell which."""

    @property
    def is_mig(self) -> bool:
        """Whether it names an instance and not the whole GPU."""
        return bool(self.mig) or self.gpu_instance is not None or self.some_instance


_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_OLD_MIG = re.compile(r"MIG-(?P<gpu>GPU-[^/]+)/(?P<gi>\d+)/(?P<ci>\d+)")
_HAMI = re.compile(rf"(?P<id>(?:GPU|MIG)-{_UUID})-\d+")
_UUIDS = re.compile(r"(?P<kind>GPU|MIG)-[^/:\s]+")
_MINOR = re.compile(r"nvidia(?P<minor>\d+)(?:/gi(?P<gi>\d+))?(?P<vgpu>/vgpu\d+)?")
_DRA = re.compile(r"gpu-(?P<minor>\d+)(?P<mig>-mig-.+)?")
_DRA_NAMES = re.compile(r"gpu-\d+(-mig-.+)?|(GPU|MIG)-.+")


def parse_device_id(text: str) -> DeviceId | None:
    """Read one id: GPU and MIG uuids, ``::N``, ``nvidiaN/giM/vgpuK``, HAMi's ``uuid-N``, DRA's ``gpu-N``.

    None = of no known form.
    """
    bare, separator, _ = text.partition("::")
    if separator:
        whole = parse_device_id(bare)
        return whole and replace(whole, replica=True)
    if match := _HAMI.fullmatch(text):
        return _uuid(match["id"], replica=True)
    if match := _OLD_MIG.fullmatch(text):
        return DeviceId(gpu=match["gpu"], gpu_instance=int(match["gi"]), compute_instance=int(match["ci"]))
    if _UUIDS.fullmatch(text):
        return _uuid(text, replica=False)
    return _numbered(text)


def is_nvidia(device_id: str, resource: str) -> bool:
    """Whether it is for us to explain why this device can't be attributed: other vendors' devices are not."""
    return resource.startswith(NVIDIA_RESOURCE) or resource == NVIDIA_DRA_DRIVER or bool(_UUIDS.match(device_id))


def cdi_device(name: str) -> str:
    """Device in a CDI name such as ``k8s.gpu.nvidia.com/claim=UID-gpu-0``; "" if none is told."""
    tail = name.rpartition("=")[2]
    match = _DRA_NAMES.search(tail)
    return match[0] if match else ""


def _uuid(text: str, *, replica: bool) -> DeviceId:
    if text.startswith("MIG-"):
        return DeviceId(mig=text, replica=replica)
    return DeviceId(gpu=text, replica=replica)


def _numbered(text: str) -> DeviceId | None:
    if match := _MINOR.fullmatch(text):
        instance = None if match["gi"] is None else int(match["gi"])
        return DeviceId(minor=int(match["minor"]), gpu_instance=instance, replica=bool(match["vgpu"]))
    if match := _DRA.fullmatch(text):
        return DeviceId(minor=int(match["minor"]), some_instance=bool(match["mig"]))
    return None
