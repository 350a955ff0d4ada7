"""PURE: a decision -> lines for people, every number from the metric to the size.

Why it exists: "why 6 and not 5" is asked at night. The same lines answer it offline and, later, for a live scaler.
"""

from collections.abc import Iterator, Sequence

from controller.core.model import Decision, MetricTrace, Observation

NAMES_SHOWN = 6


def lines(decision: Decision, observation: Observation) -> tuple[str, ...]:
    """Explain one decision, most important last."""
    return (
        *size_line(observation),
        *(line for index, trace in enumerate(decision.trace.metrics, 1) for line in metric_lines(index, trace)),
        *step_lines(decision),
        *condition_lines(decision),
        *(f"warning: {warning}" for warning in decision.trace.warnings),
        *victim_lines(decision),
        f"decision: {observation.replicas} -> {decision.desired} ({decision.reason.value})",
        decision.sentence,
    )


def size_line(observation: Observation) -> tuple[str, ...]:
    """Say what is there."""
    replicas, status, pods = observation.replicas, observation.status_replicas, len(observation.pods)
    seen = "" if status == replicas else f", {status} reported"
    return (f"size: {replicas} asked for{seen}, {pods} pods seen",)


def metric_lines(index: int, trace: MetricTrace) -> Iterator[str]:
    """Say what one metric showed, of which pods, and what it asks for."""
    if trace.proposal is None:
        yield f"metric {index} {trace.metric}: target {trace.target}: no proposal: {trace.error}"
        return
    ratio = "" if trace.ratio is None else f", ratio {trace.ratio:.4g}"
    yield f"metric {index} {trace.metric}: {trace.current}, target {trace.target}{ratio}"
    filled = f" (assumed at {trace.filled_with})" if trace.filled_with else ""
    yield from named("counted", trace.counted)
    yield from named("missing", trace.missing, filled if set(trace.missing) & set(trace.filled) else "")
    yield from named("not ready", trace.unready, filled if set(trace.unready) & set(trace.filled) else "")
    yield from named("warming", trace.warming, " (not averaged, counted as capacity)")
    yield from named("broken", trace.broken, " (neither averaged nor capacity)")
    yield from named("left out", trace.ignored)
    needs = "" if trace.needed is None or trace.needed == trace.proposal else f" (the load needs {trace.needed})"
    why = "" if trace.outcome is None else f", {trace.outcome.value}"
    yield f"  asks for {trace.proposal}{needs}{why}"


def named(what: str, names: Sequence[str], remark: str = "") -> Iterator[str]:
    """Name the first pods of a class and count them."""
    if not names:
        return
    more = "" if len(names) <= NAMES_SHOWN else f" and {len(names) - NAMES_SHOWN} more"
    yield f"  {what} {len(names)}: {', '.join(names[:NAMES_SHOWN])}{more}{remark}"


def step_lines(decision: Decision) -> Iterator[str]:
    """Say how the proposal became the size."""
    for step in decision.trace.steps:
        yield f"{step.stage}: {step.before} -> {step.after}: {step.why}"


def condition_lines(decision: Decision) -> Iterator[str]:
    """Say the conditions, as they are before the write."""
    for one in decision.conditions:
        yield f"condition {one.type}={one.status}/{one.reason.value}: {one.message}"


def victim_lines(decision: Decision) -> Iterator[str]:
    """Say who goes first."""
    if decision.victims:
        yield f"pods to go, in this order: {', '.join(decision.victims)}"
