"""The order of a pass, with a fake cluster view and clock: what must have happened before anything is decided."""

import asyncio
from typing import Any

import pytest

from controller.loop import STALE_VIEW_SECONDS, Loop
from controller.run import steady_clock
from controller.sources.exporters import GpuReadings
from controller.telemetry import Telemetry


class FakeView:
    synced = True
    silent = 0.0

    def unsynced(self) -> list[str]:
        return ["pods"]

    def oldest_watch_seconds(self) -> float:
        return self.silent

    def pods(self) -> str:
        return "index"


class Noting:
    """Stands for sources, rounds and desk: notes the order of the calls. ``fails`` is the step that raises."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.fails = ""
        self.passes = 0
        self.passed = asyncio.Event()
        self.failed_thrice = asyncio.Event()

    def step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fails:
            if self.steps.count(name) == 3:
                self.failed_thrice.set()
            raise RuntimeError(name)

    async def read(self, _asks: Any = None) -> Any:
        self.step("read")
        return GpuReadings() if _asks is None else {}

    async def flush(self) -> None:
        self.step("flush")
        self.passes += 1
        self.passed.set()

    def forget_all(self) -> None:
        self.step("forget")


class Round:
    def __init__(self, name: str, noting: Noting) -> None:
        self._name = name
        self._noting = noting
        self.given: list[Any] = []

    def begin(self) -> list[str]:
        self._noting.step(f"begin {self._name}")
        return []

    def asks(self, _objects: Any) -> list[Any]:
        return []

    async def targets(self, _objects: Any) -> dict[Any, Any]:
        return {}

    async def sizes(self, _objects: Any) -> dict[Any, Any]:
        return {}

    def plan(self, *given: Any) -> list[Any]:
        self._noting.step(f"plan {self._name}")
        self.given.append(given)
        return [Plan()] if self._name == "workloads" else []

    async def perform(self, _plans: Any) -> None:
        self._noting.step(f"perform {self._name}")

    def forget_all(self) -> None:
        self._noting.forget_all()

    def missed(self) -> None:
        self._noting.step("missed")


class Plan:
    planned = "three more pods"


class Stand:
    def __init__(self, tick_seconds: float = 3600.0) -> None:
        self.noting, self.view, self.leads = Noting(), FakeView(), True
        self.workloads, self.pools = Round("workloads", self.noting), Round("pools", self.noting)
        parts: Any = (
            self.view,
            self.noting,
            self.noting,
            self.workloads,
            self.pools,
            self.noting,
            Telemetry(),
            lambda: self.leads,
        )
        self.loop = Loop(*parts, tick_seconds=tick_seconds)

    async def one_pass(self) -> list[str]:
        self.noting.steps.clear()
        await self.loop._pass_once()
        return self.noting.steps


async def test_workloads_are_decided_before_pools_which_get_what_is_planned() -> None:
    stand = Stand()
    steps = await stand.one_pass()
    assert [step for step in steps if step != "read"] == [
        "begin workloads",
        "begin pools",
        "plan workloads",
        "plan pools",
        "perform workloads",
        "perform pools",
        "flush",
    ]
    assert stand.pools.given[0][-1] == ["three more pods"]


async def test_nothing_happens_before_every_copy_is_whole() -> None:
    stand = Stand()
    stand.view.synced = False
    assert await stand.one_pass() == ["missed"]


async def test_a_process_that_does_not_lead_forgets_and_decides_nothing() -> None:
    stand = Stand()
    stand.leads = False
    assert set(await stand.one_pass()) == {"forget"}


async def test_a_view_that_is_no_longer_renewed_is_a_hold_and_no_time_of_a_window() -> None:
    stand = Stand()
    stand.view.silent = STALE_VIEW_SECONDS + 1
    assert await stand.one_pass() == ["missed"]


async def test_a_wake_brings_a_pass_before_the_tick_and_a_stop_ends_the_run() -> None:
    stand = Stand()
    running = asyncio.create_task(stand.loop.run())
    async with asyncio.timeout(30):
        await stand.noting.passed.wait()
        stand.noting.passed.clear()
        for _ in range(20):
            stand.loop.wake()
        await stand.noting.passed.wait()
        stand.loop.stop()
        await running
    assert stand.noting.passes == 2


async def test_a_wake_right_before_the_tick_does_not_put_the_tick_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.loop.GATHER_SECONDS", 3600.0)
    stand = Stand(tick_seconds=0.05)
    running = asyncio.create_task(stand.loop.run())
    async with asyncio.timeout(30):
        await stand.noting.passed.wait()
        stand.noting.passed.clear()
        stand.loop.wake()
        await stand.noting.passed.wait()
        stand.loop.stop()
        await running


async def test_a_pass_that_fails_is_followed_by_another_and_leaves_its_age() -> None:
    stand = Stand(tick_seconds=0.01)
    stand.noting.fails = "plan workloads"
    before = stand.loop.passed_at
    running = asyncio.create_task(stand.loop.run())
    async with asyncio.timeout(30):
        await stand.noting.failed_thrice.wait()
        assert stand.loop.passed_at == before
        stand.noting.fails = ""
        await stand.noting.passed.wait()
        stand.loop.stop()
        await running
    assert stand.loop.passed_at > before


def test_the_operators_clock_does_not_follow_a_jump_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = steady_clock()
    before = clock()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert clock() >= before
