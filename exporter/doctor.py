"""``gpuscale-exporter doctor``: what keeps this exporter, here and now, from telling all there is, and the cure.

Why it exists: most trouble with GPU exporters is a mount, a right or a library that is missing, and looks like missing
series. Each check says what it found and exactly what helps. The exit code is what node-problem-detector expects of a
custom plugin: 0 = fine, 1 = a problem, 2 = can't be told.
"""

import asyncio
import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from exporter.readings import Allocation, GpuReading, SourceState
from exporter.settings import Settings, SettingsError, parse

Verdict = Literal["ok", "note", "unknown", "problem"]
"""note: fine, but something that may be wanted is off."""
NVIDIA = "0x10de"
LONGEST_FIRST_READ_SECONDS = 10.0
_EXIT = {"ok": 0, "note": 0, "problem": 1, "unknown": 2}
_POD = re.compile(r"kubepods|/pod[0-9a-f]{8}[-_]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``cure`` "" where nothing is to be done."""

    name: str
    verdict: Verdict
    finding: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What the driver and the kubelet answered, and the file system they were asked under."""

    gpus: tuple[GpuReading, ...]
    driver: SourceState
    driver_version: str
    allocations: tuple[Allocation, ...] | None
    kubelet: SourceState
    root: Path = Path("/")


class _Driver(Protocol):
    @property
    def driver_version(self) -> str: ...

    async def read(self, now: float) -> tuple[tuple[GpuReading, ...], SourceState]: ...

    async def close(self) -> None: ...


class _Kubelet(Protocol):
    async def allocations(self) -> tuple[tuple[Allocation, ...] | None, SourceState]: ...

    async def close(self) -> None: ...


def main(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Print the checks, with --json as one document. Takes the exporter's own flags, to look where it would look."""
    as_json = "--json" in argv
    try:
        settings = parse([word for word in argv if word != "--json"], environment)
    except SettingsError as bad:
        print(f"gpuscale-exporter doctor: {bad}", file=sys.stderr)
        return 2
    checks = examine(asyncio.run(_look(settings)))
    code = exit_code(checks)
    if as_json:
        print(json.dumps({"exit_code": code, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        print("\n".join(_lines(checks)))
    return code


def examine(found: Found) -> list[Check]:
    """Return all checks, in the order in which faults should be cured."""
    boards = _boards(found.root)
    if not boards and not found.driver.up and not _device_files(found.root):
        return [
            Check(
                "gpu",
                "unknown",
                "this machine has no NVIDIA GPU that can be seen",
                "none, if it has none: let the exporter run on nodes with GPUs only (nodeSelector). On a GPU machine: "
                "is the card in its slot, and passed through to this virtual machine?",
            )
        ]
    checks = [_driver(found), *_devices(found.root), *_gpus(found.gpus), _kubelet(found)]
    return [*checks, _processes(found), *_attribution(found), *_mig(found)]


def exit_code(checks: Iterable[Check]) -> int:
    """0 = no fault, 1 = a problem, 2 = nothing but what can't be told."""
    codes = {_EXIT[check.verdict] for check in checks}
    return 1 if 1 in codes else max(codes, default=2)


async def _look(settings: Settings) -> Found:
    # here and not above: the driver's binding and gRPC are loaded only where they are asked for
    from exporter.__main__ import wire

    patient = dataclasses.replace(settings, deadline_seconds=max(settings.deadline, LONGEST_FIRST_READ_SECONDS))
    driver, kubelet = wire(patient)
    return await look(driver, kubelet)


async def look(driver: _Driver, kubelet: _Kubelet, root: Path = Path("/")) -> Found:
    """Ask the driver and the kubelet once."""
    try:
        (gpus, state), (allocations, answered) = await asyncio.gather(driver.read(0.0), kubelet.allocations())
        return Found(gpus, state, driver.driver_version, allocations, answered, root)
    finally:
        await asyncio.gather(driver.close(), kubelet.close())


def _driver(found: Found) -> Check:
    if found.driver.up:
        return Check("driver", "ok", f"version {found.driver_version}, {len(found.gpus)} GPUs")
    return Check("driver", "problem", found.driver.reason, found.driver.message)


def _devices(root: Path) -> Iterator[Check]:
    """Whether this user may open what the driver's library opens."""
    files = _device_files(root)
    if not (root / "dev/nvidiactl").exists():
        yield Check(
            "devices",
            "problem",
            "/dev/nvidiactl is not there",
            "let the container runtime bring the devices in: runtimeClassName nvidia and NVIDIA_VISIBLE_DEVICES=all; "
            "outside a container: nvidia-modprobe -u -c 0",
        )
        return
    closed = [f"/{file.relative_to(root)}" for file in files if not os.access(file, os.R_OK | os.W_OK)]
    if closed:
        cure = f"chmod a+rw {' '.join(closed)}, or run as a user of their group (uid is {os.geteuid()})"
        yield Check("devices", "problem", f"no right to open {', '.join(closed)}", cure)
    else:
        yield Check("devices", "ok", f"{len(files)} device files can be opened")


def _gpus(gpus: Iterable[GpuReading]) -> Iterator[Check]:
    for gpu in gpus:
        if gpu.fault is not None:
            cure = "look for NVRM and Xid lines in the kernel log; a lost GPU needs a reset or a restart of the node"
            yield Check(f"gpu {gpu.uuid}", "problem", str(gpu.fault), cure)


def _kubelet(found: Found) -> Check:
    if found.kubelet.up:
        return Check("kubelet", "ok", f"{len(found.allocations or ())} containers hold devices")
    if found.kubelet.reason == "off":
        return Check("kubelet", "note", found.kubelet.message)
    return Check("kubelet", "problem", found.kubelet.reason, found.kubelet.message)


def _processes(found: Found) -> Check:
    """Whether the pids that the driver names are pids here."""
    pids = _pids(found.gpus)
    unseen = [pid for pid in pids if not (found.root / "proc" / str(pid)).exists()]
    cure = "set hostPID: true on the pod (chart: exporter.hostPID), else use of shared GPUs can't be told by pod"
    if len(unseen) > len(pids) // 2:
        finding = f"{len(unseen)} of {len(pids)} processes on the GPUs can't be seen from here"
        return Check("hostPID", "problem", finding, cure)
    if pids:
        return Check("hostPID", "ok", f"{len(pids) - len(unseen)} of {len(pids)} processes on the GPUs can be seen")
    if _text(found.root / "proc/2/comm").strip() == "kthreadd":
        return Check("hostPID", "ok", "the processes of the host can be seen")
    return Check("hostPID", "note", "only the processes of this container can be seen", cure)


def _attribution(found: Found) -> Iterator[Check]:
    """Whether a process leads to its pod."""
    seen = [pid for pid in _pids(found.gpus) if (found.root / "proc" / str(pid)).exists()]
    if not found.allocations or not seen:
        return
    led = [pid for pid in seen if _POD.search(_text(found.root / "proc" / str(pid) / "cgroup"))]
    if led:
        yield Check("cgroup", "ok", f"{len(led)} of {len(seen)} processes on the GPUs lead to a pod")
    else:
        yield Check(
            "cgroup",
            "problem",
            f"none of {len(seen)} processes on the GPUs leads to a pod by /proc/PID/cgroup",
            "with cgroup v2 the exporter must be in the host's cgroup namespace: run it privileged; or the processes "
            "belong to no pod",
        )


def _mig(found: Found) -> Iterator[Check]:
    """Whether this process may look at all GPU instances, and not at those alone that were given to it."""
    if not any(gpu.mig_enabled for gpu in found.gpus):
        return
    minor = re.search(r"DeviceFileMinor: (\d+)", _text(found.root / "proc/driver/nvidia/capabilities/mig/monitor"))
    if minor is None:
        yield Check("MIG", "unknown", "/proc/driver/nvidia/capabilities/mig/monitor can't be read")
        return
    file = found.root / f"dev/nvidia-caps/nvidia-cap{minor[1]}"
    if os.access(file, os.R_OK):
        yield Check("MIG", "ok", "all GPU instances may be looked at")
        return
    cure = "set NVIDIA_MIG_MONITOR_DEVICES=all on the container, which needs the capability SYS_ADMIN"
    yield Check("MIG", "problem", f"no right to read /{file.relative_to(found.root)}", cure)


def _pids(gpus: Iterable[GpuReading]) -> list[int]:
    return sorted({process.pid for gpu in gpus for process in gpu.processes or ()})


def _boards(root: Path) -> int:
    """Count the NVIDIA display controllers on the PCI bus."""
    return sum(
        _text(device / "vendor").strip() == NVIDIA and _text(device / "class").startswith("0x03")
        for device in root.glob("sys/bus/pci/devices/*")
    )


def _device_files(root: Path) -> list[Path]:
    return sorted(file for file in root.glob("dev/nvidia*") if re.fullmatch(r"nvidia(\d+|ctl)", file.name))


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _lines(checks: Iterable[Check]) -> Iterator[str]:
    for check in checks:
        yield f"{check.verdict:8} {check.name}: {check.finding}"
        if check.cure:
            yield f"         cure: {check.cure}"
