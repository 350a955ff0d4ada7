"""Floors raise, idleness is proven before 0, and the least busy pod goes."""

from dataclasses import replace
from typing import Any

import pytest

from controller.core import victims
from controller.core.decide import decide
from controller.core.model import (
    Behavior,
    Decision,
    Failed,
    Floor,
    GpuRules,
    Idleness,
    IdleRules,
    Memory,
    Observation,
    Pod,
    RatePolicy,
    Reason,
    ScalingRules,
    VictimOrder,
)
from tests.core.world import (
    FREE,
    NOW,
    crashing,
    external,
    fleet,
    gpu_policy,
    loading,
    pending,
    ready,
    seen,
    shown,
    total,
)

QUEUE = external(1)
FORECAST = Floor("forecast", 6)


def with_floors(proposal: int, *floors: Floor, replicas: int = 4, **more: Any) -> Decision:
    observation = seen(fleet(replicas), total(proposal), floors=floors)
    return decide(gpu_policy(QUEUE, tolerance=0.0, **more), observation, Memory(), NOW)


def test_a_floor_raises_never_lowers_and_the_maximum_wins() -> None:
    assert with_floors(3, FORECAST).desired == 6
    assert with_floors(8, FORECAST).desired == 8
    assert with_floors(2, FORECAST, max_replicas=5).desired == 5
    raised = with_floors(3, FORECAST, Floor("schedule", 7))
    assert (raised.desired, raised.reason) == (7, Reason.FLOOR_IN_FORCE)
    assert raised.sentence == "Going from 4 to 7: schedule asks for at least 7."


def test_a_floor_holds_where_the_metrics_are_broken_and_is_no_way_past_the_rates() -> None:
    broken = Failed(Reason.FAILED_GET_EXTERNAL_METRIC, "503")
    observation = seen(fleet(4), broken, floors=(FORECAST,))
    slow = Behavior(ScalingRules(0, (RatePolicy("Pods", 1, 60),)), FREE.scale_down)
    assert decide(gpu_policy(QUEUE), observation, Memory(), NOW).desired == 6
    assert decide(gpu_policy(QUEUE, behavior=slow), observation, Memory(), NOW).desired == 5
    below = seen(fleet(8), broken, floors=(FORECAST,))
    assert decide(gpu_policy(QUEUE), below, Memory(), NOW).desired == 8


IDLE = IdleRules(after_seconds=120, max_utilization=5000)


def idle(seconds: float, highest: int, *, replicas: int = 2, minimum: int = 0, **more: Any) -> Decision:
    observation = seen(fleet(replicas), total(0), idleness=Idleness(seconds, highest), **more)
    return decide(gpu_policy(QUEUE, idle=IDLE, min_replicas=minimum), observation, Memory(), NOW)


@pytest.mark.parametrize(
    ("seconds", "highest", "size"), [(120, 5000, 0), (119, 0, 1), (120, 5001, 1)], ids=["proven", "too short", "busy"]
)
def test_zero_is_reached_on_proven_idleness_only(seconds: float, highest: int, size: int) -> None:
    decision = idle(seconds, highest)
    assert decision.desired == size
    assert (decision.reason is Reason.SCALED_TO_ZERO) == (size == 0)
    assert decision.memory.scaled_to_zero == (size == 0)


def test_unknown_idleness_a_minimum_and_a_floor_each_keep_a_pod() -> None:
    unknown = seen(fleet(2), total(0))
    assert decide(gpu_policy(QUEUE, idle=IDLE, min_replicas=0), unknown, Memory(), NOW).desired == 1
    assert idle(500, 0, minimum=1).desired == 1
    assert idle(500, 0, floors=(Floor("schedule", 1),)).desired == 1


def test_the_way_to_zero_keeps_to_the_rates_and_waits_once_more_at_one() -> None:
    """C09: five replicas, one pod a minute, idle from the start, 120 s of proof."""
    slow = Behavior(FREE.scale_up, ScalingRules(0, (RatePolicy("Pods", 1, 60),)))
    policy = gpu_policy(QUEUE, idle=IDLE, min_replicas=0, behavior=slow, tolerance=0.0)
    size, memory, changes = 5, Memory(), []
    for at in range(0, 500, 5):
        observation = seen(fleet(size), total(0, age=-at), idleness=Idleness(1000 + at, 0))
        decision = decide(policy, observation, memory, NOW + at)
        if decision.desired != size:
            changes.append((at, decision.desired))
            assert (decision.reason is Reason.SCALED_TO_ZERO) == (decision.desired == 0)
        size, memory = decision.desired, decision.memory
    assert changes == [(0, 4), (60, 3), (120, 2), (180, 1), (300, 0)]


def chosen(utils: list[int | None], size: int, protect: int | None = None, pods: tuple[Pod, ...] | None = None) -> Any:
    there = pods or fleet(len(utils))
    utilization = {f"p{index}": util * 1000 for index, util in enumerate(utils) if util is not None}
    rules = GpuRules(protect_above_utilization=protect)
    return victims.choose(rules, seen(there, utilization=utilization), size)


def test_the_least_busy_go_first_and_the_unknown_last() -> None:
    assert chosen([0, 45, 2, 80, 1], 3).names == ("p0", "p4")
    assert chosen([None, 90, None, 5], 1).names == ("p3", "p1", "p0")


def test_pods_that_do_no_work_go_before_all_others() -> None:
    pods = (ready("p0"), loading("p1"), pending("p2"), crashing("p3"))
    assert chosen([0, 90, None, None], 1, pods=pods).names == ("p2", "p3", "p1")


def test_busy_pods_and_those_of_unknown_load_stay_and_the_shrink_gets_smaller() -> None:
    assert chosen([50, 60, 5], 1, protect=20) == (("p2",), 2, ("p0", "p1"))
    assert chosen([20, 21, None], 0, protect=20) == (("p0",), 2, ("p1", "p2"))


def test_replicas_that_do_not_exist_yet_go_without_a_name() -> None:
    observation = Observation(5, 5, fleet(3), (), {"p0": 1000, "p1": 2000, "p2": 3000})
    assert victims.choose(GpuRules(), observation, 3).names == ()
    assert victims.choose(GpuRules(), observation, 2).names == ("p0",)


def test_of_equally_idle_pods_the_youngest_goes() -> None:
    pods = (ready("p0"), ready("p1", created_at=NOW - 10), ready("p2"))
    assert chosen([0, 0, 0], 1, pods=pods).names == ("p1", "p0")


def shrink(utils: list[int], to: int, replicas: int | None = None, **more: Any) -> Decision:
    utilization = {f"p{index}": util * 1000 for index, util in enumerate(utils)}
    observation = seen(fleet(len(utils)), total(to), replicas=replicas, utilization=utilization)
    rules = GpuRules(protect_above_utilization=20)
    return decide(gpu_policy(QUEUE, rules=rules, tolerance=0.0, **more), observation, Memory(), NOW)


def test_a_shrink_that_protection_prevents_is_a_hold_with_its_reason() -> None:
    decision = shrink([50, 60, 70], 1)
    assert (decision.desired, decision.reason, decision.victims) == (3, Reason.BUSY_PODS_PROTECTED, ())
    assert shown(decision)["ScalingLimited"] == "True/BusyPodsProtected"
    assert decision.memory.down_events == ()


def test_a_shrink_that_protection_makes_smaller_is_remembered_as_small() -> None:
    decision = shrink([50, 60, 5], 1)
    assert (decision.desired, decision.victims) == (2, ("p2",))
    assert decision.memory.down_events == ((NOW, 1),)


def test_the_maximum_protects_nobody() -> None:
    decision = shrink([50, 60, 70], 3, max_replicas=2)
    assert (decision.desired, decision.victims) == (2, ("p0",))


def test_no_victims_are_chosen_where_the_spec_wants_none() -> None:
    observation = seen(fleet(3), total(1), utilization={"p0": 0})
    policy = gpu_policy(QUEUE, rules=GpuRules(pick_victims=False), tolerance=0.0)
    decision = decide(policy, observation, Memory(), NOW)
    assert (decision.desired, decision.victims) == (1, ())


def test_a_kind_that_removes_the_highest_ordinal_shrinks_only_down_to_the_first_busy_pod() -> None:
    rules = GpuRules(protect_above_utilization=20, victim_order=VictimOrder.HIGHEST_ORDINAL)
    idle = {f"p-{index}": 0 for index in range(12)} | {"p-9": 90_000}
    pods = tuple(ready(name) for name in idle)
    chosen = victims.choose(rules, Observation(12, 12, pods, (), idle), 1)
    assert chosen == (("p-11", "p-10"), 10, ("p-9",))


def test_a_kind_whose_choice_is_unknown_shrinks_only_where_nobody_is_protected() -> None:
    rules = GpuRules(protect_above_utilization=20, victim_order=VictimOrder.UNKNOWN)
    busy = Observation(3, 3, fleet(3), (), {"p0": 0, "p1": 0, "p2": 90_000})
    assert victims.choose(rules, busy, 1).size == 3
    assert victims.choose(rules, replace(busy, utilization=dict.fromkeys(("p0", "p1", "p2"), 0)), 1).size == 1


def test_pods_that_an_earlier_shrink_still_has_to_remove_are_named_again_beside_the_next() -> None:
    observation = Observation(2, 3, fleet(3), (), {"p0": 1000, "p1": 2000, "p2": 90_000})
    assert victims.choose(GpuRules(), observation, 1) == (("p0", "p1"), 1, ())
    assert victims.choose(GpuRules(protect_above_utilization=0), observation, 1).size == 2
