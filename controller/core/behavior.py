"""From a proposal to the size that may be had now: stabilisation, rate policies, bounds, and the memory they need.

Why it exists: this is the part of a decision that looks back. Two paths as in the HPA, which differ in more than
their defaults: a spec without ``behavior`` (the older rules) and one with it. Which edges of a window are inside is
part of the contract: a recommendation exactly one window old counts without ``behavior`` and not with it.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from controller.core.arithmetic import INT32_MAX, ceil32
from controller.core.model import Behavior, Memory, Policy, RatePolicy, Reason, ScalingRules, Source

Dated = tuple[tuple[float, int], ...]

LEGACY_SYNC_SECONDS = 15
"""Without ``behavior`` the HPA at most doubles per sync, and it syncs this often; a faster tick grows no faster."""
LEGACY_FREE_SIZE = 4


class Stable(NamedTuple):
    """A stabilised size, and the reason why it isn't the proposal (READY_FOR_NEW_SCALE if it is)."""

    size: int
    reason: Reason


class Limited(NamedTuple):
    """A size within rates and bounds, and what limited it (DESIRED_WITHIN_RANGE if nothing did)."""

    size: int
    reason: Reason


def start(memory: Memory | None, current: int, now: float) -> Memory:
    """Give the memory to decide with. The first decision of all remembers the current size, as the HPA does.

    Times of a clock that was ahead become ``now``: a window may get longer that way, never shorter.
    """
    if memory is None:
        return Memory(recommendations=((now, current),))
    dated = (memory.recommendations, memory.up_events, memory.down_events)
    if all(entry[0] <= now for entries in dated for entry in entries):
        return memory
    recommendations, up_events, down_events = (
        tuple((min(at, now), value) for at, value in entries) for entries in dated
    )
    return Memory(recommendations, up_events, down_events, memory.scaled_to_zero)


def resumed(memory: Memory, now: float) -> Memory:
    """Go on after a time in which no size could be told: it counts in no stabilisation window.

    All recommendations become as much younger as the newest one is old. Otherwise an outage as long as a window would
    empty it, and the first reading after it would decide alone. Changes that were written keep their time.
    """
    newest = max((at for at, _ in memory.recommendations), default=now)
    missed = max(0.0, now - newest)
    return replace(memory, recommendations=tuple((at + missed, size) for at, size in memory.recommendations))


def stabilize(policy: Policy, recommendations: Dated, current: int, proposal: int, now: float) -> Stable:
    """Hold a proposal against the recent ones, by the rules for a spec with or without ``behavior``."""
    if policy.behavior is None:
        return stabilize_down(policy.downscale_stabilization_seconds, recommendations, proposal, now)
    return stabilize_both(policy.behavior, recommendations, current, proposal, now)


def stabilize_down(window: float, recommendations: Dated, proposal: int, now: float) -> Stable:
    """Take the largest recommendation of the window, whichever way the size is going."""
    since = now - window
    size = max([proposal, *[value for at, value in recommendations if at >= since]])
    return Stable(size, Reason.READY_FOR_NEW_SCALE if size == proposal else Reason.SCALE_DOWN_STABILIZED)


def stabilize_both(behavior: Behavior, recommendations: Dated, current: int, proposal: int, now: float) -> Stable:
    """Move the current size into what the recent recommendations agree on: up to the least, down to the largest."""
    up_since = now - behavior.scale_up.stabilization_window_seconds
    down_since = now - behavior.scale_down.stabilization_window_seconds
    lowest = highest = proposal
    for at, value in recommendations:
        if at > up_since and value < lowest:
            lowest = value
        if at > down_since and value > highest:
            highest = value
    size = min(max(current, lowest), highest)
    if size == proposal:
        return Stable(size, Reason.READY_FOR_NEW_SCALE)
    return Stable(size, Reason.SCALE_UP_STABILIZED if proposal >= current else Reason.SCALE_DOWN_STABILIZED)


def limit(policy: Policy, memory: Memory, current: int, size: int, now: float) -> Limited:
    """Keep a stabilised size within the rate policies and the bounds."""
    if policy.behavior is None:
        return limit_without_behavior(policy, memory, current, size, now)
    if size > current:
        return limit_up(policy, policy.behavior.scale_up, memory, current, size, now)
    if size < current:
        return limit_down(policy, policy.behavior.scale_down, memory, current, size, now)
    return Limited(size, Reason.DESIRED_WITHIN_RANGE)


def limit_without_behavior(policy: Policy, memory: Memory, current: int, size: int, now: float) -> Limited:
    """Allow twice the size of one HPA sync ago, or 4 where that is more."""
    before = size_before(memory, current, LEGACY_SYNC_SECONDS, now)
    rate = max(2 * before, LEGACY_FREE_SIZE, current)
    if size < policy.min_replicas:
        return Limited(policy.min_replicas, Reason.TOO_FEW_REPLICAS)
    if size > min(rate, policy.max_replicas):
        if policy.max_replicas > rate:
            return Limited(rate, Reason.SCALE_UP_LIMIT)
        return Limited(policy.max_replicas, Reason.TOO_MANY_REPLICAS)
    return Limited(size, Reason.DESIRED_WITHIN_RANGE)


def limit_up(policy: Policy, rules: ScalingRules, memory: Memory, current: int, size: int, now: float) -> Limited:
    """Apply the scale-up rates, then the maximum."""
    rate = max(rate_up(rules, memory, current, now), current)
    if size <= min(rate, policy.max_replicas):
        return Limited(size, Reason.DESIRED_WITHIN_RANGE)
    if policy.max_replicas > rate:
        return Limited(rate, Reason.SCALE_UP_LIMIT)
    return Limited(policy.max_replicas, Reason.TOO_MANY_REPLICAS)


def limit_down(policy: Policy, rules: ScalingRules, memory: Memory, current: int, size: int, now: float) -> Limited:
    """Apply the scale-down rates, then the minimum."""
    rate = min(rate_down(rules, memory, current, now), current)
    if size >= max(rate, policy.min_replicas):
        return Limited(size, Reason.DESIRED_WITHIN_RANGE)
    if policy.min_replicas < rate:
        return Limited(rate, Reason.SCALE_DOWN_LIMIT)
    return Limited(policy.min_replicas, Reason.TOO_FEW_REPLICAS)


def rate_up(rules: ScalingRules, memory: Memory, current: int, now: float) -> int:
    """Give the largest size that the policies allow; ``Min`` takes the policy that changes least."""
    if rules.select_policy == "Disabled":
        return current
    sizes = [grown(policy, size_before(memory, current, policy.period_seconds, now)) for policy in rules.policies]
    if rules.select_policy == "Min":
        return min([INT32_MAX, *sizes])
    return max([-INT32_MAX - 1, *sizes])


def rate_down(rules: ScalingRules, memory: Memory, current: int, now: float) -> int:
    """Give the smallest size that the policies allow; ``Min`` takes the policy that changes least."""
    if rules.select_policy == "Disabled":
        return current
    sizes = [shrunk(policy, size_before(memory, current, policy.period_seconds, now)) for policy in rules.policies]
    if rules.select_policy == "Min":
        return max([-INT32_MAX - 1, *sizes])
    return min([INT32_MAX, *sizes])


def size_before(memory: Memory, current: int, period: float, now: float) -> int:
    """Give the size at the start of the period: the current one less what was added in it, plus what was removed."""
    if not memory.up_events and not memory.down_events:
        return current
    since = now - period
    added = sum(change for at, change in memory.up_events if at > since)
    removed = sum(change for at, change in memory.down_events if at > since)
    return current - added + removed


def grown(policy: RatePolicy, before: int) -> int:
    """Give the size after one period of growth; a percentage rounds up, so that growth is always possible."""
    if policy.kind == "Pods":
        return before + policy.value
    return ceil32(float(before) * (1 + policy.value / 100))


def shrunk(policy: RatePolicy, before: int) -> int:
    """Give the size after one period of shrinking; a percentage cuts off what stays, so that it can always shrink."""
    if policy.kind == "Pods":
        return before - policy.value
    return int(float(before) * (1 - policy.value / 100))


def remember(policy: Policy, memory: Memory, proposal: int, now: float) -> Memory:
    """Record a proposal as it was before stabilisation, and forget recommendations that can't win any more.

    One can win only while nothing later is as large (on the way down) or as small (on the way up): what is later
    stays in every window for longer.
    """
    since = now - longest_window(policy)
    kept = [(now, proposal)]
    highest = lowest = proposal
    for entry in reversed(memory.recommendations):
        if entry[0] < since:
            continue
        value = entry[1]
        if value > highest:
            highest = value
        elif value < lowest:
            lowest = value
        else:
            continue
        kept.append(entry)
    kept.reverse()
    return Memory(tuple(kept), memory.up_events, memory.down_events, memory.scaled_to_zero)


def longest_window(policy: Policy) -> float:
    """Give how far back a recommendation can matter, in seconds."""
    behavior = policy.behavior
    if behavior is None:
        return policy.downscale_stabilization_seconds
    return max(behavior.scale_up.stabilization_window_seconds, behavior.scale_down.stabilization_window_seconds)


def written(policy: Policy, memory: Memory, before: int, after: int, now: float) -> Memory:
    """Record a change of size that was written."""
    if after == before:
        return memory
    up, down = longest_period(policy, rising=True), longest_period(policy, rising=False)
    up_events, down_events = memory.up_events, memory.down_events
    if after > before:
        up_events = with_event(up_events, (now, after - before), now - up, droppable=up >= down)
    else:
        down_events = with_event(down_events, (now, before - after), now - down, droppable=down >= up)
    ours = after == 0 and policy.min_replicas == 0 and wakes(policy)
    return Memory(memory.recommendations, up_events, down_events, ours)


def wakes(policy: Policy) -> bool:
    """Tell whether the size can rise from 0 again: by a metric that needs no pods, or by the rules for idleness."""
    return policy.idle is not None or any(one.source in (Source.OBJECT, Source.EXTERNAL) for one in policy.metrics)


def with_event(events: Dated, event: tuple[float, int], since: float, *, droppable: bool) -> Dated:
    """Put an event in the place of the last outdated one, or at the end: so the HPA does, and so it forgets.

    ``droppable``: nothing looks back further than this direction's own rules, so that all outdated ones can go.
    """
    outdated = [index for index, (at, _) in enumerate(events) if at < since]
    if droppable:
        return (*[entry for entry in events if entry[0] >= since], event)
    if not outdated:
        return (*events, event)
    return (*events[: outdated[-1]], event, *events[outdated[-1] + 1 :])


def longest_period(policy: Policy, *, rising: bool) -> float:
    """Give how far back the changes of one direction are kept by the rules of that direction, in seconds."""
    idle = policy.idle.after_seconds if policy.idle is not None else 0.0
    if policy.behavior is None:
        return max(float(LEGACY_SYNC_SECONDS), idle)
    rules = policy.behavior.scale_up if rising else policy.behavior.scale_down
    return max(math.ceil(idle), *[policy.period_seconds for policy in rules.policies])


WHY = {  # how the stages above say what they did
    Reason.READY_FOR_NEW_SCALE: "nothing recent says otherwise",
    Reason.SCALE_DOWN_STABILIZED: "a recent recommendation was higher, so the highest one of the window counts",
    Reason.SCALE_UP_STABILIZED: "a recent recommendation was lower, so the lowest one of the window counts",
    Reason.DESIRED_WITHIN_RANGE: "within rates and bounds",
    Reason.SCALE_UP_LIMIT: "the rate policies allow no faster growth",
    Reason.SCALE_DOWN_LIMIT: "the rate policies allow no faster shrinking",
    Reason.TOO_MANY_REPLICAS: "maxReplicas allows no more",
    Reason.TOO_FEW_REPLICAS: "minReplicas allows no fewer",
}
