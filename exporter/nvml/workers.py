"""A thread that may hang without taking anybody along.

Why it exists: a driver call can block for ever, and neither a thread pool nor asyncio.to_thread can be left behind
at exit. Here a daemon thread has at most one job in it, the asker waits at most a deadline, and an answer that comes
later is dropped.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """One daemon thread that does one job at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is in the thread; after its deadline this means: stuck."""
        return self._busy_since is not None

    @property
    def busy_seconds(self) -> float:
        """For how long the present job has been running; 0 without one."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    async def ask(self, job: Callable[[], T], deadline_seconds: float) -> T:
        """Return the job's answer.

        Raises TimeoutError past the deadline, and at once where an earlier job is still in the thread; whatever the
        job itself raises comes through.
        """
        if self.busy:
            raise TimeoutError(f"{self._name}: an earlier call has not returned")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        outcome: list[Any] = [None, None]

        def run() -> None:
            try:
                outcome[0] = job()
            except Exception as raised:  # noqa: BLE001 - it belongs to the asker; the thread has to live on
                outcome[1] = raised

        self.give(run, lambda: tell(loop, lambda: _settle(answer, *outcome)))
        # a timer on the answer itself: asyncio.wait_for would make three more objects at each poll
        late = loop.call_later(deadline_seconds, _settle, answer, None, TimeoutError(f"{self._name}: no answer yet"))
        try:
            return await answer
        finally:
            late.cancel()

    def give(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """Have a thread that is not busy do a job, and then, once it is free again, ``done``. Neither may raise."""
        self._busy_since = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(lambda: self._do(job, done))

    def stop(self) -> None:
        """Let the thread end after its present job; does not wait for it."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (run := self._jobs.get()) is not None:
            run()

    def _do(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        job()
        self._busy_since = None
        done()


def tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Have a loop call something, from another thread; one that has ended has nobody left to be told."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return


def _settle(answer: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
