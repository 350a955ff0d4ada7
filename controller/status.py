"""PURE: decision -> status document, status document -> memory, and whether a document is worth a write.

Why it exists: status is what people read and what the next leader goes on from. It is typed in resource_status.py;
here it is filled, compared and read back. A document is the JSON form of a status.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, NamedTuple, TypeGuard

from controller.core.arithmetic import INT32_MAX
from controller.core.behavior import Dated, resumed
from controller.core.model import Condition, Decision, Memory, MetricTrace, Observation, Reason
from controller.core.words import brief
from controller.facts import seconds
from controller.resource_status import (
    ConditionStatus,
    DecisionStatus,
    MetricStatus,
    Recommendation,
    ScaleEvent,
    WorkloadMemory,
    WorkloadStatus,
)
from controller.schema import dump

Document = Mapping[str, Any]

KEPT_DECISIONS = 5
_LONGEST_SENTENCE = 4096
_LONGEST_VALUE = 1024
_LONGEST_MESSAGE = 32_768
_MOST_INPUTS = 32
_SHOWN_TARGETS = 2
_MOST_KEPT = 2000
_FAULTY = {
    ("AbleToScale", "False"),
    ("ScalingActive", "False"),
    ("ScalingLimited", "True"),
    ("SignalHealthy", "False"),
    ("TargetOwned", "False"),
    ("DemandFits", "False"),
    ("NodesInTime", "False"),
}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_VALUE_TOLERANCE = 0.01


class Worth(IntEnum):
    """How soon a document is to be written."""

    NEVER = 0
    LATER = 1
    NOW = 2


@dataclass(frozen=True, slots=True)
class Moment:
    """When a document is made and for which generation of the spec."""

    now: float
    generation: int


class FaultyCondition(NamedTuple):
    """A condition that is not as it should be."""

    condition: str
    reason: str
    message: str


def timestamp(at: float) -> str:
    """Write Unix seconds as RFC 3339 in UTC with milliseconds."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def workload_document(
    old: Document,
    decision: Decision,
    observation: Observation,
    memory: Memory,
    moment: Moment,
    *,
    changed: bool = False,
    more: Iterable[Condition] = (),
) -> dict[str, Any]:
    """Make the status of a workload scaler.

    ``memory`` is the one that the next decision gets; ``changed``: the size was written; ``more`` are conditions
    beside the decision's, which win over its.
    """
    now = _decision_status(
        moment, observation.replicas, decision.desired, decision.reason, decision.sentence, workload_inputs(decision)
    )
    warming = sum(len(trace.warming) for trace in decision.trace.metrics[:1])
    status = WorkloadStatus(
        observed_generation=moment.generation,
        current_replicas=observation.replicas,
        desired_replicas=decision.desired,
        ready_replicas=sum(1 for pod in observation.pods if pod.ready and not pod.deleting),
        warming_replicas=warming,
        targets=clipped(_targets(decision.trace.metrics), _LONGEST_VALUE),
        current_metrics=tuple(_metric(trace) for trace in decision.trace.metrics),
        decision=now,
        memory=_memory_status(memory),
    )
    return finished(dump(status), old, (*decision.conditions, *more), moment, changed=changed)


def held_document(old: Document, conditions: Iterable[Condition], reason: Reason, why: str, moment: Moment) -> Document:
    """Make the status where no decision could be made: what was known stays, the conditions say why.

    The memory stays as it is, so that its windows go on.
    """
    size = old.get("currentReplicas")
    held = _decision_status(moment, size, size, reason, why, {})
    kept = {key: value for key, value in old.items() if key not in ("conditions", "decision")}
    document = {**kept, "observedGeneration": moment.generation, "decision": dump(held)}
    return {**document, "conditions": merged_conditions(old, conditions, moment)}


def workload_inputs(decision: Decision) -> dict[str, str]:
    """Say in words what the decision looked at: each metric, then each step that changed something."""
    found: dict[str, str] = {}
    for trace in decision.trace.metrics:
        what = trace.error or f"{trace.current} of {trace.target}"
        found[trace.metric] = what if trace.proposal is None else f"{what} -> {trace.proposal}"
    for step in decision.trace.steps:
        found[step.stage] = f"{step.before} -> {step.after}: {step.why}"
    return {clipped(key, 253): clipped(value, _LONGEST_VALUE) for key, value in list(found.items())[:_MOST_INPUTS]}


def faults_of(document: Document) -> list[FaultyCondition]:
    """Pick the conditions that are not as they should be; a limit that holds a size back is one of them."""
    return [
        FaultyCondition(str(row["type"]), str(row.get("reason", "")), str(row.get("message", "")))
        for row in _rows(document, "conditions")
        if (row.get("type"), row.get("status")) in _FAULTY
    ]


def new_faults(old: Document, new: Document) -> list[FaultyCondition]:
    """Pick the faults that have just come, or come for another reason. A limit is no news, it belongs to scaling."""
    before = {(fault.condition, fault.reason) for fault in faults_of(old)}
    return [
        fault
        for fault in faults_of(new)
        if fault.condition != "ScalingLimited" and (fault.condition, fault.reason) not in before
    ]


def merged_conditions(old: Document, new: Iterable[Condition], moment: Moment) -> list[dict[str, Any]]:
    """Conditions by type; a type that is not among the new keeps what it said, a kept status keeps its time."""
    rows = {row["type"]: dict(row) for row in _rows(old, "conditions") if isinstance(row.get("type"), str)}
    for condition in new:
        before = rows.get(condition.type, {})
        since = before.get("lastTransitionTime") if before.get("status") == condition.status else None
        row = ConditionStatus(
            type=condition.type,
            status=condition.status,  # type: ignore[arg-type]  # the core writes no other word
            reason=condition.reason.value,
            message=clipped(condition.message, _LONGEST_MESSAGE),
            last_transition_time=since or timestamp(moment.now),
            observed_generation=moment.generation,
        )
        rows[condition.type] = dump(row)
    return list(rows.values())


def load_memory(document: Document, now: float) -> Memory | None:
    """Read back the memory of a workload scaler; None where none was kept.

    Between the last write and now, recommendations may have come that nobody wrote down. So that time counts in no
    window: one may get longer by a restart, never shorter. What no operator can have written is left out.
    """
    kept = document.get("memory")
    if not isinstance(kept, Mapping):
        return None
    memory = Memory(
        recommendations=_dated(kept, "recommendations", "replicas", now),
        up_events=_dated(kept, "upEvents", "change", now),
        down_events=_dated(kept, "downEvents", "change", now),
        scaled_to_zero=kept.get("scaledToZero") is True,
    )
    return resumed(memory if memory.recommendations else _anew(memory, document, now), now)


def _anew(memory: Memory, document: Document, now: float) -> Memory:
    """Begin the windows with the last known size, where all that was recommended is lost."""
    size = document.get("currentReplicas")
    return replace(memory, recommendations=((now, size),)) if _is_size(size) else memory


def worth_writing(old: Document, new: Document, refresh_seconds: float = 60.0) -> Worth:
    """Say how soon ``new`` is to be written over ``old``.

    Size, reason and conditions: now. Values that moved by more than 1 %, and a memory whose newest entry is more than
    ``refresh_seconds`` younger: when there is room. Else never.
    """
    if _essence(old) != _essence(new):
        return Worth.NOW
    if not _alike(_values(old), _values(new)) or _memory_moved(old, new, refresh_seconds):
        return Worth.LATER
    return Worth.NEVER


def _decision_status(
    moment: Moment, before: int | None, after: int | None, reason: Reason, sentence: str, inputs: Mapping[str, str]
) -> DecisionStatus:
    return DecisionStatus(
        time=timestamp(moment.now),
        from_=before,
        to=after,
        reason=reason.value,
        sentence=clipped(sentence, _LONGEST_SENTENCE),
        inputs=inputs,
    )


def finished(
    document: dict[str, Any], old: Document, conditions: Iterable[Condition], moment: Moment, *, changed: bool
) -> dict[str, Any]:
    """Add what reaches back: the last changes, the last time of one, the conditions."""
    earlier = _rows(old, "decisions")
    latest = document["decision"]
    if changed:
        earlier = [*earlier, latest]
    last_scale_time = timestamp(moment.now) if changed else old.get("lastScaleTime")
    if last_scale_time:
        document["lastScaleTime"] = last_scale_time
    document["decisions"] = earlier[-KEPT_DECISIONS:]
    document["conditions"] = merged_conditions(old, conditions, moment)
    return document


def _metric(trace: MetricTrace) -> MetricStatus:
    return MetricStatus(
        metric=trace.metric,
        current=clipped(trace.current, _LONGEST_VALUE),
        target=clipped(trace.target, _LONGEST_VALUE),
        proposal=trace.proposal,
        error=clipped(trace.error, _LONGEST_SENTENCE),
    )


def _targets(traces: Sequence[MetricTrace]) -> str:
    """Write the column TARGETS as ``kubectl get hpa`` does, which shows two metrics and counts the rest."""
    shown = ", ".join(brief(trace.metric, trace.current, trace.target) for trace in traces[:_SHOWN_TARGETS])
    more = len(traces) - _SHOWN_TARGETS
    return f"{shown} + {more} more..." if more > 0 else shown


def _memory_status(memory: Memory) -> WorkloadMemory:
    return WorkloadMemory(
        recommendations=tuple(Recommendation(time=timestamp(at), replicas=n) for at, n in memory.recommendations)[
            -_MOST_KEPT:
        ],
        up_events=_events(memory.up_events),
        down_events=_events(memory.down_events),
        scaled_to_zero=memory.scaled_to_zero,
    )


def _events(events: Iterable[tuple[float, int]]) -> tuple[ScaleEvent, ...]:
    return tuple(ScaleEvent(time=timestamp(at), change=n) for at, n in events)[-_MOST_KEPT:]


def _dated(memory: Document, key: str, value: str, now: float) -> Dated:
    """Read (time, number) rows, oldest first. A time ahead of ours counts as now."""
    found = []
    for row in _rows(memory, key):
        at, number = seconds(row.get("time")), row.get(value)
        if at is not None and at > 0 and _is_size(number):
            found.append((min(now, at), number))
    return tuple(sorted(found, key=lambda entry: entry[0]))


def _is_size(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= INT32_MAX


def _essence(document: Document) -> tuple[object, ...]:
    """Pick what is written at once when it changes."""
    decision, nodes = _part(document, "decision"), _part(document, "nodes")
    return (
        document.get("observedGeneration"),
        document.get("currentReplicas"),
        document.get("desiredReplicas"),
        (nodes.get("current"), nodes.get("desired")),
        decision.get("reason"),
        sorted((row.get("type"), row.get("status"), row.get("reason")) for row in _rows(document, "conditions")),
        len(_rows(document, "decisions")),
        _last_time(document, "decisions"),
        _marks(document),
    )


def _marks(document: Document) -> list[str]:
    """Nodes that carry our mark: a new leader must know at once which cordons are ours."""
    return sorted(_part(_part(document, "memory"), "markedAt"))


def _values(document: Document) -> object:
    decision = {key: value for key, value in _part(document, "decision").items() if key != "time"}
    rest = ("memory", "conditions", "decision", "decisions", "lastScaleTime")
    messages = [(row.get("type"), row.get("message")) for row in _rows(document, "conditions")]
    return [decision, sorted(messages, key=str), {key: value for key, value in document.items() if key not in rest}]


def _alike(old: object, new: object) -> bool:
    """Compare two JSON values; numbers, also those within text, may differ by 1 %."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_alike(old[key], new[key]) for key in old)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(_alike(a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, str) and isinstance(new, str):
        return texts_alike(old, new)
    if isinstance(old, int | float) and isinstance(new, int | float):
        return _near(float(old), float(new))
    return old == new


def texts_alike(old: str, new: str) -> bool:
    """Tell whether two texts differ at most by numbers within 1 % of each other."""
    if old == new:
        return True
    if _NUMBER.sub("#", old) != _NUMBER.sub("#", new):
        return False
    numbers = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True)
    return all(_near(float(a), float(b)) for a, b in numbers)


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= _VALUE_TOLERANCE * max(abs(a), abs(b))


def _memory_moved(old: Document, new: Document, refresh_seconds: float) -> bool:
    before, after = (
        _last_time(_part(old, "memory"), "recommendations"),
        _last_time(_part(new, "memory"), "recommendations"),
    )
    then, now = seconds(before), seconds(after)
    if then is None or now is None:
        return before != after
    return now - then > refresh_seconds


def _last_time(document: Document, key: str) -> object:
    rows = _rows(document, key)
    return rows[-1].get("time") if rows else None


def _part(document: Document, key: str) -> Document:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _rows(document: Document, key: str) -> list[Document]:
    value = document.get(key)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list | tuple) else []


def clipped(text: str, length: int) -> str:
    """Shorten a text to what the schema allows."""
    return text if len(text) <= length else text[: length - 3] + "..."
