"""The driver as a whole: loaded or not, why not, and when to try again.

Why it exists: an exporter outlives drivers. It starts before one is there, stays through an upgrade, and says all
the while what is wrong and what helps.
"""

import contextlib
import time
from dataclasses import dataclass

from exporter.nvml import calls
from exporter.nvml.crew import Job, Turn
from exporter.nvml.library import LibraryFile, loaded_library, was_replaced
from exporter.nvml.workers import Worker
from exporter.readings import SourceState

_FAULTS = {
    1: ("uninitialized", "the driver has closed its connection; it is opened anew"),
    4: ("no_permission", "the driver refuses this user; allow it to open /dev/nvidiactl and /dev/nvidia*"),
    9: ("driver_not_loaded", "the NVIDIA kernel module is not loaded; load it or install the driver on this node"),
    12: (
        "library_not_found",
        "libnvidia-ml.so.1 is not to be found; install the driver, or let the container runtime bring its library in "
        "(runtimeClassName nvidia, NVIDIA_DRIVER_CAPABILITIES=utility)",
    ),
    13: ("driver_too_old", "this driver's library lacks a function that every read needs; install driver 450 or newer"),
    18: (
        "lib_rm_version_mismatch",
        "the driver's library and its kernel module are of different versions, as after an upgrade; reload the kernel "
        "module or restart the node, then start this pod again if it still sees the old library",
    ),
}
_HANGS = SourceState(
    up=False,
    reason="init_timeout",
    message="opening the driver does not return; look for NVRM lines in the kernel log, the node may need a restart",
)
_UNCOUNTED = SourceState(
    up=True,
    reason="enumeration_timeout",
    message="listing the GPUs does not return; known GPUs are read on, new ones are not seen",
)
_STARTING = SourceState(up=False, reason="starting", message="the driver has not been opened yet")


def fault(code: int) -> SourceState:
    """Return what an NVML error of the whole driver means, and what helps."""
    reason, cure = _FAULTS.get(code, ("driver_error", "look for NVRM lines in the kernel log"))
    return SourceState(up=False, reason=reason, message=f"NVML error {code}: {cure}")


@dataclass(frozen=True, slots=True)
class _Opened:
    code: int
    version: str = ""
    count: int = 0


class Driver:
    """Opens and closes in a thread of its own, because that can hang too; what GPUs it lists is asked with the GPUs."""

    def __init__(self, deadline_seconds: float, first_retry_seconds: float, longest_retry_seconds: float) -> None:
        self.state = _STARTING
        self.version = ""
        self.count = 0
        self.openings = 0
        """How often it was opened: what was learned of a GPU holds for one opening."""
        self.needs_restart: str | None = None
        self._deadline_seconds = deadline_seconds
        self._first_retry_seconds = first_retry_seconds
        self._longest_retry_seconds = longest_retry_seconds
        self._pause_seconds = first_retry_seconds
        self._retry_at = 0.0
        self._worker = Worker("nvml-driver")
        self._counting = Turn()
        self._answer: _Opened | None = None
        self._is_open = False
        self._library: LibraryFile | None = None

    @property
    def busy(self) -> bool:
        """Whether a call of its own is under way."""
        return self._worker.busy or self._counting.busy

    async def bring_up(self, *, others_busy: bool) -> bool:
        """Open the driver if it is due. others_busy: a GPU's call is under way, which forbids closing before."""
        if self.state.up:
            return True
        if self._answer is None and not self.busy and time.monotonic() >= self._retry_at:
            await self._try(others_busy=others_busy)
        self._take_answer()
        return self.state.up

    @property
    def counting(self) -> Job[int | calls.Absent]:
        """How to count the GPUs again."""
        return self._counting, calls.device_count

    def counted(self, answer: int | calls.Absent | Exception) -> None:
        """Use a new count; one that hangs leaves the old one standing, and says so. Raises what counting raised."""
        if isinstance(answer, TimeoutError):
            self.state = _UNCOUNTED if self.state.up else self.state
        elif isinstance(answer, Exception):
            raise answer
        elif isinstance(answer, calls.Absent):
            self.failed(answer.code)
        else:
            self.count = answer
            self.state = SourceState(up=True) if self.state.up else self.state

    def failed(self, code: int) -> None:
        """Take note that the driver as a whole answered with an error; of several at once the first counts."""
        if self.state.up:
            self._down(fault(code))

    async def close(self, seconds: float, *, others_busy: bool) -> None:
        """Close the driver if nothing is under way, and wait at most that long for it."""
        if self._is_open and not others_busy and not self.busy:
            with contextlib.suppress(TimeoutError):
                await self._worker.ask(self._shut, seconds)
        self._worker.stop()

    async def _try(self, *, others_busy: bool) -> None:
        if self._is_open and others_busy:
            self.needs_restart = "stuck_call"
            self._postpone()
            return
        try:
            await self._worker.ask(self._open, self._deadline_seconds)
        except TimeoutError:
            self._down(_HANGS)

    def _take_answer(self) -> None:
        """Use what opening answered, late as it may be: it is a fact, not a value with an age."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if answer.code:
            self._down(fault(answer.code))
            if self._library is not None and was_replaced(self._library):
                self.needs_restart = "library_replaced"
            return
        self.state = SourceState(up=True)
        self.needs_restart = None
        self.version, self.count = answer.version, answer.count
        self.openings += 1
        self._pause_seconds = self._first_retry_seconds

    def _down(self, state: SourceState) -> None:
        self.state = state
        self._postpone()

    def _postpone(self) -> None:
        self._retry_at = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, self._longest_retry_seconds)

    def _open(self) -> None:
        """Open the driver anew; for the thread."""
        if self._is_open:
            self._shut()
        code = calls.start()
        if self._library is None:
            self._library = loaded_library()
        self._is_open = code == 0
        if code:
            self._answer = _Opened(code)
            return
        count = calls.device_count()
        if isinstance(count, calls.Absent):
            self._answer = _Opened(count.code)
            return
        self._answer = _Opened(0, calls.driver_version(), count)

    def _shut(self) -> None:
        """Close the driver; for the thread."""
        self._is_open = False
        calls.stop()
