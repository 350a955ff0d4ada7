"""From one metric's values per pod to the size that it asks for.

Why it exists: this is the arithmetic that has to be the HPA's to the last digit for an autoscaling/v2 spec, and that
goes beyond it only where the policy turns the GPU rules on. Every exit says what was counted, filled and left out.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from controller.core import words
from controller.core.measures import Average, Headroom, Measure, Measured, OfRequests
from controller.core.model import (
    GpuRules,
    Metric,
    MetricTrace,
    Observation,
    Pod,
    PodValues,
    Policy,
    Reason,
    Sample,
    Source,
    TargetType,
)
from controller.core.pod_classes import Classes, by_gpu_rules, by_hpa
from controller.core.proposals import Course, Tolerance, UnusableError, along_the_ratio, tolerance_of

CAPPED_AT = 98_000


class Sized(NamedTuple):
    """A proposal of per-pod values, before the GPU rules look at it."""

    proposal: int
    measured: Measured
    filled: tuple[str, ...] = ()
    filled_with: str = ""
    within: bool = False


def pods_by_hpa(
    metric: Metric, reading: PodValues, policy: Policy, observation: Observation, now: float
) -> MetricTrace:
    """Propose from per-pod values exactly as the HPA does."""
    pods = observation.pods
    if not pods:
        raise UnusableError("the target's selector matches no pods")
    cpu = metric.name == "cpu" and metric.source in (Source.RESOURCE, Source.CONTAINER_RESOURCE)
    classes = by_hpa(pods, reading.samples, policy, now, cpu=cpu)
    values = {name: sample.value for name, sample in reading.samples.items()}
    for name in classes.ignored + classes.unready:
        values.pop(name, None)
    if not values:
        raise UnusableError("no pod that counts has reported a value")
    measure = measure_of(metric, pods, ())
    sized = size_by_fill(measure, values, len(classes.counted), classes, observation.replicas, tolerance_of(policy))
    return pod_trace(
        metric, sized, classes, Course(sized.proposal, outcome=Reason.WITHIN_TOLERANCE if sized.within else None)
    )


def measure_of(metric: Metric, pods: tuple[Pod, ...], samples: tuple[Sample, ...]) -> Measure:
    """Give the formula of the metric's target. Raises UnusableError where requests or capacity don't allow one."""
    if metric.target_type is TargetType.HEADROOM:
        return Headroom(usable_memory(metric, samples))
    if metric.target_type is TargetType.UTILIZATION and metric.source is not Source.GPU:
        return OfRequests(metric.target, {pod.name: requested(pod, metric) for pod in pods})
    return Average(metric.target)


def usable_memory(metric: Metric, samples: tuple[Sample, ...]) -> int:
    """Give what one pod may use: the smallest capacity seen, as a new pod may get it, less the headroom."""
    capacities = [sample.capacity for sample in samples if sample.capacity is not None]
    if len(capacities) < len(samples) or not capacities:
        raise UnusableError("a pod's memory capacity is unknown, so its headroom is too")
    usable = min(capacities) - metric.target
    if usable <= 0:
        smallest, target = words.amount(min(capacities)), words.amount(metric.target)
        raise UnusableError(
            f"headroom {target} MiB leaves nothing of a pod's {smallest} MiB: ask for less than the capacity",
            Reason.INVALID_SPEC,
        )
    return usable


def requested(pod: Pod, metric: Metric) -> int:
    """Give a pod's request in milli-units: of one container if the metric names one, of all otherwise."""
    if metric.container is None and "" in pod.requests:
        return asked(pod.requests[""], metric.name, f"pod {pod.name}")
    if metric.container is None:
        return sum(asked(of, metric.name, f"container {name} of pod {pod.name}") for name, of in pod.requests.items())
    if metric.container not in pod.requests:
        raise UnusableError(f"pod {pod.name} has no container {metric.container}")
    return asked(pod.requests[metric.container], metric.name, f"container {metric.container} of pod {pod.name}")


def asked(requests: Mapping[str, int], resource: str, whose: str) -> int:
    """Give one request. Raises UnusableError if it is not set: utilisation of nothing has no meaning."""
    if resource not in requests:
        raise UnusableError(f"{whose} requests no {resource}")
    return requests[resource]


def size_by_fill(
    measure: Measure, values: dict[str, int], pods: int, classes: Classes, current: int, tolerance: Tolerance
) -> Sized:
    """Propose a size; silent pods are assumed to be what moves the result towards the current size.

    ``pods`` is the number of pods the ratio is multiplied with where nothing is assumed.
    """
    first = measured(measure, values)
    rising = first.ratio > 1.0
    filled = classes.missing + classes.unready if rising else classes.missing
    if not filled:
        if tolerance.covers(first.ratio):
            return Sized(current, first, within=True)
        return Sized(measure.size(first, values, pods), first)
    if rising:
        values = values | dict.fromkeys(filled, 0)
    elif first.ratio < 1.0:
        values = values | {name: measure.assumed(name) for name in filled}
    second = measured(measure, values)
    names, assumed = tuple(filled), "0" if rising else "the target"
    if tolerance.covers(second.ratio):
        return Sized(current, first, names, assumed, within=True)
    turned = (first.ratio < 1.0 < second.ratio) or (second.ratio < 1.0 < first.ratio)
    proposal = measure.size(second, values, len(values))
    against = (second.ratio < 1.0 and proposal > current) or (second.ratio > 1.0 and proposal < current)
    return Sized(current if turned or against else proposal, first, names, assumed)


def measured(measure: Measure, values: Mapping[str, int]) -> Measured:
    """Measure, or raise UnusableError where the pods ask for nothing."""
    result = measure.measure(values)
    if result is None:
        raise UnusableError("the pods that reported a value request nothing")
    return result


def pod_trace(
    metric: Metric, sized: Sized, classes: Classes, course: Course, signal: Reason | None = None
) -> MetricTrace:
    """Write down how per-pod values came to their proposal."""
    _, average, utilization = sized.measured
    current = f"{words.amount(average)}{words.unit(metric)}" if utilization is None else f"{utilization} % of requests"
    return MetricTrace(
        metric=metric.label,
        target=words.target(metric),
        current=current,
        ratio=sized.measured.ratio,
        proposal=course.proposal,
        counted=tuple(classes.counted),
        filled=sized.filled,
        filled_with=sized.filled_with,
        warming=tuple(classes.warming),
        missing=tuple(classes.missing),
        unready=tuple(classes.unready),
        broken=tuple(classes.broken),
        ignored=tuple(classes.ignored),
        average=average,
        utilization=utilization,
        needed=course.needed,
        outcome=course.outcome,
        signal=signal,
    )


def pods_by_gpu_rules(
    metric: Metric, reading: PodValues, policy: Policy, rules: GpuRules, observation: Observation, now: float
) -> MetricTrace:
    """Propose from per-pod values by the GPU rules: see ``pod_classes.by_gpu_rules`` for who counts."""
    bar = metric.target if metric.target_type is TargetType.AVERAGE_VALUE or metric.source is Source.GPU else math.inf
    cpu = metric.name == "cpu" and metric.source is not Source.GPU
    classes = by_gpu_rules(observation.pods, reading.samples, reading.rejected, policy, rules, now, bar=bar, cpu=cpu)
    if not classes.counted:
        return nothing_counted(metric, classes, reading, observation)
    demand_quorum(metric, classes, rules)
    samples = tuple(reading.samples[name] for name in classes.counted)
    of = {*classes.counted, *classes.missing}
    measure = measure_of(metric, tuple(pod for pod in observation.pods if pod.name in of), samples)
    tolerance = Tolerance(0.0, 0.0) if metric.target_type is TargetType.HEADROOM else tolerance_of(policy)
    values = {name: reading.samples[name].value for name in classes.counted}
    sized = size_by_fill(measure, values, len(values), classes, observation.replicas, tolerance)
    course = Course(sized.proposal, outcome=Reason.WITHIN_TOLERANCE)
    if not sized.within:
        course = along_the_ratio(
            sized.measured.ratio,
            sized.proposal,
            observation.replicas,
            working=len(of),
            warming=len(classes.warming),
            broken=len(classes.broken),
        )
    return pod_trace(metric, sized, classes, course, capped(metric, sized.measured))


def capped(metric: Metric, measured: Measured) -> Reason | None:
    """Tell whether a utilisation is so near its ceiling that it can't say how much more is needed."""
    if metric.source is Source.GPU and metric.name == "utilization" and measured.average >= CAPPED_AT:
        return Reason.SIGNAL_CAPPED
    return None


def nothing_counted(metric: Metric, classes: Classes, reading: PodValues, observation: Observation) -> MetricTrace:
    """Hold where pods are only starting; otherwise raise UnusableError, as nobody's value is known."""
    if classes.missing:
        known = any(name in reading.samples or name in reading.rejected for name in classes.missing)
        reason = Reason.STALE_DATA if known else Reason.NO_ATTRIBUTION
        raise UnusableError(f"no fresh value of any of {words.pods(len(classes.missing))}", reason)
    if not classes.warming:
        raise UnusableError(f"none of {words.pods(len(observation.pods))} of the target works", Reason.NO_ATTRIBUTION)
    return MetricTrace(
        metric=metric.label,
        target=words.target(metric),
        current=words.UNKNOWN,
        ratio=None,
        proposal=observation.replicas,
        warming=tuple(classes.warming),
        broken=tuple(classes.broken),
        ignored=tuple(classes.ignored),
        outcome=Reason.CAPACITY_WARMING,
    )


def demand_quorum(metric: Metric, classes: Classes, rules: GpuRules) -> None:
    """Raise UnusableError if too few of the pods that should report have a fresh value."""
    reported, due = len(classes.counted), len(classes.counted) + len(classes.missing)
    if reported * 100 < rules.min_sample_percent * due:
        raise UnusableError(
            f"{metric.label}: {reported} of {due} pods gave a fresh value, below {rules.min_sample_percent} %",
            Reason.STALE_DATA,
        )
