"""The list+watch copy: whole, current, and honest about its age when the API is not well."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from controller.cluster import POD, Cluster, Object
from controller.stores import Backoff, Store
from tests.k8s.scripted import Answer, ScriptedApi, events, status, status_object, text, until

PODS = "/api/v1/pods"
A, B = ("ml", "a"), ("ml", "b")


def pod(name: str, phase: str = "Running") -> Object:
    return {"metadata": {"name": name, "namespace": "ml"}, "status": {"phase": phase}}


def phase(obj: Object) -> str | None:
    """Keep the phase; finished pods are not held."""
    found: str = obj["status"]["phase"]
    return None if found == "Succeeded" else found


class Ticking:
    """A clock that the test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def make(cluster: Cluster) -> AsyncIterator[Callable[..., Store[str]]]:
    made: list[Store[str]] = []

    def build(**settings: Any) -> Store[str]:
        store = Store(cluster, POD, phase, **({"backoff": Backoff(0.01, 0.05)} | settings))
        made.append(store)
        store.start()
        return store

    yield build
    for store in made:
        await store.stop()


async def test_a_copy_is_whole_before_it_says_synced(api: ScriptedApi, cluster: Cluster) -> None:
    for number in range(700):
        await api.put(PODS, pod(f"pod-{number:04}"))
    store = Store(cluster, POD, phase)
    seen: list[int] = []
    store.on_change(lambda *_: seen.append(store.synced))
    assert not store.synced
    store.start()
    await store.wait_synced()
    assert len(store.objects) == 700
    assert seen == [False] * 700
    await store.stop()


async def test_changes_arrive_through_the_watch(api: ScriptedApi, make: Callable[..., Store[str]]) -> None:
    await api.put(PODS, pod("a", "Pending"))
    store = make()
    changes: list[tuple[object, ...]] = []
    store.on_change(lambda *change: changes.append(change))
    await store.wait_synced()
    await api.put(PODS, pod("a", "Running"))
    await api.put(PODS, pod("b", "Running"))
    await api.remove(PODS, "a", "ml")
    await until(lambda: A not in store.objects)
    assert store.objects == {B: "Running"}
    assert changes == [
        (A, None, "Pending"),
        (A, "Pending", "Running"),
        (B, None, "Running"),
        (A, "Running", None),
    ]
    assert store.relists == 1


async def test_an_object_that_keep_refuses_is_let_go(api: ScriptedApi, make: Callable[..., Store[str]]) -> None:
    await api.put(PODS, pod("a"))
    await api.put(PODS, pod("b"))
    store = make()
    await store.wait_synced()
    await api.put(PODS, pod("a", "Succeeded"))
    await until(lambda: A not in store.objects)
    await api.remove(PODS, "a", "ml")
    await api.put(PODS, pod("a", "Pending"))
    await until(lambda: A in store.objects)


async def test_one_odd_object_does_not_hide_the_others(
    api: ScriptedApi, make: Callable[..., Store[str]], caplog: pytest.LogCaptureFixture
) -> None:
    await api.put(PODS, {"metadata": {"name": "a", "namespace": "ml"}, "status": None})
    await api.put(PODS, pod("b"))
    store = make()
    await store.wait_synced()
    assert store.objects == {B: "Running"}
    assert "('ml', 'a') is left out" in caplog.text


async def test_a_listener_that_fails_does_not_end_the_copy(
    api: ScriptedApi, make: Callable[..., Store[str]], caplog: pytest.LogCaptureFixture
) -> None:
    store = make()
    store.on_change(lambda *_: 1 / 0)
    await store.wait_synced()
    await api.put(PODS, pod("a"))
    await api.put(PODS, pod("b"))
    await until(lambda: B in store.objects)
    assert "a listener of pods failed" in caplog.text


@pytest.mark.parametrize(
    "gone",
    [status(410, "Expired"), events({"type": "ERROR", "object": status_object(410, "Expired", "too old")})],
    ids=["status", "event"],
)
async def test_after_410_in_the_watch_it_lists_again_and_ghosts_are_gone(
    api: ScriptedApi, make: Callable[..., Store[str]], gone: Answer
) -> None:
    await api.put(PODS, pod("a"))
    await api.put(PODS, pod("b"))
    told = []
    cut = asyncio.Event()

    async def held_then_gone(request):
        await cut.wait()
        return await gone(request)

    api.once("GET", PODS, held_then_gone, watch=True)
    store = make()
    store.on_change(lambda key, _old, new: told.append((key, new)))
    await store.wait_synced()
    await api.remove(PODS, "a", "ml", tell=False)
    cut.set()
    await until(lambda: store.relists == 2)
    assert store.objects == {B: "Running"}
    assert told == [(A, "Running"), (B, "Running"), (A, None)], "an unchanged object is not told again"


async def test_a_410_while_listing_again_is_survived(api: ScriptedApi, make: Callable[..., Store[str]]) -> None:
    api.once("GET", PODS, *[status(410, "Expired")] * 6)
    await api.put(PODS, pod("a"))
    store = make()
    await store.wait_synced()
    assert store.objects == {A: "Running"}


async def test_k03_a_watch_that_answers_429_then_410_goes_on(api: ScriptedApi, make: Callable[..., Store[str]]) -> None:
    await api.put(PODS, pod("a", "Pending"))
    api.once(
        "GET",
        PODS,
        status(429, "TooManyRequests", **{"Retry-After": "0"}),
        events({"type": "ERROR", "object": status_object(410, "Expired", "too old resource version")}),
        watch=True,
    )
    store = make()
    await until(lambda: store.relists == 2 and store.live_watch_age() == 0)
    await api.put(PODS, pod("a", "Running"))
    await until(lambda: store.objects[A] == "Running")
    assert api.count("GET", PODS, watch=True) >= 3


async def test_k03_without_a_live_watch_its_age_grows(api: ScriptedApi, make: Callable[..., Store[str]]) -> None:
    clock = Ticking()
    store = make(clock=clock)
    await until(lambda: api.count("GET", PODS, watch=True) == 1)
    clock.now += 61
    assert store.live_watch_age() == 0, "an open watch is alive; silence has its own limit"
    api.down = status(429, **{"Retry-After": "0"})
    await api.put(PODS, pod("a"))
    await until(lambda: A in store.objects)
    assert store.age_seconds() == 0
    await store.stop()
    clock.now += 61
    assert store.live_watch_age() == 61
    assert store.age_seconds() == 61
    assert store.age_seconds(now=clock.now + 1) == 62


async def test_a_watch_that_is_accepted_only_to_say_410_makes_no_copy_fresh(
    api: ScriptedApi, make: Callable[..., Store[str]]
) -> None:
    clock = Ticking()
    cut = asyncio.Event()
    gone = events({"type": "ERROR", "object": status_object(410, "Expired", "too old resource version")})

    async def held_then_gone(request):
        await cut.wait()
        return await gone(request)

    api.once("GET", PODS, held_then_gone, watch=True)
    store = make(clock=clock, backoff=Backoff(1000.0, 1000.0))
    await until(lambda: api.count("GET", PODS, watch=True) == 1)
    clock.now += 30
    cut.set()
    await until(lambda: "too old" in store.last_error)
    assert store.live_watch_age() == 30


async def test_the_age_counts_from_the_start_when_nothing_ever_came(
    api: ScriptedApi, make: Callable[..., Store[str]]
) -> None:
    api.down = status(503)
    clock = Ticking()
    store = make(clock=clock)
    await until(lambda: store.last_error)
    clock.now += 75
    assert (store.synced, store.age_seconds(), store.live_watch_age()) == (False, 75, 75)


async def test_a_watch_that_ends_in_order_goes_on_where_it_was(
    api: ScriptedApi, make: Callable[..., Store[str]]
) -> None:
    row = {
        "type": "ADDED",
        "object": pod("a") | {"metadata": {"name": "a", "namespace": "ml", "resourceVersion": "77"}},
    }
    api.once("GET", PODS, events(row), watch=True)
    store = make()
    await until(lambda: api.count("GET", PODS, watch=True) == 2)
    assert [seen.query["resourceVersion"] for seen in api.seen if seen.watch] == ["10", "77"]
    assert store.relists == 1


async def test_a_bookmark_moves_the_place_in_the_stream(api: ScriptedApi, make: Callable[..., Store[str]]) -> None:
    row = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "99"}}}
    api.once("GET", PODS, events(row, cut=True), watch=True)
    store = make()
    await until(lambda: api.count("GET", PODS, watch=True) == 2)
    assert [seen.query["resourceVersion"] for seen in api.seen if seen.watch] == ["10", "99"]
    assert store.objects == {}


async def test_a_stalled_watch_is_replaced(api: ScriptedApi, make: Callable[..., Store[str]]) -> None:
    api.once("GET", PODS, events(then_silent=True), watch=True)
    store = make(silence_seconds=0.2)
    await store.wait_synced()
    await api.put(PODS, pod("a"))
    await until(lambda: A in store.objects)
    assert store.relists == 1, "the stream goes on where it was"


@pytest.mark.parametrize(
    "trouble",
    [
        status(500),
        status(503, **{"Retry-After": "0"}),
        status(403, "Forbidden"),
        text(200, "<html>login</html>"),
        text(502, "<html>bad gateway</html>"),
    ],
    ids=["500", "503", "403", "html", "502"],
)
async def test_an_outage_keeps_the_copy_and_ends_without_help(
    api: ScriptedApi, make: Callable[..., Store[str]], trouble: Answer
) -> None:
    await api.put(PODS, pod("a"))
    store = make(relist_seconds=0.0, watch_seconds=1.0)
    await store.wait_synced()
    api.once("GET", PODS, *[trouble] * 5)
    await until(lambda: store.last_error)
    assert store.objects == {A: "Running"}
    assert store.synced
    await api.put(PODS, pod("b"))
    await until(lambda: B in store.objects)


async def test_a_periodic_list_removes_ghosts_under_a_living_watch(
    api: ScriptedApi, make: Callable[..., Store[str]]
) -> None:
    await api.put(PODS, pod("a"))
    store = make(relist_seconds=1.0)
    await store.wait_synced()
    await api.remove(PODS, "a", "ml", tell=False)
    await until(lambda: A not in store.objects)


async def test_a_server_that_ends_each_watch_at_once_is_not_asked_without_pause(
    api: ScriptedApi, make: Callable[..., Store[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.once("GET", PODS, *[events()] * 3, watch=True)
    backoff = Backoff(0.01, 0.05)
    pauses: list[float] = []
    plain = backoff.next

    def counted() -> float:
        pauses.append(plain())
        return pauses[-1]

    monkeypatch.setattr(backoff, "next", counted)
    store = make(backoff=backoff)
    await until(lambda: api.count("GET", PODS, watch=True) == 4)
    assert len(pauses) == 3
    assert store.relists == 1


async def test_stopping_is_quick_and_leaves_no_task(api: ScriptedApi, make: Callable[..., Store[str]]) -> None:
    before = asyncio.all_tasks()
    store = make()
    await until(lambda: api.count("GET", PODS, watch=True) == 1)
    async with asyncio.timeout(5):
        await store.stop()
        await store.stop()
    ours = {task for task in asyncio.all_tasks() - before if "store" in task.get_name()}
    assert ours == set()


async def test_stopping_while_it_waits_after_an_error_is_quick(
    api: ScriptedApi, make: Callable[..., Store[str]]
) -> None:
    api.down = status(503)
    store = make(backoff=Backoff(1000.0, 1000.0))
    await until(lambda: store.last_error)
    async with asyncio.timeout(5):
        await store.stop()


def test_pauses_grow_to_their_limit_and_begin_small_after_success() -> None:
    backoff = Backoff(first=0.5, longest=30.0)
    pauses = [backoff.next() for _ in range(2000)]
    assert all(min(30.0, 0.5 * 2.0**n) / 2 <= pause <= min(30.0, 0.5 * 2.0**n) for n, pause in enumerate(pauses[:50]))
    assert max(pauses) <= 30.0
    backoff.reset()
    assert backoff.next() <= 0.5


async def test_an_error_is_told_in_the_log_once_a_try_without_a_traceback(
    api: ScriptedApi, make: Callable[..., Store[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.once("GET", PODS, status(503, "ServiceUnavailable", "etcd is away"))
    store = make()
    await store.wait_synced()
    lines = [record for record in caplog.records if record.name == "controller.stores"]
    assert len(lines) == 1
    assert "etcd is away" in lines[0].getMessage()
    assert lines[0].exc_info is None
