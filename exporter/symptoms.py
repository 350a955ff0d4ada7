"""What can keep this exporter from telling all there is: one check each, with what was found and the exact cure.

Why it exists: most trouble with GPU exporters is a mount, a right or a library that is missing, and looks like missing
series. The checks read the same places, by the same rules, as the exporter itself; they ask nobody anything.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exporter.cgroups import Named, Place, container_names, is_host_proc, places
from exporter.holdings import GPU_ABSENT, MIG_PLACE_UNKNOWN, holdings
from exporter.readings import AbsentReason, Allocation, GpuReading, SourceState

Verdict = Literal["ok", "note", "unknown", "problem"]
"""note: fine, but something that may be wanted is off."""
NVIDIA = "0x10de"
_DISPLAY = "0x03"
_MODULE = re.compile(r"(?:NVRM version:.*?|^)(\d+\.\d+(?:\.\d+)?)", re.MULTILINE)
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")
_CURES_OF_FAULTS = {
    AbsentReason.LOST: "it fell off the bus (Xid 79 in the kernel log): drain the node, power it off and on; change "
    "the card if it falls off again",
    AbsentReason.RESET_REQUIRED: "end what uses it, then: nvidia-smi --gpu-reset -i {uuid}",
    AbsentReason.TIMEOUT: "its driver calls do not return: look for NVRM lines in the kernel log, restart the node",
}
_OTHER_FAULT = (
    "look for NVRM and Xid lines in the kernel log; a restart of this pod helps where only its access was lost"
)
_OF_A_FILE = frozenset({"no_file", "bad_file"})
_NO_DRIVER = frozenset({"library_not_found", "driver_not_loaded"})
_HOST_PID = "set hostPID: true on the pod (chart: exporter.hostPID), or mount the host's /proc and name it by --proc"
_LOGS = "mount the host's /var/log/containers read-only at {path} (chart: exporter.hostPID does), or name it by "
_LOGS += "--container-logs"
_MONITOR = "proc/driver/nvidia/capabilities/mig/monitor"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``cure`` "" where nothing is to be done."""

    name: str
    verdict: Verdict
    finding: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What the driver and the kubelet answered, and where in the file system to look.

    proc, container_logs: as in the settings; proc "" = processes are not matched. library: the file that the driver's
    library was loaded from. web_fault: what is wrong with the web configuration, None = none is set.
    """

    gpus: tuple[GpuReading, ...]
    driver: SourceState
    driver_version: str
    allocations: tuple[Allocation, ...] | None
    kubelet: SourceState
    root: Path = Path("/")
    proc: str = "/proc"
    container_logs: str = "/var/log/containers"
    library: Path | None = None
    web_fault: str | None = None

    def at(self, path: str) -> Path:
        """Return the place under the root that is looked at."""
        return self.root / path.lstrip("/")


def driver(found: Found) -> Check:
    """Whether the driver answers as a whole."""
    if found.driver.up and not found.driver.reason:
        return Check("driver", "ok", f"version {found.driver_version}, {len(found.gpus)} GPUs")
    return _down("driver", found.driver)


def versions(found: Found) -> Iterator[Check]:
    """Whether the driver's library and its kernel module belong together, where both tell."""
    module = _MODULE.search(
        _text(found.at("proc/driver/nvidia/version")) or _text(found.at("sys/module/nvidia/version"))
    )
    library = _LIBRARY.fullmatch(found.library.resolve().name) if found.library else None
    if module is None or library is None:
        return
    if module[1] == library[1]:
        yield Check("versions", "ok", f"library and kernel module are both {module[1]}")
        return
    cure = (
        "in a container: start the pod again, so that it gets the library that is on the node now; if they still "
        "differ, the upgrade is not complete: end what uses the GPUs and load the module anew, or restart the node"
    )
    yield Check("versions", "problem", f"the library is {library[1]}, the kernel module {module[1]}", cure)


def boards(found: Found) -> Iterator[Check]:
    """Whether every NVIDIA board on the bus is shown by the driver."""
    held_by = Counter(_kernel_driver(board) for board in _boards(found.root))
    for name, cure in (
        ("nouveau", "the free driver has it: blacklist nouveau, install NVIDIA's driver, restart the node"),
        ("", "no kernel driver has it: install NVIDIA's driver on this node, or load it: modprobe nvidia"),
    ):
        if count := held_by.pop(name, 0):
            yield Check("boards", "problem", f"{count} NVIDIA boards on the bus are not the driver's", cure)
    if passed_on := held_by.pop("vfio-pci", 0):
        yield Check("boards", "note", f"{passed_on} boards are passed on to virtual machines and can't be read here")
    ours = held_by.get("nvidia", 0)
    if found.driver.up and len(found.gpus) < ours:
        cure = "set NVIDIA_VISIBLE_DEVICES=all on the container, and request no nvidia.com/gpu for it"
        yield Check("boards", "problem", f"{len(found.gpus)} of {ours} boards of this node are shown here", cure)


def devices(found: Found) -> Check:
    """Whether this user may open what the driver's library opens."""
    files = _device_files(found.root)
    if not found.at("dev/nvidiactl").exists():
        return Check(
            "devices",
            "problem",
            "/dev/nvidiactl is not there",
            "let the container runtime bring the devices in: runtimeClassName nvidia and NVIDIA_VISIBLE_DEVICES=all; "
            "outside a container: nvidia-modprobe -u -c 0",
        )
    closed = [f"/{file.relative_to(found.root)}" for file in files if not os.access(file, os.R_OK | os.W_OK)]
    if closed:
        cure = f"chmod a+rw {' '.join(closed)}, or run as a user of their group (uid is {os.geteuid()})"
        return Check("devices", "problem", f"no right to open {', '.join(closed)}", cure)
    refused = [f"/{file.relative_to(found.root)} ({why})" for file in files if (why := _refusal(file))]
    if refused:
        cure = (
            "the container may not use them (device cgroup): let the runtime bring them in by runtimeClassName nvidia, "
        )
        cure += "do not mount /dev; start the pod again if it worked before"
        return Check("devices", "problem", f"can't be opened: {', '.join(refused)}", cure)
    return Check("devices", "ok", f"{len(files)} device files can be opened")


def gpus(found: Found) -> Iterator[Check]:
    """Every GPU that does not answer."""
    for gpu in found.gpus:
        if gpu.fault is not None:
            cure = _CURES_OF_FAULTS.get(gpu.fault, _OTHER_FAULT).format(uuid=gpu.uuid)
            yield Check(f"gpu {gpu.uuid}", "problem", str(gpu.fault), cure)


def kubelet(found: Found) -> Check:
    """Whether the kubelet tells who holds which device."""
    if found.kubelet.up:
        return Check("kubelet", "ok", f"{len(found.allocations or ())} containers hold devices")
    if found.kubelet.reason == "off":
        return Check("kubelet", "note", found.kubelet.message)
    return _down("kubelet", found.kubelet)


def _down(name: str, state: SourceState) -> Check:
    """Take the source's own sentence apart: what is wrong; what helps. Of a simulation's file, all of it is wrong."""
    if state.reason in _OF_A_FILE:
        return Check(name, "problem", f"{state.reason}: {state.message}", "correct the file that --simulate names")
    wrong, separator, cure = state.message.partition("; ")
    if not separator:
        return Check(name, "problem", state.reason, state.message)
    return Check(name, "problem", f"{state.reason}: {wrong}", cure)


def held_devices(found: Found) -> Iterator[Check]:
    """Devices of containers that can't be matched to a GPU of this node."""
    unheld = holdings(found.allocations or (), found.gpus).unheld
    for reason, count in Counter(one.reason for one in unheld if one.reason != GPU_ABSENT).items():
        example = next(one for one in unheld if one.reason == reason)
        finding = f"{reason}: {count} devices of containers, such as {example.device} of {'/'.join(example.holder)}"
        cure = "is its GPU shown here (NVIDIA_VISIBLE_DEVICES=all)? else the id is of an unknown form: please report it"
        if reason == MIG_PLACE_UNKNOWN:
            cure = (
                "give the right to look at GPU instances, see the check MIG; it needs a driver of release 450 or newer"
            )
        yield Check("device ids", "problem", finding, cure)


def processes(found: Found) -> Iterator[Check]:
    """Whether the driver's pids are pids here, lead to a pod, and that to a name."""
    if not found.proc:
        yield Check("hostPID", "note", "processes are not matched to containers: --proc is empty")
        return
    proc, pids = found.at(found.proc), {process.pid for gpu in found.gpus for process in gpu.processes or ()}
    if not is_host_proc(proc):
        finding = f"{found.proc} does not show the host's processes, so use of shared GPUs can't be told by pod"
        yield Check("hostPID", "problem" if pids else "note", finding, _HOST_PID)
        return
    where = places(proc, pids)
    seen = {pid: place for pid, place in where.items() if place is not None}
    finding = f"the host's processes can be seen, {len(seen)} of {len(pids)} on the GPUs"
    if pids and not seen:
        cure = "ask again, they may just have ended; if it stays so, the driver is that of another machine or namespace"
        yield Check("hostPID", "unknown", finding, cure)
    else:
        yield Check("hostPID", "ok", finding)
    led = {pid: place for pid, place in seen.items() if place}
    if found.allocations and seen:
        yield _cgroup(len(led), len(seen))
    if found.kubelet.reason != "off":
        yield _names(found, led.values())


def _cgroup(led: int, seen: int) -> Check:
    if led:
        return Check("cgroup", "ok", f"{led} of {seen} processes on the GPUs lead to a pod")
    return Check(
        "cgroup",
        "problem",
        f"none of {seen} processes on the GPUs leads to a pod by /proc/PID/cgroup",
        "with cgroup v2 the exporter must be in the host's cgroup namespace: run it privileged; or the processes "
        "belong to no pod",
    )


def _names(found: Found, led: Iterable[tuple[Place, ...]]) -> Check:
    path, name = found.container_logs, "container logs"
    try:
        names = container_names(found.at(path))
        entries = sum(1 for _ in found.at(path).iterdir())
    except PermissionError:
        return Check(name, "problem", f"{path} may not be listed", f"run as user 0 (uid is {os.geteuid()})")
    except OSError as error:
        return Check(name, "problem", f"{path}: {error.strerror}", _LOGS.format(path=path))
    if not entries:
        finding = f"{path} is empty, though the kubelet keeps a link there for every container"
        return Check(name, "problem", finding, f"it is not the host's: {_LOGS.format(path=path)}")
    if not names:
        finding = f"{path} has {entries} entries and none is named POD_NAMESPACE_CONTAINER-ID.log"
        return Check(name, "problem", finding, _LOGS.format(path=path))
    return _named(names, {place.container_id for nested in led for place in nested}, name, path)


def _named(names: dict[str, Named], used: set[str], name: str, path: str) -> Check:
    unnamed = used - set(names)
    if used and unnamed == used:
        finding = f"none of {len(used)} containers on the GPUs is among the {len(names)} names in {path}"
        return Check(name, "problem", finding, f"it is another node's or an old copy: {_LOGS.format(path=path)}")
    return Check(name, "ok", f"{len(names)} containers have names, {len(used) - len(unnamed)} of them on the GPUs")


def mig(found: Found) -> Iterator[Check]:
    """Whether this process may look at all GPU instances, and not at those alone that were given to it."""
    if not any(gpu.mig_enabled for gpu in found.gpus):
        return
    text, monitor = _text(found.at(_MONITOR)), f"/{_MONITOR}"
    minor = re.search(r"DeviceFileMinor: (\d+)", text)
    if minor is None:
        why = "tells no DeviceFileMinor" if text else "can't be read"
        cure = "outside a container: modprobe nvidia, as root; in one: set NVIDIA_MIG_MONITOR_DEVICES=all and the "
        cure += "capability SYS_ADMIN (chart: exporter.migMonitor), so that the runtime mounts it"
        yield Check("MIG", "unknown", f"{monitor} {why}: other pods' instances may be missing", cure)
        return
    file = found.at(f"dev/nvidia-caps/nvidia-cap{minor[1]}")
    if os.access(file, os.R_OK):
        yield Check("MIG", "ok", "all GPU instances may be looked at")
        return
    there = file.exists()
    cure = "set NVIDIA_MIG_MONITOR_DEVICES=all on the container, which needs the capability SYS_ADMIN (chart: "
    cure += "exporter.migMonitor); outside one: "
    cure += f"chmod a+r /{file.relative_to(found.root)}" if there else f"nvidia-modprobe -f {monitor}"
    finding = "no right to read" if there else "not there:"
    yield Check("MIG", "problem", f"{finding} /{file.relative_to(found.root)}", cure)


def web(found: Found) -> Iterator[Check]:
    """Whether the web configuration, if one is set, can be served."""
    if found.web_fault is None:
        return
    if found.web_fault:
        cure = "correct the file; docs/exporter.md has an example. The exporter does not start with it"
        yield Check("web config", "problem", found.web_fault, cure)
    else:
        yield Check("web config", "ok", "the file and the certificates it names can be used")


def any_gpu(found: Found) -> bool:
    """Whether this machine has anything of NVIDIA's to see: a driver that answers, with an error or not, is a sign."""
    silent = not found.driver.up and found.driver.reason in _NO_DRIVER
    return bool(not silent or _boards(found.root) or _device_files(found.root))


def _boards(root: Path) -> list[Path]:
    return [
        device
        for device in root.glob("sys/bus/pci/devices/*")
        if _text(device / "vendor").strip() == NVIDIA and _text(device / "class").startswith(_DISPLAY)
    ]


def _kernel_driver(board: Path) -> str:
    try:
        return (board / "driver").readlink().name
    except OSError:
        return ""


def _device_files(root: Path) -> list[Path]:
    return sorted(file for file in root.glob("dev/nvidia*") if re.fullmatch(r"nvidia(\d+|ctl)", file.name))


def _refusal(file: Path) -> str:
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.strerror or "OSError"
    return ""


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
