"""A handful of decisions end to end, each the shortest proof that one rule book is wired in."""

from controller.core.decide import decide
from controller.core.model import (
    Behavior,
    Failed,
    GpuRules,
    Memory,
    Metric,
    Observation,
    Pod,
    PodValues,
    Policy,
    RatePolicy,
    Reason,
    Sample,
    ScalingRules,
    Source,
    TargetType,
    Total,
)

FREE = Behavior(
    ScalingRules(0, (RatePolicy("Pods", 1000, 15),)),
    ScalingRules(0, (RatePolicy("Percent", 100, 15),)),
)
UTILIZATION = Metric(Source.GPU, "utilization", TargetType.UTILIZATION, 80_000)


def observation(*values: int | None, replicas: int | None = None) -> Observation:
    pods = tuple(Pod(f"p{i}", ready=value is not None, created_at=0.0) for i, value in enumerate(values))
    samples = {f"p{i}": Sample(value, 0.0) for i, value in enumerate(values) if value is not None}
    size = len(values) if replicas is None else replicas
    return Observation(size, size, pods, (PodValues(samples),))


def test_two_busy_pods_and_two_loading_ones_are_no_reason_to_shrink() -> None:
    policy = Policy(1, 10, (UTILIZATION,), FREE, GpuRules())
    decision = decide(policy, observation(95_000, 95_000, None, None), None, 0.0)
    assert (decision.desired, decision.reason) == (4, Reason.CAPACITY_WARMING)


def test_a_capped_signal_still_scales_and_says_so() -> None:
    policy = Policy(1, 10, (UTILIZATION,), FREE, GpuRules())
    decision = decide(policy, observation(*[100_000] * 4), None, 0.0)
    assert decision.desired == 5
    assert ("SignalHealthy", "False", Reason.SIGNAL_CAPPED) in {
        (c.type, c.status, c.reason) for c in decision.conditions
    }


def test_a_broken_metric_stops_a_shrink_and_lets_the_other_grow() -> None:
    metrics = tuple(Metric(Source.EXTERNAL, name, TargetType.AVERAGE_VALUE, 1000) for name in ("m1", "m2"))
    policy = Policy(1, 10, metrics, FREE)
    broken = Failed(Reason.FAILED_GET_EXTERNAL_METRIC, "503")

    def size(value: int) -> int:
        seen = Observation(3, 3, (Pod("p"),), (Total((value * 1000,), 0.0), broken))
        return decide(policy, seen, None, 0.0).desired

    assert (size(1), size(5)) == (3, 5)


def test_the_event_of_a_change_is_remembered_only_if_it_was_written() -> None:
    policy = Policy(1, 10, (UTILIZATION,), FREE, GpuRules())
    decision = decide(policy, observation(*[100_000] * 4), Memory(), 7.0)
    assert decision.memory.up_events == ((7.0, 1),)
    assert decision.memory_if_unwritten.up_events == ()
