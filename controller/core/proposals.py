"""What all metrics share on the way to a proposal: tolerance, unusable readings, never against the ratio."""

from typing import NamedTuple

from controller.core import words
from controller.core.model import Metric, MetricTrace, Policy, Reason, Source

FAILED = {
    Source.RESOURCE: Reason.FAILED_GET_RESOURCE_METRIC,
    Source.CONTAINER_RESOURCE: Reason.FAILED_GET_CONTAINER_RESOURCE_METRIC,
    Source.PODS: Reason.FAILED_GET_PODS_METRIC,
    Source.OBJECT: Reason.FAILED_GET_OBJECT_METRIC,
    Source.EXTERNAL: Reason.FAILED_GET_EXTERNAL_METRIC,
    Source.GPU: Reason.FAILED_GET_GPU_METRIC,
}
SIGNAL_REASONS = (Reason.STALE_DATA, Reason.NO_ATTRIBUTION)


class UnusableError(Exception):
    """A reading gives no proposal. ``reason`` None = the reason of the metric's type."""

    def __init__(self, message: str, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class Tolerance(NamedTuple):
    """How far a ratio may be from 1, downwards and upwards, both ends included."""

    down: float
    up: float

    def covers(self, ratio: float) -> bool:
        """Tell whether this ratio is no reason to change the size."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


class Course(NamedTuple):
    """A proposal after the GPU rules: ``needed`` is what the load asks for, ``outcome`` why it isn't proposed."""

    proposal: int
    needed: int | None = None
    outcome: Reason | None = None


def tolerance_of(policy: Policy) -> Tolerance:
    """Give the policy's tolerance per direction; ``behavior`` may set either."""
    behavior = policy.behavior
    if behavior is None:
        return Tolerance(policy.tolerance, policy.tolerance)
    down, up = behavior.scale_down.tolerance, behavior.scale_up.tolerance
    return Tolerance(policy.tolerance if down is None else down, policy.tolerance if up is None else up)


def failed(metric: Metric, message: str, reason: Reason | None) -> MetricTrace:
    """Give the trace of a metric without a proposal."""
    signal = reason in SIGNAL_REASONS
    return MetricTrace(
        metric=metric.label,
        target=words.target(metric),
        current=words.UNKNOWN,
        ratio=None,
        proposal=None,
        error=message,
        error_reason=FAILED[metric.source] if reason is None or signal else reason,
        signal=reason if signal else None,
    )


def along_the_ratio(
    ratio: float, needed: int, current: int, *, working: int, warming: int, broken: int, warming_is_load: bool = True
) -> Course:
    """Keep a size from moving against its ratio, and count what is still starting as capacity.

    ``working`` pods carry the load now. ``warming_is_load``: ``needed`` was made from working pods alone, so that on
    the way down those that start must be kept besides.
    """
    if ratio < 1.0:
        needed += warming if warming_is_load else 0
        return Course(min(needed, current), needed)
    if needed <= working + warming or needed <= current:
        return Course(current, needed, Reason.CAPACITY_WARMING if warming else None)
    if broken * 4 >= working + warming + broken:
        return Course(current, needed, Reason.SCALE_UP_BLOCKED)
    return Course(needed, needed)
