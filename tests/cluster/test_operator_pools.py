"""Workload and pool together on a real cluster: to nodes that do not exist yet and back; a node that goes silent."""

from typing import Any

from controller.cluster import NODE, POD, Cluster
from controller.view import POOLS, WORKLOADS
from tests.cluster.operators import Operators
from tests.cluster.scenery import deployment, made, node_pool, pool_scaler, until, usage, workload_scaler
from tests.realparts import cloud, fakenodes
from tests.realparts.machines import Machines


async def nodes(cluster: Cluster, pool: str) -> list[str]:
    found = await cluster.list(NODE, label_selector=f"{cloud.POOL_LABEL}={pool}")
    return sorted(node["metadata"]["name"] for node in found.items)


async def ready_pods(cluster: Cluster, space: str) -> dict[str, str]:
    """Give the node of each ready pod of the workload."""
    found = (await cluster.list(POD, space, label_selector="app=llm")).items
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in found if is_ready(pod)}


def is_ready(obj: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in obj["status"].get("conditions", []))


async def test_load_makes_pods_pods_make_nodes_and_both_go_again(
    cluster: Cluster, space: str, machines: Machines, operators: Operators
) -> None:
    pool = node_pool("gpu", size=1, gpusPerNode=2)
    async with made(cluster, cloud.POOL, pool), made(cluster, POOLS, pool_scaler(pool)):
        llm = deployment(space, "llm", replicas=2, pool="gpu", load_seconds=1)
        await cluster.create(cloud.DEPLOYMENT, llm, space)
        machines.work[space, "llm"] = 150.0
        await until(lambda: ready_pods(cluster, space), lambda pods: len(pods) == 2)
        await cluster.create(WORKLOADS, workload_scaler(llm), space)
        operators.start()
        machines.work[space, "llm"] = 390.0
        grown = await until(lambda: nodes(cluster, "gpu"), lambda names: len(names) >= 3)
        await until(lambda: ready_pods(cluster, space), lambda pods: len(pods) >= 5)
        machines.work[space, "llm"] = 60.0
        await until(lambda: ready_pods(cluster, space), lambda pods: len(pods) == 1)
        left = await until(lambda: nodes(cluster, "gpu"), lambda names: len(names) == 1)
        assert set((await ready_pods(cluster, space)).values()) == set(left)
        assert set(left) < set(grown)
        sizes = [write.path for write in operators.scale_writes()]
        assert any("/testnodepools/" in path for path in sizes)


async def test_a_node_that_goes_silent_costs_no_pod_and_no_node(
    cluster: Cluster, space: str, machines: Machines, operators: Operators
) -> None:
    pool = node_pool("gpu", size=2, gpusPerNode=2)
    async with made(cluster, cloud.POOL, pool), made(cluster, POOLS, pool_scaler(pool)):
        llm = deployment(space, "llm", replicas=4, pool="gpu")
        await cluster.create(cloud.DEPLOYMENT, llm, space)
        machines.work[space, "llm"] = 300.0
        before = await until(lambda: ready_pods(cluster, space), lambda pods: len(pods) == 4)
        await until(lambda: usage(cluster, space), lambda told: list(told.values()) == [75.0] * 4)
        names = await nodes(cluster, "gpu")
        await cluster.create(WORKLOADS, workload_scaler(llm, maxReplicas=4), space)
        operators.start()
        await until(lambda: active(cluster, space), lambda value: value == "True")
        await cluster.patch(NODE, names[0], {"metadata": {"labels": {fakenodes.SILENT: "true"}}})
        machines.silence(names[0])
        await until(lambda: cluster.get(NODE, names[0]), lambda node: not is_ready(node))
        await until(lambda: ready_pods(cluster, space), lambda pods: len(pods) == 2)
        await operators.passes(5)
        assert await nodes(cluster, "gpu") == names
        assert (await cluster.get_scale(cloud.DEPLOYMENT, "llm", space)).spec_replicas == 4
        await cluster.patch(NODE, names[0], {"metadata": {"labels": {fakenodes.SILENT: None}}})
        machines.wake(names[0])
        after = await until(lambda: ready_pods(cluster, space), lambda pods: len(pods) == 4)
        assert after.keys() == before.keys()
        assert [write for write in operators.scale_writes() if write.code == 200] == []


async def active(cluster: Cluster, space: str) -> str:
    seen = (await cluster.get(WORKLOADS, "llm", space)).get("status") or {}
    return next((row["status"] for row in seen.get("conditions", []) if row["type"] == "ScalingActive"), "")
