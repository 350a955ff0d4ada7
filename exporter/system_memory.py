"""The machine's memory beside that of a GPU which has none of its own.

Why it exists: some drivers sell the machine's memory, and the host's use of it, as such a chip's; that is taken away.
Others tell nothing, and a policy that works with percentages needs a total: where a setting asks for it, it is the
machine's, while what is used is still only what the GPU's processes hold.
"""

import dataclasses
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.believable import PIB, sum_known
from exporter.cgroups import is_host_proc
from exporter.readings import MEMORY_FIELDS, AbsentReason, GpuReading

log = logging.getLogger("exporter.system_memory")

_LINE = re.compile(r"(MemTotal|MemAvailable):\s+([0-9]{1,15}) kB")


@dataclass(frozen=True, slots=True)
class Memory:
    """What the machine has, and what anybody could still take without swapping, in bytes."""

    total: int
    available: int


class SystemMemory:
    """Reads ``meminfo`` in a /proc; any will do for the sizes, only the host's for the processes.

    fallback: whether a GPU without memory of its own is given the machine's. Without it this only takes away what a
    driver sells as the GPU's.
    """

    def __init__(self, proc: Path, *, fallback: bool) -> None:
        self._proc = proc
        self._fallback = fallback
        self._machine: int | None = None
        self._told = ""

    def fill(self, gpus: tuple[GpuReading, ...]) -> tuple[GpuReading, ...]:
        """Return the readings, that of the one GPU with unified memory with sizes. What cannot be told stays absent.

        Two such GPUs of one machine share its memory: each with all of it would make every sum wrong, so none gets it.
        """
        if not gpus:
            return gpus
        gpus = tuple(self._unsold(gpu) for gpu in gpus)
        if not self._fallback:
            return gpus
        unified = [gpu for gpu in gpus if gpu.memory_unified and gpu.fault is None]
        if len(unified) != 1:
            self._tell(f"{len(unified)} GPUs share the machine's memory; none is given it" if unified else "")
            return gpus
        memory = self._read()
        if isinstance(memory, str):
            self._tell(memory)
            return gpus
        self._tell("")
        filled = of_machine(unified[0], memory, all_seen=is_host_proc(self._proc))
        return tuple(filled if gpu is unified[0] else gpu for gpu in gpus)

    def _unsold(self, gpu: GpuReading) -> GpuReading:
        """Take away memory that is the machine's to the byte: some drivers answer so for a chip without its own."""
        if gpu.memory_total_bytes is None or gpu.memory_total_bytes != self._machine_bytes() or gpu.mig_enabled:
            return gpu
        nothing: dict[str, Any] = dict.fromkeys(MEMORY_FIELDS)
        absent = {**gpu.absent, **dict.fromkeys(MEMORY_FIELDS, AbsentReason.UNIFIED_MEMORY)}
        return dataclasses.replace(gpu, **nothing, memory_unified=True, absent=absent)

    def _machine_bytes(self) -> int:
        """Return MemTotal, which a machine keeps; 0 = not known."""
        if self._machine is None:
            memory = self._read()
            self._machine = 0 if isinstance(memory, str) else memory.total
        return self._machine

    def _read(self) -> Memory | str:
        """Return the sizes, or why there are none."""
        path = self._proc / "meminfo"
        try:
            # anything but a file, such as a pipe, could keep the poll waiting for ever
            text = path.read_text(errors="replace") if path.is_file() else ""
        except OSError as error:
            return f"{path}: {error.strerror}"
        return parse_meminfo(text) or f"{path} has no believable MemTotal and MemAvailable"

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
