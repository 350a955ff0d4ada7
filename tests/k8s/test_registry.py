"""The registry: events and lists agree in the end, ghosts go, and a change of the spec is told once."""

import asyncio
import json

import pytest
from aiohttp import web

from controller.cluster import Cluster, Kind, NotFound, Object
from controller.registry import Registry, Scalers
from tests.k8s.scripted import ScriptedApi, status, until

KIND = Kind("gpuscale.dev", "v1alpha1", "gpuworkloadscalers", "GPUWorkloadScaler", namespaced=True)
PATH = KIND.path()
A, B = ("ml", "a"), ("ml", "b")


def scaler(name: str, size: int = 1, version: int = 1, uid: str = "u", **metadata: object) -> Object:
    return {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"{uid}-{name}",
            "generation": size,
            "resourceVersion": str(version),
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        }
        | metadata,
        "spec": {"maxReplicas": size},
    }


@pytest.fixture
def scalers() -> Scalers:
    return Scalers(KIND)


@pytest.fixture
def told(scalers: Scalers) -> list[tuple[str, int | None]]:
    """What was told: the name and the new size, None = gone."""
    seen: list[tuple[str, int | None]] = []
    scalers.on_spec_change(
        lambda key, entry: seen.append((key[1], entry.manifest["spec"]["maxReplicas"] if entry else None))
    )
    return seen


def test_an_entry_is_slim(scalers: Scalers) -> None:
    scalers.take("ADDED", scaler("a", labels={"team": "x"}))
    entry = scalers.entries[A]
    assert (entry.uid, entry.generation, entry.resource_version, entry.deleting) == ("u-a", 1, "1", False)
    assert entry.manifest["metadata"] == {
        "name": "a",
        "namespace": "ml",
        "uid": "u-a",
        "generation": 1,
        "resourceVersion": "1",
        "labels": {"team": "x"},
    }
    assert entry.manifest["status"] == {}


def test_a_changed_spec_is_told_and_a_changed_status_is_not(
    scalers: Scalers, told: list[tuple[str, int | None]]
) -> None:
    scalers.take("ADDED", scaler("a"))
    scalers.take("MODIFIED", scaler("a", version=2) | {"status": {"desiredReplicas": 3}})
    assert scalers.entries[A].manifest["status"] == {"desiredReplicas": 3}
    scalers.take("MODIFIED", scaler("a", size=2, version=3))
    scalers.take("DELETED", scaler("a", size=2, version=4))
    assert told == [("a", 1), ("a", 2), ("a", None)]


def test_an_object_that_begins_to_go_is_told_and_marked(scalers: Scalers, told: list[tuple[str, int | None]]) -> None:
    scalers.take("ADDED", scaler("a"))
    scalers.take("MODIFIED", scaler("a", version=2, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert scalers.entries[A].deleting
    assert len(told) == 2


def test_the_same_version_seen_twice_is_told_once(scalers: Scalers, told: list[tuple[str, int | None]]) -> None:
    scalers.take(None, scaler("a"))
    scalers.take("ADDED", scaler("a"))
    scalers.begin_list()
    scalers.end_list([scaler("a")])
    assert told == [("a", 1)]


def test_an_event_that_was_queued_behind_a_list_does_not_turn_time_back(scalers: Scalers) -> None:
    scalers.begin_list()
    scalers.end_list([scaler("a", size=5, version=50)])
    scalers.take("MODIFIED", scaler("a", size=4, version=40))
    assert scalers.entries[A].generation == 5


def test_a_successor_of_the_same_name_is_another_object(scalers: Scalers, told: list[tuple[str, int | None]]) -> None:
    scalers.take("ADDED", scaler("a", version=9))
    scalers.take("ADDED", scaler("a", version=3, uid="new"))
    scalers.take("DELETED", scaler("a", version=10))
    assert scalers.entries[A].uid == "new-a"
    assert told == [("a", 1), ("a", 1)]


def test_a_list_adds_what_was_missed_and_removes_ghosts(scalers: Scalers, told: list[tuple[str, int | None]]) -> None:
    scalers.take("ADDED", scaler("a"))
    assert not scalers.synced
    scalers.begin_list()
    scalers.end_list([scaler("b", size=2)])
    assert set(scalers.entries) == {B}
    assert told == [("a", 1), ("b", 2), ("a", None)]
    assert scalers.ghosts_removed == 1
    assert scalers.synced


def test_events_during_a_list_are_newer_than_the_list(scalers: Scalers) -> None:
    scalers.take("ADDED", scaler("b", version=1))
    scalers.begin_list()
    scalers.take("ADDED", scaler("a", version=30))
    scalers.take("DELETED", scaler("b", version=31))
    scalers.end_list([scaler("b", version=1)])
    assert set(scalers.entries) == {A}


def test_a_list_that_failed_changes_nothing(scalers: Scalers) -> None:
    scalers.take("ADDED", scaler("a"))
    scalers.begin_list()
    scalers.end_list(None)
    assert set(scalers.entries) == {A}
    assert not scalers.synced


def test_a_listener_that_fails_does_not_hide_the_change(scalers: Scalers, caplog: pytest.LogCaptureFixture) -> None:
    scalers.on_spec_change(lambda *_: 1 / 0)
    scalers.take("ADDED", scaler("a"))
    assert A in scalers.entries
    assert "a listener of gpuworkloadscalers.gpuscale.dev failed" in caplog.text


async def test_an_event_of_an_unknown_form_is_left_out(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(cluster, [KIND])
    registry.take(KIND.kind, "ADDED", {"metadata": None})
    registry.take("Unknown", "ADDED", scaler("a"))
    registry.take(KIND.kind, "ADDED", scaler("a"))
    assert set(registry.scalers[KIND.kind].entries) == {A}
    assert caplog.text.count("is not understood") == 2


async def test_it_is_synced_only_when_every_kind_has_been_listed(api: ScriptedApi, cluster: Cluster) -> None:
    pools = Kind("gpuscale.dev", "v1alpha1", "gpunodepoolscalers", "GPUNodePoolScaler", namespaced=False)
    registry = Registry(cluster, [KIND, pools])
    held = asyncio.Event()

    async def slowly(_request: web.Request) -> web.StreamResponse:
        await held.wait()
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    api.once("GET", pools.path(), slowly)
    await api.put(PATH, scaler("a"))
    registry.start()
    await until(lambda: registry.scalers[KIND.kind].synced)
    assert not registry.synced
    held.set()
    await registry.wait_synced()
    assert registry.synced
    await registry.stop()


async def test_it_lists_again_after_an_outage_and_on_demand(api: ScriptedApi, cluster: Cluster) -> None:
    api.once("GET", PATH, status(500), status(503))
    await api.put(PATH, scaler("a"))
    registry = Registry(cluster, [KIND])
    registry.start()
    await until(lambda: registry.last_error)
    await registry.wait_synced()
    await until(lambda: registry.last_error == "")
    await api.remove(PATH, "a", "ml", tell=False)
    registry.reconcile_soon()
    await until(lambda: not registry.scalers[KIND.kind].entries)
    async with asyncio.timeout(5):
        await registry.stop()


async def test_wishes_for_a_list_that_come_together_are_served_by_one(api: ScriptedApi, cluster: Cluster) -> None:
    registry = Registry(cluster, [KIND])
    registry.start()
    await registry.wait_synced()
    for _ in range(50):
        registry.reconcile_soon()
    await until(lambda: api.count("GET", PATH) == 2)
    await registry.stop()
    assert api.count("GET", PATH) == 2


async def test_ghosts_go_with_the_periodic_list(api: ScriptedApi, cluster: Cluster) -> None:
    await api.put(PATH, scaler("a"))
    registry = Registry(cluster, [KIND], reconcile_seconds=0.05)
    registry.start()
    await registry.wait_synced()
    await api.remove(PATH, "a", "ml", tell=False)
    await until(lambda: not registry.scalers[KIND.kind].entries)
    await registry.stop()
    assert registry.age_seconds() >= 0


def test_a_manifest_is_plain_data(scalers: Scalers) -> None:
    scalers.take("ADDED", scaler("a"))
    assert json.loads(json.dumps(scalers.entries[A].manifest)) == scalers.entries[A].manifest


async def test_a_kind_that_is_served_no_more_is_not_synced_until_it_is_listed_again(
    api: ScriptedApi, cluster: Cluster
) -> None:
    await api.put(PATH, scaler("a"))
    registry = Registry(cluster, [KIND])
    await registry.reconcile()
    assert registry.synced
    api.once("GET", PATH, status(404, "NotFound"))
    with pytest.raises(NotFound):
        await registry.reconcile()
    assert not registry.synced
    await registry.reconcile()
    assert registry.synced
