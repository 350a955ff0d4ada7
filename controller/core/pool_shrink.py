"""When and by which nodes a pool shrinks.

Why it exists: removing a node is the one thing that can't be undone. A pool gets smaller only by nodes that are empty,
that nobody has needed for a while, and that the provider will remove by name: they are cordoned and marked first, and
the size follows one tick later, if every marked node is still empty. Without a mark that the provider honours a pool
is shrunk only if all of it is cordoned and empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.core.model import Reason
from controller.core.pool_model import Node, PoolMemory, PoolObservation, PoolPolicy
from controller.core.pool_view import PoolView

SETTLE_SECONDS = 1.0
"""A pass may follow another at once; a pod that the scheduler bound before it saw the cordon needs time to be seen."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """What to do: ``remove`` nodes by lowering the size, ``mark`` or ``release`` nodes, or nothing and why."""

    reason: Reason
    sentence: str
    remove: tuple[str, ...] = ()
    mark: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        """Whether anything changes."""
        return bool(self.remove or self.mark or self.release)


@dataclass(frozen=True, slots=True)
class Idle:
    """What a shrink goes by: since when nodes are unneeded, whole GPUs free on each, and free beyond the headroom."""

    unneeded_since: Mapping[str, float]
    spare_gpus: Mapping[str, int]
    gpus_to_give: int


def shrink(
    policy: PoolPolicy, observation: PoolObservation, view: PoolView, memory: PoolMemory, idle: Idle, now: float
) -> Shrink:
    """Decide on a shrink of a pool that nobody waits for."""
    if not policy.scale_down_enabled:
        return Shrink(Reason.DEMAND_MET, "scaling down is switched off")
    if view.going:
        return Shrink(Reason.NODES_UNNEEDED, f"waits until the provider has removed {_names(view.going)}")
    doubt = _doubt(observation, view)
    if doubt:
        return Shrink(Reason.VICTIM_NOT_NAMEABLE, doubt)
    if view.marked:
        return _finish(policy, observation, view, memory, now)
    if _whole_pool_cordoned(observation):
        return _all_cordoned(policy, observation, view, idle, now)
    return _begin(policy, observation, view, idle, now)


def released_in_time(observation: PoolObservation, release: tuple[str, ...]) -> tuple[str, ...]:
    """Keep marks on while the provider has yet to remove as many nodes: without one to go by it would choose itself.

    They come off when the raised size has been seen.
    """
    marked = {node.name for node in observation.nodes if node.marked}
    spare = max(0, len(marked) - max(0, len(observation.nodes) - observation.size))
    names = []
    for name in release:
        if name in marked and spare == 0:
            continue
        spare -= name in marked
        names.append(name)
    return tuple(names)


def _whole_pool_cordoned(observation: PoolObservation) -> bool:
    return bool(observation.nodes) and all(node.cordoned for node in observation.nodes)


def _doubt(observation: PoolObservation, view: PoolView) -> str:
    """Say why the provider could take another node than the one that is chosen; empty = it could not."""
    uncounted = len(observation.nodes) - len(view.rescued) - observation.size
    if uncounted > 0:
        return (
            f"nodeSelector matches {uncounted} nodes more than the pool's size, so that a chosen node may not be of "
            "this pool: they are still going, or nodeSelector is too wide"
        )
    foreign = next((node for node in observation.nodes if node.foreign_mark), None)
    if foreign is None or (_whole_pool_cordoned(observation) and not view.marked):
        return ""
    return f"{foreign.name} bears the mark {foreign.foreign_mark} of somebody else: the provider could take it instead"


def _finish(policy: PoolPolicy, observation: PoolObservation, view: PoolView, memory: PoolMemory, now: float) -> Shrink:
    """Lower the size for the marked nodes: for all of them at once, or the provider could choose among them."""
    fresh = [node.name for node in view.marked if now - memory.marked_at.get(node.name, now) < SETTLE_SECONDS]
    if fresh:
        return Shrink(Reason.NODES_MARKED, f"{', '.join(fresh)} cordoned and marked; the size follows if still empty")
    names = tuple(node.name for node in view.marked)
    room = max(0, observation.size - policy.min_nodes)
    if room < len(names):
        sentence = f"the pool may not go below {policy.min_nodes} nodes"
        return Shrink(Reason.NODES_RELEASED, sentence, release=names[room:])
    return Shrink(
        Reason.NODES_UNNEEDED, f"{', '.join(names)} {_are(len(names))} cordoned, marked and still empty", remove=names
    )


def _all_cordoned(policy: PoolPolicy, observation: PoolObservation, view: PoolView, idle: Idle, now: float) -> Shrink:
    """Shrink by count, which is safe only here: whichever nodes the provider takes, nobody uses them."""
    blocked = {n.name: why for n in observation.nodes if (why := _why_kept(n, policy, idle, now))}
    if view.unseen:
        return Shrink(Reason.VICTIM_NOT_NAMEABLE, f"{view.unseen} ordered nodes are not seen yet", blocked=blocked)
    if blocked:
        first = min(blocked)
        sentence = f"every node is cordoned, but {first} {blocked[first]}"
        return Shrink(Reason.QUIET_TIME, sentence, blocked=blocked)
    gone = observation.size - policy.min_nodes
    if gone <= 0:
        return Shrink(Reason.POOL_AT_MINIMUM, f"the pool may not go below {policy.min_nodes} nodes")
    names = tuple(node.name for node in observation.nodes)[:gone]
    return Shrink(Reason.NODES_UNNEEDED, f"all {len(observation.nodes)} nodes are cordoned and empty", remove=names)


def _begin(policy: PoolPolicy, observation: PoolObservation, view: PoolView, idle: Idle, now: float) -> Shrink:
    """Choose the nodes to mark, longest unneeded first, nodes without their GPUs before all."""
    empty = [node for node in (*view.lost, *view.working) if node.pods == 0]
    blocked = _blocked(view, policy, idle, now)
    able = [node for node in empty if node.name not in blocked]
    lost = {node.name for node in view.lost}
    able.sort(key=lambda n: (n.name not in lost, idle.unneeded_since.get(n.name, now), n.name))
    chosen = _within_limits(able, policy, observation, idle, blocked)
    if not chosen:
        return _nothing(policy, idle, empty, blocked, now)
    if not policy.nameable:
        sentence = (
            f"{_names(chosen)} {_are(len(chosen))} empty and unneeded, but the provider may remove any node: "
            "set pool.victimMark, or cordon the whole pool when it is empty"
        )
        return Shrink(Reason.VICTIM_NOT_NAMEABLE, sentence, blocked=blocked)
    sentence = f"{_names(chosen)} {_are(len(chosen))} empty and unneeded for at least {policy.quiet_seconds:g} s"
    return Shrink(Reason.NODES_MARKED, sentence, mark=tuple(n.name for n in chosen), blocked=blocked)


def _blocked(view: PoolView, policy: PoolPolicy, idle: Idle, now: float) -> dict[str, str]:
    """Say why nodes stay that do no GPU work."""
    found = {node.name: "is cordoned, but not by this scaler" for node in view.cordoned if node.pods == 0}
    for node in (*view.lost, *view.working):
        if node.pods == 0:
            why = _why_kept(node, policy, idle, now)
        else:
            why = f"holds {node.pods} pods that use no GPU" if not _uses_gpus(node, policy) else ""
        if why:
            found[node.name] = why
    return found


def _uses_gpus(node: Node, policy: PoolPolicy) -> bool:
    names = policy.template.gpu_resources if policy.template else ()
    return any(node.requested.get(name, 0) for name in names)


def _why_kept(node: Node, policy: PoolPolicy, idle: Idle, now: float) -> str:
    """Say why an empty node may not go yet; empty = it may."""
    age, unneeded = now - node.created_at, now - idle.unneeded_since.get(node.name, now)
    if node.pods:
        return f"holds {node.pods} pods"
    if node.protected:
        return "is protected from removal"
    if age < policy.min_node_age_seconds:
        return f"is {age:.0f} s old, and stays until {policy.min_node_age_seconds:g} s"
    if unneeded < policy.quiet_seconds:
        return f"is unneeded for {unneeded:.0f} s, and stays until {policy.quiet_seconds:g} s"
    return ""


def _within_limits(
    able: list[Node], policy: PoolPolicy, observation: PoolObservation, idle: Idle, blocked: dict[str, str]
) -> list[Node]:
    """Keep what minimum and headroom need; the nodes that stay for it are added to ``blocked``."""
    room, to_give = observation.size - policy.min_nodes, idle.gpus_to_give
    chosen: list[Node] = []
    for node in able:
        gpus = idle.spare_gpus.get(node.name, 0)
        if len(chosen) >= room:
            blocked[node.name] = f"is kept for the minimum of {policy.min_nodes} nodes"
        elif gpus > max(0, to_give):
            blocked[node.name] = f"is kept for the headroom of {policy.headroom_gpus} GPUs"
        else:
            chosen.append(node)
            to_give -= gpus
    return chosen


def _nothing(policy: PoolPolicy, idle: Idle, empty: list[Node], blocked: Mapping[str, str], now: float) -> Shrink:
    """Say why nothing shrinks."""
    if not empty:
        return Shrink(Reason.DEMAND_MET, "every node that works is in use", blocked=blocked)
    kept_for_minimum = sum("minimum" in blocked.get(node.name, "") for node in empty)
    if kept_for_minimum:
        sentence = f"{kept_for_minimum} empty nodes are kept for the minimum of {policy.min_nodes}"
        return Shrink(Reason.POOL_AT_MINIMUM, sentence, blocked=blocked)
    waits = [_seconds_left(node, policy, idle, now) for node in empty if not node.protected]
    left = [wait for wait in waits if wait > 0]
    if left:
        sentence = f"{len(left)} empty nodes; the first may go in {min(left):.0f} s, if it is not needed"
        return Shrink(Reason.QUIET_TIME, sentence, blocked=blocked)
    first = empty[0].name
    return Shrink(
        Reason.DEMAND_MET, f"{len(empty)} empty nodes stay: {first} {blocked.get(first, '')}", blocked=blocked
    )


def _seconds_left(node: Node, policy: PoolPolicy, idle: Idle, now: float) -> float:
    """Return how long until age and quiet time are over."""
    unneeded = now - idle.unneeded_since.get(node.name, now)
    return max(policy.quiet_seconds - unneeded, policy.min_node_age_seconds - (now - node.created_at))


def _names(nodes: tuple[Node, ...] | list[Node]) -> str:
    names = [node.name for node in nodes[:3]]
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return ", ".join(names) + more


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
