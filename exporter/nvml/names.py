"""What the programs on a GPU are called, each asked for once.

Why it exists: the driver looks a name up at each question, and only other exporters' names have it; a process keeps
its own for as long as it is there.
"""

from collections.abc import Iterable

import pynvml

from exporter.nvml.calls import Absent, ask


class ProcessNames:
    """The names of one GPU's processes. For the thread of its GPU."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, pids: Iterable[int]) -> dict[int, str]:
        """Return pid -> name; "" where the driver cannot tell, as where it does not see the host's processes."""
        self._known = {pid: self._known[pid] if pid in self._known else _name(pid) for pid in pids}
        return self._known


def _name(pid: int) -> str:
    answer = ask(pynvml.nvmlSystemGetProcessName, pid)
    return "" if isinstance(answer, Absent) else str(answer)
