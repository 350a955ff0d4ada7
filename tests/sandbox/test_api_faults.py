"""The embedded API itself: letting in, refusing on purpose, forgetting, ending watches, and how it is started."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from controller.sandbox.api import FAULTS, build_app, kubeconfig, serve
from controller.sandbox.faults import Faults
from controller.sandbox.kinds import NAMESPACES, PODS
from controller.sandbox.store import Store

ROOT = Path(__file__).resolve().parents[2]
POD = {
    "metadata": {"name": "one", "namespace": "default"},
    "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "a:1"}]},
}
PODS_PATH = "/api/v1/namespaces/default/pods"


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def served(store: Store) -> AsyncIterator[tuple[str, Faults]]:
    app = build_app(store)
    runner, url = await serve(app, "127.0.0.1", 0)
    yield url, app[FAULTS]
    await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as opened:
        yield opened


async def test_only_the_configured_token_is_let_in(store: Store, session: aiohttp.ClientSession) -> None:
    runner, url = await serve(build_app(store, "right"), "127.0.0.1", 0)
    try:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Bearer right"}, 200),
        ):
            async with session.get(f"{url}{PODS_PATH}", headers=headers) as response:
                assert response.status == status
                body = await response.json()
                assert status == 200 or body["reason"] == "Unauthorized"
    finally:
        await runner.cleanup()


async def test_requests_are_refused_as_often_as_asked(
    served: tuple[str, Faults], session: aiohttp.ClientSession
) -> None:
    url, faults = served
    faults.refuse(429, count=2, matches=lambda request: request.path == PODS_PATH, retry_after_seconds=7)
    seen = []
    for path in (PODS_PATH, "/api/v1/nodes", PODS_PATH, PODS_PATH):
        async with session.get(url + path) as response:
            seen.append((response.status, response.headers.get("Retry-After")))
    assert seen == [(429, "7"), (200, None), (429, "7"), (200, None)]


async def test_an_outage_lasts_until_it_is_healed(served: tuple[str, Faults], session: aiohttp.ClientSession) -> None:
    url, faults = served
    faults.refuse(503, count=None)
    for _ in range(3):
        async with session.get(url + PODS_PATH) as response:
            assert response.status == 503
            assert (await response.json())["reason"] == "ServiceUnavailable"
    faults.heal()
    async with session.get(url + PODS_PATH) as response:
        assert response.status == 200


async def test_a_slow_answer_is_an_answer(served: tuple[str, Faults], session: aiohttp.ClientSession) -> None:
    url, faults = served
    faults.latency_seconds = 0.2
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with session.get(url + PODS_PATH) as response:
        assert response.status == 200
    assert loop.time() - begun >= 0.19


async def test_dropped_watches_end(served: tuple[str, Faults], session: aiohttp.ClientSession) -> None:
    url, faults = served
    async with session.get(f"{url}{PODS_PATH}?watch=true&resourceVersion=0") as response:
        assert response.status == 200
        assert faults.drop_watches() == 1
        assert await response.content.read() == b""


async def test_a_forgotten_history_is_gone_for_watches_and_pages(
    served: tuple[str, Faults], session: aiohttp.ClientSession, store: Store
) -> None:
    url, faults = served
    for name in ("one", "two"):
        store.create(PODS, {**POD, "metadata": {"name": name, "namespace": "default"}})
    async with session.get(f"{url}{PODS_PATH}?limit=1") as response:
        meta = (await response.json())["metadata"]
    faults.forget()
    async with session.get(f"{url}{PODS_PATH}?limit=1&continue={meta['continue']}") as response:
        assert response.status == 410
        assert (await response.json())["reason"] == "Expired"
    async with session.get(f"{url}{PODS_PATH}?watch=true&resourceVersion={meta['resourceVersion']}") as response:
        event = json.loads(await response.content.readline())
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_a_history_is_bounded_and_what_fell_out_of_it_is_gone(session: aiohttp.ClientSession) -> None:
    store = Store(history_size=8)
    first = store.create(PODS, POD)["metadata"]["resourceVersion"]
    for number in range(9):
        store.patch(PODS, "default", "one", {"metadata": {"labels": {"n": str(number)}}})
    runner, url = await serve(build_app(store), "127.0.0.1", 0)
    try:
        async with session.get(f"{url}{PODS_PATH}?watch=true&resourceVersion={first}") as response:
            event = json.loads(await response.content.readline())
            assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    finally:
        await runner.cleanup()


async def test_a_reader_that_does_not_keep_up_is_cut_off_and_the_others_are_not(store: Store) -> None:
    slow, quick = store.subscribe(PODS, limit=2), store.subscribe(PODS)
    store.create(PODS, POD)
    for number in range(3):
        store.patch(PODS, "default", "one", {"metadata": {"labels": {"n": str(number)}}})
    assert slow.closed
    assert not quick.closed
    assert [(await quick.get())[0] for _ in range(4)] == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED"]


async def test_a_closed_subscription_gives_what_waits_and_then_ends(store: Store) -> None:
    stream = store.subscribe(PODS)
    store.create(PODS, POD)
    stream.close()
    store.patch(PODS, "default", "one", {"metadata": {"labels": {"late": "yes"}}})
    assert (await stream.get())[0] == "ADDED"
    with pytest.raises(EOFError):
        await stream.get()
    assert await stream.take() == []


def test_an_object_given_out_stays_as_it_was(store: Store) -> None:
    before = store.create(PODS, POD)
    store.patch(PODS, "default", "one", {"metadata": {"labels": {"new": "yes"}}})
    assert "labels" not in before["metadata"]
    assert store.get(PODS, "default", "one")["metadata"]["labels"] == {"new": "yes"}


def test_a_pod_deleted_in_this_process_goes_at_once(store: Store) -> None:
    store.create(PODS, POD)
    assert store.delete(PODS, "default", "one")[1]
    assert store.list(PODS) == []


def test_namespaces_that_every_cluster_has_are_there(store: Store) -> None:
    names = [namespace["metadata"]["name"] for namespace in store.list(NAMESPACES)]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]


def test_a_kubeconfig_names_one_cluster_one_user_and_their_context() -> None:
    document = json.loads(json.dumps(kubeconfig("http://127.0.0.1:1", "secret")))
    assert document["clusters"][0]["cluster"] == {"server": "http://127.0.0.1:1"}
    assert document["users"][0]["user"] == {"token": "secret"}
    assert document["current-context"] == document["contexts"][0]["name"]


def test_started_alone_it_says_where_it_is_and_ends_on_sigterm(tmp_path: Path) -> None:
    config, address = tmp_path / "kubeconfig", tmp_path / "address"
    command = [sys.executable, "-m", "controller.sandbox.api"]
    command += ["--kubeconfig", str(config), "--address-file", str(address)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = address.read_text()
        assert url in line
        assert json.loads(config.read_text())["clusters"][0]["cluster"]["server"] == url
        assert config.stat().st_mode & 0o077 == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
