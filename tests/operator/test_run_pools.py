"""``gpuscale run`` as a process, against the embedded API: node pools."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller.cluster import NODE, POD
from tests.operator.scripted import Scripted
from tests.operator.stage import DEPLOYMENT, Stage, condition_of, eventually, gpu_spec, staged

MARK = "sandbox.gpuscale.dev/remove"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Stage, Scripted]]:
    async with staged(tmp_path) as both:
        yield both


def pool_spec(**more: Any) -> dict[str, Any]:
    """A pool whose size is that of a deployment: the one kind with /scale that every cluster has."""
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": "pool-a"}
    return {
        "pool": {"ref": ref, "nodeSelector": {"pool": "a"}, "victimMark": {"annotation": MARK}},
        "bounds": {"min": 0, "max": 5},
        "scaleDown": {"quietSeconds": 1, "minNodeAgeSeconds": 0},
        **more,
    }


async def last_reason_is(stage: Stage, reason: str) -> bool:
    decisions = (await stage.pool_status("a")).get("decisions") or [{}]
    return bool(decisions[-1].get("reason") == reason)


async def pool_of(stage: Stage, size: int) -> None:
    await stage.deployment("pool-a", size, gpus=0)
    for number in range(size):
        await stage.node(f"a{number}")


async def test_an_unschedulable_gpu_pod_grows_the_pool_without_waiting_for_the_tick(
    world: tuple[Stage, Scripted],
) -> None:
    stage, _ = world
    await pool_of(stage, 1)
    await stage.pod("llm", "llm-0", node="a0")
    await stage.pool_scaler("a", pool_spec())
    operator = await stage.run(tick="3600")

    async def ready() -> bool:
        return bool(await stage.pool_status("a"))

    await eventually(ready)
    await stage.pod("llm", "llm-1", node="")

    async def grown() -> bool:
        return await stage.replicas("pool-a") == 2

    await eventually(grown)
    await eventually(lambda: last_reason_is(stage, "PendingGPUPods"))
    assert 'gpuscale_node_info{node="a0",pool="a"} 1.0' in (await operator.get("/metrics"))[1]
    assert (
        'gpuscale_node_allocatable_gpus{node="a0",resource="nvidia.com/gpu"} 1.0' in (await operator.get("/metrics"))[1]
    )


async def test_planned_replicas_grow_the_pool_in_the_same_pass(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await pool_of(stage, 2)
    await stage.deployment("llm", 2)
    for number in range(2):
        await stage.pod("llm", f"llm-{number}", node=f"a{number}")
        stage.usage[f"llm-{number}"] = 100
    await stage.pool_scaler("a", pool_spec())
    await stage.scaler("llm", gpu_spec("llm"))
    await stage.run(exporter=exporter.url)

    async def both() -> bool:
        return (await stage.replicas("llm"), await stage.replicas("pool-a")) == (3, 3)

    await eventually(both)
    assert [path.rsplit("/", 2)[1] for path in stage.scale_writes()] == ["llm", "pool-a"]
    await eventually(lambda: last_reason_is(stage, "PlannedReplicas"))


async def test_a_shrink_cordons_and_marks_the_empty_node_before_the_size_goes_down(
    world: tuple[Stage, Scripted],
) -> None:
    stage, _ = world
    await pool_of(stage, 2)
    await stage.pod("llm", "llm-0", node="a0")
    await stage.pool_scaler("a", pool_spec())
    await stage.run()

    async def shrunk() -> bool:
        return await stage.replicas("pool-a") == 1

    await eventually(shrunk)
    node = await stage.cluster.get(NODE, "a1")
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"][MARK] == "true"
    assert "annotations" not in (await stage.cluster.get(NODE, "a0"))["metadata"]
    paths = [path for _, path, _ in stage.writes]
    assert paths.index("/api/v1/nodes/a1") < paths.index(stage.scale_writes()[0])


async def test_a_marked_node_that_is_needed_again_is_released(world: tuple[Stage, Scripted]) -> None:
    stage, _ = world
    await pool_of(stage, 2)
    await stage.pod("llm", "llm-0", node="a0")
    await stage.pool_scaler("a", pool_spec(scaleDown={"quietSeconds": 1, "minNodeAgeSeconds": 0}))
    await stage.run(tick="1.5")

    async def marked() -> bool:
        return bool((await stage.cluster.get(NODE, "a1"))["spec"].get("unschedulable"))

    await eventually(marked)
    await stage.pod("llm", "llm-1", node="")

    async def released() -> bool:
        node = await stage.cluster.get(NODE, "a1")
        free = not node["spec"].get("unschedulable") and MARK not in (node["metadata"].get("annotations") or {})
        return free and await stage.replicas("pool-a") == 2

    await eventually(released)


async def test_a_pool_in_preview_is_shown_and_not_touched(world: tuple[Stage, Scripted]) -> None:
    stage, _ = world
    await pool_of(stage, 1)
    await stage.pod("llm", "llm-0", node="a0")
    await stage.pod("llm", "llm-1", node="")
    await stage.pool_scaler("a", pool_spec(mode="Preview"))
    operator = await stage.run()

    async def shown() -> bool:
        return (await stage.pool_status("a")).get("nodes", {}).get("desired") == 2

    await eventually(shown)
    await stage.passes(operator)
    assert stage.scale_writes() == []
    assert not any("/nodes/" in path and not path.endswith("/status") for _, path, _ in stage.writes)


async def test_two_pools_that_could_take_a_pod_do_not_both_grow_for_it(world: tuple[Stage, Scripted]) -> None:
    stage, _ = world
    await pool_of(stage, 1)
    await stage.deployment("pool-b", 1, gpus=0)
    await stage.node("b0", pool="b")
    for number, node in enumerate(("a0", "b0", "")):
        await stage.pod("llm", f"llm-{number}", node=node)
    second = pool_spec()
    second["pool"]["ref"]["name"] = "pool-b"
    second["pool"]["nodeSelector"] = {"pool": "b"}
    await stage.pool_scaler("a", pool_spec())
    await stage.pool_scaler("b", second)
    operator = await stage.run()

    async def grown() -> bool:
        return await stage.replicas("pool-a") == 2

    await eventually(grown)
    await stage.passes(operator)
    assert await stage.replicas("pool-b") == 1


async def test_a_pool_whose_object_is_missing_and_an_unknown_provider_are_named(
    world: tuple[Stage, Scripted],
) -> None:
    stage, _ = world
    unknown = pool_spec()
    unknown["pool"]["provider"] = "cloud"
    await stage.pool_scaler("ghost", pool_spec())
    await stage.pool_scaler("odd", unknown)
    await stage.run()

    async def named() -> bool:
        ghost = condition_of(await stage.pool_status("ghost"), "AbleToScale")
        odd = condition_of(await stage.pool_status("odd"), "ScalingActive")
        return (ghost[1], odd[1]) == ("FailedGetScale", "InvalidSpec") and "pool-a" in ghost[2] and "cloud" in odd[2]

    await eventually(named)


async def test_what_was_learned_of_a_node_lets_a_pool_at_zero_grow_after_a_restart(
    world: tuple[Stage, Scripted],
) -> None:
    stage, _ = world
    await pool_of(stage, 1)
    await stage.pod("llm", "llm-0", node="a0")
    await stage.pool_scaler("a", pool_spec())
    first = await stage.run()

    async def learned() -> bool:
        return bool((await stage.pool_status("a")).get("template"))

    await eventually(learned)
    assert await first.stop() == 0
    await stage.cluster.delete(POD, "llm-0", "ml")
    await stage.cluster.delete(NODE, "a0")
    await stage.cluster.patch(DEPLOYMENT, "pool-a", {"spec": {"replicas": 0}}, "ml")
    await stage.pod("llm", "llm-1", node="")
    await stage.run()

    async def grown() -> bool:
        return await stage.replicas("pool-a") == 1

    await eventually(grown)
