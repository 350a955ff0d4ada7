"""What the demo concludes from the record: pure, so that every figure of the summary is tested without a demo.

Reaction of a workload: a crossing is the moment from which the exporters' files, read together, ask for more
replicas than the Deployment has (the sum over the serving pods' utilisation over target times size is above 1 + the
tolerance, and the size is below its maximum). It ends with the next change upwards; a change that is too small begins
a new crossing. A crossing that goes away by itself is none. Reaction of a pool: from the moment in which the Deployment
asks for more GPUs than the pool's size has, to the change of that size.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.sandbox.record import Change, Moment, Record, Removal, Said, Target

IDLE_PERCENT = 5.0
"""A pod below this utilisation is idle, from it on busy."""
TOLERANCE = 0.1
SAID_WITHIN_SECONDS = 10.0
"""How much later than a change the operator's status may say why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What of the scenario the judgement needs."""

    target_percent: int
    max_replicas: int
    gpus_per_node: int
    max_nodes: int


@dataclass(frozen=True, slots=True)
class Told:
    """A change with the operator's reason for it; empty texts = its status never said one."""

    change: Change
    reason: str
    sentence: str
    reaction_seconds: float | None


@dataclass(frozen=True, slots=True)
class Reactions:
    """How long changes upwards took, seconds, and how many crossings got none. Percentiles None = no reaction."""

    count: int
    p50: float | None
    p95: float | None
    most: float | None
    unanswered: int

    @classmethod
    def of(cls, seconds: Sequence[float], unanswered: int) -> "Reactions":
        """Count what was measured."""
        return cls(
            len(seconds), percentile(seconds, 0.5), percentile(seconds, 0.95), percentile(seconds, 1.0), unanswered
        )

    def document(self) -> dict[str, Any]:
        """Give the entry of the JSON report."""
        return {
            "count": self.count,
            "p50Seconds": _rounded(self.p50),
            "p95Seconds": _rounded(self.p95),
            "maxSeconds": _rounded(self.most),
            "unanswered": self.unanswered,
        }


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the record shows."""

    told: tuple[Told, ...]
    workload: Reactions
    pool: Reactions
    busy_removed: int
    busy_removed_while_idle_stayed: int
    gpu_hours_nodes: float
    gpu_hours_pods: float


def findings(record: Record, limits: Limits) -> Findings:
    """Judge a record."""
    workload, waiting = workload_reactions(record, limits)
    pool, short = pool_reactions(record, limits)
    reactions = {**workload, **pool}
    return Findings(
        told=tuple(_told(record, reactions)),
        workload=Reactions.of(list(workload.values()), waiting),
        pool=Reactions.of(list(pool.values()), short),
        busy_removed=sum(is_busy(r.utilization) for r in record.removals),
        busy_removed_while_idle_stayed=sum(map(idle_stayed, record.removals)),
        gpu_hours_nodes=hours(record.moments, [m.nodes * limits.gpus_per_node for m in record.moments]),
        gpu_hours_pods=hours(record.moments, [m.gpus_held for m in record.moments]),
    )


def workload_reactions(record: Record, limits: Limits) -> tuple[dict[Change, float], int]:
    """Give seconds from crossing to change for each change upwards that had one, and the crossings left open."""
    changes = [c for c in record.changes if c.target is Target.WORKLOAD]
    found: dict[Change, float] = {}
    since: float | None = None
    for event in _in_order(record.moments, changes):
        if isinstance(event, Change):
            if event.after > event.before and since is not None:
                found[event] = event.at - since
            since = None
        elif not asks_for_more(event, limits):
            since = None
        elif since is None:
            since = event.at
    return found, int(since is not None)


def _in_order(moments: Iterable[Moment], changes: Iterable[Change]) -> list[Moment | Change]:
    return sorted([*moments, *changes], key=lambda event: event.at)


def asks_for_more(moment: Moment, limits: Limits) -> bool:
    """Whether what the exporters' files say together asks for more replicas than there are."""
    if moment.replicas >= limits.max_replicas or not moment.replicas:
        return False
    return moment.utilization / (limits.target_percent * moment.replicas) > 1 + TOLERANCE


def pool_reactions(record: Record, limits: Limits) -> tuple[dict[Change, float], int]:
    """Give seconds from 'the pods ask for more GPUs than the size has' to each change upwards, and those left open."""
    if not record.moments:
        return {}, 0
    replicas, size = record.moments[0].replicas, record.moments[0].pool_size
    found: dict[Change, float] = {}
    since: float | None = None
    for change in record.changes:
        if change.target is Target.WORKLOAD:
            replicas = change.after
        else:
            if change.after > change.before and since is not None:
                found[change] = change.at - since
            size, since = change.after, None
        short = replicas > size * limits.gpus_per_node and size < limits.max_nodes
        since = (since if since is not None else change.at) if short else None
    return found, int(since is not None)


def _told(record: Record, reactions: dict[Change, float]) -> Iterable[Told]:
    said = list(record.said)
    for change in record.changes:
        reason = next((s for s in said if explains(s, change)), None)
        if reason is not None:
            said.remove(reason)
        yield Told(change, reason.reason if reason else "", reason.sentence if reason else "", reactions.get(change))


def explains(said: Said, change: Change) -> bool:
    """Whether what the status said is about this change."""
    same = (said.target, said.before, said.after) == (change.target, change.before, change.after)
    return same and -1.0 <= said.at - change.at <= SAID_WITHIN_SECONDS


def is_busy(utilization: float) -> bool:
    """Whether a pod does work."""
    return utilization >= IDLE_PERCENT


def idle_stayed(removal: Removal) -> bool:
    """Whether a busy pod was removed while an idle one stayed."""
    return is_busy(removal.utilization) and removal.idlest_staying is not None and not is_busy(removal.idlest_staying)


def hours(moments: Sequence[Moment], amounts: Sequence[float]) -> float:
    """Integrate an amount that holds from each moment to the next."""
    steps = zip(itertools.pairwise(moments), amounts, strict=False)
    return sum((after.at - before.at) * amount for (before, after), amount in steps) / 3600


def percentile(values: Sequence[float], share: float) -> float | None:
    """Give the smallest value that at least this share of all do not exceed; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
