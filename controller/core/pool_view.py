"""A pool sorted out: which nodes work, come, are lost, are marked, are being removed; and where pods can go.

Why it exists: node facts are untidy (Ready without GPUs, a size without nodes, a mark taken off by hand). They are
put into words once here, so that growing and shrinking reason about the same words.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.core.packing import Bin
from controller.core.pool_model import Node, NodeTemplate, PoolMemory, PoolObservation, PoolPolicy, Taint

_LIFECYCLE = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that Kubernetes itself puts on a node while it starts or is cordoned."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool's nodes, each in exactly one of the groups ``working`` to ``cordoned``.

    ``working``: pods can go there. ``coming``: will be, in time. ``lost``: past the deadline without its GPUs.
    ``marked``: cordoned and marked by us, empty, may still be taken back. ``going``: the size was lowered for it.
    ``freed``: bears our mark and is given back now. ``rescued``: is to be given back, but the size was lowered for it,
    and must be raised first.
    ``cordoned``: by somebody else. ``unseen``: size without nodes; ``unseen_coming``: what of it still counts;
    ``overdue``: what of it should have come, also while more has been ordered since.
    """

    working: tuple[Node, ...]
    coming: tuple[Node, ...]
    lost: tuple[Node, ...]
    marked: tuple[Node, ...]
    going: tuple[Node, ...]
    freed: tuple[Node, ...]
    rescued: tuple[Node, ...]
    cordoned: tuple[Node, ...]
    unseen: int
    unseen_coming: int
    overdue: int
    size_changed_at: float | None
    unseen_since: float | None
    lowered_at: Mapping[str, float]
    """Of the nodes that are going or rescued."""
    lowered_to: int | None

    @property
    def all_coming(self) -> int:
        """Nodes on their way, seen or not."""
        return len(self.coming) + self.unseen_coming


def look(policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory, now: float) -> PoolView:
    """Sort the nodes out. Every ready node works where no template is known."""
    lowered = _lowered(observation, memory, now)
    explained = memory.lowered_to is not None and any(name in memory.lowered_at for name in lowered)
    lowered_to = memory.lowered_to if explained and memory.lowered_to is not None else observation.size
    kept = _kept(policy, observation, lowered, lowered_to, now)
    groups: dict[str, list[Node]] = {}
    for node in sorted(observation.nodes, key=lambda n: n.name):
        group = "freed" if node.name in kept else _group(node, policy, lowered, now)
        groups.setdefault(group, []).append(node)
    take = {name: tuple(nodes) for name, nodes in groups.items()}
    going, rescued = take.get("going", ()), take.get("rescued", ())
    unseen = max(0, observation.size - (len(observation.nodes) - len(going) - len(rescued)))
    since = memory.size_changed_at
    since = now if since is None and unseen else since
    unseen_since = (now if memory.unseen_since is None else memory.unseen_since) if unseen else None
    return PoolView(
        working=take.get("working", ()),
        coming=take.get("coming", ()),
        lost=take.get("lost", ()),
        marked=take.get("marked", ()),
        going=going,
        freed=take.get("freed", ()),
        rescued=rescued,
        cordoned=take.get("cordoned", ()),
        unseen=unseen,
        unseen_coming=unseen if _in_time(policy, now, since, unseen_since) else 0,
        overdue=0 if _in_time(policy, now, unseen_since, *(node.created_at for node in observation.nodes)) else unseen,
        size_changed_at=since,
        unseen_since=unseen_since,
        lowered_at={node.name: lowered[node.name] for node in (*going, *rescued)},
        lowered_to=max(lowered_to, observation.size) if going or rescued else None,
    )


def _in_time(policy: PoolPolicy, now: float, *starts: float | None) -> bool:
    """Whether the deadline that the latest of these began has not passed yet."""
    return any(start is not None and now - start <= policy.provision_deadline_seconds for start in starts)


def _lowered(observation: PoolObservation, memory: PoolMemory, now: float) -> dict[str, float]:
    """Since when the provider is removing which node.

    Where the size is below the nodes there are and memory does not say why (it was lost, or somebody else lowered
    the size), marked nodes are what the provider takes: the size is never lowered a second time for them.
    """
    present = {node.name for node in observation.nodes}
    known = {name: at for name, at in memory.lowered_at.items() if name in present}
    surplus = len(present) - observation.size - len(known)
    unexplained = sorted(node.name for node in observation.nodes if node.marked and node.name not in known)
    return known | dict.fromkeys(unexplained[: max(0, surplus)], now)


def _kept(
    policy: PoolPolicy, observation: PoolObservation, lowered: Mapping[str, float], lowered_to: int, now: float
) -> set[str]:
    """Which of the lowered nodes the provider keeps, because the size was raised since: those in use first."""
    raised = max(0, observation.size - lowered_to)
    nodes = sorted((n for n in observation.nodes if n.name in lowered), key=lambda n: (not _claimed(n), n.name))
    if len(observation.nodes) <= observation.size:
        deadline = now - policy.provision_deadline_seconds
        raised = max(raised, sum(lowered[node.name] < deadline for node in nodes))
        nodes.sort(key=lambda n: (not _claimed(n), lowered[n.name], n.name))
    return {node.name for node in nodes[:raised]}


def _group(node: Node, policy: PoolPolicy, lowered: Mapping[str, float], now: float) -> str:
    if node.name in lowered:
        return "rescued" if _claimed(node) else "going"
    if node.marked:
        return "freed" if _claimed(node) or not policy.scale_down_enabled else "marked"
    if node.cordoned:
        return "cordoned"
    return _readiness(node, policy, now)


def _claimed(node: Node) -> bool:
    """Whether a pod landed on it, or somebody took mark or cordon off, or asked for it to stay."""
    return node.pods > 0 or node.protected or not (node.marked and node.cordoned)


def _readiness(node: Node, policy: PoolPolicy, now: float) -> str:
    template = policy.template
    started = node.ready and not (template and _starting(node, template))
    in_time = now - node.created_at <= policy.provision_deadline_seconds
    if started and (template is None or _gpus_whole(node, template)):
        return "working"
    if in_time:
        return "coming"
    return "working" if started and template and _gpus_any(node, template) else "lost"


def _starting(node: Node, template: NodeTemplate) -> bool:
    return any(_is_startup(taint, template) for taint in node.taints)


def _is_startup(taint: Taint, template: NodeTemplate) -> bool:
    return any((s.key, s.effect) == (taint.key, taint.effect) for s in template.startup_taints)


def _gpus_whole(node: Node, template: NodeTemplate) -> bool:
    return all(node.allocatable.get(r, 0) >= template.allocatable.get(r, 0) for r in template.gpu_resources)


def _gpus_any(node: Node, template: NodeTemplate) -> bool:
    return any(node.allocatable.get(resource, 0) > 0 for resource in template.gpu_resources)


def lasting(taints: Iterable[Taint], template: NodeTemplate) -> tuple[Taint, ...]:
    """Return the taints that stay when the node has started and is not cordoned."""
    return tuple(t for t in taints if not t.key.startswith(_LIFECYCLE) and not _is_startup(t, template))


def bins_of(view: PoolView, template: NodeTemplate) -> list[Bin]:
    """List where pods can go without a new node, best first: working nodes, marked ones, coming ones, going ones."""
    here = [_bin(node, node.allocatable, node.labels, node.taints) for node in view.working]
    returned = [_returned_bin(node, template) for node in (*view.freed, *view.rescued, *view.marked) if node.ready]
    coming = [_coming_bin(node, template) for node in view.coming]
    unseen = [
        Bin(f"unseen/{i}", template.allocatable, template.labels, template.taints) for i in range(view.unseen_coming)
    ]
    going = [_returned_bin(node, template) for node in view.going if node.ready]
    return [*here, *returned, *coming, *unseen, *going]


def _returned_bin(node: Node, template: NodeTemplate) -> Bin:
    """Return a node as it will be when its cordon is taken off."""
    return _bin(node, node.allocatable, node.labels, lasting(node.taints, template))


def _coming_bin(node: Node, template: NodeTemplate) -> Bin:
    """Return a node that has not all of its GPUs, labels and taints yet, as it will be."""
    taints = {*lasting(node.taints, template), *template.taints}
    ordered = tuple(sorted(taints, key=lambda t: (t.key, t.effect, t.value)))
    return _bin(node, template.allocatable, {**node.labels, **template.labels}, ordered)


def _bin(node: Node, offer: Mapping[str, int], labels: Mapping[str, str], taints: tuple[Taint, ...]) -> Bin:
    free = {name: amount - node.requested.get(name, 0) for name, amount in offer.items()}
    return Bin(node.name, free, labels, taints)


def whole_gpus(template: NodeTemplate) -> int:
    """Return the GPUs of one new node."""
    return sum(template.allocatable.get(name, 0) for name in template.gpu_resources) // 1000
