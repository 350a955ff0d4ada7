"""The HPA's arithmetic where it surprises: own rows beside the public tables, each for one rule of it."""

import math
from dataclasses import replace
from typing import Any

import pytest

from controller.core import arithmetic
from controller.core.decide import decide
from controller.core.model import (
    Failed,
    Memory,
    Metric,
    MetricTrace,
    Observation,
    Pod,
    PodValues,
    Policy,
    Reading,
    Reason,
    Sample,
    Source,
    TargetType,
    Total,
)
from tests.core.world import CPU, FREE, NOW, PODS, external, fleet, policy, ready, samples, seen, shown, total

MEMORY = Metric(Source.RESOURCE, "memory", TargetType.UTILIZATION, 50)


def one(metric: Metric, observation: Observation, **more: Any) -> MetricTrace:
    return decide(policy(metric, max_replicas=2**31 - 1, **more), observation, Memory(), NOW).trace.metrics[0]


def asking(cpu: int, name: str = "p0", **more: Any) -> Pod:
    return ready(name, requests={"main": {"cpu": cpu, "memory": cpu}}, **more)


def test_utilisation_is_cut_to_a_whole_percent_and_averages_towards_zero() -> None:
    pods = (asking(1000), asking(1000, "p1"))
    trace = one(CPU, seen(pods, samples(555, 556, scale=1)))
    assert (trace.utilization, trace.average, trace.ratio) == (55, 555, 55 / 50)
    negative = one(PODS, seen(fleet(2), samples(-3, -4, scale=1)))
    assert negative.average == -3


def test_requests_are_asked_of_every_pod_even_of_one_that_is_left_out() -> None:
    pods = (asking(1000), ready("gone", deleting=True, requests={"main": {}}))
    assert "container main of pod gone requests no cpu" in one(CPU, seen(pods, samples(500, scale=1))).error


def test_pods_that_ask_for_nothing_in_total_have_no_utilisation() -> None:
    assert "request nothing" in one(CPU, seen((asking(0),), samples(5, scale=1))).error


def test_a_request_of_the_pod_as_a_whole_counts_instead_of_its_containers() -> None:
    pod = ready("p0", requests={"": {"cpu": 2000}, "main": {"cpu": 1000}})
    assert one(CPU, seen((pod,), samples(1000, scale=1))).utilization == 50
    inner = Metric(Source.CONTAINER_RESOURCE, "cpu", TargetType.UTILIZATION, 50, "main")
    assert one(inner, seen((pod,), samples(1000, scale=1))).utilization == 100


def test_a_container_that_is_not_there_is_an_error() -> None:
    inner = Metric(Source.CONTAINER_RESOURCE, "cpu", TargetType.UTILIZATION, 50, "sidecar")
    trace = one(inner, seen((asking(1000),), samples(1, scale=1)))
    assert trace.error_reason is Reason.FAILED_GET_CONTAINER_RESOURCE_METRIC
    assert "has no container sidecar" in trace.error


def test_a_sample_of_a_pod_that_is_not_there_counts_in_an_average_and_not_in_a_utilisation() -> None:
    stray = {"p0": Sample(100_000, NOW), "stray": Sample(0, NOW)}
    assert one(PODS, seen(fleet(1), PodValues(stray))).average == 50_000
    of_requests = {"p0": Sample(1000, NOW), "stray": Sample(0, NOW)}
    assert one(CPU, seen((asking(1000),), PodValues(of_requests))).utilization == 100


def test_silent_pods_are_filled_by_a_target_above_100_percent_with_more_than_their_request() -> None:
    metric = Metric(Source.RESOURCE, "cpu", TargetType.UTILIZATION, 200)
    pods = (asking(1000), asking(1000, "p1"), asking(1000, "p2"))
    assert one(metric, seen(pods, samples(0, scale=1))).proposal == 2  # (0 + 2000 + 2000) / 3000 = 133 %, of 200


@pytest.mark.parametrize(
    ("what", "counted"),
    [
        ({"ready": True, "ready_changed_at": NOW - 100, "started_at": NOW - 110}, True),
        ({"ready": True, "ready_changed_at": NOW - 20, "started_at": NOW - 110}, False),  # no whole window since
        ({"ready": True, "ready_changed_at": NOW - 30, "started_at": NOW - 110}, True),  # just a whole one
        ({"ready": False, "ready_changed_at": NOW - 100, "started_at": NOW - 110}, False),
        ({"ready": False, "ready_changed_at": NOW - 400, "started_at": NOW - 420}, False),  # never was ready
        ({"ready": False, "ready_changed_at": NOW - 100, "started_at": NOW - 420}, True),  # was ready once
        ({"ready": True, "ready_changed_at": NOW - 20, "started_at": NOW - 300}, True),  # past its start
        ({"ready": None, "started_at": NOW - 420}, False),
        ({"ready": True, "started_at": None}, False),
    ],
)
def test_a_cpu_sample_of_a_starting_pod_does_not_count(what: dict[str, Any], *, counted: bool) -> None:
    pods = (asking(1000), asking(1000, "p1", **what))
    reading = PodValues({"p0": Sample(500, NOW), "p1": Sample(500, NOW, window_seconds=30.0)})
    assert one(CPU, seen(pods, reading)).counted == (("p0", "p1") if counted else ("p0",))
    assert one(MEMORY, seen(pods, reading)).counted == ("p0", "p1")


def test_an_average_within_tolerance_keeps_the_reported_size_and_not_the_one_asked_for() -> None:
    trace = one(external(70), seen(fleet(10), total(1000), replicas=10, status_replicas=15))
    assert (trace.proposal, trace.average) == (15, math.ceil(1_000_000 / 15))


def test_a_pod_on_its_way_out_is_multiplied_as_long_as_it_is_ready() -> None:
    pods = (ready("p0"), ready("p1", deleting=True))
    assert one(external(10, TargetType.VALUE), seen(pods, total(20))).proposal == 4


def test_a_total_within_tolerance_asks_for_no_pods_and_one_outside_does() -> None:
    value = external(10, TargetType.VALUE)
    assert one(value, seen((), total(10), replicas=3)).proposal == 3
    assert "matches no pods" in one(value, seen((), total(20), replicas=3)).error


def test_a_size_that_an_int32_cant_hold_stays_at_its_end() -> None:
    huge = Total((2**62,), NOW)
    for kind in (TargetType.VALUE, TargetType.AVERAGE_VALUE):
        assert one(external(1, kind), seen(fleet(3), huge)).proposal == 2**31 - 1


def test_sums_at_the_end_of_int64_stay_there() -> None:
    both = Total((2**63 - 1, 2**63 - 1), NOW)
    assert one(external(1, TargetType.VALUE), seen(fleet(1), both)).total == 2**63 - 1
    assert one(external(1), seen(fleet(1), both)).average == 2**63 - 1


def test_a_negative_total_is_a_negative_size_as_value_and_the_largest_as_average() -> None:
    assert one(external(10, TargetType.VALUE), seen(fleet(2), total(-20))).proposal == -4
    assert one(external(10), seen(fleet(2), total(-20))).proposal == 2**31 - 1


def test_the_tolerance_of_one_direction_leaves_the_other() -> None:

    behavior = replace(FREE, scale_up=replace(FREE.scale_up, tolerance=0.0))
    assert one(PODS, seen(fleet(100), samples(*[81] * 100)), behavior=behavior).proposal == 102
    assert one(PODS, seen(fleet(100), samples(*[79] * 100)), behavior=behavior).proposal == 100


METRICS = (external(1, name="a"), external(1, name="b"))


def several(*readings: Reading, replicas: int = 4, **more: Any) -> Any:
    return decide(policy(*METRICS, tolerance=0.0, **more), seen(fleet(replicas), *readings), Memory(), NOW)


BROKEN = Failed(Reason.FAILED_GET_EXTERNAL_METRIC, "503")


@pytest.mark.parametrize(
    ("readings", "size", "active"),
    [
        ((total(3), total(7)), 7, "True/ValidMetricFound"),
        ((total(3), BROKEN), 4, "False/FailedGetExternalMetric"),
        ((BROKEN, total(4)), 4, "True/ValidMetricFound"),
        ((BROKEN, total(6)), 6, "True/ValidMetricFound"),
        ((BROKEN, BROKEN), 4, "False/FailedGetExternalMetric"),
    ],
)
def test_the_largest_proposal_wins_and_a_broken_metric_stops_a_shrink_only(
    readings: tuple[Reading, ...], size: int, active: str
) -> None:
    decision = several(*readings)
    assert (decision.desired, shown(decision)["ScalingActive"]) == (size, active)


def test_the_first_failing_metric_names_the_reason() -> None:
    first = Failed(Reason.FAILED_GET_OBJECT_METRIC, "no such object")
    assert several(first, BROKEN).reason is Reason.FAILED_GET_OBJECT_METRIC


def test_where_nothing_can_be_computed_nothing_is_remembered_or_said_about_limits() -> None:
    decision = several(BROKEN, BROKEN)
    assert set(shown(decision)) == {"AbleToScale", "ScalingActive"}
    assert shown(decision)["AbleToScale"] == "True/SucceededGetScale"
    assert decision.memory == Memory()


def test_a_size_out_of_bounds_is_corrected_without_reading_metrics() -> None:
    policy_ = policy(*METRICS, min_replicas=3, max_replicas=5)
    for replicas, size, reason in ((9, 5, Reason.TOO_MANY_REPLICAS), (1, 3, Reason.TOO_FEW_REPLICAS)):
        decision = decide(policy_, seen(fleet(replicas), BROKEN, BROKEN), Memory(), NOW)
        assert (decision.desired, decision.reason, decision.trace.metrics) == (size, reason, ())
        assert set(shown(decision)) == {"AbleToScale"}


ZERO: dict[str, Any] = {"min_replicas": 0}


def from_zero(reading: Reading, *, ours: bool, **more: Any) -> Any:
    return decide(policy(external(5), **more), seen((), reading), Memory(scaled_to_zero=ours), NOW)


def test_a_zero_by_hand_stays_and_our_own_wakes() -> None:
    assert from_zero(total(12), ours=False, **ZERO).desired == 0
    assert shown(from_zero(total(12), ours=False, **ZERO))["ScalingActive"] == "False/ScalingDisabled"
    assert from_zero(total(12), ours=True, **ZERO).desired == 3
    assert from_zero(total(0), ours=True, **ZERO).desired == 0


def test_our_zero_goes_to_the_minimum_once_there_is_one() -> None:
    assert from_zero(total(1), ours=True, min_replicas=2).desired == 2
    assert from_zero(total(0), ours=True, min_replicas=2).desired == 2


def test_going_to_zero_is_remembered_as_ours_and_leaving_it_is_forgotten() -> None:
    down = decide(policy(external(5), **ZERO), seen(fleet(2), total(0)), Memory(), NOW)
    assert (down.desired, down.memory.scaled_to_zero) == (0, True)
    assert down.memory_if_unwritten.scaled_to_zero is False
    assert shown(down)["ScaledToZero"] == "True/ScaledToZero"
    up = decide(policy(external(5), **ZERO), seen((), total(5)), down.memory, NOW + 15)
    assert (up.desired, up.memory.scaled_to_zero) == (1, False)
    assert shown(up)["ScaledToZero"] == "False/NotScaledToZero"


def test_a_target_of_zero_is_refused_in_words() -> None:
    bad = Metric(Source.EXTERNAL, "queue", TargetType.VALUE, 0)
    decision = decide(Policy(1, 5, (bad,)), seen(fleet(1), total(1)), None, NOW)
    assert decision.reason is Reason.INVALID_SPEC


def test_a_policy_without_metrics_holds() -> None:
    decision = decide(Policy(1, 5, ()), seen(fleet(2)), None, NOW)
    assert (decision.desired, decision.reason) == (2, Reason.INVALID_METRIC_SOURCE_TYPE)


def test_readings_that_are_not_one_per_metric_are_a_programming_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        decide(policy(PODS), seen(fleet(1)), None, NOW)


@pytest.mark.parametrize(
    ("dividend", "divisor", "result"), [(7, 2, 3), (-7, 2, -3), (7, -2, -3), (-7, -2, 3), (0, 5, 0)]
)
def test_division_goes_towards_zero(dividend: int, divisor: int, result: int) -> None:
    assert arithmetic.quotient(dividend, divisor) == result


def test_integers_wrap_as_kubernetes_own_do() -> None:
    assert (arithmetic.int64(2**63), arithmetic.int64(-(2**63) - 1)) == (-(2**63), 2**63 - 1)
    assert (arithmetic.int32(2**31), arithmetic.int32(2**32 + 5)) == (-(2**31), 5)
    assert arithmetic.int64(-(2**63)) == -(2**63)


def test_a_ratio_to_zero_has_no_exception() -> None:
    assert (arithmetic.ratio(1, 0), arithmetic.ratio(-1, 0)) == (math.inf, -math.inf)
    assert math.isnan(arithmetic.ratio(0, 0))
    assert [arithmetic.ceil32(value) for value in (math.inf, -math.inf, math.nan, 1.2)] == [2**31 - 1, -(2**31), 0, 2]
