"""Client, copy, registry and Kopf against the embedded API, which keeps the rules that a scripted server only plays."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller import crds
from controller.cluster import LEASE, POD, Cluster, Conflict, Kind, NotFound, Object, Rejected, TooMany
from controller.handlers import Shell
from controller.leader import Elector
from controller.registry import Registry
from controller.sandbox.api import FAULTS, build_app, kubeconfig, serve
from controller.sandbox.faults import Faults
from controller.sandbox.store import Store as Objects
from controller.stores import Backoff, Store
from tests.k8s.scripted import until

CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
PDB = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True)
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap", namespaced=True)
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", namespaced=True)
WORKLOAD = Kind("gpuscale.dev", "v1alpha1", "gpuworkloadscalers", "GPUWorkloadScaler", namespaced=True)
POOL = Kind("gpuscale.dev", "v1alpha1", "gpunodepoolscalers", "GPUNodePoolScaler", namespaced=False)
CONTAINERS = [{"name": "c", "image": "i"}]


@dataclass
class Embedded:
    cluster: Cluster
    faults: Faults


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Embedded]:
    app = build_app(Objects(), token="t-1")  # noqa: S106 - of the embedded API
    runner, url = await serve(app, "127.0.0.1", 0)
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(url, "t-1")))
    cluster = await Cluster.connect(kubeconfig=str(path))
    yield Embedded(cluster, app[FAULTS])
    await cluster.close()
    await runner.cleanup()


@pytest.fixture
async def cluster(embedded: Embedded) -> Cluster:
    return embedded.cluster


def pod(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": CONTAINERS}}


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def deployment(name: str, replicas: int) -> Object:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": CONTAINERS}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def test_a_scale_is_changed_only_from_the_version_it_was_read_at(cluster: Cluster) -> None:
    kind = await cluster.resolve("apps/v1", "Deployment")
    assert kind == DEPLOYMENT
    await cluster.create(kind, deployment("web", 2), "default")
    read = await cluster.get_scale(kind, "web", "default")
    assert (read.spec_replicas, read.selector) == (2, "app=web")
    written = await cluster.patch_scale(kind, "web", "default", 5, read.resource_version)
    assert written.spec_replicas == 5
    with pytest.raises(Conflict):
        await cluster.patch_scale(kind, "web", "default", 1, read.resource_version)
    assert (await cluster.get_scale(kind, "web", "default")).spec_replicas == 5


async def test_every_form_of_patch_does_its_work(cluster: Cluster) -> None:
    await cluster.create(CONFIG_MAP, config_map("c", a="1", b="2"), "default")
    await cluster.patch(CONFIG_MAP, "c", {"data": {"a": None, "m": "3"}}, "default")
    await cluster.patch(CONFIG_MAP, "c", [{"op": "add", "path": "/data/j", "value": "4"}], "default", content="json")
    await cluster.patch(CONFIG_MAP, "c", {"data": {"s": "5"}}, "default", content="strategic")
    applied = await cluster.patch(CONFIG_MAP, "c", config_map("c", y="6"), "default", content="apply")
    assert applied["data"] == {"b": "2", "m": "3", "j": "4", "s": "5", "y": "6"}


async def test_an_eviction_against_a_budget_is_too_many(cluster: Cluster) -> None:
    for name in "ab":
        await cluster.create(POD, pod(name, app="x"), "default")
        running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await cluster.patch(POD, name, running, "default", "status")
    budget = {"minAvailable": 2, "selector": {"matchLabels": {"app": "x"}}}
    await cluster.create(PDB, {"metadata": {"name": "b"}, "spec": budget}, "default")
    with pytest.raises(TooMany):
        await cluster.evict("a", "default")
    await cluster.delete(PDB, "b", "default")
    await cluster.evict("a", "default", grace_seconds=0)
    with pytest.raises(NotFound):
        await cluster.evict("nobody", "default")


async def test_an_invalid_object_is_rejected_with_its_field(cluster: Cluster) -> None:
    await install(cluster)
    with pytest.raises(Rejected, match="maxReplicas"):
        await cluster.create(WORKLOAD, scaler("a", size=-1), "default")


async def install(cluster: Cluster) -> None:
    for document in crds.definitions():
        await cluster.create(CRD, document)


def scaler(name: str, size: int = 3) -> Object:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    gpu = {"name": "utilization", "target": {"type": "Utilization", "averageUtilization": 70}}
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.kind,
        "metadata": {"name": name},
        "spec": {"scaleTargetRef": target, "maxReplicas": size, "metrics": [{"type": "GPU", "gpu": gpu}]},
    }


async def test_the_copy_follows_through_forgotten_history_refusals_and_dropped_watches(embedded: Embedded) -> None:
    cluster, faults = embedded.cluster, embedded.faults
    store: Store[str] = Store(
        cluster, CONFIG_MAP, lambda obj: obj["data"].get("a"), namespace="default", backoff=Backoff(0.01, 0.1)
    )
    store.start()
    await store.wait_synced()

    async def follows(value: str) -> None:
        await cluster.patch(CONFIG_MAP, "c", {"data": {"a": value}}, "default")
        await until(lambda: store.objects.get(("default", "c")) == value)

    await cluster.create(CONFIG_MAP, config_map("c", a="0"), "default")
    await follows("1")
    faults.drop_watches()
    await follows("2")
    faults.forget()
    faults.drop_watches()
    await follows("3")
    assert store.relists >= 2
    faults.refuse(503, 3, lambda request: "watch" in request.query)
    faults.drop_watches()
    await follows("4")
    faults.refuse(429, 2, lambda request: "watch" in request.query, retry_after_seconds=1)
    faults.drop_watches()
    await follows("5")
    await cluster.delete(CONFIG_MAP, "c", "default")
    await until(lambda: not store.objects)
    await store.stop()


async def test_scalers_made_changed_and_deleted_reach_the_registry_and_stay_as_they_were_written(
    embedded: Embedded,
) -> None:
    cluster, faults = embedded.cluster, embedded.faults
    await install(cluster)
    registry = Registry(cluster, [WORKLOAD, POOL])
    shell = Shell(cluster, registry)
    shell.start()
    registry.start()
    await registry.wait_synced()
    await cluster.create(WORKLOAD, scaler("a"), "default")
    key, entries = ("default", "a"), registry.scalers["GPUWorkloadScaler"].entries
    await until(lambda: key in entries)
    faults.forget()
    faults.drop_watches()
    await cluster.patch(WORKLOAD, "a", {"spec": {"maxReplicas": 9}}, "default")
    await until(lambda: entries[key].manifest["spec"]["maxReplicas"] == 9)
    stored = (await cluster.get(WORKLOAD, "a", "default"))["metadata"]
    assert "finalizers" not in stored
    assert "annotations" not in stored
    await cluster.delete(WORKLOAD, "a", "default")
    await until(lambda: not entries)
    await registry.stop()
    await shell.stop()


async def test_two_electors_hand_over_by_release(cluster: Cluster) -> None:
    first, second = (Elector(cluster, "default", "gpuscale", name) for name in "ab")
    await first.step()
    await second.step()
    assert (first.is_leader(), second.is_leader()) == (True, False)
    await first.release()
    await second.step()
    assert (first.is_leader(), second.is_leader()) == (False, True)
    lease = await cluster.get(LEASE, "gpuscale", "default")
    assert lease["spec"]["leaseTransitions"] == 1
    assert lease["spec"]["renewTime"].endswith("Z")


async def test_a_lease_is_not_created_where_the_namespace_is_missing(cluster: Cluster) -> None:
    elector = Elector(cluster, "nowhere", "gpuscale", "a")
    await elector.step()
    assert not elector.is_leader()
    assert "nowhere" in elector.last_error


async def test_the_whole_side_stops_in_order_and_leaves_no_task(embedded: Embedded) -> None:
    cluster = embedded.cluster
    await install(cluster)
    before = asyncio.all_tasks()
    registry = Registry(cluster, [WORKLOAD, POOL])
    elector = Elector(cluster, "default", "gpuscale", "a")
    shell = Shell(cluster, registry)
    stores: list[Store[Any]] = [Store(cluster, kind, lambda obj: obj) for kind in (POD, CONFIG_MAP)]
    campaign = asyncio.create_task(elector.run())
    started = time.monotonic()
    shell.start()
    for part in (registry, *stores):
        part.start()
    await registry.wait_synced()
    await until(elector.is_leader)
    await until(lambda: shell.live_watch_age() < time.monotonic() - started)
    async with asyncio.timeout(15):
        for part in (registry, *stores):
            await part.stop()
        campaign.cancel()
        await asyncio.gather(campaign, return_exceptions=True)
        await elector.release()
        await shell.stop()
    ours = {task.get_name() for task in asyncio.all_tasks() - before if "RequestHandler" not in repr(task)}
    assert ours == set()
    assert not (await cluster.get(LEASE, "gpuscale", "default"))["spec"].get("holderIdentity")
