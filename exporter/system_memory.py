"""The machine's memory as that of a GPU which has none of its own, where a setting asks for it.

Why it exists: of a chip with unified memory the driver tells no total, and a policy that works with percentages needs
one. What is used is still only what the GPU's processes hold: the host's own use is never sold as the GPU's.
"""

import dataclasses
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.believable import PIB, sum_known
from exporter.cgroups import is_host_proc
from exporter.readings import GpuReading

log = logging.getLogger("exporter.system_memory")

_LINE = re.compile(r"(MemTotal|MemAvailable):\s+([0-9]{1,15}) kB")


@dataclass(frozen=True, slots=True)
class Memory:
    """What the machine has, and what anybody could still take without swapping, in bytes."""

    total: int
    available: int


class SystemMemory:
    """Reads ``meminfo`` in a /proc; any will do for the sizes, only the host's for the processes."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._told = ""

    def fill(self, gpus: tuple[GpuReading, ...]) -> tuple[GpuReading, ...]:
        """Return the readings, that of the one GPU with unified memory with sizes. What cannot be told stays absent.

        Two such GPUs of one machine share its memory: each with all of it would make every sum wrong, so none gets it.
        """
        unified = [gpu for gpu in gpus if gpu.memory_unified and gpu.fault is None]
        if len(unified) != 1:
            self._tell(f"{len(unified)} GPUs share the machine's memory; none is given it" if unified else "")
            return gpus
        memory = self._read()
        if memory is None:
            return gpus
        filled = of_machine(unified[0], memory, all_seen=is_host_proc(self._proc))
        return tuple(filled if gpu is unified[0] else gpu for gpu in gpus)

    def _read(self) -> Memory | None:
        path = self._proc / "meminfo"
        try:
            # anything but a file, such as a pipe, could keep the poll waiting for ever
            text = path.read_text(errors="replace") if path.is_file() else ""
        except OSError as error:
            self._tell(f"{path}: {error.strerror}")
            return None
        memory = parse_meminfo(text)
        self._tell("" if memory else f"{path} has no believable MemTotal and MemAvailable")
        return memory

    def _tell(self, fault: str) -> None:
        if fault and fault != self._told:
            log.warning("the memory of a GPU with unified memory stays unknown: %s", fault)
        self._told = fault


def parse_meminfo(text: str) -> Memory | None:
    """PURE: read /proc/meminfo; None = one of the two is not there or cannot be true."""
    kilobytes = {name: int(number) for name, number in _LINE.findall(text)}
    total, available = kilobytes.get("MemTotal", 0) * 1024, kilobytes.get("MemAvailable", -1) * 1024
    return Memory(total, available) if 0 < total <= PIB and 0 <= available <= total else None


def of_machine(gpu: GpuReading, memory: Memory, *, all_seen: bool) -> GpuReading:
    """PURE: give a GPU the machine's total, its processes' sum as used, and what is available to anybody as free.

    all_seen: an empty list of processes proves that none runs; from another pid namespace it does not.
    Free is not total - used: the host's programs, which are no GPU use, take from the same memory.
    """
    listed = gpu.processes if gpu.processes or all_seen else None
    used = None if listed is None else sum_known((process.memory_used_bytes for process in listed), memory.total)
    known = {"memory_total_bytes": memory.total, "memory_free_bytes": memory.available}
    if used is not None:
        known["memory_used_bytes"] = min(int(used), memory.total)
    reasons = {field: reason for field, reason in gpu.absent.items() if field not in known}
    changed: dict[str, Any] = {**known, "absent": reasons}
    return dataclasses.replace(gpu, **changed)
