"""The conditions of a workload decision: the HPA's three, and ours beside them.

Why it exists: which condition is set when, with which reason, is part of what people's alerts rely on. Messages carry
no numbers that change every tick, so that a status is written when something changed and not because time passed.
"""

from controller.core.model import Condition, MetricTrace, Reason

_ABLE = {
    reason: Condition("AbleToScale", "True", reason, message)
    for reason, message in {
        Reason.SUCCEEDED_GET_SCALE: "the size of the target could be read",
        Reason.READY_FOR_NEW_SCALE: "no recent recommendation speaks against the recommended size",
        Reason.SCALE_UP_STABILIZED: "a recent recommendation was lower; the lowest of the window counts",
        Reason.SCALE_DOWN_STABILIZED: "a recent recommendation was higher; the highest of the window counts",
    }.items()
}
_LIMITS = {
    Reason.DESIRED_WITHIN_RANGE: "the recommended size is within rates and bounds",
    Reason.SCALE_UP_LIMIT: "the rate policies allow no faster growth",
    Reason.SCALE_DOWN_LIMIT: "the rate policies allow no faster shrinking",
    Reason.TOO_MANY_REPLICAS: "maxReplicas allows no more",
    Reason.TOO_FEW_REPLICAS: "minReplicas allows no fewer",
    Reason.BUSY_PODS_PROTECTED: "pods above protectAboveUtilization, or of unknown load, are not removed",
    Reason.SCALE_UP_BLOCKED: "many of the target's pods crash or don't start, so that more would not help",
}
_LIMITED = {
    (reason, status): Condition("ScalingLimited", "True" if status else "False", reason, message)
    for reason, message in _LIMITS.items()
    for status in (True, False)
}
_SIGNALS = {
    reason: Condition("SignalHealthy", "True" if reason is Reason.SIGNAL_USABLE else "False", reason, message)
    for reason, message in {
        Reason.SIGNAL_USABLE: "enough pods report fresh values that can still rise",
        Reason.SIGNAL_CAPPED: "utilisation is at its ceiling and can't say how much more is needed; add a queue metric",
        Reason.STALE_DATA: "too few values are fresh",
        Reason.NO_ATTRIBUTION: "no value could be attributed to a pod of the target",
    }.items()
}
_ZERO = {
    True: Condition("ScaledToZero", "True", Reason.SCALED_TO_ZERO, "the size 0 is this scaler's own decision"),
    False: Condition("ScaledToZero", "False", Reason.NOT_SCALED_TO_ZERO, "the last size was not 0"),
}


def able_to_scale(reason: Reason) -> Condition:
    """Give AbleToScale as it is before the write (a successful write makes it SucceededRescale)."""
    return _ABLE[reason]


def scaling_active(winner: str) -> Condition:
    """Give ScalingActive=True: a size could be calculated from the metric ``winner``."""
    return Condition("ScalingActive", "True", Reason.VALID_METRIC_FOUND, f"a size could be calculated from {winner}")


def scaling_failed(reason: Reason, message: str) -> Condition:
    """Give ScalingActive=False."""
    return Condition("ScalingActive", "False", reason, message)


def scaling_limited(reason: Reason, *, limited: bool) -> Condition:
    """Give ScalingLimited; ``limited`` says whether the size is another than the recommended one."""
    return _LIMITED[reason, limited]


def signal_healthy(traces: tuple[MetricTrace, ...]) -> Condition:
    """Give SignalHealthy: the first complaint of the metrics, an unusable signal before a capped one."""
    signals = {trace.signal for trace in traces}
    for reason in (Reason.NO_ATTRIBUTION, Reason.STALE_DATA, Reason.SIGNAL_CAPPED):
        if reason in signals:
            return _SIGNALS[reason]
    return _SIGNALS[Reason.SIGNAL_USABLE]


def scaled_to_zero(*, ours: bool) -> Condition:
    """Give ScaledToZero: whether the size 0 is this scaler's, so that a metric may raise it again."""
    return _ZERO[ours]
