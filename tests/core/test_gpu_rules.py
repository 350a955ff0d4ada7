"""What is decided beyond the HPA once a spec uses our words: warming, broken, quorum, direction, headroom."""

import pytest

from controller.core.decide import decide
from controller.core.model import Failed, GpuRules, Metric, PodValues, Reason, Sample, Source, TargetType
from tests.core.world import (
    CPU,
    HEADROOM,
    NOW,
    PODS,
    crashing,
    external,
    fleet,
    gpu_policy,
    loading,
    pending,
    policy,
    ready,
    samples,
    seen,
    shown,
    total,
)


def test_loading_pods_that_report_zero_do_not_turn_an_overload_into_a_shrink() -> None:
    pods = (*fleet(2), loading("p2"), loading("p3"))
    decision = decide(gpu_policy(), seen(pods, samples(95, 95, 0, 0)), None, NOW)
    assert (decision.desired, decision.reason) == (4, Reason.CAPACITY_WARMING)
    trace = decision.trace.metrics[0]
    assert (trace.counted, trace.warming, trace.needed) == (("p0", "p1"), ("p2", "p3"), 3)


def test_a_raise_waits_for_pods_that_start_and_goes_on_when_they_would_not_be_enough() -> None:
    queue = external(10, TargetType.VALUE)
    pods = (*fleet(2), pending("p2"), pending("p3"))

    def size(value: int) -> int:
        return decide(gpu_policy(queue), seen(pods, total(value)), None, NOW).desired

    assert size(20) == 4  # needs 4: two work, two start
    assert size(25) == 5  # needs 5


def test_what_starts_is_kept_when_the_others_have_little_to_do() -> None:
    pods = (ready("p0"), *(pending(f"p{index}") for index in range(1, 5)))
    decision = decide(gpu_policy(), seen(pods, samples(16)), None, NOW)
    assert decision.desired == 5  # the one pod's work needs 1 of 5, and four are on their way


def test_a_ready_pod_without_its_first_sample_is_warming_while_it_is_young() -> None:
    young, old = ready("p2", created_at=NOW - 60), ready("p2")
    for pod, warming, missing in ((young, ("p2",), ()), (old, (), ("p2",))):
        trace = decide(gpu_policy(), seen((*fleet(2), pod), samples(95, 95)), None, NOW).trace.metrics[0]
        assert (trace.warming, trace.missing) == (warming, missing)


def test_a_low_value_from_before_a_pod_was_ready_again_is_warming_and_a_high_one_counts() -> None:
    back = {"ready_changed_at": NOW - 1}
    pods = (ready("p0", **back), ready("p1", **back), ready("p2"))
    trace = decide(gpu_policy(), seen(pods, samples(0, 95, 0)), None, NOW).trace.metrics[0]
    assert (trace.counted, trace.warming) == (("p1", "p2"), ("p0",))
    settled = tuple(ready(f"p{number}", ready_changed_at=NOW - 3) for number in range(3))
    trace = decide(gpu_policy(), seen(settled, samples(0, 95, 0)), None, NOW).trace.metrics[0]
    assert trace.warming == ()


def test_a_pod_that_takes_longer_than_its_time_to_start_is_no_capacity() -> None:
    rules, queue = GpuRules(max_startup_seconds=300), external(100, TargetType.VALUE)
    for age, size, reason in ((299, 7, Reason.CAPACITY_WARMING), (301, 8, Reason.METRIC_ABOVE_TARGET)):
        pods = (*fleet(7), loading("p7", age=age))
        decision = decide(gpu_policy(queue, rules=rules), seen(pods, total(114), replicas=7), None, NOW)
        assert (decision.trace.metrics[0].needed, decision.desired, decision.reason) == (8, size, reason)


def test_a_crash_loop_does_not_grow_a_target_that_has_little_to_do() -> None:
    """W04: one pod at 10 %, two crash; the HPA's fill would count their silence."""
    pods = (ready("p0"), crashing("p1"), crashing("p2"))
    decision = decide(gpu_policy(max_replicas=3), seen(pods, samples(10), replicas=1), None, NOW)
    assert decision.desired == 1
    assert decision.trace.metrics[0].broken == ("p1", "p2")


def test_no_further_raise_while_a_quarter_of_the_pods_crash() -> None:
    """W05: demand for 20, 8 work, 4 crash, 4 are pending."""
    queue = external(10, TargetType.AVERAGE_VALUE)
    pods = (*fleet(8), *(crashing(f"c{i}") for i in range(4)), *(pending(f"w{i}", age=600) for i in range(4)))
    decision = decide(gpu_policy(queue), seen(pods, total(200)), None, NOW)
    assert (decision.desired, decision.reason) == (16, Reason.SCALE_UP_BLOCKED)
    assert shown(decision)["ScalingLimited"] == "True/ScaleUpBlocked"
    assert "4 pods crash" in decision.sentence


def test_the_raise_goes_on_once_the_crashing_pods_work() -> None:
    queue = external(10, TargetType.AVERAGE_VALUE)
    pods = (*fleet(15), crashing("c0"))
    assert decide(gpu_policy(queue), seen(pods, total(200)), None, NOW).desired == 20


def test_evicted_pods_do_not_count_at_all() -> None:
    """W06."""
    gone = tuple(ready(f"gone{i}", phase="Failed", ready=False) for i in range(5))
    metric = Metric(Source.GPU, "utilization", TargetType.UTILIZATION, 70_000)
    assert decide(gpu_policy(metric), seen((*fleet(2), *gone), samples(95, 95), replicas=2), None, NOW).desired == 3


def test_surge_pods_are_not_taken_for_the_size() -> None:
    """W01."""
    metric = Metric(Source.GPU, "utilization", TargetType.UTILIZATION, 50_000)
    decision = decide(
        gpu_policy(metric, max_replicas=1000), seen(fleet(125), samples(*[40] * 125), replicas=100), None, NOW
    )
    assert decision.desired == 100


def test_an_average_of_an_external_metric_is_not_divided_by_surge_pods() -> None:
    """W02."""
    observation = seen(fleet(10), total(700), replicas=10, status_replicas=15)
    assert decide(gpu_policy(external(70)), observation, None, NOW).desired == 10


def test_below_the_quorum_nothing_is_decided_and_above_it_silent_pods_hold_back() -> None:
    rules = GpuRules(min_sample_percent=70)
    for reporting, size, signal in ((6, 10, "False/StaleData"), (7, 7, "True/SignalUsable")):
        decision = decide(gpu_policy(rules=rules), seen(fleet(10), samples(*[40] * reporting)), None, NOW)
        assert (decision.desired, shown(decision)["SignalHealthy"]) == (size, signal)
        assert (decision.reason is Reason.STALE_DATA) == (reporting == 6)


def test_an_old_sample_is_a_missing_one() -> None:
    reading = PodValues({"p0": Sample(10_000, NOW - 31), "p1": Sample(10_000, NOW - 30)})
    trace = decide(gpu_policy(), seen(fleet(2), reading), None, NOW).trace.metrics[0]
    assert (trace.counted, trace.missing) == (("p1",), ("p0",))


def test_without_any_sample_of_ready_pods_nothing_is_decided() -> None:
    decision = decide(gpu_policy(), seen(fleet(3), PodValues({})), None, NOW)
    assert (decision.desired, decision.reason) == (3, Reason.NO_ATTRIBUTION)
    assert shown(decision)["SignalHealthy"] == "False/NoAttribution"
    assert shown(decision)["ScalingActive"] == "False/FailedGetGPUMetric"


def test_values_of_which_none_is_fresh_or_a_number_are_stale_and_not_unattributed() -> None:
    for reading in (samples(10, 10, age=31), PodValues({}, {"p0": "NaN", "p1": "NaN"})):
        decision = decide(gpu_policy(), seen(fleet(2), reading), None, NOW)
        assert (decision.desired, decision.reason) == (2, Reason.STALE_DATA)


def test_a_target_of_which_every_pod_loads_is_a_hold_and_no_error() -> None:
    decision = decide(gpu_policy(), seen((loading("p0"), pending("p1")), PodValues({})), None, NOW)
    assert (decision.desired, decision.reason) == (2, Reason.CAPACITY_WARMING)
    assert shown(decision)["ScalingActive"] == "True/ValidMetricFound"


def test_a_target_of_which_every_pod_crashes_is_an_error() -> None:
    decision = decide(gpu_policy(), seen((crashing("p0"),), PodValues({})), None, NOW)
    assert (decision.desired, decision.reason) == (1, Reason.NO_ATTRIBUTION)


def test_a_utilisation_at_its_ceiling_is_said_and_still_scales() -> None:
    for value, signal in ((98, "False/SignalCapped"), (97, "True/SignalUsable")):
        decision = decide(gpu_policy(), seen(fleet(4), samples(*[value] * 4)), None, NOW)
        assert (decision.desired, shown(decision)["SignalHealthy"]) == (5, signal)


def test_headroom_has_no_tolerance_and_looks_at_the_sum() -> None:
    """G03, and one pod more where one MiB is lacking."""
    for used, size in (((75_000, 75_000, 80_000), 4), ((72_000, 72_000, 72_000), 3), ((72_000, 72_000, 72_001), 4)):
        reading = samples(*used, capacity=80_000)
        assert decide(gpu_policy(HEADROOM), seen(fleet(3), reading), None, NOW).desired == size


def test_headroom_plans_with_the_smallest_pod_seen() -> None:
    reading = PodValues({"p0": Sample(50_000_000, NOW, capacity=80_000_000), "p1": Sample(0, NOW, capacity=40_000_000)})
    assert decide(gpu_policy(HEADROOM), seen(fleet(2), reading), None, NOW).desired == 2  # 50000 / 32000


@pytest.mark.parametrize(("capacity", "named"), [(8000, "leaves nothing"), (None, "capacity is unknown")])
def test_a_headroom_that_cant_be_is_an_error_with_its_cure(capacity: int | None, named: str) -> None:
    decision = decide(gpu_policy(HEADROOM), seen(fleet(2), samples(1, 1, capacity=capacity)), None, NOW)
    assert decision.desired == 2
    assert named in decision.sentence
    assert shown(decision)["ScalingActive"].startswith("False/")


def test_a_value_target_never_shrinks_on_an_overload() -> None:
    """U25 with the GPU rules on: two of three pods aren't ready, the queue is twice too long."""
    pods = (ready("p0"), loading("p1"), loading("p2"))
    queue = external(44, TargetType.VALUE)
    assert decide(gpu_policy(queue), seen(pods, total(86)), None, NOW).desired == 3


def test_a_pod_that_fell_out_of_readiness_under_load_still_counts_and_one_that_reloads_does_not() -> None:
    flipped = {"ready": False, "ready_changed_at": NOW - 20}
    pods = (*fleet(2), ready("p2", **flipped), ready("p3", **flipped))
    busy = decide(gpu_policy(), seen(pods, samples(100, 100, 100, 100)), None, NOW)
    idle = decide(gpu_policy(), seen(pods, samples(100, 100, 0, 0)), None, NOW)
    assert (busy.desired, idle.desired) == (5, 4)


def test_a_stale_total_is_a_hold() -> None:
    """P16."""
    queue = external(1, max_age_seconds=120.0)
    decision = decide(gpu_policy(queue), seen(fleet(3), total(1, age=900)), None, NOW)
    assert (decision.desired, decision.reason) == (3, Reason.STALE_DATA)


def test_cpu_of_a_starting_pod_is_warming_too() -> None:
    requests = {"main": {"cpu": 1000}}
    pods = (ready("p0", requests=requests), ready("p1", requests=requests, started_at=NOW - 20, ready_changed_at=NOW))
    reading = PodValues({"p0": Sample(900, NOW, 30.0), "p1": Sample(10, NOW, 30.0)})
    trace = decide(gpu_policy(CPU), seen(pods, reading), None, NOW).trace.metrics[0]
    assert (trace.counted, trace.warming) == (("p0",), ("p1",))


def test_a_failed_reading_keeps_its_own_reason() -> None:
    reading = Failed(Reason.FAILED_GET_GPU_METRIC, "no exporter answers")
    decision = decide(gpu_policy(), seen(fleet(2), reading), None, NOW)
    assert (decision.desired, decision.reason) == (2, Reason.FAILED_GET_GPU_METRIC)
    assert "no exporter answers" in decision.sentence


@pytest.mark.parametrize(
    ("metric", "working", "reading", "hpa", "ours"),
    [(PODS, 2, samples(95, 95, 0, 0), 3, 4), (external(44, TargetType.VALUE), 1, total(86), 2, 4)],
    ids=["A05", "U25"],
)
def test_an_hpa_decides_as_an_hpa_and_is_warned(
    metric: Metric, working: int, reading: PodValues, hpa: int, ours: int
) -> None:
    pods = (*fleet(working), *(loading(f"p{index}") for index in range(working, 4)))
    decision = decide(policy(metric), seen(pods, reading), None, NOW)
    assert decision.trace.proposal == hpa
    (warning,) = decision.trace.warnings
    assert f"the HPA proposes {hpa}, the GPU rules {ours}: " in warning
    assert "never averaged" in warning


def test_an_hpa_that_forgets_its_pending_pods_is_warned() -> None:
    """U08: one ready pod at 10 % of its request, four pending."""
    requests = {"main": {"cpu": 1000}}
    pods = (ready("p0", requests=requests), *(pending(f"p{i}", requests=requests) for i in range(1, 5)))
    decision = decide(policy(CPU), seen(pods, PodValues({"p0": Sample(100, NOW)})), None, NOW)
    assert decision.trace.proposal == 1
    assert "the HPA proposes 1, the GPU rules 5: 4 pods still starting" in decision.trace.warnings[0]


def test_an_hpa_whose_pods_are_all_ready_is_not_warned() -> None:
    assert decide(policy(PODS), seen(fleet(3), samples(95, 95, 95)), None, NOW).trace.warnings == ()
