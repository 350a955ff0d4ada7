"""What must hold for any situation, whatever the numbers are: searched for by hypothesis."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core import behavior
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
    Metric,
    Observation,
    Pod,
    PodValues,
    Policy,
    RatePolicy,
    Reading,
    Reason,
    Sample,
    ScalingRules,
    Source,
    TargetType,
    Total,
)
from tests.core.world import NOW, external, fleet, gpu_policy, policy, samples, seen, total

LEGACY_OR_BOTH = st.none() | st.builds(
    Behavior,
    *[
        st.builds(
            ScalingRules,
            st.sampled_from([0, 30, 60, 300]),
            st.lists(
                st.builds(
                    RatePolicy,
                    st.sampled_from(["Pods", "Percent"]),
                    st.integers(1, 150),
                    st.sampled_from([15, 60, 600]),
                ),
                min_size=1,
                max_size=2,
            ).map(tuple),
            st.sampled_from(["Max", "Min", "Disabled"]),
            st.none() | st.sampled_from([0.0, 0.05, 0.5]),
        )
    ]
    * 2,
)
METRICS = st.sampled_from(
    [
        Metric(Source.GPU, "utilization", TargetType.UTILIZATION, 80_000),
        Metric(Source.GPU, "memoryUsed", TargetType.HEADROOM, 8_000_000),
        Metric(Source.PODS, "queries", TargetType.AVERAGE_VALUE, 50_000),
        Metric(Source.RESOURCE, "cpu", TargetType.UTILIZATION, 50),
        Metric(Source.RESOURCE, "memory", TargetType.UTILIZATION, 150),
        Metric(Source.CONTAINER_RESOURCE, "cpu", TargetType.AVERAGE_VALUE, 500, "main"),
        external(20),
        external(20, TargetType.VALUE),
        Metric(Source.OBJECT, "hits", TargetType.AVERAGE_VALUE, 7_000),
        Metric(Source.OBJECT, "hits", TargetType.VALUE, 7_000),
    ]
)
TIMES = st.none() | st.integers(0, 2000).map(lambda age: NOW - age)
PODS = st.lists(
    st.builds(
        lambda **words: words,
        phase=st.sampled_from(["Running", "Running", "Running", "Pending", "Failed", "Succeeded"]),
        deleting=st.sampled_from([False, False, False, True]),
        ready=st.sampled_from([True, True, False, None]),
        crashing=st.sampled_from([False, False, False, True]),
        created_at=TIMES,
        started_at=TIMES,
        ready_changed_at=TIMES,
        requests=st.just({"main": {"cpu": 1000, "memory": 2000}}) | st.just({"main": {}}),
    ),
    max_size=8,
).map(lambda rows: tuple(Pod(name=f"p{index}", **row) for index, row in enumerate(rows)))
VALUES = st.integers(0, 200_000) | st.sampled_from([2**62, -5, 10**9])


@st.composite
def readings(draw: st.DrawFn, metric: Metric) -> Reading:
    if draw(st.integers(0, 6)) == 0:
        return Failed(draw(st.sampled_from([Reason.FAILED_GET_EXTERNAL_METRIC, Reason.NO_ATTRIBUTION])), "gone")
    if metric.source in (Source.OBJECT, Source.EXTERNAL):
        values = draw(st.lists(VALUES, min_size=1, max_size=1 if metric.source is Source.OBJECT else 3))
        return Total(tuple(values), NOW - draw(st.integers(0, 200)))
    there = draw(st.lists(st.sampled_from([f"p{index}" for index in range(9)]), unique=True))
    return PodValues(
        {
            name: Sample(draw(VALUES), NOW - draw(st.integers(0, 60)), 30.0, draw(st.sampled_from([None, 80_000_000])))
            for name in there
        }
    )


@st.composite
def situations(draw: st.DrawFn, *, gpu: bool | None = None) -> tuple[Policy, Observation, Memory | None]:
    metrics = tuple(draw(st.lists(METRICS, min_size=1, max_size=3)))
    minimum = draw(st.integers(0, 5))
    ours = draw(st.booleans()) if gpu is None else gpu
    protect = draw(st.none() | st.just(20))
    made = Policy(
        min_replicas=minimum,
        max_replicas=draw(st.integers(max(minimum, 1), 40)),
        metrics=metrics,
        behavior=draw(LEGACY_OR_BOTH),
        gpu=GpuRules(protect_above_utilization=protect) if ours else None,
        idle=draw(st.none() | st.just(IdleRules(100, 5000))) if ours else None,
    )
    observation = Observation(
        replicas=draw(st.integers(0, 50)),
        status_replicas=draw(st.integers(0, 50)),
        pods=draw(PODS),
        readings=tuple(draw(readings(metric)) for metric in metrics),
        utilization=draw(st.dictionaries(st.sampled_from(["p0", "p1", "p2"]), st.integers(0, 100_000))),
        floors=tuple(draw(st.lists(st.builds(Floor, st.just("schedule"), st.integers(0, 50)), max_size=1))),
        idleness=draw(st.none() | st.builds(Idleness, st.integers(0, 200), st.integers(0, 10_000))),
    )
    dated = st.lists(st.tuples(st.integers(0, 700).map(lambda age: NOW - age), st.integers(1, 30)), max_size=4).map(
        lambda rows: tuple(sorted(rows))
    )
    memory = draw(st.none() | st.builds(Memory, dated, dated, dated, st.booleans()))
    return made, observation, memory


def made_by(situation: tuple[Policy, Observation, Memory | None]) -> Decision:
    return decide(*situation, NOW)


@given(situations())
@settings(max_examples=100, deadline=None)
def test_a_decided_size_is_within_the_bounds_or_the_zero_that_was_found(situation: Any) -> None:
    policy_, observation, _ = situation
    desired = made_by(situation).desired
    assert policy_.min_replicas <= desired <= policy_.max_replicas or desired == observation.replicas == 0


@given(situations())
@settings(max_examples=80, deadline=None)
def test_the_same_inputs_give_the_same_decision_to_the_byte(situation: Any) -> None:
    assert repr(made_by(situation)) == repr(made_by(situation))


@given(situations())
@settings(max_examples=80, deadline=None)
def test_no_decision_speaks_of_nan_or_infinity(situation: Any) -> None:
    said = repr(made_by(situation))
    assert " nan" not in said
    assert "=nan" not in said
    assert "=inf" not in said


@given(situations())
@settings(max_examples=100, deadline=None)
def test_no_change_passes_the_rate_policies(situation: Any) -> None:
    policy_, observation, memory = situation
    current, desired = observation.replicas, made_by(situation).desired
    if current == 0 or not policy_.min_replicas <= current <= policy_.max_replicas or desired == current:
        return
    remembered = memory or Memory()
    if policy_.behavior is None:
        twice = 2 * behavior.size_before(remembered, current, 15, NOW)
        assert desired <= max(twice, 4, current)
    elif desired > current:
        assert desired <= max(current, behavior.rate_up(policy_.behavior.scale_up, remembered, current, NOW))
    else:
        assert desired >= min(current, behavior.rate_down(policy_.behavior.scale_down, remembered, current, NOW))


@given(situations(gpu=True))
@settings(max_examples=100, deadline=None)
def test_with_the_gpu_rules_no_proposal_goes_against_its_ratio(situation: Any) -> None:
    _, observation, _ = situation
    for trace in made_by(situation).trace.metrics:
        if trace.ratio is not None and trace.proposal is not None and observation.replicas:
            if trace.ratio > 1:
                assert trace.proposal >= observation.replicas
            if trace.ratio < 1:
                assert trace.proposal <= observation.replicas


@given(situations(gpu=True))
@settings(max_examples=80, deadline=None)
def test_with_the_gpu_rules_a_broken_metric_never_lets_a_target_shrink(situation: Any) -> None:
    policy_, observation, memory = situation
    if observation.replicas > policy_.max_replicas:
        return
    broken = (*observation.readings, Failed(Reason.FAILED_GET_EXTERNAL_METRIC, "503"))
    wider = Policy(
        policy_.min_replicas, policy_.max_replicas, (*policy_.metrics, external(1)), policy_.behavior, policy_.gpu
    )
    blind = Observation(
        observation.replicas, observation.status_replicas, observation.pods, broken, observation.utilization
    )
    quiet = Memory((), memory.up_events, memory.down_events, memory.scaled_to_zero) if memory else None
    assert decide(wider, blind, quiet, NOW).desired >= observation.replicas


@given(st.lists(st.integers(0, 100), min_size=2, max_size=8), st.data())
@settings(max_examples=100, deadline=None)
def test_a_pod_that_falls_silent_never_lowers_the_size(values: list[int], data: st.DataObject) -> None:
    silent = data.draw(st.sets(st.integers(0, len(values) - 1), max_size=len(values) - 1))
    pods = fleet(len(values))
    left = [None if index in silent else value for index, value in enumerate(values)]
    gaps = decide(gpu_policy(), seen(pods, samples(*left)), Memory(), NOW)
    if gaps.desired < len(values):
        counted = gaps.trace.metrics[0].counted
        without_fill = decide(
            gpu_policy(), seen([pod for pod in pods if pod.name in counted], samples(*left)), Memory(), NOW
        )
        assert gaps.desired >= without_fill.desired
        assert len(counted) * 2 >= len(values)


@given(st.integers(1, 12), st.integers(0, 300), st.integers(0, 50), st.booleans())
@settings(max_examples=60, deadline=None)
def test_more_load_never_gives_a_smaller_size_when_all_pods_are_ready(
    pods: int,
    load: int,
    more: int,
    gpu: bool,  # noqa: FBT001
) -> None:
    metric = Metric(Source.PODS, "queries", TargetType.AVERAGE_VALUE, 80_000)
    rules = gpu_policy(metric) if gpu else policy(metric)
    sizes = [
        decide(rules, seen(fleet(pods), samples(*[value] * pods)), Memory(), NOW).desired
        for value in (load, load + more)
    ]
    assert sizes[0] <= sizes[1]


@given(
    LEGACY_OR_BOTH,
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, 40)), min_size=1, max_size=40),
    st.integers(1, 40),
)
@settings(max_examples=80, deadline=None)
def test_forgetting_what_cant_win_changes_no_decision(made: Behavior | None, steps: list[Any], size: int) -> None:
    """Against a memory that keeps every recommendation ever made."""
    rules = policy(external(1), tolerance=0.0, behavior=made)
    at, memory = 0, None
    everything = [(NOW + steps[0][0], size)]
    for wait, proposal in steps:
        at += wait
        now = NOW + at
        decision = decide(rules, seen(fleet(1), total(proposal, age=-at), replicas=size), memory, now)
        proposed = decision.trace.proposal
        assert proposed is not None
        stable = behavior.stabilize(rules, tuple(everything), size, proposed, now)
        assert next(one.after for one in decision.trace.steps if one.stage == "stabilisation") == stable.size
        everything.append((now, proposed))
        size, memory = decision.desired, decision.memory
        kept = [value for _, value in memory.recommendations]
        for index, value in enumerate(kept):
            assert all(later < value for later in kept[index + 1 :]) or all(
                later > value for later in kept[index + 1 :]
            )
