"""What is read of each GPU, and what is said of one that cannot be read.

Why it exists: rule 2 of the exporter. A GPU that hangs or is lost costs its own values; it stays in the answer with
its identity and its fault, and the others are read as if nothing had happened.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from exporter.nvml import calls
from exporter.nvml.boards import Board
from exporter.nvml.calls import Absent, GpuCalls
from exporter.nvml.crew import Crew, Job, Turn
from exporter.nvml.driver import Driver
from exporter.nvml.events import XidWatch
from exporter.nvml.unified import is_unified
from exporter.readings import MEMORY_FIELDS, AbsentReason, GpuReading, ProcessReading, SourceState

log = logging.getLogger(__name__)

UNKNOWN_UUID = "unknown-index-{:d}"
"""Identity of a GPU that the driver lists but that has not told its UUID since the exporter started."""
_CLOSE_SECONDS = 0.5
_QUIET_SECONDS = 0.4
_ALL_REFUSED = SourceState(
    up=True,
    reason="all_gpus_fail",
    message="the driver is open but every GPU answers with an error; a container can lose its access to "
    "/dev/nvidia* while it runs: start the pod again, then look for NVRM lines in the kernel log",
)
_SURPRISE = SourceState(
    up=False,
    reason="internal_error",
    message="the exporter failed at reading the driver; its log has the traceback, please report it",
)


@dataclass(frozen=True, slots=True)
class _Identity:
    uuid: str
    index: int
    name: str


class _Claims:
    """Which handles have a call under way: the driver allows one at a time, whatever index leads to the handle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[int] = set()

    def take(self, address: int) -> bool:
        with self._lock:
            if address in self._taken:
                return False
            self._taken.add(address)
            return True

    def release(self, address: int) -> None:
        with self._lock:
            self._taken.discard(address)


@dataclass
class _Slot:
    """One index of the driver's list, and the GPUs met there."""

    index: int
    new_board: Callable[[GpuCalls], Board]
    xids: XidWatch
    turn: Turn = field(default_factory=Turn)
    gpus: dict[str, tuple[GpuCalls, Board]] = field(default_factory=dict)
    identity: _Identity | None = None
    address: int = 0
    """Of the handle that was last read."""

    def faulty(self, reason: AbsentReason) -> GpuReading:
        """Return the reading of a GPU that could not be read: what it is, and why there is nothing else."""
        known = self.identity or _Identity(UNKNOWN_UUID.format(self.index), self.index, "")
        return GpuReading(
            known.uuid,
            known.index,
            known.name,
            fault=reason,
            read_seconds=self.turn.busy_seconds,
            xids=self.xids.counted(known.uuid),
        )

    def read(self, claims: _Claims) -> GpuReading | None:
        """Read the GPU at this index; None: there is none, or another thread has it. Raises DriverError.

        Runs in a thread of the crew.
        """
        handle = calls.handle_at(self.index)
        if isinstance(handle, Absent):
            if handle.code in calls.DRIVER_WIDE:
                raise calls.DriverError(handle.code)
            return None if handle.code in calls.NO_SUCH_DEVICE else self.faulty(handle.reason)
        address = calls.address(handle)
        if not claims.take(address):
            return None
        try:
            self.address = address
            return self._read_claimed(handle)
        except calls.GpuError as error:
            return self.faulty(error.reason)
        finally:
            claims.release(address)

    def _read_claimed(self, handle: calls.Handle) -> GpuReading:
        started = time.monotonic()
        uuid = calls.read_uuid(handle)
        gpu, board = self._known(uuid)
        gpu.handle = handle
        if self.identity is None or self.identity.uuid != uuid or not self.identity.name:
            self.identity = _Identity(uuid, self.index, "")
            self.identity = _Identity(uuid, self.index, gpu.name())
        return read_gpu(gpu, board, self.xids, self.identity, started)

    def _known(self, uuid: str) -> tuple[GpuCalls, Board]:
        if uuid not in self.gpus:
            calls_to = GpuCalls(uuid)
            self.gpus[uuid] = calls_to, self.new_board(calls_to)
        return self.gpus[uuid]


def read_gpu(gpu: GpuCalls, board: Board, xids: XidWatch, identity: _Identity, started: float) -> GpuReading:
    """Ask one GPU for everything. Raises GpuError, DriverError."""
    values: dict[str, Any] = {}
    absent: dict[str, AbsentReason] = {}

    def put(field_name: str, value: object) -> None:
        if isinstance(value, Absent):
            absent[field_name] = value.reason
        else:
            values[field_name] = value

    values["mig_enabled"] = gpu.mig_enabled()
    split = bool(values["mig_enabled"])
    _put_memory(put, gpu.memory())
    for field_name, share in zip(("utilization_percent", "memory_utilization_percent"), gpu.utilization(), strict=True):
        unsupported = isinstance(share, Absent) and share.reason is AbsentReason.NOT_SUPPORTED
        put(field_name, Absent(AbsentReason.MIG_ENABLED) if split and unsupported else share)
    put("temperature_celsius", gpu.temperature())
    put("power_watts", gpu.power())
    put("processes", board.named(_processes(gpu)))
    for field_name, value in {**board.read(split=split), "xids": xids.told(gpu)}.items():
        put(field_name, value)
    if is_unified(gpu, absent, values.get("processes"), split=split):
        values["memory_unified"] = True
        absent.update(dict.fromkeys(MEMORY_FIELDS, AbsentReason.UNIFIED_MEMORY))
    return GpuReading(
        gpu.uuid, identity.index, identity.name, absent=absent, read_seconds=time.monotonic() - started, **values
    )


def _put_memory(put: Callable[[str, object], None], memory: calls.Memory | Absent) -> None:
    for part in ("total", "used", "free", "reserved"):
        value = memory if isinstance(memory, Absent) else getattr(memory, part)
        put(f"memory_{part}_bytes", Absent(AbsentReason.NOT_SUPPORTED) if value is None else value)


def _processes(gpu: GpuCalls) -> tuple[ProcessReading, ...] | Absent:
    listed = gpu.processes()
    if isinstance(listed, Absent):
        return listed
    busy = gpu.process_utilization()
    idle = None if isinstance(busy, Absent) else 0.0
    shares = {} if isinstance(busy, Absent) else busy
    return tuple(
        ProcessReading(
            pid,
            gpu.uuid,
            one.memory,
            shares.get(pid, idle),
            computes=pid not in gpu.drawing,
            gpu_instance=one.gpu_instance,
            compute_instance=one.compute_instance,
        )
        for pid, one in sorted(listed.items())
    )


def _told_twice(told: Iterable[tuple[_Slot, GpuReading]]) -> frozenset[str]:
    """Return the UUIDs that two handles gave; one handle at two indices is a card that moved under the poll."""
    handles: dict[str, set[int]] = {}
    for slot, reading in told:
        if reading.fault is None:
            handles.setdefault(reading.uuid, set()).add(slot.address)
    return frozenset(uuid for uuid, addresses in handles.items() if len(addresses) > 1)


class NvmlSource:
    """The driver's GPUs. Never raises, never blocks the loop, whatever the driver does.

    deadline_seconds: how long one GPU may take. slow_seconds: time between two readings of what is slow to read or
    slow to change. activity_seconds: least time between two samples of what the SMs do. detailed: whether to read also
    what only other exporters' names ask for. A driver that is not there is tried again after first_retry_seconds, then
    after twice that, up to longest_retry_seconds.
    """

    def __init__(
        self,
        deadline_seconds: float,
        *,
        slow_seconds: float = 15.0,
        activity_seconds: float = 1.0,
        detailed: bool = False,
        first_retry_seconds: float = 1.0,
        longest_retry_seconds: float = 60.0,
    ) -> None:
        self._deadline_seconds = deadline_seconds
        self._new_board = lambda gpu: Board(gpu, slow_seconds, activity_seconds, detailed=detailed)
        self._xids = XidWatch()
        self._driver = Driver(deadline_seconds, first_retry_seconds, longest_retry_seconds)
        self._opening = 0
        self._slots: list[_Slot] = []
        self._left_behind: list[_Slot] = []
        self._seen: dict[str, _Identity] = {}
        self._claims = _Claims()
        self._crew = Crew("nvml-gpus")

    @property
    def driver_version(self) -> str:
        """The driver's version; "" while none was open yet."""
        return self._driver.version

    @property
    def needs_restart(self) -> str | None:
        """Why only a new process can read this driver (``library_replaced``, ``stuck_call``); None = it need not be."""
        return self._driver.needs_restart

    async def read(self, now: float) -> tuple[tuple[GpuReading, ...], SourceState]:
        """Read every GPU once. ``now`` is the poll's time; durations are measured on a clock that does not jump."""
        del now
        try:
            return await self._read()
        except Exception:
            # a surprise in our own code must not end the poller: it is told, and the values are withdrawn
            log.exception("the driver could not be read")
            return (), _SURPRISE

    async def _read(self) -> tuple[tuple[GpuReading, ...], SourceState]:
        if not self._driver.state.up:
            await self._xids.quiet(_QUIET_SECONDS)
        if not await self._driver.bring_up(others_busy=self._any_busy()):
            return (), self._driver.state
        self._arrange()
        self._xids.begin()
        answers = await self._ask()
        if not self._driver.state.up:
            return (), self._driver.state
        told = [(slot, answer) for slot, answer in zip(self._slots, answers, strict=True) if answer is not None]
        readings = self._complete((answer for _, answer in told), _told_twice(told))
        return readings, self._state(readings)

    async def close(self) -> None:
        """Close the driver if nothing hangs; returns within a second in any case."""
        await self._xids.quiet(_QUIET_SECONDS)
        await self._driver.close(_CLOSE_SECONDS, others_busy=self._any_busy())
        self._crew.stop()

    def _any_busy(self) -> bool:
        self._left_behind = [slot for slot in self._left_behind if slot.turn.busy]
        return self._xids.busy or any(slot.turn.busy for slot in (*self._slots, *self._left_behind))

    def _arrange(self) -> None:
        """Have one slot per listed GPU. Another list means other indices: a stuck one is begun anew."""
        if self._opening != self._driver.openings:
            self._opening = self._driver.openings
            self._seen.clear()
            self._drop(self._slots)
            self._slots = []
        count = self._driver.count
        if count == len(self._slots):
            return
        stuck = [slot for slot in self._slots if slot.turn.busy]
        self._drop([*stuck, *self._slots[count:]])
        kept = {slot.index: slot for slot in self._slots[:count] if slot not in stuck}
        self._slots = [kept.get(i) or _Slot(i, self._new_board, self._xids) for i in range(count)]

    def _drop(self, slots: Iterable[_Slot]) -> None:
        self._left_behind += [slot for slot in slots if slot.turn.busy and slot not in self._left_behind]

    async def _ask(self) -> list[GpuReading | None]:
        """Count the GPUs, and ask each; the count is for the next poll."""
        jobs: list[Job[Any]] = [self._driver.counting]
        jobs += [(slot.turn, functools.partial(slot.read, self._claims)) for slot in self._slots]
        count, *answers = await self._crew.ask(jobs, self._deadline_seconds)
        found = [self._judged(slot, answer) for slot, answer in zip(self._slots, answers, strict=True)]
        self._driver.counted(count)
        return found

    def _judged(self, slot: _Slot, answer: GpuReading | Exception | None) -> GpuReading | None:
        if isinstance(answer, TimeoutError):
            return slot.faulty(AbsentReason.TIMEOUT)
        if isinstance(answer, calls.DriverError):
            self._driver.failed(answer.code)
            return None
        if isinstance(answer, Exception):
            # one GPU's surprise must not take the others' values along
            log.error("GPU at index %d could not be read", slot.index, exc_info=answer)
            return slot.faulty(AbsentReason.DRIVER_ERROR)
        return answer

    def _complete(self, answers: Iterable[GpuReading], twice: frozenset[str]) -> tuple[GpuReading, ...]:
        """Add the GPUs that were seen before and are not in the answers now; of a UUID that is there twice, no values.

        Which of the two cards a series, or a container, is about can't be told then.
        """
        found: dict[str, GpuReading] = {}
        for reading in answers:
            if reading.uuid not in found or found[reading.uuid].fault is not None:
                found[reading.uuid] = reading
        for uuid in twice:
            first = found[uuid]
            xids = self._xids.counted(uuid)
            found[uuid] = GpuReading(uuid, first.index, first.name, fault=AbsentReason.DUPLICATE_UUID, xids=xids)
        for slot in self._left_behind:
            if slot.turn.busy and slot.identity is not None:
                found.setdefault(slot.identity.uuid, slot.faulty(AbsentReason.TIMEOUT))
        for uuid, known in self._seen.items():
            found.setdefault(
                uuid, GpuReading(uuid, known.index, known.name, fault=AbsentReason.LOST, xids=self._xids.counted(uuid))
            )
        for uuid, reading in found.items():
            if uuid != UNKNOWN_UUID.format(reading.index):
                self._seen[uuid] = _Identity(uuid, reading.index, reading.name)
        return tuple(sorted(found.values(), key=lambda reading: (reading.index, reading.uuid)))

    def _state(self, readings: tuple[GpuReading, ...]) -> SourceState:
        refused = all(reading.fault is AbsentReason.DRIVER_ERROR for reading in readings)
        return _ALL_REFUSED if readings and refused else self._driver.state
