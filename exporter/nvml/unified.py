"""Whether a GPU has no memory of its own and works in the machine's (GB10 and other chips with a CPU beside the GPU).

Why it exists: such a chip answers every question for its memory by "not supported", as a broken board might too, and
what is guessed of a board that has memory of its own would be a lie. No call tells it outright: host and board share
addresses (ATS) on boards with memory as well. So several facts must agree, and one that speaks against it decides.
"""

from collections.abc import Iterable, Mapping

import pynvml

from exporter.nvml.calls import Absent, GpuCalls, binding
from exporter.readings import MEMORY_FIELDS, AbsentReason, ProcessReading

# a board with memory of its own has a window to it; a chip without has neither
_UNTOLD = (*MEMORY_FIELDS, "bar1_total_bytes")
_CALL = "nvmlDeviceGetAddressingMode"
_ATS = getattr(pynvml, "NVML_DEVICE_ADDRESSING_MODE_ATS", 2)


def is_unified(
    gpu: GpuCalls, absent: Mapping[str, AbsentReason], processes: Iterable[ProcessReading] | None, *, split: bool
) -> bool:
    """Whether memory and BAR1 are not supported, no instance holds them, and the GPU is seen to have memory in use.

    That it has memory in use is told by a process, or by an address space that it shares with the CPU. Once seen it
    stays, until the driver is opened anew. Raises GpuError, DriverError.
    """
    if split or any(absent.get(field) is not AbsentReason.NOT_SUPPORTED for field in _UNTOLD):
        return False
    if not gpu.memory_unified:
        in_use = any(process.memory_used_bytes for process in processes or ())
        gpu.memory_unified = in_use or _shares_addresses(gpu)
    return gpu.memory_unified


def _shares_addresses(gpu: GpuCalls) -> bool:
    answer = gpu.first((_CALL, binding(_CALL)))
    return not isinstance(answer, Absent) and answer == _ATS
