"""From readings to the size that a target needs, before any limit: each metric's proposal, then the largest.

Why it exists: the one place that knows which rule book a metric is read by, how several metrics are combined and what
one broken metric among them means.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from controller.core import words
from controller.core.model import (
    Failed,
    GpuRules,
    Metric,
    MetricTrace,
    Observation,
    Policy,
    Reading,
    Reason,
    Total,
)
from controller.core.pod_metrics import pods_by_gpu_rules, pods_by_hpa
from controller.core.proposals import UnusableError, failed
from controller.core.totals import total_by_gpu_rules, total_by_hpa

FOR_COMPARISON = GpuRules(max_age_seconds=math.inf)
"""What a pure HPA spec is compared with: metric APIs have periods of their own, so age is not judged."""


class Combined(NamedTuple):
    """The metrics' size; None where nothing may be done, with the trace of the first metric that failed."""

    proposal: int | None
    winner: MetricTrace | None
    first_error: MetricTrace | None


def evaluate(metric: Metric, reading: Reading, policy: Policy, observation: Observation, now: float) -> MetricTrace:
    """Turn one reading into a proposal, or into an error with its reason; never raises for what was observed."""
    try:
        return proposed(metric, reading, policy, observation, now)
    except UnusableError as error:
        return failed(metric, str(error), error.reason)


def proposed(metric: Metric, reading: Reading, policy: Policy, observation: Observation, now: float) -> MetricTrace:
    """Turn one reading into a proposal. Raises UnusableError."""
    if isinstance(reading, Failed):
        raise UnusableError(reading.message, reading.reason)
    if metric.target <= 0:
        raise UnusableError(f"the target of {metric.label} must be above 0", Reason.INVALID_SPEC)
    if isinstance(reading, Total):
        if policy.gpu is None:
            return total_by_hpa(metric, reading, policy, observation, now)
        return total_by_gpu_rules(metric, reading, policy, policy.gpu, observation, now)
    if policy.gpu is None:
        return pods_by_hpa(metric, reading, policy, observation, now)
    return pods_by_gpu_rules(metric, reading, policy, policy.gpu, observation, now)


def combine(traces: tuple[MetricTrace, ...], current: int) -> Combined:
    """Take the largest proposal. With a metric broken the size may grow on the others' word, and not shrink."""
    size, winner, first_error = 0, None, None
    for trace in traces:
        if trace.proposal is None:
            first_error = first_error or trace
        elif size == 0 or trace.proposal > size:
            size, winner = trace.proposal, trace
    if winner is None or (first_error is not None and size < current):
        return Combined(None, winner, first_error)
    return Combined(max(size, 0), winner, first_error)


def differences(
    policy: Policy, observation: Observation, traces: tuple[MetricTrace, ...], now: float
) -> tuple[str, ...]:
    """Say for a pure HPA spec where the GPU rules would propose another size, and why."""
    if policy.gpu is not None or plain(observation, traces):
        return ()
    told = []
    compared = replace(policy, gpu=FOR_COMPARISON)
    for metric, reading, trace in zip(policy.metrics, observation.readings, traces, strict=True):
        if trace.proposal is None:
            continue
        ours = evaluate(metric, reading, compared, observation, now)
        wanted = observation.replicas if ours.proposal is None else ours.proposal
        if wanted != trace.proposal:
            why = ours.error or because(ours)
            told.append(f"{metric.label}: the HPA proposes {trace.proposal}, the GPU rules {wanted}: {why}")
    return tuple(told)


def plain(observation: Observation, traces: tuple[MetricTrace, ...]) -> bool:
    """Tell whether every pod is ready and reports, and as many are there as asked for: then both rule books agree."""
    pods = observation.pods
    if len(pods) != observation.replicas or observation.status_replicas != observation.replicas:
        return False
    for pod in pods:
        if not pod.ready or pod.phase != "Running" or pod.deleting or pod.crashing:
            return False
    return not any(trace.missing or trace.unready for trace in traces)


def because(trace: MetricTrace) -> str:
    """Say in a few words what the GPU rules looked at."""
    if trace.warming:
        return f"{words.pods(len(trace.warming))} still starting, never averaged and always counted as capacity"
    if trace.broken:
        return f"{words.pods(len(trace.broken))} broken, neither averaged nor counted"
    return "a ratio above 1 never shrinks and one below 1 never grows"
