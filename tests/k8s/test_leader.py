"""The election: never two leaders at one instant, whatever the API, the clocks and the processes do."""

import asyncio
import contextlib
import heapq
import itertools
import os
import random
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cluster import LEASE, ApiError, Cluster, Conflict, Kind, NotFound, Object, Unreachable
from controller.leader import Durations, Elector, elapsed, micro_time
from controller.sandbox.api import build_app
from controller.sandbox.store import Store as SandboxStore
from tests.k8s.scripted import ScriptedApi, silent, status, until

ROOT = Path(__file__).resolve().parents[2]
RENEW_DEADLINE = Durations().renew_deadline
LEASE_SECONDS = Durations().lease


class Clock:
    """Time that only the test moves; each elector may see it with an offset of its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def seen_with(self, offset: float) -> Any:
        return lambda: self.now + offset


class Leases:
    """The Lease part of an API server in memory, with the rules that matter: 404, 409, resourceVersion."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.version = 0
        self.writes = 0

    def apply(self, verb: str, body: Object | None) -> Object:
        if verb == "create":
            if self.lease is not None:
                raise Conflict(409, "AlreadyExists", "it exists")
        elif self.lease is None:
            raise NotFound(404, "NotFound", "no lease")
        if verb == "get" or body is None:
            return dict(self.lease or {})
        if verb == "replace" and self.lease and body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict(409, "Conflict", "it was modified")
        self.version += 1
        self.writes += 1
        self.lease = body | {"metadata": body["metadata"] | {"resourceVersion": str(self.version)}}
        return dict(self.lease)


@dataclass
class Steady:
    """A client of the Leases without faults, unless ``trouble`` is set: then each call raises it."""

    leases: Leases
    trouble: ApiError | None = None

    async def _call(self, verb: str, body: Object | None = None) -> Object:
        if self.trouble is not None:
            raise self.trouble
        return self.leases.apply(verb, body)

    async def get(self, _kind: Kind, _name: str, _namespace: str) -> Object:
        return await self._call("get")

    async def create(self, _kind: Kind, body: Object, _namespace: str) -> Object:
        return await self._call("create", body)

    async def replace(self, _kind: Kind, body: Object, _namespace: str) -> Object:
        return await self._call("replace", body)


@dataclass
class Slow(Steady):
    """A client whose requests reach the server, and answers come back, only when the driver lets them."""

    asked: asyncio.Future[bool] | None = None
    answered: asyncio.Future[bool] | None = None

    async def _call(self, verb: str, body: Object | None = None) -> Object:
        loop = asyncio.get_running_loop()
        self.asked = loop.create_future()
        if not await self.asked:
            raise Unreachable(0, "Unreachable", "lost on the way")
        self.answered = loop.create_future()
        try:
            result: Object | ApiError = self.leases.apply(verb, body)
        except ApiError as error:
            result = error
        if not await self.answered:
            raise Unreachable(0, "Unreachable", "the answer is lost")
        if isinstance(result, ApiError):
            raise result
        return result


def elector(client: Any, clock: Any, name: str = "a") -> Elector:
    return Elector(client, "gpuscale", "gpuscale", name, clock=clock)


@dataclass
class World:
    clock: Clock = field(default_factory=Clock)
    leases: Leases = field(default_factory=Leases)

    def join(self, name: str, offset: float = 0.0) -> tuple[Elector, Steady]:
        client = Steady(self.leases)
        return elector(client, self.clock.seen_with(offset), name), client


@pytest.fixture
def world() -> World:
    return World()


async def test_the_first_creates_the_lease_and_leads(world: World) -> None:
    first, _ = world.join("a")
    assert not first.is_leader()
    await first.step()
    assert first.is_leader()
    spec = (world.leases.lease or {})["spec"]
    assert spec["holderIdentity"] == first.identity
    assert first.identity.startswith("a_")
    assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (15, 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", spec["renewTime"])
    assert spec["acquireTime"] == spec["renewTime"]


async def test_two_processes_of_one_name_are_still_two(world: World) -> None:
    first, _ = world.join("same")
    second, _ = world.join("same")
    await first.step()
    await second.step()
    assert (first.is_leader(), second.is_leader()) == (True, False)


async def test_leadership_ends_by_the_clock_alone(world: World) -> None:
    first, _ = world.join("a")
    await first.step()
    world.clock.now += RENEW_DEADLINE - 0.01
    assert first.is_leader()
    assert first.remaining_seconds() == pytest.approx(0.01)
    world.clock.now += 0.01
    assert not first.is_leader()
    assert first.remaining_seconds() == 0


async def test_a_write_may_last_until_another_could_lead_and_no_longer(world: World) -> None:
    first, _ = world.join("a")
    assert first.write_seconds() == 0
    await first.step()
    assert first.write_seconds() == LEASE_SECONDS
    world.clock.now += RENEW_DEADLINE - 1
    assert first.write_seconds() == LEASE_SECONDS - RENEW_DEADLINE + 1
    world.clock.now += 1
    assert first.write_seconds() == 0


async def test_a_renewal_counts_from_before_it_was_sent(world: World) -> None:
    client = Slow(world.leases)
    first = elector(client, world.clock.seen_with(0.0))
    task = asyncio.create_task(first.step())
    for _ in range(2):  # the read, then the creation
        await until(lambda: client.asked is not None and not client.asked.done())
        assert client.asked is not None
        world.clock.now += 2.0
        client.asked.set_result(True)
        await until(lambda: client.answered is not None and not client.answered.done())
        assert client.answered is not None
        world.clock.now += 3.0
        client.answered.set_result(True)
    await task
    assert world.clock.now == 10.0
    assert first.remaining_seconds() == RENEW_DEADLINE - 5.0, "the creation was sent 5 s ago"


async def test_a_renewal_takes_one_request_and_keeps_the_time_of_acquisition(world: World) -> None:
    first, _ = world.join("a")
    await first.step()
    acquired = (world.leases.lease or {})["spec"]["acquireTime"]
    world.clock.now += 2
    await first.step()
    assert first.remaining_seconds() == RENEW_DEADLINE
    assert world.leases.writes == 2
    assert (world.leases.lease or {})["spec"]["acquireTime"] == acquired
    assert (world.leases.lease or {})["spec"]["leaseTransitions"] == 0


async def test_another_takes_over_only_after_a_whole_lease_without_renewal_on_its_own_clock(world: World) -> None:
    first, _ = world.join("a")
    second, _ = world.join("b", offset=-5000.0)
    await first.step()
    world.clock.now += 100.0
    await second.step()
    assert not second.is_leader(), "it has only just seen the record"
    world.clock.now += LEASE_SECONDS - 0.1
    await second.step()
    assert not second.is_leader()
    world.clock.now += 0.1
    await second.step()
    assert second.is_leader()
    assert (world.leases.lease or {})["spec"]["leaseTransitions"] == 1
    assert not first.is_leader()


async def test_each_renewal_starts_the_wait_of_the_others_anew(world: World) -> None:
    first, _ = world.join("a")
    second, _ = world.join("b")
    for _ in range(30):
        await first.step()
        await second.step()
        assert (first.is_leader(), second.is_leader()) == (True, False)
        world.clock.now += 2.0


async def test_the_wall_clock_of_the_record_does_not_matter(world: World) -> None:
    first, _ = world.join("a")
    second, _ = world.join("b")
    await first.step()
    for wall in ("1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"):
        assert world.leases.lease is not None
        world.leases.lease["spec"]["renewTime"] = wall
        await second.step()
        assert not second.is_leader()
    world.clock.now += LEASE_SECONDS
    await second.step()
    assert second.is_leader(), "a renewal from the future does not lock the others out"


async def test_a_label_on_the_lease_is_no_sign_of_life(world: World) -> None:
    first, _ = world.join("a")
    second, _ = world.join("b")
    await first.step()
    await second.step()
    world.clock.now += LEASE_SECONDS
    lease = world.leases.lease
    assert lease is not None
    world.leases.apply("replace", lease | {"metadata": lease["metadata"] | {"labels": {"touched": "yes"}}})
    await second.step()
    assert second.is_leader()


async def test_the_longer_of_two_lease_durations_is_waited_for(world: World) -> None:
    other = Elector(Steady(world.leases), "n", "l", "old", Durations(60.0, 40.0, 5.0), clock=world.clock.seen_with(0))  # type: ignore[arg-type]
    ours, _ = world.join("new")
    await other.step()
    await ours.step()
    world.clock.now += 39.0
    await ours.step()
    assert (other.is_leader(), ours.is_leader()) == (True, False)
    world.clock.now += 21.0
    await ours.step()
    assert (other.is_leader(), ours.is_leader()) == (False, True)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"holderIdentity": ""},
        {"holderIdentity": None, "leaseTransitions": None, "leaseDurationSeconds": None},
        "garbage",
        {"holderIdentity": "x", "leaseDurationSeconds": "soon", "leaseTransitions": "many", "renewTime": 3},
        {"holderIdentity": "x", "leaseDurationSeconds": 10**12, "renewTime": "never"},
    ],
)
async def test_a_garbled_lease_neither_breaks_nor_locks_out(world: World, spec: object) -> None:
    world.leases.lease = {"metadata": {"name": "gpuscale", "resourceVersion": "0"}, "spec": spec}
    first, _ = world.join("a")
    await first.step()
    world.clock.now += 10 * LEASE_SECONDS
    await first.step()
    assert first.is_leader()


@pytest.mark.parametrize(
    "trouble",
    [Unreachable(0, "Unreachable", "no route"), ApiError(503, "ServiceUnavailable", "later"), TimeoutError()],
    ids=["unreachable", "503", "timeout"],
)
async def test_with_the_api_away_it_stops_leading_in_time_and_leads_again_after(world: World, trouble: Any) -> None:
    first, client = world.join("a")
    told: list[bool] = []
    first.on_change(told.append)
    await first.step()
    client.trouble = trouble
    for _ in range(5):
        world.clock.now += 2.0
        await first.step()
        assert first.is_leader() == (world.clock.now < RENEW_DEADLINE)
    assert first.last_error
    client.trouble = None
    await first.step()
    assert first.is_leader()
    assert first.last_error == ""
    assert told == [True, False, True]


async def test_a_lost_race_is_no_leadership(world: World) -> None:
    first, second = (elector(Slow(world.leases), world.clock.seen_with(0.0), name) for name in "ab")
    tasks = [asyncio.create_task(e.step()) for e in (first, second)]
    for _ in range(4):
        await asyncio.sleep(0)
        for e in (first, second):
            client: Slow = e._cluster  # type: ignore[assignment]
            for gate in (client.asked, client.answered):
                if gate is not None and not gate.done():
                    gate.set_result(True)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert sorted([first.is_leader(), second.is_leader()]) == [False, True]


async def test_a_leader_that_was_overruled_stops_at_once(world: World) -> None:
    first, _ = world.join("a")
    await first.step()
    lease = world.leases.lease
    assert lease is not None
    world.leases.apply("replace", lease | {"spec": lease["spec"] | {"holderIdentity": "someone-else"}})
    await first.step()
    assert not first.is_leader()
    assert first.holder == "someone-else"


async def test_a_leader_whose_lease_was_only_touched_goes_on(world: World) -> None:
    first, _ = world.join("a")
    await first.step()
    lease = world.leases.lease
    assert lease is not None
    world.leases.apply("replace", lease | {"metadata": lease["metadata"] | {"labels": {"touched": "yes"}}})
    world.clock.now += 2.0
    await first.step()
    assert first.remaining_seconds() == RENEW_DEADLINE


async def test_a_deleted_lease_is_made_anew_by_its_holder_and_not_by_one_who_knew_the_holder(world: World) -> None:
    first, _ = world.join("a")
    second, _ = world.join("b")
    await first.step()
    await second.step()
    world.leases.lease = None
    await second.step()
    assert not second.is_leader()
    await first.step()
    assert first.is_leader()


async def test_a_release_lets_the_next_lead_at_once(world: World) -> None:
    first, _ = world.join("a")
    second, _ = world.join("b")
    await first.step()
    await second.step()
    await first.release()
    assert not first.is_leader()
    assert not (world.leases.lease or {})["spec"].get("holderIdentity")
    await second.step()
    assert second.is_leader()
    await first.step()
    assert not first.is_leader(), "a release is for good"


async def test_a_release_leaves_the_lease_of_another_alone(world: World) -> None:
    first, _ = world.join("a")
    second, _ = world.join("b")
    await first.step()
    await second.step()
    world.clock.now += LEASE_SECONDS
    await second.step()
    await first.release()
    assert (world.leases.lease or {})["spec"]["holderIdentity"] == second.identity


async def test_a_release_with_the_api_away_still_ends_leadership(world: World) -> None:
    first, client = world.join("a")
    await first.step()
    client.trouble = Unreachable(0, "Unreachable", "no route")
    await first.release()
    assert not first.is_leader()


async def test_a_renewal_that_arrives_after_the_release_gives_no_leadership(world: World) -> None:
    client = Slow(world.leases)
    first = elector(client, world.clock.seen_with(0.0))
    step = asyncio.create_task(first.step())
    release = None
    for number in range(6):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if number == 3:
            release = asyncio.create_task(first.release())
            await asyncio.sleep(0)
        for gate in (client.asked, client.answered):
            if gate is not None and not gate.done():
                gate.set_result(True)
    for _ in range(20):
        await asyncio.sleep(0)
        for gate in (client.asked, client.answered):
            if gate is not None and not gate.done():
                gate.set_result(True)
    assert release is not None
    await asyncio.gather(step, release)
    assert not first.is_leader()
    assert not (world.leases.lease or {})["spec"].get("holderIdentity")


@pytest.mark.parametrize("bad", [(10, 10, 2), (15, 10, 5), (15, 10, 0), (5, 10, 2)])
def test_durations_that_cannot_be_safe_are_refused(bad: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="lease durations"):
        Durations(*bad)


def test_a_micro_time_is_utc_with_six_digits() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=timezone(timedelta(hours=2)))
    assert micro_time(moment) == "2026-01-02T01:04:05.000060Z"


# --- whatever the order of events


@dataclass
class Simulation:
    """Three electors in virtual time; slow, late and lost requests and cut networks are drawn by the seed."""

    rng: random.Random
    now: float = 0.0
    leases: Leases = field(default_factory=Leases)
    reigns: list[str] = field(default_factory=list)
    _queue: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    _count: int = 0

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, future))
        await future

    async def play(self, events: int) -> None:
        clients = [Remote(self.leases, simulation=self) for _ in range(3)]
        electors = [
            Elector(client, "n", "l", str(number), clock=self._clock(offset), sleep=self.sleep)  # type: ignore[arg-type]
            for number, (client, offset) in enumerate(zip(clients, (0.0, 777.0, -777.0), strict=True))
        ]
        lives = [*(elector.run() for elector in electors), *(client.suffer() for client in clients)]
        tasks = [asyncio.create_task(life) for life in lives]
        for _ in range(events):
            for _ in range(4):
                await asyncio.sleep(0)
            self.now, _, future = heapq.heappop(self._queue)
            future.set_result(None)
            self._check(electors)
        assert not any(task.done() for task in tasks), "an elector has given up campaigning"
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ApiError):
                await task

    def _clock(self, offset: float) -> Any:
        return lambda: self.now + offset

    def _check(self, electors: list[Elector]) -> None:
        leaders = [elector.identity for elector in electors if elector.is_leader()]
        assert len(leaders) <= 1, f"two lead at {self.now:.1f} s: {leaders}"
        if leaders and self.reigns[-1:] != leaders:
            self.reigns += leaders


@dataclass
class Remote(Steady):
    """A client at the far end of a bad network."""

    simulation: Simulation = field(kw_only=True)
    cut: bool = False

    async def suffer(self) -> None:
        """Be cut off now and then, mostly for longer than a lease."""
        rng = self.simulation.rng
        while True:
            await self.simulation.sleep(rng.uniform(5, 60))
            self.cut = True
            await self.simulation.sleep(rng.uniform(1, 40))
            self.cut = False

    async def _call(self, verb: str, body: Object | None = None) -> Object:
        rng, delays = self.simulation.rng, (0.01, 0.01, 0.01, 0.3, 2.0, 8.0)
        if self.cut:
            await self.simulation.sleep(1.0)
            raise Unreachable(0, "Unreachable", "cut off")
        arrival = asyncio.create_task(self._arrive(verb, body, rng.choice(delays)))
        if rng.random() < 0.1:
            arrival.add_done_callback(lambda task: task.cancelled() or task.exception())
            await self.simulation.sleep(1.0)
            raise Unreachable(0, "Unreachable", "given up; it may still arrive")
        (result,) = await asyncio.gather(arrival, return_exceptions=True)
        await self.simulation.sleep(rng.choice(delays))
        if isinstance(result, BaseException):
            raise result
        return result

    async def _arrive(self, verb: str, body: Object | None, delay: float) -> Object:
        await self.simulation.sleep(delay)
        return self.leases.apply(verb, body)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_never_two_lead_whatever_is_slow_late_lost_or_cut_off(seed: int) -> None:
    asyncio.run(Simulation(random.Random(seed)).play(events=700))  # noqa: S311 - a repeatable one


def test_the_simulation_does_see_leaders_come_and_go() -> None:
    """Else the property above would hold for electors that never lead."""
    simulation = Simulation(random.Random(1))  # noqa: S311 - a repeatable one
    asyncio.run(simulation.play(events=2000))
    assert len(simulation.reigns) >= 5


@pytest.mark.parametrize(
    ("attribute", "broken"),
    [
        ("_may_take_over", lambda _self, _lease: True),
        ("_won", lambda self, lease, _sent_at: Elector._won_as_written(self, lease, self._clock())),
    ],
    ids=["takes over at once", "counts from the answer"],
)
def test_the_simulation_finds_an_unsafe_elector(
    monkeypatch: pytest.MonkeyPatch, attribute: str, broken: object
) -> None:
    monkeypatch.setattr(Elector, "_won_as_written", Elector._won, raising=False)
    monkeypatch.setattr(Elector, attribute, broken)

    def hunt() -> None:
        for seed in range(60):
            asyncio.run(Simulation(random.Random(seed)).play(events=1500))  # noqa: S311 - a repeatable one

    with pytest.raises(AssertionError, match="two lead"):
        hunt()


# --- over HTTP


QUICK = Durations(lease=2.0, renew_deadline=1.5, retry=0.1)


async def test_run_leads_survives_an_outage_and_leads_again(api: ScriptedApi, cluster: Cluster) -> None:
    first = Elector(cluster, "gpuscale", "gpuscale", "a", QUICK)
    task = asyncio.create_task(first.run())
    await until(first.is_leader)
    api.down = status(503, "ServiceUnavailable")
    await until(lambda: not first.is_leader())
    api.down = None
    await until(first.is_leader)
    api.down = silent()
    await until(lambda: not first.is_leader())
    api.down = None
    await until(first.is_leader)
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await first.release()
    (lease,) = [obj for key, obj in api.objects.items() if key[0] == LEASE.path()]
    assert "holderIdentity" not in lease["spec"]


# --- as processes, one of them paused


@pytest.fixture
async def emulator() -> AsyncIterator[str]:
    runner = web.AppRunner(build_app(SandboxStore()), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@dataclass
class Process:
    """An elector process and all that it has said: (moment, whether it led)."""

    process: asyncio.subprocess.Process
    said: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def leads(self) -> bool:
        return bool(self.said) and self.said[-1][1]

    def led_at(self) -> list[float]:
        return [moment for moment, leads in self.said if leads]

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            moment, leads = line.decode().split()
            self.said.append((float(moment), leads == "True"))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for what this process is to say; one that has ended says nothing more, and why is in its stderr."""
        await until(lambda: condition() or self.process.returncode is not None, 60)
        assert condition(), f"the process ended with {self.process.returncode}"

    def send(self, which: signal.Signals) -> None:
        os.kill(self.process.pid, which)


@pytest.fixture
async def start(emulator: str) -> AsyncIterator[Any]:
    started: list[tuple[Process, asyncio.Task[None]]] = []

    async def start_one(name: str) -> Process:
        words = (sys.executable, "-m", "tests.k8s.elector_process", emulator, name)
        made = Process(await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=asyncio.subprocess.PIPE))
        started.append((made, asyncio.create_task(made.listen())))
        return made

    yield start_one
    for made, task in started:
        with contextlib.suppress(ProcessLookupError):
            made.send(signal.SIGKILL)
        await made.process.wait()
        await task


async def one_of_two_leads(start: Any) -> tuple[Process, Process]:
    """Start two; the one that leads and the other. On a busy machine the first may lose before the second is there."""
    first = await start("first")
    await first.until(lambda: first.leads)
    second = await start("second")
    await second.until(lambda: second.said)
    await until(lambda: first.leads or second.leads, 60)
    return (first, second) if first.leads else (second, first)


async def test_a_paused_leader_knows_that_it_has_lost_before_it_could_write(start: Any) -> None:
    leader, other = await one_of_two_leads(start)
    leader.send(signal.SIGSTOP)
    paused = elapsed()
    await other.until(lambda: other.leads)
    leader.send(signal.SIGCONT)
    resumed = elapsed()
    await leader.until(lambda: sum(moment > resumed for moment, _ in leader.said) > 20)
    takeover = min(moment for moment in other.led_at() if moment > paused)
    reign = itertools.takewhile(lambda row: row[1], [row for row in other.said if row[0] >= takeover])
    end = max(moment for moment, _ in reign)
    assert [moment for moment in leader.led_at() if takeover <= moment <= end] == []


async def test_a_killed_leader_is_replaced(start: Any) -> None:
    leader, other = await one_of_two_leads(start)
    leader.send(signal.SIGKILL)
    killed = elapsed()
    await other.until(lambda: other.leads)
    gap = min(moment for moment in other.led_at() if moment > killed) - max(leader.led_at())
    assert gap > 0
    print(f"failover after SIGKILL: {gap:.2f} s with a lease of 4 s")
