"""Things that may hang, asked in as few threads as the hanging needs."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from exporter.nvml.crew import Crew, Turn

LONG, SHORT = 30.0, 0.05


def refuse() -> int:
    raise ValueError("no")


async def test_answers_and_errors_come_in_the_order_of_the_jobs() -> None:
    crew = Crew("c")
    first, second, third = await crew.ask([(Turn(), lambda: 1), (Turn(), refuse), (Turn(), lambda: 3)], LONG)
    assert (first, third) == (1, 3)
    assert isinstance(second, ValueError)
    assert await crew.ask([], LONG) == []
    crew.stop()


async def test_without_a_hang_one_thread_asks_all_of_them_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.nvml.crew._HEAD_START_SECONDS", LONG)
    crew = Crew("c")
    jobs: list[tuple[Turn, Callable[[], object]]] = [(Turn(), threading.current_thread) for _ in range(8)]
    threads = {thread for _ in range(20) for thread in await crew.ask(jobs, LONG)}
    assert len(threads) == 1
    (thread,) = threads
    assert isinstance(thread, threading.Thread)
    assert thread.daemon
    crew.stop()
    thread.join(LONG)
    assert not thread.is_alive()


async def test_who_hangs_holds_up_nobody_and_is_not_asked_again_meanwhile() -> None:
    crew, release, asked = Crew("c"), threading.Event(), []
    stuck, well = Turn(), Turn()

    def hang() -> str:
        asked.append(1)
        release.wait(LONG)
        return "late"

    jobs: list[tuple[Turn, Callable[[], object]]] = [(stuck, hang), (well, lambda: "well")]
    for _ in range(3):
        late, answer = await crew.ask(jobs, SHORT)
        assert isinstance(late, TimeoutError)
        assert answer == "well"
    assert asked == [1]
    assert (stuck.busy, well.busy) == (True, False)
    assert stuck.busy_seconds > 0
    release.set()
    while stuck.busy:  # noqa: ASYNC110 - only a thread changes it
        await asyncio.sleep(0.001)
    assert stuck.busy_seconds == 0
    assert await crew.ask(jobs, LONG) == ["late", "well"]
    assert asked == [1, 1]
    crew.stop()


async def test_all_that_hang_are_given_up_together() -> None:
    crew, release = Crew("c"), threading.Event()
    jobs = [(Turn(), lambda: release.wait(LONG)) for _ in range(4)]
    answers = await crew.ask(jobs, SHORT)
    assert all(isinstance(answer, TimeoutError) for answer in answers)
    assert all(turn.busy for turn, _ in jobs)
    release.set()
    crew.stop()


async def test_a_round_that_is_given_up_begins_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.nvml.crew._HEAD_START_SECONDS", LONG)
    crew, release, inside = Crew("c"), threading.Event(), threading.Event()
    ran: list[int] = []

    def first() -> None:
        inside.set()
        release.wait(LONG)

    asking = asyncio.create_task(crew.ask([(held := Turn(), first), (Turn(), lambda: ran.append(1))], LONG))
    while not inside.is_set():  # noqa: ASYNC110 - only a thread sets it
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    release.set()
    while held.busy:  # noqa: ASYNC110 - only a thread changes it
        await asyncio.sleep(0.001)
    assert await crew.ask([(Turn(), lambda: 7)], LONG) == [7]
    assert ran == []
    crew.stop()


def test_a_job_outlives_the_loop_that_asked() -> None:
    crew, release, turn = Crew("c"), threading.Event(), Turn()
    answers = asyncio.run(crew.ask([(turn, lambda: release.wait(LONG))], SHORT))
    assert isinstance(answers[0], TimeoutError)
    release.set()

    async def again() -> list[object]:
        while turn.busy:  # noqa: ASYNC110 - only a thread changes it
            await asyncio.sleep(0.001)
        return list(await crew.ask([(turn, lambda: 8)], LONG))

    assert asyncio.run(again()) == [8]
    crew.stop()
