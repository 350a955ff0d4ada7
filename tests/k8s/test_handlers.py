"""Kopf as the shell: what it sees reaches the registry, and its end is noticed."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import yarl
from aiohttp import web

from controller import discovery
from controller.cluster import Cluster, Connection, Kind
from controller.handlers import Shell, _settings
from controller.registry import Registry
from controller.transport import Credentials
from tests.k8s.scripted import Answer, ScriptedApi, events, status, status_object, until

WORKLOAD = Kind("gpuscale.dev", "v1alpha1", "gpuworkloadscalers", "GPUWorkloadScaler", namespaced=True)
POOL = Kind("gpuscale.dev", "v1alpha1", "gpunodepoolscalers", "GPUNodePoolScaler", namespaced=False)
DEFINITIONS = "/apis/apiextensions.k8s.io/v1"


def scaler(name: str, size: int = 1, generation: int = 1) -> dict:
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.kind,
        "metadata": {"name": name, "namespace": "ml", "generation": generation},
        "spec": {"maxReplicas": size},
    }


def serve(api: ScriptedApi) -> None:
    api.kinds["/apis/gpuscale.dev/v1alpha1"] = [(k.plural, k.kind, k.namespaced) for k in (WORKLOAD, POOL)]
    api.kinds["/api/v1"] = [("namespaces", "Namespace", False), ("events", "Event", True)]
    api.kinds[DEFINITIONS] = [("customresourcedefinitions", "CustomResourceDefinition", False)]


@pytest.fixture
async def registry(api: ScriptedApi, cluster: Cluster) -> Registry:
    serve(api)
    return Registry(cluster, [WORKLOAD, POOL])


@pytest.fixture
async def shell(cluster: Cluster, registry: Registry) -> AsyncIterator[Shell]:
    made = Shell(cluster, registry)
    made.start()
    yield made
    await made.stop()


async def test_events_reach_the_registry_in_the_thread_of_the_loop(api, registry, shell) -> None:
    threads = []
    scalers = registry.scalers["GPUWorkloadScaler"]
    scalers.on_spec_change(lambda _key, _entry: threads.append(threading.current_thread()))
    await api.put(WORKLOAD.path(), scaler("a"))
    await until(lambda: ("ml", "a") in scalers.entries)
    await api.put(WORKLOAD.path(), scaler("a", size=7, generation=2))
    await until(lambda: scalers.entries[("ml", "a")].manifest["spec"]["maxReplicas"] == 7)
    await api.remove(WORKLOAD.path(), "a", "ml")
    await until(lambda: not scalers.entries)
    assert set(threads) == {threading.main_thread()}


async def test_kopf_writes_nothing(api, registry, shell) -> None:
    await api.put(WORKLOAD.path(), scaler("a"))
    await until(lambda: registry.scalers["GPUWorkloadScaler"].entries)
    assert {seen.method for seen in api.seen} == {"GET"}


async def test_kopf_uses_our_credentials(api, registry, shell) -> None:
    await until(lambda: api.count("GET", WORKLOAD.path(), watch=True))
    assert {seen.headers.get("Authorization") for seen in api.seen} == {"Bearer a-secret-token"}


async def test_definitions_that_come_late_are_waited_for(
    api: ScriptedApi, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "REFRESH_SECONDS", 0.1)
    registry = Registry(cluster, [WORKLOAD, POOL])
    shell = Shell(cluster, registry)
    shell.start()
    await until(lambda: api.seen)
    serve(api)
    await api.put(WORKLOAD.path(), scaler("a"))
    await until(lambda: registry.scalers["GPUWorkloadScaler"].entries, 40)
    await shell.stop()


async def test_stopping_before_the_definitions_came_is_quick(cluster: Cluster) -> None:
    shell = Shell(cluster, Registry(cluster, [WORKLOAD, POOL]))
    shell.start()
    async with asyncio.timeout(5):
        await shell.stop()


async def test_stopping_ends_the_thread_and_is_no_failure(
    api: ScriptedApi, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    await until(lambda: api.count("GET", WORKLOAD.path(), watch=True))
    await shell.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "kopf"]
    assert "kopf has" not in "".join(r.getMessage() for r in caplog.records if r.name == "controller.handlers")
    await shell.stop()


async def test_the_end_of_kopf_is_noticed_with_its_reason(api: ScriptedApi, shell: Shell) -> None:
    """A definition that is deleted under it is one way in which Kopf ends."""
    await until(lambda: api.count("GET", WORKLOAD.path(), watch=True))
    gone = status(404, "NotFound", "the server could not find the requested resource")
    api.once("GET", WORKLOAD.path(), gone, watch=True)
    api.once("GET", WORKLOAD.path(), events(), watch=True)
    await api.end_watches()
    async with asyncio.timeout(20):
        reason = await shell.wait_ended()
    assert "APINotFoundError" in reason


@pytest.mark.parametrize(
    "trouble",
    [status(429, "TooManyRequests"), status(503, "ServiceUnavailable"), status(403, "Forbidden")],
    ids=["429", "503", "403"],
)
async def test_an_outage_does_not_end_kopf(api: ScriptedApi, registry: Registry, shell: Shell, trouble: Answer) -> None:
    await until(lambda: api.count("GET", WORKLOAD.path(), watch=True))
    api.down = trouble
    await api.end_watches()
    before = len(api.seen)
    await until(lambda: len(api.seen) >= before + 4)
    api.down = None
    await api.put(WORKLOAD.path(), scaler("late"))
    await until(lambda: registry.scalers["GPUWorkloadScaler"].entries, 40)


async def test_k03_the_event_after_429_and_410_is_handled_and_ghosts_go(
    api: ScriptedApi, registry: Registry, shell: Shell
) -> None:
    await api.put(WORKLOAD.path(), scaler("ghost"))
    await api.put(WORKLOAD.path(), scaler("a"))
    scalers = registry.scalers["GPUWorkloadScaler"]
    registry.start()
    await until(lambda: len(scalers.entries) == 2 and api.count("GET", WORKLOAD.path(), watch=True))
    await api.remove(WORKLOAD.path(), "ghost", "ml", tell=False)
    expired = {"type": "ERROR", "object": status_object(410, "Expired", "too old resource version")}
    api.once("GET", WORKLOAD.path(), status(429, "TooManyRequests"), events(expired), watch=True)
    await api.end_watches()
    await until(lambda: set(scalers.entries) == {("ml", "a")})
    await api.put(WORKLOAD.path(), scaler("a", size=9, generation=2))
    await until(lambda: scalers.entries[("ml", "a")].generation == 2)
    await registry.stop()


async def test_the_age_of_kopfs_watches_is_known(api: ScriptedApi, cluster: Cluster) -> None:
    now = [1000.0]
    serve(api)
    shell = Shell(cluster, Registry(cluster, [WORKLOAD, POOL]), clock=lambda: now[0])
    now[0] = 1010.0
    assert shell.live_watch_age() == 10
    shell.start()
    await until(lambda: shell.live_watch_age() == 0)
    now[0] = 1071.0
    assert shell.live_watch_age() == 61
    await api.end_watches()
    await until(lambda: shell.live_watch_age() == 0)
    await shell.stop()


@pytest.fixture
async def rotated(api: ScriptedApi) -> AsyncIterator[tuple[Registry, Shell]]:
    """A shell that is not started, whose token is t-1, then t-2, t-3: another each time that it is read."""
    serve(api)
    tokens = itertools.count(2)

    async def load(_force: bool) -> str:  # noqa: FBT001 - the shape of Credentials.load
        return f"Bearer t-{next(tokens)}"

    cluster = Cluster(Connection(api.url, Credentials("Bearer t-1", load)))
    registry = Registry(cluster, [WORKLOAD, POOL])
    shell = Shell(cluster, registry)
    yield registry, shell
    await shell.stop()
    await cluster.close()


async def test_a_refused_token_is_read_anew_and_the_watch_of_the_other_kind_stays_open(api, rotated) -> None:
    registry, shell = rotated
    pools_are_watched = asyncio.Event()

    async def late_refusal(request: web.Request) -> web.StreamResponse:
        await pools_are_watched.wait()
        return await status(401, "Unauthorized")(request)

    api.once("GET", WORKLOAD.path(), late_refusal)
    shell.start()
    await until(lambda: api.count("GET", POOL.path(), watch=True))
    pools_are_watched.set()
    await api.put(WORKLOAD.path(), scaler("a"))
    await until(lambda: registry.scalers["GPUWorkloadScaler"].entries)
    await api.put(POOL.path(), scaler("p") | {"kind": POOL.kind, "metadata": {"name": "p", "generation": 1}})
    await until(lambda: registry.scalers["GPUNodePoolScaler"].entries)
    lists = [s.headers["Authorization"] for s in api.seen if s.path == WORKLOAD.path() and not s.watch]
    assert lists == ["Bearer t-1", "Bearer t-2"]
    assert api.count("GET", POOL.path()) == api.count("GET", POOL.path(), watch=True) == 1


async def test_a_token_that_stays_refused_is_read_again_and_again_and_kopf_lives(api, rotated) -> None:
    registry, shell = rotated
    api.once("GET", WORKLOAD.path(), *[status(401, "Unauthorized")] * 3)
    api.once("GET", WORKLOAD.path(), *[status(401, "Unauthorized")] * 2, watch=True)
    shell.start()
    scalers = registry.scalers["GPUWorkloadScaler"]
    await until(lambda: api.count("GET", WORKLOAD.path(), watch=True) == 3)
    await api.put(WORKLOAD.path(), scaler("a"))
    await until(lambda: scalers.entries)
    tokens = [s.headers["Authorization"] for s in api.seen if s.path == WORKLOAD.path()]
    assert tokens[:7] == [f"Bearer t-{number}" for number in (1, 2, 3, 4, 4, 5, 6)]
    assert api.count("GET", POOL.path()) == 1, "Kopf neither ended nor closed its session"


async def test_kopf_that_asks_again_gets_a_session_of_its_own_after_a_growing_pause(
    cluster: Cluster, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("controller.handlers.asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": pause}))
    shell = Shell(cluster, registry, clock=lambda: 0.0)
    logins = [await shell._login() for _ in range(4)]
    assert len({id(login.aiohttp_session) for login in logins}) == 4
    assert pauses == sorted(pauses)
    assert len(pauses) == 3, "none before the first"
    for login in logins:
        await login.aiohttp_session.close()


def test_kopf_never_runs_out_of_patience() -> None:
    pauses = _settings().networking.error_backoffs
    assert not hasattr(pauses, "__len__")
    first = [pause for pause, _ in zip(pauses, range(500), strict=False)]  # type: ignore[arg-type]
    assert len(first) == 500
    assert max(first) <= 15
    assert len(set(first[-50:])) > 10, "not all at one beat"


async def test_while_the_definitions_are_missing_no_watch_is_called_dead(api: ScriptedApi, cluster: Cluster) -> None:
    now = [1000.0]
    shell = Shell(cluster, Registry(cluster, [WORKLOAD, POOL]), clock=lambda: now[0])
    shell.start()
    await until(lambda: api.count("GET", "/apis/gpuscale.dev/v1alpha1"))
    now[0] = 2000.0
    await until(lambda: shell.live_watch_age() == 0)
    await shell.stop()


async def test_a_definition_that_is_not_found_has_the_registry_look_for_itself(
    api: ScriptedApi, registry: Registry, shell: Shell
) -> None:
    registry.start()
    await until(lambda: registry.synced)
    await until(lambda: api.count("GET", WORKLOAD.path(), watch=True) and api.count("GET", POOL.path(), watch=True))
    api.once("GET", WORKLOAD.path(), status(404, "NotFound"))
    url, response = yarl.URL(api.url + WORKLOAD.path()), SimpleNamespace(status=404)
    await shell._answered(None, None, SimpleNamespace(url=url, response=response))  # type: ignore[arg-type]
    await until(lambda: not registry.synced)
    await until(lambda: registry.synced)
    await registry.stop()
