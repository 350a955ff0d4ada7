"""How often each GPU reported each Xid: one thread that waits for the events of all GPUs.

Why it exists: an Xid is an event, so nobody who only polls sees it. What is kept is a count and a time per number,
never a last value that would look like a present fault for ever.
"""

import asyncio
import threading
import time
from typing import Any

import pynvml

from exporter.nvml.calls import Absent, GpuCalls, address, ask
from exporter.readings import AbsentReason, XidReading

WAIT_MILLISECONDS = 250
_PAUSE_SECONDS = 0.25
_XID = pynvml.nvmlEventTypeXidCriticalError


class XidWatch:
    """Counts Xids while the driver is open.

    ``begin`` and ``quiet`` belong to the loop, ``told`` to the GPUs' threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed = threading.Event()
        self._thread: threading.Thread | None = None
        self._inside = False
        self._set: Any = None
        self._retired: list[Any] = []
        self._registering = 0
        self._members: dict[int, str] = {}
        self._counts: dict[str, dict[int, XidReading]] = {}

    @property
    def busy(self) -> bool:
        """Whether the thread is in the driver, which then must not be closed."""
        return self._inside

    def begin(self) -> None:
        """Let the thread wait for events; it is started at the first time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
            self._thread.start()
        self._allowed.set()

    async def quiet(self, seconds: float) -> None:
        """Keep the thread out of the driver, and wait at most that long until it is. What was counted stays."""
        self._allowed.clear()
        give_up = time.monotonic() + seconds
        while self._inside and time.monotonic() < give_up:  # noqa: ASYNC110 - only a thread changes it
            await asyncio.sleep(0.01)
        with self._lock:
            # a set does not outlive the connection in which it was made
            self._set, self._members, self._retired = None, {}, []

    def counted(self, uuid: str) -> tuple[XidReading, ...]:
        """Return what a GPU has reported so far, by number; it may be gone by now."""
        with self._lock:
            return tuple(reading for _, reading in sorted(self._counts.get(uuid, {}).items()))

    def told(self, gpu: GpuCalls) -> tuple[XidReading, ...] | Absent | None:
        """Return what a GPU has reported, or None until it is listened to. Raises GpuError, DriverError."""
        at = address(gpu.handle)
        with self._lock:
            events, known = self._set, self._members.get(at) == gpu.uuid
            self._registering += events is not None and not known
        if events is None:
            return self.counted(gpu.uuid) or None
        if not known:
            refused = self._register(gpu, events, at)
            if refused is not None:
                return refused
        return self.counted(gpu.uuid)

    def _register(self, gpu: GpuCalls, events: Any, at: int) -> Absent | None:
        try:
            answer = gpu.first(("events", lambda handle: _register(handle, events)))
            if isinstance(answer, Absent):
                return answer
            with self._lock:
                if events is self._set:
                    self._members[at] = gpu.uuid
            return None
        finally:
            with self._lock:
                self._registering -= 1

    def _run(self) -> None:
        while self._allowed.wait():
            self._inside = True
            # asked again, because quiet() may have looked just before
            pause = self._step() if self._allowed.is_set() else 0.0
            self._inside = False
            if pause:
                time.sleep(pause)

    def _step(self) -> float:
        """Wait once. Returns for how many seconds to leave the driver alone."""
        self._free_retired()
        if self._set is None:
            created = ask(pynvml.nvmlEventSetCreate)
            with self._lock:
                self._set, self._members = (None if isinstance(created, Absent) else created), {}
        events = self._set
        if events is None or not self._members:
            return _PAUSE_SECONDS
        event = ask(pynvml.nvmlEventSetWait_v2, events, WAIT_MILLISECONDS)
        if not isinstance(event, Absent):
            self._count(event)
        elif event.reason is not AbsentReason.TIMEOUT:
            # a lost GPU spoils the whole set: the others are registered with a new one
            with self._lock:
                self._retired.append(events)
                self._set, self._members = None, {}
            return _PAUSE_SECONDS
        return 0.0

    def _free_retired(self) -> None:
        with self._lock:
            if self._registering:
                return
            retired, self._retired = self._retired, []
        for events in retired:
            ask(pynvml.nvmlEventSetFree, events)

    def _count(self, event: Any) -> None:
        if not event.eventType & _XID:
            return
        xid = int(event.eventData)
        with self._lock:
            uuid = self._members.get(address(event.device))
            if uuid is None:
                return
            counts = self._counts.setdefault(uuid, {})
            before = counts[xid].count if xid in counts else 0
            counts[xid] = XidReading(xid, before + 1, time.time())


def _register(handle: Any, events: Any) -> bool:
    if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _XID:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    pynvml.nvmlDeviceRegisterEvents(handle, _XID, events)
    return True
