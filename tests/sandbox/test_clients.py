"""Programs that know only real clusters, against the embedded API: Kopf and the Kubernetes client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest
from kubernetes import aio

from controller import crds
from controller.sandbox.api import build_app, serve
from controller.sandbox.kinds import DEFINITIONS, DEPLOYMENTS
from controller.sandbox.store import Store

GROUP, VERSION, PLURAL = "gpuscale.dev", "v1alpha1", "gpuworkloadscalers"
SCALER = {
    "metadata": {"name": "llm", "namespace": "default"},
    "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}, "maxReplicas": 8},
}
DEPLOYMENT = {
    "metadata": {"name": "llm", "namespace": "default"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "llm"}},
        "template": {
            "metadata": {"labels": {"app": "llm"}},
            "spec": {"containers": [{"name": "server", "image": "example.com/vllm:1"}]},
        },
    },
}


@pytest.fixture
def store() -> Store:
    filled = Store()
    for definition in crds.definitions():
        filled.create(DEFINITIONS, definition)
    return filled


@pytest.fixture
async def url(store: Store) -> AsyncIterator[str]:
    runner, address = await serve(build_app(store), "127.0.0.1", 0)
    yield address
    await runner.cleanup()


async def test_kopf_sees_each_object_come_change_and_go(store: Store, url: str) -> None:
    scalers = store.resources[f"{PLURAL}.{GROUP}"]
    store.create(scalers, SCALER)
    registry, events = kopf.OperatorRegistry(), asyncio.Queue[tuple[str | None, str, int]]()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=url)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def seen(event: kopf.RawEvent, **_: Any) -> None:
        body = event["object"]
        await events.put((event["type"], body["metadata"]["name"], body["spec"]["maxReplicas"]))

    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    stop, ready = asyncio.Event(), asyncio.Event()
    operator = asyncio.create_task(
        kopf.operator(registry=registry, settings=settings, clusterwide=True, stop_flag=stop, ready_flag=ready)
    )
    try:
        async with asyncio.timeout(30):
            assert await events.get() == (None, "llm", 8)
            store.patch(scalers, "default", "llm", {"spec": {"maxReplicas": 9}})
            assert await events.get() == ("MODIFIED", "llm", 9)
            store.create(scalers, {**SCALER, "metadata": {"name": "two", "namespace": "default"}})
            assert await events.get() == ("ADDED", "two", 8)
            store.delete(scalers, "default", "llm")
            assert await events.get() == ("DELETED", "llm", 9)
    finally:
        stop.set()
        await operator


async def test_the_kubernetes_client_reads_writes_scales_and_watches(store: Store, url: str) -> None:
    store.create(DEPLOYMENTS, DEPLOYMENT)
    configuration = aio.client.Configuration(host=url)
    async with aio.client.ApiClient(configuration) as connection:
        apps, custom = aio.client.AppsV1Api(connection), aio.client.CustomObjectsApi(connection)
        scale = await apps.read_namespaced_deployment_scale("llm", "default")
        assert scale.spec.replicas == 2
        await apps.patch_namespaced_deployment_scale("llm", "default", {"spec": {"replicas": 5}})
        listed = await apps.list_namespaced_deployment("default", label_selector="", limit=1)
        assert [item.spec.replicas for item in listed.items] == [5]
        await custom.create_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, {**SCALER, **_kind()})
        told = {"status": {"currentReplicas": 5}}
        await custom.patch_namespaced_custom_object_status(GROUP, VERSION, "default", PLURAL, "llm", told)
        read = await custom.get_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, "llm")
        assert read["status"] == {"currentReplicas": 5}
        async with aio.watch.Watch() as watch:
            stream = watch.stream(apps.list_namespaced_deployment, "default", timeout_seconds=30)
            async with asyncio.timeout(30):
                event = await anext(aiter(stream))
        assert (event["type"], event["object"].metadata.name) == ("ADDED", "llm")


def _kind() -> dict[str, str]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "GPUWorkloadScaler"}
