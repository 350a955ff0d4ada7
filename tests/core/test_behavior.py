"""Looking back: windows and their edges, rates and what they count, and what is remembered."""

import pytest

from controller.core import behavior
from controller.core.decide import decide
from controller.core.model import Behavior, Memory, Policy, RatePolicy, Reason, ScalingRules
from tests.core.world import NOW, external, fleet, policy, seen, shown, total

QUEUE = external(1)


def rules(*policies: RatePolicy, window: int = 0, select: str = "Max") -> ScalingRules:
    return ScalingRules(window, policies or (RatePolicy("Pods", 1000, 15),), select)


def by(up: ScalingRules | None = None, down: ScalingRules | None = None) -> Policy:
    return policy(QUEUE, tolerance=0.0, behavior=Behavior(up or rules(), down or rules()))


LEGACY = policy(QUEUE, tolerance=0.0, behavior=None)


def run(policy_: Policy, replicas: int, *steps: tuple[float, int], memory: Memory | None = None) -> list[int]:
    """The sizes after each (second, proposal), each written."""
    sizes, size = [], replicas
    for at, proposal in steps:
        decision = decide(policy_, seen(fleet(1), total(proposal, age=-at), replicas=size), memory, NOW + at)
        size, memory = decision.desired, decision.memory
        sizes.append(size)
    return sizes


def test_the_edge_of_a_window_is_inside_without_behavior_and_outside_with_it() -> None:
    assert run(LEGACY, 10, (0, 4), (300, 4), (300.5, 4)) == [10, 10, 4]
    assert run(by(down=rules(window=300)), 10, (0, 4), (299.5, 4), (300, 4)) == [10, 10, 4]


def test_a_new_scaler_remembers_the_size_it_found() -> None:
    decision = decide(LEGACY, seen(fleet(1), total(4), replicas=10), None, NOW)
    assert decision.memory.recommendations == ((NOW, 10), (NOW, 4))
    assert (decision.desired, decision.reason) == (10, Reason.SCALE_DOWN_STABILIZED)


def test_without_behavior_a_past_recommendation_can_still_raise_the_size() -> None:
    assert run(LEGACY, 4, (0, 30), (15, 2), (30, 2), (45, 2)) == [8, 16, 30, 30]


def test_a_faster_tick_doubles_no_faster_than_the_hpa_syncs() -> None:
    ticks = [(float(at), 100) for at in range(0, 33, 2)]
    sizes = run(LEGACY, 3, *ticks)
    assert sizes == [6] * 8 + [12] * 8 + [24]
    assert run(LEGACY, 3, (0, 100), (15, 100), (30, 100)) == [6, 12, 24]


def test_the_cap_without_behavior_never_pushes_a_size_down() -> None:
    memory = Memory(up_events=((NOW - 5, 4),))
    assert run(LEGACY, 5, (0, 40), memory=memory) == [5]


def test_up_takes_the_lowest_and_down_the_highest_of_their_windows() -> None:
    both = by(rules(window=60), rules(window=60))
    assert run(both, 10, (0, 15), (30, 12), (61, 15)) == [10, 10, 12]
    assert run(both, 10, (0, 5), (30, 8), (61, 5)) == [10, 10, 8]


def test_a_stabilised_decision_says_which_way() -> None:
    both = by(rules(window=60), rules(window=60))
    for proposal, reason in ((15, "ScaleUpStabilized"), (5, "ScaleDownStabilized")):
        decision = decide(both, seen(fleet(1), total(proposal), replicas=10), None, NOW)
        assert shown(decision)["AbleToScale"] == f"True/{reason}"
        assert decision.reason.value == reason


@pytest.mark.parametrize(("age", "size"), [(59.5, 7), (60, 11)])
def test_an_event_counts_while_it_is_younger_than_the_period(age: float, size: int) -> None:
    memory = Memory(up_events=((NOW - age, 4),))
    assert run(by(up=rules(RatePolicy("Pods", 4, 60))), 7, (0, 100), memory=memory) == [size]


def test_a_start_of_period_below_zero_is_cut_towards_zero() -> None:
    memory = Memory(up_events=((NOW - 1, 8),))
    assert behavior.rate_down(rules(RatePolicy("Percent", 50, 60)), memory, 5, NOW) == -1  # -3 x 0.5


def test_percent_rounds_up_what_grows_and_cuts_what_stays() -> None:
    assert run(by(up=rules(RatePolicy("Percent", 10, 60))), 1, (0, 9)) == [2]
    assert run(by(down=rules(RatePolicy("Percent", 10, 60))), 7, (0, 1)) == [6]


def test_min_takes_the_policy_that_changes_least_and_disabled_none() -> None:
    both = (RatePolicy("Percent", 100, 15), RatePolicy("Pods", 4, 15))
    for select, up, down in (("Max", 20, 1), ("Min", 14, 6), ("Disabled", 10, 10)):
        assert run(by(up=rules(*both, select=select)), 10, (0, 50)) == [up]
        assert run(by(down=rules(*both, select=select)), 10, (0, 1)) == [down]


@pytest.mark.parametrize(
    ("policy_", "replicas", "proposal", "size", "limited"),
    [
        (by(), 4, 200, 100, "True/TooManyReplicas"),
        (by(), 4, 0, 1, "True/TooFewReplicas"),
        (by(up=rules(RatePolicy("Pods", 2, 15))), 4, 9, 6, "True/ScaleUpLimit"),
        (by(down=rules(RatePolicy("Pods", 2, 15))), 9, 4, 7, "True/ScaleDownLimit"),
        (by(), 4, 4, 4, "False/DesiredWithinRange"),
        (LEGACY, 4, 200, 8, "True/ScaleUpLimit"),
        (LEGACY, 60, 200, 100, "True/TooManyReplicas"),
    ],
)
def test_what_limits_a_size_is_said(policy_: Policy, replicas: int, proposal: int, size: int, limited: str) -> None:
    decision = decide(policy_, seen(fleet(1), total(proposal), replicas=replicas), Memory(), NOW)
    assert (decision.desired, shown(decision)["ScalingLimited"]) == (size, limited)


def test_an_outdated_event_makes_room_for_a_new_one_and_only_the_last_of_them() -> None:
    """The HPA reuses one slot; what the other direction still looks at stays until then."""
    up, down = rules(RatePolicy("Pods", 10, 15)), rules(RatePolicy("Pods", 10, 600))
    memory = Memory(up_events=((NOW - 100, 1), (NOW - 50, 2)))
    after = behavior.written(by(up, down), memory, 5, 8, NOW)
    assert after.up_events == ((NOW - 100, 1), (NOW, 3))


def test_events_that_nothing_looks_back_at_are_forgotten() -> None:
    up = rules(RatePolicy("Pods", 10, 60))
    memory = Memory(up_events=((NOW - 100, 1), (NOW - 61, 2), (NOW - 60, 3)))
    assert behavior.written(by(up), memory, 5, 6, NOW).up_events == ((NOW - 60, 3), (NOW, 1))


def test_a_clock_that_was_ahead_lengthens_a_window_and_never_shortens_it() -> None:
    memory = Memory(recommendations=((NOW + 500, 9),), down_events=((NOW + 500, 1),))
    started = behavior.start(memory, 9, NOW)
    assert started == Memory(recommendations=((NOW, 9),), down_events=((NOW, 1),))


def test_only_what_can_still_win_is_kept() -> None:
    memory = Memory(recommendations=((NOW - 50, 7), (NOW - 40, 9), (NOW - 30, 3), (NOW - 20, 5), (NOW - 400, 99)))
    kept = behavior.remember(by(down=rules(window=300)), memory, 6, NOW).recommendations
    assert kept == ((NOW - 40, 9), (NOW - 30, 3), (NOW - 20, 5), (NOW, 6))
