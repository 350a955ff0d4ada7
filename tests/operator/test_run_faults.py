"""``gpuscale run`` as a process while something else is broken: a right, Events, one object's size, all sources."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from controller.cluster import POD
from tests.operator.scripted import Scripted, text
from tests.operator.stage import HPA, NODE, Stage, condition_of, eventually, gpu_spec, staged
from tests.operator.test_run_pools import MARK, pool_of, pool_spec


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Stage, Scripted]]:
    async with staged(tmp_path) as both:
        yield both


async def size_is(stage: Stage, name: str, size: int) -> None:
    async def there() -> bool:
        return await stage.replicas(name) == size

    await eventually(there)


def patches_a_pod(request: web.Request) -> bool:
    return request.method == "PATCH" and "/pods/" in request.path


def posts_an_event(request: web.Request) -> bool:
    return request.method == "POST" and request.path.endswith("/events")


async def test_without_the_right_to_mark_pods_a_size_still_goes_down_and_says_what_is_lost(
    world: tuple[Stage, Scripted],
) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=40)
    stage.faults.refuse(403, count=None, matches=patches_a_pod)
    await stage.scaler("llm", gpu_spec("llm"))
    await stage.run(exporter=exporter.url)
    await size_is(stage, "llm", 2)

    async def said() -> bool:
        return any("could not be marked to go first" in message for _, _, message in [await able()])

    async def able() -> tuple[str, str, str]:
        return await stage.condition("llm", "AbleToScale")

    await eventually(said)


async def test_without_the_right_to_mark_pods_a_promise_to_protect_them_holds_the_size(
    world: tuple[Stage, Scripted],
) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=40)
    stage.faults.refuse(403, count=None, matches=patches_a_pod)
    await stage.scaler("llm", gpu_spec("llm", victimSelection={"protectAboveUtilization": 50}))
    operator = await stage.run(exporter=exporter.url)

    async def held() -> bool:
        status, reason, message = await stage.condition("llm", "AbleToScale")
        return (status, reason) == ("False", "FailedUpdateScale") and "can't be protected" in message

    await eventually(held)
    await stage.passes(operator)
    assert stage.scale_writes() == []


async def test_events_that_hang_or_are_forbidden_keep_no_size_waiting(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    stage.faults.latency_seconds, stage.faults.slow = 3600.0, posts_an_event
    for number in range(10):
        await stage.scaler(f"ghost-{number}", gpu_spec(f"nowhere-{number}"))
    await stage.fleet("llm", 4, usage=100)
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run(exporter=exporter.url)
    await size_is(stage, "llm", 5)
    stage.load("llm", 40)
    await stage.passes(operator, 5)
    await size_is(stage, "llm", 2)


async def test_a_size_that_hangs_keeps_no_other_object_waiting(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await pool_of(stage, 1)
    stage.faults.latency_seconds = 3600.0
    stage.faults.slow = lambda request: request.path.endswith("/deployments/pool-a/scale")
    await stage.pool_scaler("a", pool_spec())
    await stage.fleet("llm", 4, usage=100)
    await stage.scaler("llm", gpu_spec("llm"))
    await stage.run(exporter=exporter.url)
    await size_is(stage, "llm", 5)

    async def named() -> bool:
        return "no answer within" in condition_of(await stage.pool_status("a"), "AbleToScale")[2]

    await eventually(named)


async def test_p10_the_first_reading_after_an_outage_longer_than_the_window_is_not_followed_alone(
    world: tuple[Stage, Scripted],
) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=75)
    window = {"scaleDown": {"stabilizationWindowSeconds": 4}}
    await stage.scaler("llm", gpu_spec("llm", behavior=window))
    operator = await stage.run(exporter=exporter.url)
    good = exporter.answer

    async def active() -> bool:
        return (await stage.condition("llm", "ScalingActive"))[0] == "True"

    async def blind() -> bool:
        return (await stage.condition("llm", "ScalingActive"))[0] == "False"

    await eventually(active)
    exporter.answer = text("starting", status=503)
    await eventually(blind)
    await asyncio.sleep(5)
    stage.load("llm", 0)
    exporter.answer = good
    await eventually(active)
    await stage.passes(operator, 2)
    assert stage.scale_writes() == []
    await size_is(stage, "llm", 1)


async def test_a_process_that_was_stopped_acts_on_nothing_it_had_read_before(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=75)
    await stage.scaler("llm", gpu_spec("llm"))
    fast = ("--lease-duration", "3", "--renew-deadline", "2", "--retry-period", "0.4")
    first = await stage.run(*fast, exporter=exporter.url)

    async def active() -> bool:
        return (await stage.condition("llm", "ScalingActive"))[0] == "True"

    await eventually(active)
    first.process.send_signal(signal.SIGSTOP)
    second = await stage.run(*fast, exporter=exporter.url)

    async def taken_over() -> bool:
        return "gpuscale_leader 1.0" in (await second.get("/metrics"))[1]

    await eventually(taken_over)
    stage.load("llm", 100)
    await size_is(stage, "llm", 5)
    first.process.send_signal(signal.SIGCONT)
    await stage.passes(first)
    assert "gpuscale_leader 0.0" in (await first.get("/metrics"))[1]
    assert len(stage.scale_writes()) == 1


async def test_c07_an_hpa_that_keda_makes_later_stops_the_scaler_and_keda_is_named(
    world: tuple[Stage, Scripted],
) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=70)
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run(exporter=exporter.url)

    async def active() -> bool:
        return (await stage.condition("llm", "TargetOwned"))[0] == "True"

    await eventually(active)
    await stage.hpa("keda-hpa-llm", "llm")
    owner = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "llm", "uid": "u", "controller": True}
    await stage.cluster.patch(HPA, "keda-hpa-llm", {"metadata": {"ownerReferences": [owner]}}, "ml")

    async def named() -> bool:
        return "ScaledObject llm" in (await stage.condition("llm", "TargetOwned"))[2]

    await eventually(named)
    stage.load("llm", 100)
    await stage.passes(operator)
    assert stage.scale_writes() == []


async def test_of_two_pools_that_have_the_same_nodes_only_the_older_acts(world: tuple[Stage, Scripted]) -> None:
    stage, _ = world
    await pool_of(stage, 2)
    await stage.deployment("pool-b", 2, gpus=0)
    await stage.pod("llm", "llm-0", node="a0")
    await stage.pool_scaler("a", pool_spec(scaleDown={"enabled": False}))
    second = pool_spec()
    second["pool"]["ref"]["name"] = "pool-b"
    await stage.pool_scaler("b", second)
    operator = await stage.run()

    async def conflict() -> bool:
        status, reason, message = condition_of(await stage.pool_status("b"), "TargetOwned")
        return (status, reason) == ("False", "CompetingScaler") and "GPUNodePoolScaler a has node a0" in message

    await eventually(conflict)
    await stage.passes(operator, 6)
    assert stage.scale_writes() == []
    assert not (await stage.cluster.get(NODE, "a1"))["spec"].get("unschedulable")


async def test_what_an_administrator_cordons_and_marks_stays_cordoned_and_stops_a_shrink(
    world: tuple[Stage, Scripted],
) -> None:
    stage, _ = world
    await pool_of(stage, 3)
    await stage.pod("llm", "llm-0", node="a0")
    theirs = {"metadata": {"annotations": {MARK: "true"}}, "spec": {"unschedulable": True}}
    await stage.cluster.patch(NODE, "a0", theirs)
    await stage.pool_scaler("a", pool_spec())
    operator = await stage.run()

    async def held() -> bool:
        status = await stage.pool_status("a")
        return bool(status.get("decision", {}).get("reason") == "VictimNotNameable")

    await eventually(held)
    await stage.passes(operator, 5)
    node = await stage.cluster.get(NODE, "a0")
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"] == {MARK: "true"}
    assert stage.scale_writes() == []


async def test_a_pod_that_no_watch_has_told_of_keeps_its_node(world: tuple[Stage, Scripted]) -> None:
    stage, _ = world
    await pool_of(stage, 2)
    await stage.pod("llm", "llm-0", node="a0")
    await stage.pool_scaler("a", pool_spec())
    stage.silent = True
    operator = await stage.run()

    async def marked() -> bool:
        return bool((await stage.cluster.get(NODE, "a1"))["spec"].get("unschedulable"))

    await eventually(marked)
    await stage.pod("llm", "llm-1", node="a1")

    async def held() -> bool:
        status, _, message = condition_of(await stage.pool_status("a"), "AbleToScale")
        return status == "False" and "ml/llm-1 on a1" in message

    await eventually(held)
    await stage.passes(operator)
    assert stage.scale_writes() == []
    assert (await stage.cluster.get(POD, "llm-1", "ml"))["spec"]["nodeName"] == "a1"
