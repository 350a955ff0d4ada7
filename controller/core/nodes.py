"""The pool decision: from pods that wait or are planned, and the nodes there are, to the size of a node pool.

Why it exists: live operator, preview, demo and offline commands share it. A pool grows at once for pods that fit it,
counts what is on its way before it buys, takes marked nodes back before it buys, and shrinks as pool_shrink.py says.
Sizes are absolute. Nothing is bought for pods that no node of the pool can take: they are named with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.core.model import Reason, Step
from controller.core.packing import Packing, gpus_of, pack
from controller.core.pool_conditions import first_never, pool_conditions
from controller.core.pool_model import (
    NodeTemplate,
    PodClass,
    PoolDecision,
    PoolMemory,
    PoolObservation,
    PoolPolicy,
    PoolTrace,
)
from controller.core.pool_shrink import Idle, Shrink, released_in_time, shrink
from controller.core.pool_view import PoolView, bins_of, lasting, look, whole_gpus


@dataclass(frozen=True, slots=True)
class Demand:
    """What the pods and the headroom ask for.

    ``take_back``: marked nodes that are needed; ``revive``: the same of nodes that the size was lowered for, which
    it is raised for, so that they are taken back when that is seen;
    ``new``: nodes to buy. ``spare_gpus``: whole GPUs free on what is there, coming or bought, when all is placed.
    """

    packing: Packing
    waiting: int = 0
    take_back: tuple[str, ...] = ()
    revive: tuple[str, ...] = ()
    new: int = 0
    new_for_headroom: int = 0
    spare_gpus: int = 0


@dataclass(frozen=True, slots=True)
class Growth:
    """The size after growing: ``wanted`` before limits, ``desired`` within them; ``limit`` is what cut it."""

    base: int
    wanted: int
    desired: int
    revive: tuple[str, ...] = ()
    limit: Reason | None = None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is done, and why."""

    desired: int
    reason: Reason
    sentence: str
    mark: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    limit: Reason | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)


def decide_pool(
    policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory | None, now: float
) -> PoolDecision:
    """Decide the size of a pool and which nodes to mark or release. ``now`` and all times are of one clock."""
    memory = memory or PoolMemory()
    template = policy.template
    if template is not None:
        template = replace(template, taints=lasting(template.taints, template))
        policy = replace(policy, template=template)
    view = look(policy, observation, memory, now)
    demand = _demand(policy, observation, view, template)
    growth = _grow(policy, observation, view, demand)
    idle = _idle(policy, observation, view, memory, demand, now)
    outcome = _outcome(policy, observation, view, demand, growth, memory, idle, now)
    outcome = replace(outcome, release=released_in_time(observation, outcome.release))
    return PoolDecision(
        desired=outcome.desired,
        reason=outcome.reason,
        sentence=outcome.sentence,
        memory=_remember(observation, view, memory, idle, outcome, now),
        mark=outcome.mark,
        release=outcome.release,
        remove=outcome.remove,
        conditions=pool_conditions(policy, view, demand.packing.never_fit, outcome.limit, short=demand.new > 0),
        trace=_trace(policy, observation, view, demand, growth, outcome),
    )


# --- demand -------------------------------------------------------------------------------------------------------


def _demand(policy: PoolPolicy, observation: PoolObservation, view: PoolView, template: NodeTemplate | None) -> Demand:
    if template is None:
        return Demand(Packing())
    classes = (*observation.pending, *observation.planned)
    packing = pack(classes, template, bins_of(view, template))
    never = sum(fault.pods.count for fault in packing.never_fit)
    placed = packing.placed
    take_back = [node.name for node in view.marked if node.name in placed]
    revive = [node.name for node in view.going if node.name in placed]
    spare = packing.spare_gpus_on_new + sum(
        gpus for name, gpus in packing.spare_gpus.items() if name not in _set_aside(view) or name in placed
    )
    for node in (*view.marked, *view.going):
        gpus = packing.spare_gpus.get(node.name, 0)
        if spare < policy.headroom_gpus and node.name not in placed and gpus:
            (take_back if node in view.marked else revive).append(node.name)
            spare += gpus
    per_node = whole_gpus(template)
    more = max(0, -(-(policy.headroom_gpus - spare) // per_node)) if per_node else 0
    return Demand(
        packing=packing,
        waiting=sum(pods.count for pods in classes) - never,
        take_back=tuple(take_back),
        revive=tuple(revive),
        new=packing.new_nodes + more,
        new_for_headroom=more,
        spare_gpus=spare + more * per_node,
    )


def _set_aside(view: PoolView) -> set[str]:
    return {node.name for node in (*view.marked, *view.going)}


def _idle(
    policy: PoolPolicy,
    observation: PoolObservation,
    view: PoolView,
    memory: PoolMemory,
    demand: Demand,
    now: float,
) -> Idle:
    """Keep since when each empty node is not needed; a node that pods are counted on starts anew."""
    coming = {node.name for node in view.coming}
    unneeded = {
        node.name: memory.unneeded_since.get(node.name, now)
        for node in observation.nodes
        if node.pods == 0 and node.name not in demand.packing.placed and node.name not in coming
    }
    return Idle(unneeded, demand.packing.spare_gpus, demand.spare_gpus - policy.headroom_gpus)


# --- growing ------------------------------------------------------------------------------------------------------


def _grow(policy: PoolPolicy, observation: PoolObservation, view: PoolView, demand: Demand) -> Growth:
    """Add what is needed to the size, within step and maximum; a size below the minimum goes there at once."""
    base = observation.size + len(view.rescued)
    wanted = base + len(demand.revive) + demand.new
    room = max(0, policy.max_nodes - base)
    revive = demand.revive[:room]
    stepped = _stepped(policy, view, demand.new)
    added = min(stepped, room - len(revive))
    limit = None
    if added < demand.new or len(revive) < len(demand.revive):
        limit = Reason.POOL_AT_MAXIMUM if added < stepped or revive != demand.revive else Reason.SCALE_UP_LIMIT
    within = base + len(revive) + added
    desired = max(within, policy.min_nodes)
    steps = (
        Step("nodes needed", observation.size, wanted, _needed_text(view, demand)),
        Step("step", wanted, base + len(demand.revive) + stepped, f"at most {policy.max_step_up or 'any'} unseen"),
        Step("maximum", base + len(demand.revive) + stepped, within, f"at most {policy.max_nodes} nodes"),
        Step("minimum", within, desired, f"at least {policy.min_nodes} nodes"),
    )
    return Growth(base, wanted, desired, revive, limit, tuple(s for s in steps if s.before != s.after))


def _stepped(policy: PoolPolicy, view: PoolView, new: int) -> int:
    if policy.max_step_up <= 0:
        return new
    return min(new, max(0, policy.max_step_up - view.unseen_coming))


def _needed_text(view: PoolView, demand: Demand) -> str:
    parts = [f"{demand.new - demand.new_for_headroom} new for pods", f"{demand.new_for_headroom} for headroom"]
    if view.rescued or demand.revive:
        parts.append(f"{len(view.rescued) + len(demand.revive)} kept that were to go")
    return ", ".join(parts)


# --- what is done -------------------------------------------------------------------------------------------------


def _outcome(
    policy: PoolPolicy,
    observation: PoolObservation,
    view: PoolView,
    demand: Demand,
    growth: Growth,
    memory: PoolMemory,
    idle: Idle,
    now: float,
) -> Outcome:
    release = (*(node.name for node in view.freed), *demand.take_back)
    situation = _situation(policy, observation, view, demand)
    if growth.desired > observation.size:
        reason, why = _growth_reason(observation, demand, growth)
        sentence = f"{situation}: {observation.size} -> {growth.desired}, {why}"
        return Outcome(growth.desired, reason, sentence, release=release, limit=growth.limit)
    size = observation.size
    if policy.template is None:
        sentence = f"{situation}: what a new node offers is not known; declare template or bring up one node"
        return Outcome(size, Reason.TEMPLATE_UNKNOWN, sentence, release=release)
    if release:
        sentence = f"{situation}: {', '.join(release)} taken back instead of buying or because in use"
        return Outcome(size, Reason.NODES_RELEASED, sentence, release=release, limit=growth.limit)
    held = _held(policy, view, demand, growth)
    if held is not None:
        reason, why = held
        return Outcome(size, reason, f"{situation}: {size} nodes kept, {why}", limit=growth.limit)
    return _shrunk(policy, observation, demand, shrink(policy, observation, view, memory, idle, now), situation)


def _growth_reason(observation: PoolObservation, demand: Demand, growth: Growth) -> tuple[Reason, str]:
    nodes = growth.desired - observation.size
    if growth.wanted <= observation.size or growth.desired > growth.wanted:
        return Reason.POOL_AT_MINIMUM, "raised to the minimum"
    more = f"{nodes} more {'node is' if nodes == 1 else 'nodes are'} needed"
    if growth.limit is not None:
        more += f" now, {growth.wanted - growth.desired} more are held back by the limit"
    if growth.base > observation.size and not demand.new:
        return Reason.NODES_RELEASED, "a node that was to go is in use again"
    if demand.new + len(demand.revive) == demand.new_for_headroom:
        return Reason.HEADROOM_SHORT, f"{more} for the headroom"
    return (Reason.PENDING_GPU_PODS if observation.pending else Reason.PLANNED_REPLICAS), more


def _held(policy: PoolPolicy, view: PoolView, demand: Demand, growth: Growth) -> tuple[Reason, str] | None:
    """Why the size stays although something is asked for; None = nobody asks, so the pool may shrink."""
    if growth.limit is Reason.POOL_AT_MAXIMUM:
        short = growth.wanted - growth.desired
        return Reason.POOL_AT_MAXIMUM, f"{short} more would be needed, but the maximum is {policy.max_nodes}"
    if growth.limit is not None:
        return (
            growth.limit,
            f"{view.unseen_coming} ordered nodes are to be seen first, the step is {policy.max_step_up}",
        )
    if demand.waiting and _counts_on_coming(view, demand):
        return Reason.CAPACITY_ARRIVING, f"{view.all_coming} on their way have room for all that waits"
    if demand.waiting:
        return Reason.DEMAND_MET, "the nodes that are ready have room for all that waits"
    if view.unseen_coming:
        return Reason.CAPACITY_ARRIVING, f"{view.unseen_coming} ordered nodes are not seen yet"
    return None


def _counts_on_coming(view: PoolView, demand: Demand) -> bool:
    coming = {node.name for node in view.coming}
    return any(name in coming or name.startswith("unseen/") for name in demand.packing.placed)


def _shrunk(policy: PoolPolicy, observation: PoolObservation, demand: Demand, found: Shrink, situation: str) -> Outcome:
    size = observation.size
    desired = size - len(found.remove)
    limiting = found.reason in (Reason.VICTIM_NOT_NAMEABLE, Reason.POOL_AT_MINIMUM)
    limit: Reason | None = found.reason if limiting else None
    reason, sentence = found.reason, f"{situation}: {found.sentence}"
    if found.remove:
        sentence += f": {size} -> {desired}"
    elif demand.packing.never_fit and not found.acts:
        reason = Reason.NEVER_FITS
        sentence = f"{situation}: {first_never(demand.packing.never_fit)}"
    if size > policy.max_nodes:
        limit = Reason.POOL_AT_MAXIMUM
    return Outcome(desired, reason, sentence, found.mark, found.release, found.remove, limit, found.blocked)


def _situation(policy: PoolPolicy, observation: PoolObservation, view: PoolView, demand: Demand) -> str:
    pending, planned = _count(observation.pending), _count(observation.planned)
    waits = "1 pod waits" if pending == 1 else f"{pending} pods wait"
    asked = f"{waits} and {_are(planned)} planned" if planned else waits
    gpus = _requested_gpus(policy, observation)
    wants = f" ({gpus:g} GPU{'' if gpus == 1 else 's'})" if gpus else ""
    never = sum(fault.pods.count for fault in demand.packing.never_fit)
    unfit = f", {never} of them never fit" if never else ""
    works = "1 node works" if len(view.working) == 1 else f"{len(view.working)} nodes work"
    return f"{asked}{wants}{unfit}; {works}, {_are(view.all_coming)} coming"


def _are(count: int) -> str:
    return "1 is" if count == 1 else f"{count} are"


def _count(classes: tuple[PodClass, ...]) -> int:
    return sum(pods.count for pods in classes)


def _requested_gpus(policy: PoolPolicy, observation: PoolObservation) -> float:
    names = policy.template.gpu_resources if policy.template else ("nvidia.com/gpu",)
    return sum(gpus_of(p.requests, names) * p.count for p in (*observation.pending, *observation.planned)) / 1000


# --- what is kept and shown ---------------------------------------------------------------------------------------


def _remember(
    observation: PoolObservation, view: PoolView, memory: PoolMemory, idle: Idle, outcome: Outcome, now: float
) -> PoolMemory:
    released = set(outcome.release)
    held = {node.name for node in (*view.marked, *view.going, *view.rescued)} - released
    marked = {name: memory.marked_at.get(name, now) for name in sorted(held | set(outcome.mark))}
    ours = {node.name for node in view.marked}
    lowered = {**view.lowered_at, **{name: now for name in outcome.remove if name in ours}}
    return PoolMemory(
        unneeded_since={name: at for name, at in idle.unneeded_since.items() if name not in released},
        marked_at=marked,
        lowered_at=lowered,
        lowered_to=outcome.desired if outcome.remove and lowered else view.lowered_to,
        size_changed_at=_size_changed_at(observation, view, memory, outcome, now),
        unseen_since=view.unseen_since,
    )


def _size_changed_at(
    observation: PoolObservation, view: PoolView, memory: PoolMemory, outcome: Outcome, now: float
) -> float | None:
    if outcome.desired > observation.size:
        return now
    return view.size_changed_at if view.unseen else memory.size_changed_at


def _trace(
    policy: PoolPolicy,
    observation: PoolObservation,
    view: PoolView,
    demand: Demand,
    growth: Growth,
    outcome: Outcome,
) -> PoolTrace:
    steps = growth.steps
    if outcome.desired < observation.size:
        steps = (*steps, Step("shrink", observation.size, outcome.desired, outcome.sentence))
    return PoolTrace(
        pending_pods=_count(observation.pending),
        planned_pods=_count(observation.planned),
        requested_gpus=_requested_gpus(policy, observation),
        nodes_ready=len(view.working),
        nodes_coming=view.all_coming,
        nodes_needed=growth.wanted,
        steps=steps,
        never_fit={name: fault.reason for fault in demand.packing.never_fit for name in fault.pods.names},
        blocked=outcome.blocked,
    )
