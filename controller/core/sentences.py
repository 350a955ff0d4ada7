"""Why the size is what it is: one reason word and one sentence for people.

Why it exists: "6, not 5" must have an answer that fits in a line of a terminal. The reason is the thing that decided
last: what held or cut the size, or else the metric that asked for it.
"""

from controller.core import words
from controller.core.behavior import Limited, Stable
from controller.core.model import MetricTrace, Reason
from controller.core.replicas import Combined

HELD = {
    Reason.SCALE_DOWN_STABILIZED: "a higher size was recommended within the stabilisation window",
    Reason.SCALE_UP_STABILIZED: "a lower size was recommended within the stabilisation window",
    Reason.SCALE_UP_LIMIT: "the rate policies allow no faster growth",
    Reason.SCALE_DOWN_LIMIT: "the rate policies allow no faster shrinking",
    Reason.TOO_MANY_REPLICAS: "maxReplicas allows no more",
    Reason.TOO_FEW_REPLICAS: "minReplicas allows no fewer",
    Reason.BUSY_PODS_PROTECTED: "the pods that would go are busy or of unknown load, and are protected",
}


def reading(trace: MetricTrace) -> str:
    """Say what a metric showed: ``gpu/utilization is 95 % for a target of 80 % on average``."""
    return f"{trace.metric} is {trace.current} for a target of {trace.target}"


def hold_reason(stable: Stable, limited: Limited, proposed: int, winner: MetricTrace | None) -> Reason:
    """Give the reason of a decision that leaves the size as it is."""
    if winner is not None and winner.outcome is not None and stable.size == proposed:
        return winner.outcome
    if stable.reason is not Reason.READY_FOR_NEW_SCALE:
        return stable.reason
    return limited.reason if limited.size != stable.size else Reason.READY_FOR_NEW_SCALE


def hold(current: int, reason: Reason, winner: MetricTrace | None) -> str:
    """Write the sentence of a hold."""
    if winner is None:
        return f"Holding {current}: {HELD.get(reason, 'nothing asks for another size')}."
    if reason is Reason.CAPACITY_WARMING:
        count = words.pods(len(winner.warming))
        if winner.needed is None:
            return f"Holding {current}: no pod reports yet, {count} still starting."
        return (
            f"Holding {current}: {reading(winner)} and needs {winner.needed}, which {count} still starting will cover."
        )
    if reason is Reason.SCALE_UP_BLOCKED:
        count = words.pods(len(winner.broken))
        return f"Holding {current}: {winner.metric} needs {winner.needed}, but {count} crash or never start."
    if reason is Reason.WITHIN_TOLERANCE:
        return f"Holding {current}: {reading(winner)}, within the tolerance."
    why = HELD.get(reason)
    return f"Holding {current}: {reading(winner)}{f', but {why}' if why else ', which asks for the size there is'}."


def change_reason(current: int, size: int, proposed: int, stable: Stable) -> Reason:
    """Give the reason of a change that no floor and no idleness asked for."""
    if size > current:
        return Reason.METRIC_ABOVE_TARGET if proposed > current else stable.reason
    return Reason.ALL_METRICS_BELOW_TARGET


def reading_of(winner: MetricTrace | None) -> str:
    """Say what the metric that won showed."""
    return "the metrics say nothing" if winner is None else reading(winner)


def change(current: int, size: int, proposed: int, limited: Limited, asked: str) -> str:
    """Write the sentence of a change: what asked for it, and what kept it from going all the way."""
    why = HELD.get(limited.reason, HELD[Reason.SCALE_DOWN_STABILIZED])
    short = f"; {proposed} would be the size, but {why}" if size != proposed else ""
    return f"Going from {current} to {size}: {asked}{short}."


def unable(current: int, combined: Combined) -> str:
    """Write the sentence of a hold for want of data."""
    error = combined.first_error
    if error is None:
        return f"Holding {current}: the scaler has no metrics."
    if combined.winner is None:
        return f"Holding {current}: {error.metric} can't be used: {error.error}."
    smaller = f"{combined.winner.metric} alone asks for {combined.winner.proposal}"
    return f"Holding {current}: {smaller}, but {error.metric} can't be used, so nothing is removed: {error.error}."


def protected(current: int, size: int, wanted: int) -> str:
    """Write the sentence of a shrink that protected pods made smaller, or prevented."""
    done = f"Holding {current}" if size == current else f"Going from {current} to {size}"
    return f"{done}: {wanted} would do, but {HELD[Reason.BUSY_PODS_PROTECTED]}."
