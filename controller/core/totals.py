"""From an Object or External reading to a size.

Why it exists: these metrics describe the whole target rather than pods, and each of the four combinations of source
and target has its own rule in the HPA: which size a tolerance is tested with, who is multiplied, where sums overflow.
"""

import math

from controller.core import words
from controller.core.arithmetic import INT64_MAX, ceil32, ratio
from controller.core.model import (
    GpuRules,
    Metric,
    MetricTrace,
    Observation,
    Pod,
    Policy,
    Reason,
    Source,
    TargetType,
    Total,
)
from controller.core.pod_classes import broken_pod, ended, warming_pod
from controller.core.proposals import UnusableError, along_the_ratio, tolerance_of


def total_by_hpa(metric: Metric, reading: Total, policy: Policy, observation: Observation, now: float) -> MetricTrace:
    """Propose from a total exactly as the HPA does. Raises UnusableError."""
    demand_freshness(metric, reading, now)
    if metric.target_type is TargetType.VALUE:
        return by_value(metric, summed(metric, reading), policy, observation)
    return by_average(metric, summed(metric, reading), policy, observation, observation.status_replicas)


def total_by_gpu_rules(
    metric: Metric, reading: Total, policy: Policy, rules: GpuRules, observation: Observation, now: float
) -> MetricTrace:
    """Propose from a total, never against its ratio; starting pods count as capacity. Raises UnusableError."""
    demand_freshness(metric, reading, now)
    if metric.target_type is TargetType.VALUE:
        trace = by_value(metric, summed(metric, reading), policy, observation)
    else:
        trace = by_average(metric, summed(metric, reading), policy, observation, observation.replicas)
    if observation.replicas == 0 or trace.outcome is Reason.WITHIN_TOLERANCE:
        return trace
    pods = observation.pods
    warming = tuple([pod.name for pod in pods if warming_pod(pod, rules, now)])
    broken = tuple([pod.name for pod in pods if broken_pod(pod, rules, now)])
    ready = len([pod for pod in pods if serves(pod) and not ended(pod) and not pod.crashing])
    course = along_the_ratio(
        trace.ratio or 0.0,
        trace.proposal or 0,
        observation.replicas,
        working=ready,
        warming=len(warming),
        broken=len(broken),
        warming_is_load=metric.target_type is TargetType.VALUE,
    )
    # written out, because dataclasses.replace takes a tenth of the whole decision
    return MetricTrace(
        metric=trace.metric,
        target=trace.target,
        current=trace.current,
        ratio=trace.ratio,
        proposal=course.proposal,
        total=trace.total,
        average=trace.average,
        warming=warming,
        broken=broken,
        needed=course.needed,
        outcome=course.outcome,
    )


def demand_freshness(metric: Metric, reading: Total, now: float) -> None:
    """Raise UnusableError if the metric has a maximum age and the reading is older."""
    age = now - reading.at
    if metric.max_age_seconds is not None and age > metric.max_age_seconds:
        raise UnusableError(
            f"{metric.label} is {age:.0f} s old, more than the {metric.max_age_seconds:g} s allowed", Reason.STALE_DATA
        )
    if not reading.values:
        raise UnusableError(f"{metric.label} has no value")


def summed(metric: Metric, reading: Total) -> int:
    """Add up the values as the HPA does, which per kind of target guards an overflow in another way."""
    if metric.source is not Source.EXTERNAL:
        return reading.values[0] if len(reading.values) == 1 else sum(reading.values)
    total = 0
    for value in reading.values:
        total += value
        if total > INT64_MAX or (total < 0 and metric.target_type is not TargetType.VALUE):
            return INT64_MAX
    return total


def by_value(metric: Metric, total: int, policy: Policy, observation: Observation) -> MetricTrace:
    """Multiply the ready pods, whatever the size is; from 0 replicas take the bare ratio."""
    of_target = ratio(total, metric.target)
    if observation.replicas == 0:
        return total_trace(metric, of_target, ceil32(of_target), total=total)
    if tolerance_of(policy).covers(of_target):
        return total_trace(metric, of_target, observation.replicas, total=total, outcome=Reason.WITHIN_TOLERANCE)
    if not observation.pods:
        raise UnusableError("the target's selector matches no pods")
    ready = sum(map(serves, observation.pods))
    return total_trace(metric, of_target, ceil32(of_target * ready), total=total)


def by_average(metric: Metric, total: int, policy: Policy, observation: Observation, base: int) -> MetricTrace:
    """Divide the total by the target; ``base`` is the size that the tolerance is tested with and kept at."""
    of_target = ratio(total, float(metric.target) * float(base))
    average = None if observation.status_replicas == 0 else per_pod(total, observation.status_replicas)
    if tolerance_of(policy).covers(of_target):
        return total_trace(metric, of_target, base, average=average, outcome=Reason.WITHIN_TOLERANCE)
    return total_trace(metric, of_target, ceil32(ratio(total, metric.target)), average=average)


def per_pod(total: int, pods: int) -> int:
    """Give the average that status shows, rounded up; a total at the end of int64 stays there."""
    return INT64_MAX if float(total) >= float(INT64_MAX) else math.ceil(ratio(total, pods))


def serves(pod: Pod) -> bool:
    """Tell whether the pod is Running and Ready: all that the HPA asks here, a pod being deleted included."""
    return pod.phase == "Running" and pod.ready is True


def total_trace(
    metric: Metric,
    of_target: float,
    proposal: int,
    *,
    total: int | None = None,
    average: int | None = None,
    outcome: Reason | None = None,
) -> MetricTrace:
    """Write down how a total came to its proposal. A ratio without meaning (from 0 replicas) is None."""
    shown = total if total is not None else average
    return MetricTrace(
        metric=metric.label,
        target=words.target(metric),
        current=words.UNKNOWN if shown is None else words.amount(shown),
        ratio=of_target if math.isfinite(of_target) else None,
        proposal=proposal,
        total=total,
        average=average,
        outcome=outcome,
    )
