"""Things that may hang, asked one after the other in one thread for as long as none does.

Why it exists: a thread for each GPU costs more, in being woken and in fighting for the interpreter, than what it reads;
one thread for all would hang with the first. Here whoever takes longer than a head start keeps the thread it is in,
and another one goes on with the next.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from exporter.nvml.workers import Worker, tell

T = TypeVar("T")
_HEAD_START_SECONDS = 0.005


class Turn:
    """One thing that is asked again and again, never twice at once, whichever thread asks it."""

    def __init__(self) -> None:
        self.began: float | None = None
        """Monotonic time at which the present call began; None = there is none."""

    @property
    def busy(self) -> bool:
        """Whether a call is under way; between two rounds this means: stuck."""
        return self.began is not None

    @property
    def busy_seconds(self) -> float:
        """For how long the present call has been running; 0 without one."""
        began = self.began
        return 0.0 if began is None else time.monotonic() - began


Job = tuple[Turn, Callable[[], T]]


class Crew:
    """As many threads as the hanging of calls needs: one while none hangs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._workers: list[Worker] = []

    async def ask(self, jobs: Sequence[Job[T]], deadline_seconds: float) -> list[T | Exception]:
        """Return what each job answered or raised, in their order.

        A TimeoutError stands for one that takes longer than the deadline, and for one of which an earlier call has not
        returned: it is not asked again. Ends within the deadline and a head start for each job.
        """
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        present = _Round(jobs, lambda: tell(loop, lambda: _finish(finished)))
        if not present.waits():
            return present.answers
        self._send(present)
        try:
            while present.waits():
                before = present.begun
                await asyncio.wait({finished}, timeout=_HEAD_START_SECONDS)
                if present.waits() and present.begun == before:
                    self._send(present)
            await asyncio.wait({finished}, timeout=deadline_seconds)
        finally:
            present.close()
        # a copy: what comes later is dropped
        return list(present.answers)

    def stop(self) -> None:
        """Let each thread end after its present job; waits for none."""
        for worker in self._workers:
            worker.stop()

    def _send(self, present: "_Round[T]") -> None:
        free = next((worker for worker in self._workers if not worker.busy), None)
        if free is None:
            free = Worker(f"{self._name}-{len(self._workers)}")
            self._workers.append(free)
        free.give(present.work, present.tell_if_finished)


class _Round(Generic[T]):
    """The jobs of one time of asking: who works takes the next one."""

    def __init__(self, jobs: Sequence[Job[T]], finished: Callable[[], None]) -> None:
        self.answers: list[T | Exception] = [TimeoutError("no answer yet") for _ in jobs]
        self.begun = 0
        self._finished = finished
        self._lock = threading.Lock()
        self._todo = deque((place, *job) for place, job in enumerate(jobs) if not job[0].busy)
        self._left = len(self._todo)

    def waits(self) -> bool:
        """Whether a job has not begun."""
        return bool(self._todo)

    def work(self) -> None:
        """Do jobs until none waits."""
        while (taken := self._take()) is not None:
            place, turn, job = taken
            answer: T | Exception
            try:
                answer = job()
            except Exception as raised:  # noqa: BLE001 - it belongs to the asker; the others have to be asked
                answer = raised
            self.answers[place] = answer
            with self._lock:
                turn.began = None
                self._left -= 1

    def tell_if_finished(self) -> None:
        """Tell the asker once no job is left. By the thread that is free again, so that the next round finds it."""
        if not self._left:
            self._finished()

    def close(self) -> None:
        """Let no further job begin: nobody waits for it."""
        with self._lock:
            self._todo.clear()

    def _take(self) -> tuple[int, Turn, Callable[[], T]] | None:
        # whoever has closed a round may rely on it that what is not busy now stays so
        with self._lock:
            if not self._todo:
                return None
            taken = self._todo.popleft()
            taken[1].began = time.monotonic()
            self.begun += 1
            return taken


def _finish(finished: asyncio.Future[None]) -> None:
    if not finished.done():
        finished.set_result(None)
