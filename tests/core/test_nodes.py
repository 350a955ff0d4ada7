"""What a pool decision does: growing, counting what comes, taking back, shrinking by name, holding with a reason."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from controller.core.model import Reason
from controller.core.nodes import decide_pool
from controller.core.pool_model import (
    Node,
    NodeTemplate,
    PodClass,
    PoolDecision,
    PoolMemory,
    PoolObservation,
    PoolPolicy,
    Taint,
    Toleration,
)

GPU = "nvidia.com/gpu"
NOW = 100_000.0
OLD = NOW - 50_000.0
LABELS = {"pool": "a100"}
TEMPLATE = NodeTemplate({GPU: 8000, "cpu": 96_000}, LABELS)
POLICY = PoolPolicy(0, 20, TEMPLATE, quiet_seconds=600, min_node_age_seconds=600, nameable=True)


def pods(count: int = 1, gpus: int = 1000, name: str = "ml/p-0", **more: object) -> PodClass:
    return PodClass({GPU: gpus, "cpu": 1000}, count, (name,), **more)  # type: ignore[arg-type]


def node(name: str = "n1", used: int = 0, **more: object) -> Node:
    facts: dict[str, object] = {"created_at": OLD, "labels": LABELS, "pods": 1 if used else 0} | more
    return Node(name, facts.pop("allocatable", {GPU: 8000, "cpu": 96_000}), {GPU: used}, **facts)  # type: ignore[arg-type]


def seen(
    size: int, *nodes: Node, pending: tuple[PodClass, ...] = (), planned: tuple[PodClass, ...] = ()
) -> PoolObservation:
    return PoolObservation(size, nodes, pending, planned)


def decide(
    observation: PoolObservation, memory: PoolMemory | None = None, policy: PoolPolicy = POLICY, now: float = NOW
) -> PoolDecision:
    return decide_pool(policy, observation, memory, now)


def conditions(decision: PoolDecision) -> Mapping[str, tuple[str, Reason]]:
    return {c.type: (c.status, c.reason) for c in decision.conditions}


def quiet(*names: str) -> PoolMemory:
    return PoolMemory(unneeded_since=dict.fromkeys(names, NOW - 601))


# --- growing ------------------------------------------------------------------------------------------------------


def test_pods_that_wait_get_the_nodes_they_need() -> None:
    decision = decide(seen(1, node(used=8000), pending=(pods(9),)))
    assert (decision.desired, decision.reason) == (3, Reason.PENDING_GPU_PODS)
    assert "9 pods wait (9 GPUs)" in decision.sentence
    assert "1 -> 3" in decision.sentence
    assert decision.memory.size_changed_at == NOW


def test_planned_replicas_get_nodes_in_the_same_tick() -> None:
    decision = decide(seen(0, planned=(pods(2, 8000),)))
    assert (decision.desired, decision.reason) == (2, Reason.PLANNED_REPLICAS)


def test_room_on_working_nodes_is_used_before_a_node_is_bought() -> None:
    decision = decide(seen(1, node(used=4000), pending=(pods(4),)))
    assert (decision.desired, decision.reason) == (1, Reason.DEMAND_MET)
    assert "room" in decision.sentence


def test_a_size_not_yet_seen_as_nodes_counts_as_coming() -> None:
    first = decide(seen(0, pending=(pods(8),)))
    second = decide(seen(1, pending=(pods(8),)), first.memory, now=NOW + 2)
    assert (first.desired, second.desired, second.reason) == (1, 1, Reason.CAPACITY_ARRIVING)
    assert second.trace.nodes_coming == 1


def test_a_size_that_never_comes_stops_counting_at_the_deadline() -> None:
    memory = PoolMemory(size_changed_at=NOW - 901, unseen_since=NOW - 901)
    decision = decide(seen(1, pending=(pods(8),)), memory)
    assert decision.desired == 2


def test_an_unseen_size_of_unknown_age_is_given_the_deadline_from_now() -> None:
    decision = decide(seen(1, pending=(pods(8),)), None)
    assert (decision.desired, decision.memory.size_changed_at) == (1, NOW)


def test_n01_a_ready_node_without_its_gpus_is_coming_until_the_deadline() -> None:
    young = node(allocatable={"cpu": 96_000}, created_at=NOW - 180)
    decision = decide(seen(1, young, pending=(pods(),)))
    assert (decision.desired, decision.reason) == (1, Reason.CAPACITY_ARRIVING)
    late = replace(young, created_at=NOW - 901)
    assert decide(seen(1, late, pending=(pods(),))).desired == 2


def test_a_node_that_lost_some_gpus_for_good_works_with_those_it_has() -> None:
    worn = node(allocatable={GPU: 7000, "cpu": 96_000})
    assert decide(seen(1, worn, pending=(pods(7),))).desired == 1
    assert decide(seen(1, worn, pending=(pods(8),))).desired == 2


def test_n03_shared_gpus_count_as_often_as_the_template_says() -> None:
    shared = replace(POLICY, template=NodeTemplate({GPU: 4000, "cpu": 96_000}))
    assert decide(seen(0, pending=(pods(4),)), policy=shared).desired == 1
    assert decide(seen(0, pending=(pods(5),)), policy=shared).desired == 2


def test_n04_shares_of_a_gpu_are_packed_onto_devices_and_not_summed() -> None:
    single = replace(POLICY, template=NodeTemplate({GPU: 1000, "cpu": 96_000}))
    assert decide(seen(0, pending=(pods(5, 300),)), policy=single).desired == 2
    assert decide(seen(0, pending=(pods(3, 600),)), policy=single).desired == 3


def test_n13_a_declared_startup_taint_is_on_its_way_and_another_is_not() -> None:
    boot = Taint("boot", "wait")
    declared = replace(POLICY, template=replace(TEMPLATE, startup_taints=(boot,)))
    young = node(taints=(boot,), created_at=NOW - 60)
    assert decide(seen(1, young, pending=(pods(),)), policy=declared).desired == 1
    assert decide(seen(1, young, pending=(pods(),))).desired == 2


def test_a_startup_taint_learned_with_the_template_bars_nobody() -> None:
    boot = Taint("boot", "wait")
    learned = replace(POLICY, template=replace(TEMPLATE, taints=(boot,), startup_taints=(boot,)))
    assert decide(seen(0, pending=(pods(),)), policy=learned).desired == 1


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (pods(gpus=16_000, name="ml/big-0"), "needs 16 nvidia.com/gpu, a node has 8"),
        (pods(name="ml/big-0", node_selector={"zone": "b"}), "wants nodes with zone=b"),
        (PodClass({GPU: 1000, "cpu": 200_000}, 1, ("ml/big-0",)), "needs 200 cpu, a node has 96"),
        (PodClass({"amd.com/gpu": 1000}, 1, ("ml/big-0",)), "needs 1 amd.com/gpu, a node has 0"),
    ],
)
def test_no_node_is_bought_for_a_pod_that_never_fits_and_it_is_named(pod: PodClass, why: str) -> None:
    decision = decide(seen(0, pending=(pod,)))
    assert (decision.desired, decision.reason) == (0, Reason.NEVER_FITS)
    assert why in decision.trace.never_fit["ml/big-0"]
    assert "ml/big-0" in decision.sentence
    assert conditions(decision)["DemandFits"] == ("False", Reason.NEVER_FITS)


def test_a_taint_of_the_pool_bars_pods_that_do_not_tolerate_it() -> None:
    tainted = replace(POLICY, template=replace(TEMPLATE, taints=(Taint("gpu", "yes"),)))
    assert decide(seen(0, pending=(pods(),)), policy=tainted).reason is Reason.NEVER_FITS
    tolerant = pods(tolerations=(Toleration("gpu", "Exists"),))
    assert decide(seen(0, pending=(tolerant,)), policy=tainted).desired == 1


def test_pods_that_never_fit_do_not_stop_others() -> None:
    decision = decide(seen(0, pending=(pods(gpus=16_000, name="ml/big-0"), pods(8))))
    assert (decision.desired, decision.reason) == (1, Reason.PENDING_GPU_PODS)
    assert set(decision.trace.never_fit) == {"ml/big-0"}


def test_the_maximum_limits_and_says_so() -> None:
    decision = decide(seen(19, *(node(f"n{i}", 8000) for i in range(19)), pending=(pods(80),)))
    assert decision.desired == 20
    assert conditions(decision)["ScalingLimited"] == ("True", Reason.POOL_AT_MAXIMUM)
    full = decide(seen(20, *(node(f"n{i}", 8000) for i in range(20)), pending=(pods(80),)))
    assert (full.desired, full.reason) == (20, Reason.POOL_AT_MAXIMUM)
    assert "10 more would be needed, but the maximum is 20" in full.sentence


def test_no_more_than_a_step_is_ordered_and_unseen() -> None:
    stepped = replace(POLICY, max_step_up=2)
    first = decide(seen(0, pending=(pods(40),)), policy=stepped)
    held = decide(seen(2, pending=(pods(40),)), first.memory, stepped, NOW + 2)
    arrived = [node(f"n{i}", created_at=NOW, ready=False) for i in range(2)]
    third = decide(seen(2, *arrived, pending=(pods(40),)), held.memory, stepped, NOW + 60)
    assert (first.desired, held.desired, third.desired) == (2, 2, 4)
    assert held.reason is Reason.SCALE_UP_LIMIT


def test_a_size_below_the_minimum_is_raised_at_once_even_without_a_template() -> None:
    for template in (TEMPLATE, None):
        decision = decide(seen(0), policy=replace(POLICY, min_nodes=3, template=template, max_step_up=1))
        assert (decision.desired, decision.reason) == (3, Reason.POOL_AT_MINIMUM)


def test_without_a_template_nothing_is_bought_and_the_reason_is_said() -> None:
    decision = decide(seen(0, pending=(pods(),)), policy=replace(POLICY, template=None))
    assert (decision.desired, decision.reason) == (0, Reason.TEMPLATE_UNKNOWN)
    assert conditions(decision)["ScalingActive"] == ("False", Reason.TEMPLATE_UNKNOWN)


def test_headroom_is_kept_free_beyond_what_pods_ask_for() -> None:
    spare = replace(POLICY, headroom_gpus=4)
    decision = decide(seen(1, node(used=6000)), policy=spare)
    assert (decision.desired, decision.reason) == (2, Reason.HEADROOM_SHORT)
    assert decide(seen(1, node(used=4000)), policy=spare).desired == 1


def test_a_node_cordoned_by_somebody_is_no_room() -> None:
    assert decide(seen(1, node(cordoned=True), pending=(pods(),))).desired == 2


def test_a_node_that_is_not_ready_for_long_is_no_room() -> None:
    assert decide(seen(1, node(ready=False), pending=(pods(),))).desired == 2
    assert decide(seen(1, node(ready=False, created_at=NOW - 60), pending=(pods(),))).desired == 1


# --- shrinking ----------------------------------------------------------------------------------------------------


def test_an_empty_node_is_marked_first_and_the_size_follows_one_tick_later() -> None:
    busy = node("n2", 8000)
    marking = decide(seen(2, node("n1"), busy), quiet("n1"))
    assert (marking.desired, marking.mark, marking.reason) == (2, ("n1",), Reason.NODES_MARKED)
    marked = node("n1", cordoned=True, marked=True)
    lowering = decide(seen(2, marked, busy), marking.memory, now=NOW + 2)
    assert (lowering.desired, lowering.mark, lowering.reason) == (1, (), Reason.NODES_UNNEEDED)
    assert lowering.memory.lowered_at == {"n1": NOW + 2}
    waiting = decide(seen(1, marked, busy), lowering.memory, now=NOW + 4)
    assert (waiting.desired, waiting.release) == (1, ())
    gone = decide(seen(1, busy), waiting.memory, now=NOW + 6)
    assert (gone.desired, gone.memory.marked_at, gone.memory.lowered_at) == (1, {}, {})


def test_the_size_is_lowered_once_for_one_node_while_the_provider_takes_its_time() -> None:
    nodes = (node("n1", cordoned=True, marked=True), node("n2"), node("n3", 8000))
    memory = PoolMemory(quiet("n1", "n2").unneeded_since, {"n1": NOW - 2})
    lowered = decide(seen(3, *nodes), memory)
    later = decide(seen(2, *nodes), lowered.memory, now=NOW + 300)
    assert (lowered.desired, later.desired, later.mark) == (2, 2, ())
    assert "n1" in later.sentence


def test_a_mark_without_memory_of_it_waits_another_tick() -> None:
    marked = node("n1", cordoned=True, marked=True)
    adopted = decide(seen(1, marked), None)
    assert (adopted.desired, adopted.reason) == (1, Reason.NODES_MARKED)
    assert decide(seen(1, marked), adopted.memory, now=NOW + 2).desired == 0


def test_the_size_is_not_lowered_twice_when_the_memory_of_it_was_lost() -> None:
    nodes = (node("n1", cordoned=True, marked=True), node("n2"), node("n3", 8000))
    first = decide(seen(2, *nodes), None)
    second = decide(seen(2, *nodes), first.memory, now=NOW + 2)
    assert (first.desired, second.desired, second.mark) == (2, 2, ())
    assert second.memory.lowered_at == {"n1": NOW}


def test_a_pod_that_lands_on_a_marked_node_frees_it() -> None:
    landed = node("n1", 1000, cordoned=True, marked=True)
    decision = decide(seen(2, landed, node("n2", 8000)), PoolMemory(marked_at={"n1": NOW - 2}))
    assert (decision.desired, decision.release, decision.reason) == (2, ("n1",), Reason.NODES_RELEASED)
    assert decision.memory.marked_at == {}


def test_a_pod_that_lands_after_the_size_was_lowered_gets_the_size_raised_again_and_then_its_node_back() -> None:
    landed = node("n1", 1000, cordoned=True, marked=True)
    memory = PoolMemory(marked_at={"n1": NOW - 4}, lowered_at={"n1": NOW - 2}, lowered_to=1)
    first = decide(seen(1, landed, node("n2", 8000)), memory)
    assert (first.desired, first.release) == (2, ())
    unwritten = decide(seen(1, landed, node("n2", 8000)), first.memory, now=NOW + 2)
    assert (unwritten.desired, unwritten.release) == (2, ())
    second = decide(seen(2, landed, node("n2", 8000)), unwritten.memory, now=NOW + 4)
    assert (second.desired, second.release, second.memory.lowered_at) == (2, ("n1",), {})


def test_demand_takes_marked_nodes_back_before_it_buys() -> None:
    marked = node("n1", cordoned=True, marked=True, taints=(Taint("node.kubernetes.io/unschedulable"),))
    memory = PoolMemory(marked_at={"n1": NOW - 2})
    decision = decide(seen(2, marked, node("n2", 8000), pending=(pods(8),)), memory)
    assert (decision.desired, decision.release, decision.reason) == (2, ("n1",), Reason.NODES_RELEASED)
    more = decide(seen(2, marked, node("n2", 8000), pending=(pods(9),)), memory)
    assert (more.desired, more.release) == (3, ("n1",))


def test_demand_takes_a_node_back_that_the_size_was_lowered_for_by_raising_it_first() -> None:
    going = node("n1", cordoned=True, marked=True)
    memory = PoolMemory(marked_at={"n1": NOW - 4}, lowered_at={"n1": NOW - 2}, lowered_to=1)
    first = decide(seen(1, going, node("n2", 8000), pending=(pods(8),)), memory)
    assert (first.desired, first.release) == (2, ())
    second = decide(seen(2, going, node("n2", 8000), pending=(pods(8),)), first.memory, now=NOW + 2)
    assert (second.desired, second.release, second.memory.lowered_at) == (2, ("n1",), {})


def test_a_lowered_size_that_was_not_written_gives_the_nodes_back() -> None:
    marked = node("n1", cordoned=True, marked=True)
    lowering = decide(seen(1, marked), PoolMemory(quiet("n1").unneeded_since, {"n1": NOW - 2}))
    unwritten = decide(seen(1, marked), lowering.memory, now=NOW + 2)
    assert (lowering.desired, unwritten.desired, unwritten.release) == (0, 1, ("n1",))


def test_a_size_that_never_came_does_not_keep_nodes_that_are_going() -> None:
    nodes = (node("n1", cordoned=True, marked=True), node("n2", 8000))
    memory = PoolMemory(quiet("n1").unneeded_since, {"n1": NOW - 2}, size_changed_at=NOW - 5000)
    memory = replace(memory, unseen_since=NOW - 5000)
    lowering = decide(seen(3, *nodes), memory)
    later = decide(seen(2, *nodes), lowering.memory, now=NOW + 2)
    assert (lowering.desired, later.desired, later.release) == (2, 2, ())
    assert set(later.memory.lowered_at) == {"n1"}


def test_nothing_is_marked_or_lowered_while_a_pod_waits_that_could_use_the_pool() -> None:
    nodes = (node("n1", cordoned=True, marked=True), node("n2"), node("n3"))
    memory = replace(quiet("n1", "n2", "n3"), marked_at={"n1": NOW - 2})
    for waits in ({"pending": (pods(),)}, {"planned": (pods(),)}):
        decision = decide(seen(3, *nodes, **waits), memory)
        assert (decision.desired, decision.mark) == (3, ())
    unfit = decide(seen(3, *nodes, pending=(pods(gpus=16_000),)), memory)
    assert unfit.desired == 2


def test_an_empty_node_stays_for_its_quiet_time_which_starts_when_it_is_first_unneeded() -> None:
    first = decide(seen(1, node()))
    assert (first.reason, first.mark) == (Reason.QUIET_TIME, ())
    assert "600 s" in first.sentence
    needed = decide(seen(1, node(), pending=(pods(),)), first.memory, now=NOW + 300)
    again = decide(seen(1, node()), needed.memory, now=NOW + 602)
    assert again.reason is Reason.QUIET_TIME
    assert decide(seen(1, node()), again.memory, now=NOW + 1203).mark == ("n1",)


def test_a_young_node_stays() -> None:
    decision = decide(seen(1, node(created_at=NOW - 30)), quiet("n1"))
    assert (decision.mark, decision.reason) == ((), Reason.QUIET_TIME)
    assert "30 s old" in decision.trace.blocked["n1"]


def test_a_protected_node_stays_and_says_why() -> None:
    decision = decide(seen(1, node(protected=True)), quiet("n1"))
    assert decision.mark == ()
    assert "protected" in decision.trace.blocked["n1"]


def test_a_node_with_pods_that_use_no_gpu_stays_and_says_why() -> None:
    decision = decide(seen(1, node(pods=2)), quiet("n1"))
    assert decision.mark == ()
    assert decision.trace.blocked["n1"] == "holds 2 pods that use no GPU"


def test_the_minimum_and_the_headroom_keep_empty_nodes() -> None:
    nodes = [node(f"n{i}") for i in range(3)]
    memory = quiet("n0", "n1", "n2")
    kept = decide(seen(3, *nodes), memory, replace(POLICY, min_nodes=2))
    assert kept.mark == ("n0",)
    assert decide(seen(3, *nodes), memory, replace(POLICY, headroom_gpus=9)).mark == ("n0",)
    at_minimum = decide(seen(3, *nodes), memory, replace(POLICY, min_nodes=3))
    assert (at_minimum.mark, at_minimum.reason) == ((), Reason.POOL_AT_MINIMUM)


def test_nodes_without_their_gpus_go_first_then_those_longest_unneeded() -> None:
    dead = node("n3", allocatable={"cpu": 96_000})
    memory = PoolMemory(unneeded_since={"n1": NOW - 700, "n2": NOW - 900, "n3": NOW - 601})
    decision = decide(seen(3, node("n1"), node("n2"), dead), memory, replace(POLICY, min_nodes=1))
    assert decision.mark == ("n3", "n2")


def test_scaling_down_can_be_switched_off_and_then_frees_what_was_marked() -> None:
    off = replace(POLICY, scale_down_enabled=False)
    assert decide(seen(1, node()), quiet("n1"), off).mark == ()
    marked = decide(seen(1, node(cordoned=True, marked=True)), PoolMemory(marked_at={"n1": NOW - 2}), off)
    assert (marked.desired, marked.release) == (1, ("n1",))


def test_without_a_mark_that_the_provider_honours_the_pool_is_held() -> None:
    decision = decide(seen(2, node("n1"), node("n2", 8000)), quiet("n1"), replace(POLICY, nameable=False))
    assert (decision.desired, decision.mark, decision.reason) == (2, (), Reason.VICTIM_NOT_NAMEABLE)
    assert conditions(decision)["ScalingLimited"] == ("True", Reason.VICTIM_NOT_NAMEABLE)


@pytest.mark.parametrize("nameable", [True, False])
def test_a_pool_whose_nodes_are_all_cordoned_and_empty_goes_to_its_minimum(*, nameable: bool) -> None:
    nodes = (node("n1", cordoned=True), node("n2", cordoned=True))
    policy = replace(POLICY, nameable=nameable)
    decision = decide(seen(2, *nodes), quiet("n1", "n2"), policy)
    assert (decision.desired, decision.reason) == (0, Reason.NODES_UNNEEDED)
    assert decide(seen(2, *nodes), quiet("n1"), policy).desired == 2
    assert decide(seen(3, *nodes), quiet("n1", "n2"), policy).desired == 3
    busy = (nodes[0], node("n2", 1000, cordoned=True))
    assert decide(seen(2, *busy), quiet("n1"), policy).desired == 2


def test_a_node_cordoned_by_somebody_is_not_removed() -> None:
    decision = decide(seen(2, node("n1", cordoned=True), node("n2", 8000)), quiet("n1"))
    assert (decision.desired, decision.mark) == (2, ())
    assert "not by this scaler" in decision.trace.blocked["n1"]


def test_a_cordon_taken_off_by_hand_is_respected() -> None:
    decision = decide(seen(1, node(marked=True)), PoolMemory(quiet("n1").unneeded_since, {"n1": NOW - 2}))
    assert (decision.desired, decision.release) == (1, ("n1",))
    assert decide(seen(1, node()), decision.memory, now=NOW + 2).reason is Reason.QUIET_TIME


def test_a_node_that_the_provider_never_removes_is_taken_back_when_the_size_has_room_for_it() -> None:
    memory = PoolMemory(marked_at={"n1": NOW - 2000}, lowered_at={"n1": NOW - 1000})
    stuck = (node("n1", cordoned=True, marked=True), node("n2", 8000))
    assert decide(seen(2, *stuck), memory).release == ("n1",)
    assert decide(seen(1, *stuck), memory).release == ()


def test_a_busy_pool_without_demand_is_left_alone() -> None:
    decision = decide(seen(1, node(used=1000)))
    assert (decision.desired, decision.reason, decision.mark) == (1, Reason.DEMAND_MET, ())
    assert conditions(decision) == {
        "ScalingActive": ("True", Reason.VALID_METRIC_FOUND),
        "ScalingLimited": ("False", Reason.DESIRED_WITHIN_RANGE),
        "DemandFits": ("True", Reason.DEMAND_MET),
        "NodesInTime": ("True", Reason.NODES_IN_TIME),
    }


def test_a_size_above_the_maximum_is_not_cut_through_busy_nodes() -> None:
    decision = decide(seen(2, node("n1", 8000), node("n2", 8000)), policy=replace(POLICY, max_nodes=1))
    assert decision.desired == 2
    assert conditions(decision)["ScalingLimited"] == ("True", Reason.POOL_AT_MAXIMUM)


# --- when the provider could take another node ----------------------------------------------------------------------


def test_more_nodes_than_the_size_are_a_doubt_in_which_nothing_is_marked_or_removed() -> None:
    nodes = tuple(node(name) for name in ("n1", "n2", "n3"))
    decision = decide(seen(2, *nodes), quiet("n1", "n2", "n3"))
    assert (decision.desired, decision.mark, decision.reason) == (2, (), Reason.VICTIM_NOT_NAMEABLE)
    assert "1 nodes more than the pool's size" in decision.sentence


@pytest.mark.parametrize("cordoned", [True, False])
def test_a_mark_by_somebody_else_is_neither_freed_nor_followed_and_stops_a_shrink(*, cordoned: bool) -> None:
    theirs = node("n1", foreign_mark="x/remove=yes", cordoned=cordoned)
    decision = decide(seen(3, theirs, node("n2"), node("n3", 8000)), quiet("n1", "n2"))
    assert (decision.desired, decision.mark, decision.release) == (3, (), ())
    assert decision.reason is Reason.VICTIM_NOT_NAMEABLE
    assert "n1 bears the mark x/remove=yes" in decision.sentence


def test_a_busy_node_that_somebody_else_cordoned_and_marked_stays_as_it_is() -> None:
    theirs = node("n1", 8000, foreign_mark="x/remove=true", cordoned=True)
    decision = decide(seen(2, theirs, node("n2", 8000)))
    assert (decision.desired, decision.mark, decision.release) == (2, (), ())


def test_a_pass_that_follows_at_once_does_not_yet_remove_what_was_just_marked() -> None:
    nodes = (node("n1", cordoned=True, marked=True), node("n2", 8000))
    just = PoolMemory(quiet("n1").unneeded_since, {"n1": NOW - 0.2})
    assert decide(seen(2, *nodes), just).desired == 2
    settled = decide(seen(2, *nodes), just, now=NOW + 1)
    assert (settled.desired, settled.remove) == (1, ("n1",))


def test_a_remembered_size_without_the_nodes_it_was_lowered_for_says_nothing() -> None:
    nodes = (node("n1", cordoned=True, marked=True), node("n2"), node("n3"))
    decision = decide(seen(2, *nodes), PoolMemory(lowered_to=0))
    assert (decision.desired, decision.release) == (2, ())


def test_a_mark_stays_while_the_provider_has_yet_to_remove_a_node() -> None:
    nodes = (node("n1"), node("n2"), node("n3", marked=True))
    memory = PoolMemory(lowered_at={"n1": NOW}, lowered_to=2)
    decision = decide(seen(2, *nodes), memory)
    assert (decision.desired, decision.release) == (3, ())
    assert "n3" in decide(seen(3, *nodes), decision.memory).release
