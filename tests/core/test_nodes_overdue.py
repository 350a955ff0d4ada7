"""Nodes that were ordered and do not come are told, for as long as they do not come."""

from dataclasses import replace

from controller.core.model import Condition, Reason
from controller.core.pool_model import PoolMemory
from tests.core.test_nodes import NOW, decide, node, pods, seen

WAITING = (pods(8),)


def in_time(decision: object) -> Condition:
    return next(one for one in decision.conditions if one.type == "NodesInTime")  # type: ignore[attr-defined]


def test_nodes_that_never_come_are_told_from_the_deadline_on_also_while_more_are_ordered() -> None:
    size, memory, told, sizes = 0, None, {}, set()
    for second in range(0, 3600, 60):
        decision = decide(seen(size, pending=WAITING), memory, now=NOW + second)
        told[second] = in_time(decision).status
        size, memory = decision.desired, decision.memory
        sizes.add(size)
    assert {second for second, status in told.items() if status == "False"} == set(range(1020, 3600, 60))
    assert len(sizes) > 2, "more was ordered meanwhile"
    assert in_time(decision).reason is Reason.NODES_OVERDUE
    assert in_time(decision).message == f"{size} nodes of the pool's size never came; the deadline is 900 s"


def test_a_pool_whose_nodes_have_come_says_so() -> None:
    memory = PoolMemory(size_changed_at=NOW - 5000, unseen_since=NOW - 5000)
    decision = decide(seen(1, node(used=8000, created_at=NOW)), memory)
    assert in_time(decision).reason is Reason.NODES_IN_TIME
    assert decision.memory.unseen_since is None


def test_a_node_that_comes_gives_the_rest_the_deadline_anew() -> None:
    memory = PoolMemory(size_changed_at=NOW - 1000, unseen_since=NOW - 1000)
    for age, status in ((899, "True"), (901, "False")):
        decision = decide(seen(2, node(used=8000, created_at=NOW - age), pending=WAITING), memory)
        assert in_time(decision).status == status


def test_a_node_without_its_gpus_is_told_only_while_another_is_needed_for_it() -> None:
    late = node("bare", allocatable={"cpu": 96_000}, created_at=NOW - 901)
    short = decide(seen(1, late, pending=WAITING))
    assert in_time(short).reason is Reason.NODES_OVERDUE
    assert in_time(short).message == "1 node came and had no GPUs, such as bare; the deadline is 900 s"
    assert in_time(decide(seen(1, late))).status == "True"
    instead = decide(seen(2, late, node("whole")))
    assert in_time(instead).status == "True"


def test_a_node_that_went_and_is_to_be_replaced_counts_as_coming_however_old_the_last_change_is() -> None:
    memory = PoolMemory(size_changed_at=NOW - 50_000)
    first = decide(seen(2, node(used=8000), pending=WAITING), memory)
    assert (first.desired, first.reason) == (2, Reason.CAPACITY_ARRIVING)
    later = decide(seen(2, node(used=8000), pending=WAITING), replace(first.memory), now=NOW + 901)
    assert later.desired == 3
