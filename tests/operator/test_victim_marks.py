from dataclasses import replace

from controller.core.model import Decision, Memory, Reason
from controller.facts import PodFacts, Shape, TargetFacts, pod_facts
from controller.victim_marks import VICTIM_COST, VictimMarks, victim_marks

STEADY = TargetFacts(3, 3, "app=x", Shape())
OURS = str(VICTIM_COST)


def pod(name: str, cost: str = "") -> PodFacts:
    return replace(pod_facts({"metadata": {"name": name}}), deletion_cost=cost)


def shrink(*victims: str) -> Decision:
    return Decision(2, Reason.ALL_METRICS_BELOW_TARGET, "", Memory(), victims=victims)


def test_a_pod_that_is_no_victim_any_more_loses_its_mark_before_another_shrink() -> None:
    pods = [pod("a", OURS), pod("b"), pod("c")]
    assert victim_marks(pods, shrink("c"), STEADY) == VictimMarks(("c",), ("a",))
    assert victim_marks(pods, shrink(), STEADY) == VictimMarks((), ("a",))


def test_victims_of_a_shrink_under_way_keep_their_mark() -> None:
    pods = [pod("a", OURS), pod("b"), pod("c")]
    assert victim_marks(pods, shrink(), replace(STEADY, replicas=2)) == VictimMarks()


def test_a_cost_that_a_user_wrote_is_neither_overwritten_nor_cleared() -> None:
    assert victim_marks([pod("a", "100"), pod("b")], shrink("a", "b"), STEADY) == VictimMarks(("b",))
