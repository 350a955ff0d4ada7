"""PURE: nodes, pods and this tick's plans -> what one node-pool decision looks at.

Why it exists beside observe.py: a pool is looked at from the side of nodes, and what a new node will offer is learned
from the real ones.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.core.pool_model import Node, NodeTemplate, PodClass, PoolObservation
from controller.facts import MARKED_BY, NodeFacts, PodFacts, Shape, is_gpu
from controller.labels import PodIndex
from controller.pool_spec import PoolSpec

_NAMED = 3
# what differs from node to node is no property of the pool
_OWN_LABELS = ("kubernetes.io/hostname", "topology.kubernetes.io/", "failure-domain.beta.kubernetes.io/")


@dataclass(frozen=True, slots=True)
class Planned:
    """Pods that a workload decision of this tick adds and that do not exist yet."""

    owner: str
    shape: Shape
    count: int


def pool_nodes(spec: PoolSpec, nodes: Iterable[NodeFacts]) -> list[NodeFacts]:
    """Find the pool's nodes by its selector, by name."""
    wanted = spec.pool.node_selector.items()
    mine = [node for node in nodes if all(node.labels.get(key) == value for key, value in wanted)]
    return sorted(mine, key=lambda node: node.name)


def learn_template(nodes: Sequence[NodeFacts], index: PodIndex) -> NodeTemplate | None:
    """Learn what a new node will offer to pods from the youngest ready node with GPUs; None without such a node."""
    grown = [node for node in nodes if node.ready and any(is_gpu(name) for name in _positive(node.allocatable))]
    if not grown:
        return None
    model = max(grown, key=lambda node: (node.created_at, node.name))
    taken = Counter[str]()
    for pod in index.on_node(model.name):
        if not pod.keeps_node and not pod.ended:
            taken.update(dict(pod.shape.requests))
    return NodeTemplate(
        allocatable={name: max(0, amount - taken[name]) for name, amount in model.allocatable.items()},
        labels={key: value for key, value in model.labels.items() if not key.startswith(_OWN_LABELS)},
        taints=model.taints if not model.cordoned else tuple(t for t in model.taints if "unschedulable" not in t.key),
        gpu_resources=tuple(sorted(name for name in _positive(model.allocatable) if is_gpu(name))),
    )


def fits_pool(shape: Shape, spec: PoolSpec, template: NodeTemplate | None) -> bool:
    """Tell whether pods of this shape could land on the pool: its labels, and a GPU resource that it offers."""
    labels = {**(template.labels if template else {}), **spec.pool.node_selector}
    if not shape.accepts(labels):
        return False
    if template is None:
        return True
    asked = {name for name, amount in shape.requests if amount and is_gpu(name)}
    return asked <= set(template.gpu_resources)


def observe_pool(
    spec: PoolSpec,
    size: int,
    nodes: Sequence[NodeFacts],
    index: PodIndex,
    pending: Iterable[PodFacts],
    planned: Iterable[Planned],
) -> PoolObservation:
    """Gather what a decision on this pool looks at. ``pending`` and ``planned`` are this pool's share."""
    return PoolObservation(
        size=size,
        nodes=tuple(_node(node, index.on_node(node.name), spec) for node in nodes),
        pending=_classes((pod.shape, 1, f"{pod.namespace}/{pod.name}") for pod in pending),
        planned=_classes((plan.shape, plan.count, plan.owner) for plan in planned),
    )


def _positive(quantities: Mapping[str, int]) -> list[str]:
    return [name for name, amount in quantities.items() if amount > 0]


def _node(node: NodeFacts, pods: Iterable[PodFacts], spec: PoolSpec) -> Node:
    requested = Counter[str]()
    keeping = 0
    for pod in pods:
        if not pod.ended:
            requested.update(dict(pod.shape.requests))
            keeping += pod.keeps_node
    mark = spec.pool.victim_mark
    bears = node.annotations.get(mark.annotation) if mark is not None else None
    ours = mark is not None and bears == mark.value and bool(node.annotations.get(MARKED_BY))
    return Node(
        name=node.name,
        allocatable=node.allocatable,
        requested=dict(requested),
        pods=keeping,
        created_at=node.created_at,
        ready=node.ready,
        cordoned=node.cordoned,
        marked=ours,
        foreign_mark="" if mark is None or bears is None or ours else f"{mark.annotation}={bears}",
        protected=node.protected,
        labels=node.labels,
        taints=node.taints,
    )


def _classes(rows: Iterable[tuple[Shape, int, str]]) -> tuple[PodClass, ...]:
    counts: dict[Shape, int] = {}
    names: dict[Shape, list[str]] = {}
    for shape, count, name in rows:
        counts[shape] = counts.get(shape, 0) + count
        known = names.setdefault(shape, [])
        if len(known) < _NAMED:
            known.append(name)
    return tuple(
        PodClass(
            requests=dict(shape.requests),
            count=count,
            names=tuple(names[shape]),
            node_selector=dict(shape.node_selector),
            tolerations=shape.tolerations,
        )
        for shape, count in counts.items()
        if count > 0
    )
