"""Kopf as the shell: what it sees reaches the registry, and its end is noticed."""

import threading
from collections.abc import AsyncIterator

import pytest

from controller.cluster import Cluster, Kind
from controller.handlers import Shell
from controller.registry import Registry
from tests.k8s.scripted import ScriptedApi, until

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
