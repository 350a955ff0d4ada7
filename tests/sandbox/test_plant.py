import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.sandbox.plant import PATIENCE_SECONDS, PlantState, preference, shares, step

PODS = [f"llm-{n}" for n in range(12)]
runs = st.lists(st.tuples(st.integers(0, 12), st.floats(0, 20), st.floats(0, 5)), max_size=40)


def run(steps: list[tuple[int, float, float]]) -> list[PlantState]:
    states = [PlantState(at=100.0)]
    for count, demand, elapsed in steps:
        states.append(step(states[-1], PODS[:count], demand, states[-1].at + elapsed))
    return states


@given(runs)
def test_work_is_served_waits_or_is_given_up_and_none_is_lost(steps: list[tuple[int, float, float]]) -> None:
    last = run(steps)[-1]
    assert last.offered == pytest.approx(last.served + last.backlog + last.given_up, abs=1e-6)


@given(runs)
def test_a_pod_is_never_busier_than_100_percent_and_all_together_do_the_work(
    steps: list[tuple[int, float, float]],
) -> None:
    states = run(steps)
    for (_, _, elapsed), before, after in zip(steps, states, states[1:], strict=False):
        assert all(0 <= value <= 100 for value in after.utilization.values())
        if after.at > before.at:
            did = sum(after.utilization.values()) / 100 * elapsed
            assert did == pytest.approx(after.served - before.served, abs=1e-6)


@given(runs)
def test_totals_never_go_down_and_what_waits_is_bounded(steps: list[tuple[int, float, float]]) -> None:
    states = run(steps)
    for (_, demand, _), before, after in zip(steps, states, states[1:], strict=False):
        assert after.offered >= before.offered
        assert after.served >= before.served
        assert after.given_up >= before.given_up - 1e-9
        assert after.overload_seconds >= before.overload_seconds
        assert after.backlog <= max(demand * PATIENCE_SECONDS, before.backlog) + 1e-6


def test_too_few_pods_are_full_and_the_rest_waits_until_there_is_room() -> None:
    state = step(PlantState(0.0), PODS[:2], demand=3.0, now=2.0)
    assert set(state.utilization.values()) == {100.0}
    assert state.backlog == pytest.approx(2.0)
    assert state.overload_seconds == 2.0
    state = step(state, PODS[:4], demand=3.0, now=3.0)
    assert sum(state.utilization.values()) == pytest.approx(400.0)
    assert state.backlog == pytest.approx(1.0)
    state = step(state, PODS[:6], demand=3.0, now=4.0)
    assert state.backlog == 0.0
    assert state.overload_seconds == 3.0


def test_work_without_a_pod_waits_and_is_given_up_after_a_while() -> None:
    state = PlantState(0.0)
    for second in range(1, 11):
        state = step(state, [], demand=1.0, now=float(second))
    assert state.backlog == pytest.approx(PATIENCE_SECONDS)
    assert state.given_up == pytest.approx(10 - PATIENCE_SECONDS)


def test_a_fleet_that_is_too_large_has_idle_pods_and_they_are_not_the_last_in_the_list() -> None:
    found = shares(PODS, work=2.0, before={})
    idle = [pod for pod in PODS if found[pod] == 0]
    assert len(idle) == len(PODS) - 3
    assert idle != PODS[3:]
    assert min(PODS, key=preference) not in idle


def test_a_pod_that_becomes_ready_takes_no_work_from_one_that_has_it() -> None:
    by_preference = sorted(PODS, key=preference)
    old, new = by_preference[-1], by_preference[0]
    assert shares([new, old], work=0.5, before={old: 50.0}) == {old: 50.0, new: 0.0}
    assert shares([new, old], work=1.0, before={old: 50.0}) == pytest.approx({old: 85.0, new: 15.0})


@pytest.mark.parametrize("now", [100.0, 99.0])
def test_a_clock_that_does_not_move_forward_does_no_work(now: float) -> None:
    before = step(PlantState(99.0), PODS[:1], 0.5, 100.0)
    after = step(before, PODS[:1], 0.5, now)
    assert (after.served, after.backlog, after.utilization) == (before.served, before.backlog, before.utilization)
    assert after.at == now
