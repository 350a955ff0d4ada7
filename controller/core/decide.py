"""The workload decision: one pure function that runs live, in preview, in the demo, offline and in tests.

Why it exists: whoever asks "what would it do" must get what it does. The order is the HPA's: maintenance at 0, a size
out of bounds, the metrics, stabilisation, rates, bounds. Floors and idleness change the proposal before it is
stabilised, so that no rate is ever passed; victims are chosen last.
"""

from dataclasses import replace
from typing import NamedTuple

from controller.core import behavior, conditions, sentences, victims
from controller.core.model import Condition, Decision, Memory, MetricTrace, Observation, Policy, Reason, Step, Trace
from controller.core.replicas import Combined, combine, differences, evaluate

GOT_SCALE = conditions.able_to_scale(Reason.SUCCEEDED_GET_SCALE)


class Proposal(NamedTuple):
    """A size before any limit (None = nothing may be done), its steps, and ``because`` of what, if not of metrics."""

    size: int | None
    steps: tuple[Step, ...]
    because: Reason | None = None


class Weighed(NamedTuple):
    """What the metrics said, and the size that follows before any limit."""

    metrics: tuple[MetricTrace, ...]
    combined: Combined
    proposal: Proposal
    warnings: tuple[str, ...]


def decide(policy: Policy, observation: Observation, memory: Memory | None, now: float) -> Decision:
    """Decide the size of one workload.

    ``observation.readings`` stands in the order of ``policy.metrics`` (ValueError if their numbers differ). ``now``
    and all times are seconds of the same clock. Never raises for what was observed: a reading that can't be used is a
    hold with its reason.
    """
    remembered = behavior.start(memory, observation.replicas, now)
    decision = without_metrics(policy, observation, remembered)
    if decision is None:
        decision = by_metrics(policy, observation, remembered, now)
    return decision if decision.desired == observation.replicas else as_change(policy, observation, decision, now)


def without_metrics(policy: Policy, observation: Observation, memory: Memory) -> Decision | None:
    """Decide what needs no metrics: a target set to 0 by hand stays there, a size out of bounds goes to the bound."""
    current = observation.replicas
    if current == 0:
        may_wake = memory.scaled_to_zero and (policy.min_replicas != 0 or behavior.wakes(policy))
        return None if may_wake else disabled(memory)
    if current > policy.max_replicas:
        bound, reason, side = policy.max_replicas, Reason.TOO_MANY_REPLICAS, "above maxReplicas"
    elif current < policy.min_replicas:
        bound, reason, side = policy.min_replicas, Reason.TOO_FEW_REPLICAS, "below minReplicas"
    else:
        return None
    why = f"{current} is {side} {bound}, which is corrected at once"
    trace = Trace(steps=(Step("bounds", current, bound, why),))
    sentence = f"Going from {current} to {bound}: {why}."
    return Decision(bound, reason, sentence, memory, (GOT_SCALE,), trace=trace, memory_if_unwritten=memory)


def disabled(memory: Memory) -> Decision:
    """Leave a target at the 0 that somebody else gave it."""
    inactive = conditions.scaling_failed(Reason.SCALING_DISABLED, "the target has 0 replicas, and not by this scaler")
    sentence = "Holding 0: the target was set to 0 by somebody else, which is respected."
    return Decision(0, Reason.SCALING_DISABLED, sentence, memory, (GOT_SCALE, inactive), memory_if_unwritten=memory)


def by_metrics(policy: Policy, observation: Observation, memory: Memory, now: float) -> Decision:
    """Decide from the readings."""
    pairs = zip(policy.metrics, observation.readings, strict=True)
    metrics = tuple([evaluate(metric, reading, policy, observation, now) for metric, reading in pairs])
    combined = combine(metrics, observation.replicas)
    proposal = propose(policy, observation, combined, len(metrics))
    weighed = Weighed(metrics, combined, proposal, differences(policy, observation, metrics, now))
    if proposal.size is None:
        return unable(policy, observation, memory, weighed)
    return normalized(policy, observation, memory, weighed, proposal.size, now)


def propose(policy: Policy, observation: Observation, combined: Combined, metrics: int) -> Proposal:
    """Take the metrics' size, let idleness lower it to 0 and floors raise it."""
    current, size, because = observation.replicas, combined.proposal, None
    steps: tuple[Step, ...] = ()
    if size is not None:
        winner = combined.winner.metric if combined.winner is not None else "no metric"
        why = f"asked for by {winner}" if metrics == 1 else f"{winner} asks for most of {metrics} metrics"
        steps = (Step("metrics", current, size, why),)
        if policy.idle is not None:
            size, because, idle_steps = with_idleness(policy, observation, size)
            steps += idle_steps
    if not observation.floors:
        return Proposal(size, steps, because)
    base = current if size is None else size
    floor = max(observation.floors, key=lambda one: one.replicas)
    if floor.replicas <= base:
        return Proposal(size, steps, because)
    steps += (Step("floor", base, floor.replicas, f"{floor.name} asks for at least {floor.replicas}"),)
    return Proposal(floor.replicas, steps, Reason.FLOOR_IN_FORCE)


def with_idleness(policy: Policy, observation: Observation, size: int) -> tuple[int, Reason | None, tuple[Step, ...]]:
    """Go to 0 on proven idleness, and never for less than that."""
    if is_idle(policy, observation):
        return 0, Reason.SCALED_TO_ZERO, (Step("idle", size, 0, "proven idle for long enough"),)
    if size > 0 or observation.replicas == 0:
        return size, None, ()
    return 1, None, (Step("idle", size, 1, "the last pod goes on proven idleness only"),)


def is_idle(policy: Policy, observation: Observation) -> bool:
    """Tell whether it is proven that the target has done nothing for long enough to go to 0."""
    rules, seen = policy.idle, observation.idleness
    if rules is None or seen is None or policy.min_replicas != 0 or observation.replicas == 0:
        return False
    return seen.seconds >= rules.after_seconds and seen.max_utilization <= rules.max_utilization


def activity(combined: Combined) -> Condition:
    """Give ScalingActive for what the metrics gave."""
    if combined.proposal is not None and combined.winner is not None:
        return conditions.scaling_active(combined.winner.metric)
    error = combined.first_error
    if error is None or error.error_reason is None:
        return conditions.scaling_failed(Reason.INVALID_METRIC_SOURCE_TYPE, "the scaler has no metrics")
    return conditions.scaling_failed(error.error_reason, f"no size could be calculated: {error.error}")


def signal(policy: Policy, weighed: Weighed) -> tuple[Condition, ...]:
    """Give SignalHealthy where the GPU rules are on."""
    return () if policy.gpu is None else (conditions.signal_healthy(weighed.metrics),)


def unable(policy: Policy, observation: Observation, memory: Memory, weighed: Weighed) -> Decision:
    """Hold, because of metrics that could not be had."""
    error, active = weighed.combined.first_error, activity(weighed.combined)
    return Decision(
        desired=observation.replicas,
        reason=active.reason if error is None or error.signal is None else error.signal,
        sentence=sentences.unable(observation.replicas, weighed.combined),
        memory=memory,
        conditions=(GOT_SCALE, active, *signal(policy, weighed)),
        trace=Trace(metrics=weighed.metrics, warnings=weighed.warnings),
        memory_if_unwritten=memory,
    )


def normalized(
    policy: Policy, observation: Observation, memory: Memory, weighed: Weighed, proposed: int, now: float
) -> Decision:
    """Stabilise a proposal, keep it within rates and bounds, and name what decided."""
    current, winner = observation.replicas, weighed.combined.winner
    stable = behavior.stabilize(policy, memory.recommendations, current, proposed, now)
    limited = behavior.limit(policy, memory, current, stable.size, now)
    size = around_zero(policy, observation, memory, limited.size, now)
    if size == current:
        reason = sentences.hold_reason(stable, limited, proposed, winner)
        sentence = sentences.hold(current, reason, winner)
    else:
        because = weighed.proposal.because if size > current or size == 0 else None
        reason = because or sentences.change_reason(current, size, proposed, stable)
        asked = weighed.proposal.steps[-1].why if because is not None else ""
        sentence = sentences.change(current, size, proposed, limited, asked or sentences.reading_of(winner))
    after = behavior.remember(policy, memory, proposed, now)
    return Decision(
        desired=size,
        reason=reason,
        sentence=sentence,
        memory=after,
        conditions=(
            conditions.able_to_scale(stable.reason),
            activity(weighed.combined),
            limitation(stable, limited, size, current, weighed),
            *signal(policy, weighed),
        ),
        trace=Trace(
            proposal=proposed,
            winner="" if winner is None else winner.metric,
            metrics=weighed.metrics,
            steps=(
                *weighed.proposal.steps,
                Step("stabilisation", proposed, stable.size, behavior.WHY[stable.reason]),
                Step("rates and bounds", stable.size, size, behavior.WHY[limited.reason]),
            ),
            warnings=weighed.warnings,
        ),
        memory_if_unwritten=after,
    )


def around_zero(policy: Policy, observation: Observation, memory: Memory, size: int, now: float) -> int:
    """Leave 0 for at least the minimum, and take the last step to 0 only a whole idle time after the last change."""
    if observation.replicas == 0:
        return max(size, policy.min_replicas)
    if size == 0 and policy.idle is not None:
        since = now - policy.idle.after_seconds
        if any(at > since for at, _ in (*memory.up_events, *memory.down_events)):
            return 1
    return size


def limitation(
    stable: behavior.Stable, limited: behavior.Limited, size: int, current: int, weighed: Weighed
) -> Condition:
    """Give ScalingLimited: what kept the size from the stabilised one, or what kept a metric from asking for more."""
    if size <= current and any(one.outcome is Reason.SCALE_UP_BLOCKED for one in weighed.metrics):
        return conditions.scaling_limited(Reason.SCALE_UP_BLOCKED, limited=True)
    return conditions.scaling_limited(limited.reason, limited=limited.size != stable.size)


def as_change(policy: Policy, observation: Observation, decision: Decision, now: float) -> Decision:
    """Complete a decision that changes the size: whom it removes, and what is remembered once it is written."""
    if policy.gpu is not None and policy.gpu.pick_victims and decision.desired < observation.replicas:
        decision = with_victims(policy, observation, decision)
    if decision.desired == observation.replicas:
        return decision
    memory = behavior.written(policy, decision.memory, observation.replicas, decision.desired, now)
    shown = decision.conditions
    if policy.min_replicas == 0 or decision.memory.scaled_to_zero:
        shown = (*shown, conditions.scaled_to_zero(ours=memory.scaled_to_zero))
    return replace(decision, memory=memory, conditions=shown)


def with_victims(policy: Policy, observation: Observation, decision: Decision) -> Decision:
    """Name the pods that go, and shrink by fewer where the others are protected. maxReplicas protects nobody."""
    rules = policy.gpu
    if rules is None:
        return decision
    above_maximum = observation.replicas > policy.max_replicas
    if above_maximum:
        rules = replace(rules, protect_above_utilization=None)
    chosen = victims.choose(rules, observation, decision.desired)
    if chosen.size == decision.desired:
        return replace(decision, victims=chosen.names)
    kept = ", ".join(chosen.protected[:5])
    steps = (
        *decision.trace.steps,
        Step("victims", decision.desired, chosen.size, f"protected as busy or unknown: {kept}"),
    )
    limited = conditions.scaling_limited(Reason.BUSY_PODS_PROTECTED, limited=True)
    return replace(
        decision,
        desired=chosen.size,
        reason=Reason.BUSY_PODS_PROTECTED if chosen.size == observation.replicas else decision.reason,
        sentence=sentences.protected(observation.replicas, chosen.size, decision.desired),
        victims=chosen.names,
        conditions=tuple(limited if one.type == "ScalingLimited" else one for one in decision.conditions),
        trace=replace(decision.trace, steps=steps),
    )
