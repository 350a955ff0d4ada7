"""The operator on a real cluster: Deployments, StatefulSets and a kind of its own, up and down and left alone."""

from collections.abc import Callable
from typing import Any

import pytest

from controller.cluster import Cluster, Kind
from controller.view import WORKLOADS
from tests.cluster.operators import Operators
from tests.cluster.scenery import deployment, fleet, made, node_pool, stateful_set, until, workload_scaler
from tests.realparts import cloud
from tests.realparts.machines import Machines

STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)
TARGETS = [(cloud.DEPLOYMENT, deployment), (STATEFUL_SET, stateful_set), (cloud.FLEET, fleet)]


async def status(cluster: Cluster, space: str, name: str) -> dict[str, Any]:
    return (await cluster.get(WORKLOADS, name, space)).get("status") or {}


def condition(seen: dict[str, Any], kind: str) -> tuple[str, str]:
    rows = [row for row in seen.get("conditions", []) if row["type"] == kind]
    return (rows[0]["status"], rows[0]["reason"]) if rows else ("", "")


@pytest.mark.parametrize(("kind", "target"), TARGETS, ids=lambda one: getattr(one, "kind", ""))
async def test_a_workload_grows_and_shrinks_with_its_load_and_is_left_alone_after_the_scaler(
    kind: Kind,
    target: Callable[..., dict[str, Any]],
    cluster: Cluster,
    space: str,
    machines: Machines,
    operators: Operators,
) -> None:
    async def size() -> int:
        return (await cluster.get_scale(kind, "llm", space)).spec_replicas

    async with made(cluster, cloud.POOL, node_pool("work", size=1)):
        llm = target(space, "llm", replicas=2)
        await cluster.create(kind, llm, space)
        machines.work[space, "llm"] = 160.0
        await cluster.create(WORKLOADS, workload_scaler(llm), space)
        operators.start()
        await until(lambda: status(cluster, space, "llm"), lambda seen: condition(seen, "ScalingActive")[0] == "True")
        assert await size() == 2
        machines.work[space, "llm"] = 320.0
        await until(size, lambda now: now >= 4)
        machines.work[space, "llm"] = 60.0
        await until(size, lambda now: now == 1)
        seen = await until(lambda: status(cluster, space, "llm"), lambda seen: seen.get("desiredReplicas") == 1)
        assert [row["metric"] for row in seen["currentMetrics"]] == ["gpu/utilization"]
        await cluster.delete(WORKLOADS, "llm", space)
        before = operators.scale_writes()
        machines.work[space, "llm"] = 500.0
        other = deployment(space, "other", replicas=1)
        machines.work[space, "other"] = 200.0
        await cluster.create(cloud.DEPLOYMENT, other, space)
        await cluster.create(WORKLOADS, workload_scaler(other), space)
        await until(lambda: cluster.get_scale(cloud.DEPLOYMENT, "other", space), lambda scale: scale.spec_replicas > 1)
        assert await size() == 1
        assert len([w for w in operators.scale_writes() if "/llm/" in w.path]) == len(before)


async def test_preview_writes_nothing_but_status_and_events(
    cluster: Cluster, space: str, machines: Machines, operators: Operators
) -> None:
    async with made(cluster, cloud.POOL, node_pool("work", size=1)):
        llm = deployment(space, "llm", replicas=1)
        await cluster.create(cloud.DEPLOYMENT, llm, space)
        machines.work[space, "llm"] = 300.0
        await cluster.create(WORKLOADS, workload_scaler(llm, mode="Preview"), space)
        operators.start()
        seen = await until(lambda: status(cluster, space, "llm"), lambda seen: seen.get("desiredReplicas", 0) > 1)
        assert seen["currentReplicas"] == 1
        assert {write.path.rsplit("/", 1)[1] for write in operators.writes()} == {"status"}
        await cluster.patch(WORKLOADS, "llm", {"spec": {"mode": "Active"}}, space)
        await until(lambda: cluster.get_scale(cloud.DEPLOYMENT, "llm", space), lambda scale: scale.spec_replicas > 1)
