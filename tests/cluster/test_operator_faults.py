"""The operator beside what goes wrong in real clusters: an API server that dies, a successor, a user's own hand."""

import asyncio
import contextlib
import itertools
import signal
from collections.abc import AsyncIterator
from typing import Any

from controller.cluster import ApiError, Cluster
from controller.view import WORKLOADS
from tests.cluster.kubectl import Kubectl
from tests.cluster.operators import Operators, Write
from tests.cluster.scenery import deployment, made, node_pool, until, usage, workload_scaler
from tests.realparts import cloud
from tests.realparts.controlplane import ControlPlane
from tests.realparts.machines import Machines

OUTAGE_SECONDS = 10.0
QUICK = {direction: {"stabilizationWindowSeconds": 0} for direction in ("scaleUp", "scaleDown")}
QUICK_LEASE = ("--lease-duration", "6", "--renew-deadline", "4", "--retry-period", "1")


async def size(cluster: Cluster, space: str) -> int:
    try:
        return (await cluster.get_scale(cloud.DEPLOYMENT, "llm", space)).spec_replicas
    except ApiError:
        return -1


async def stand(cluster: Cluster, space: str, machines: Machines, **spec: Any) -> None:
    """Set up a workload of 2 at its target, and its scaler."""
    llm = deployment(space, "llm", replicas=2)
    await cluster.create(cloud.DEPLOYMENT, llm, space)
    machines.work[space, "llm"] = 160.0
    await until(lambda: usage(cluster, space), lambda told: list(told.values()) == [80.0] * 2)
    await cluster.create(WORKLOADS, workload_scaler(llm, **spec), space)


async def acting(cluster: Cluster, space: str) -> bool:
    seen = (await cluster.get(WORKLOADS, "llm", space)).get("status") or {}
    return any(row["type"] == "ScalingActive" and row["status"] == "True" for row in seen.get("conditions", []))


async def test_an_api_server_that_is_away_for_10_s_in_the_middle_of_a_change_costs_no_size(
    plane: ControlPlane, cluster: Cluster, space: str, machines: Machines, operators: Operators
) -> None:
    async with made(cluster, cloud.POOL, node_pool("work", size=1)):
        slowly = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 3}]}
        await stand(cluster, space, machines, behavior={"scaleUp": slowly})
        process = operators.start()
        await until(lambda: acting(cluster, space), bool)
        machines.work[space, "llm"] = 1000.0
        before = await until(lambda: size(cluster, space), lambda now: now == 3)
        plane.kill_api_server()
        await asyncio.sleep(OUTAGE_SECONDS)
        plane.start_api_server()
        seen = [before]

        async def look() -> int:
            seen.append(await size(cluster, space))
            return seen[-1]

        await until(look, lambda now: now == 6)
        sizes = [now for now in seen if now >= 0]
        assert sizes == sorted(sizes), "an outage makes its nodes look lost for a moment, which is no reason to shrink"
        assert process.running()


async def test_an_upgrade_has_never_two_writers(
    cluster: Cluster, space: str, machines: Machines, operators: Operators
) -> None:
    async with made(cluster, cloud.POOL, node_pool("work", size=1)):
        slowly = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 2}]}
        await stand(cluster, space, machines, behavior={"scaleUp": slowly})
        old = operators.start("old", *QUICK_LEASE)
        await until(lambda: acting(cluster, space), bool)
        machines.work[space, "llm"] = 1000.0
        await until(lambda: size(cluster, space), lambda now: now >= 3)
        operators.start("new", *QUICK_LEASE)
        await operators.passes(2, "new")
        old.end()
        machines.work[space, "llm"] = 60.0
        await cluster.patch(WORKLOADS, "llm", {"spec": {"behavior": QUICK}}, space)
        await until(lambda: size(cluster, space), lambda now: now == 1)
        one_after_the_other(list(operators.writes("old")), list(operators.writes("new")))


async def test_a_leader_that_was_frozen_wakes_up_and_does_not_write(
    cluster: Cluster, space: str, machines: Machines, operators: Operators
) -> None:
    async with made(cluster, cloud.POOL, node_pool("work", size=1)):
        await stand(cluster, space, machines)
        old = operators.start("old", *QUICK_LEASE)
        await until(lambda: acting(cluster, space), bool)
        operators.start("new", *QUICK_LEASE)
        old.send(signal.SIGSTOP)
        machines.work[space, "llm"] = 450.0
        await until(lambda: size(cluster, space), lambda now: now == 6)
        old.send(signal.SIGCONT)
        machines.work[space, "llm"] = 60.0
        await until(lambda: size(cluster, space), lambda now: now == 1)
        await operators.passes(3, "old")
        one_after_the_other(list(operators.writes("old")), list(operators.writes("new")))


def one_after_the_other(first: list[Write], second: list[Write]) -> None:
    assert first
    assert second
    assert first[-1].at < second[0].at, (first[-1], second[0])


@contextlib.asynccontextmanager
async def touching(cluster: Cluster, space: str) -> AsyncIterator[None]:
    """Let somebody write to the workload all the time, so that what was read is old a moment later."""

    async def touch() -> None:
        for number in itertools.count():
            body = {"metadata": {"annotations": {"example.com/touched": str(number)}}}
            await cluster.patch(cloud.DEPLOYMENT, "llm", body, space)

    task = asyncio.create_task(touch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_kubectl_scale_at_the_same_time_is_a_conflict_that_is_decided_again(
    cluster: Cluster, space: str, machines: Machines, operators: Operators, kubectl: Kubectl
) -> None:
    async with made(cluster, cloud.POOL, node_pool("work", size=1)):
        await stand(cluster, space, machines, maxReplicas=5)
        operators.start(tick="0.3")
        await until(lambda: acting(cluster, space), bool)
        machines.work[space, "llm"] = 1000.0

        async with touching(cluster, space):

            def by_hand() -> bool:
                kubectl("scale", "deployment", "llm", "-n", space, "--replicas=3")
                return any(write.code == 409 for write in operators.scale_writes())

            async def conflict() -> bool:
                return await asyncio.to_thread(by_hand)

            await until(conflict, bool)
        await until(lambda: size(cluster, space), lambda now: now == 5)
        seen = await until(
            lambda: cluster.get(WORKLOADS, "llm", space), lambda one: one["status"]["desiredReplicas"] == 5
        )
        assert any(row["type"] == "AbleToScale" and row["status"] == "True" for row in seen["status"]["conditions"])
