"""The values that a node-pool decision is made of.

Why it exists beside model.py: a pool is sized in nodes from pods and nodes, a workload in replicas from
metrics; they share only Reason and Condition. Quantities are milli-units per resource name
(``nvidia.com/gpu: 8000`` = 8 GPUs), times are seconds as float.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.core.model import Condition, Reason, Step

Resources = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Taint:
    """key, value and effect as in Kubernetes."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """key None with operator Exists tolerates everything, as in Kubernetes."""

    key: str | None = None
    operator: str = "Equal"
    value: str = ""
    effect: str | None = None


@dataclass(frozen=True, slots=True)
class PodClass:
    """``count`` pods that ask for the same: what packing works on. ``names`` are for reasons, first few only."""

    requests: Resources
    count: int
    names: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """What a new node of the pool will offer. ``gpu_resources`` are the names that make a node a GPU node.

    ``startup_taints`` go when a node is ready for pods; until then it counts as coming.
    """

    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu",)
    startup_taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the pool. ``pods`` counts those that keep it (DaemonSet, mirror and ended pods do not)."""

    name: str
    allocatable: Resources
    requested: Resources
    pods: int
    created_at: float
    ready: bool = True
    cordoned: bool = False
    marked: bool = False
    """Carries the pool's victimMark as this controller writes it."""
    protected: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    foreign_mark: str = ""
    """The pool's victimMark as somebody else wrote it: the provider may take the node, and it is not ours to free."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """``template`` None = not known yet (nothing declared, no node seen): hold TemplateUnknown."""

    min_nodes: int
    max_nodes: int
    template: NodeTemplate | None
    headroom_gpus: int = 0
    max_step_up: int = 0
    """Most nodes ordered and not yet seen at any time; 0 = no limit."""
    scale_down_enabled: bool = True
    quiet_seconds: float = 600.0
    min_node_age_seconds: float = 600.0
    provision_deadline_seconds: float = 900.0
    """A node (or a size not yet seen as one) older than this without its GPUs no longer counts as coming."""
    nameable: bool = False
    """victimMark is set, so that the provider removes just the marked nodes."""


@dataclass(frozen=True, slots=True)
class PoolObservation:
    """What one pool decision looks at.

    ``size`` is the provider's spec size; ``pending`` are unschedulable GPU pods that could land on this pool,
    ``planned`` pods that this tick's workload decisions add and that do not exist yet.
    """

    size: int
    nodes: tuple[Node, ...]
    pending: tuple[PodClass, ...] = ()
    planned: tuple[PodClass, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What one pool decision passes to the next.

    ``unneeded_since``: node -> when it was first seen empty and not needed. ``marked_at``: node -> when we marked
    it. ``lowered_at``: marked node -> when the size was lowered for it (the provider is removing it), ``lowered_to``
    that size: a larger one means that the provider keeps some of them.
    ``size_changed_at``: when we last raised the size. ``unseen_since``: since when the size has been above the nodes
    without a break. What is not seen as a node counts as coming from the later of the two.
    """

    unneeded_since: Mapping[str, float] = field(default_factory=dict)
    marked_at: Mapping[str, float] = field(default_factory=dict)
    lowered_at: Mapping[str, float] = field(default_factory=dict)
    lowered_to: int | None = None
    size_changed_at: float | None = None
    unseen_since: float | None = None


@dataclass(frozen=True, slots=True)
class PoolTrace:
    """The numbers: pods waiting and planned, GPUs asked for, nodes there, coming, needed; then each step."""

    pending_pods: int = 0
    planned_pods: int = 0
    requested_gpus: float = 0.0
    nodes_ready: int = 0
    nodes_coming: int = 0
    nodes_needed: int = 0
    steps: tuple[Step, ...] = ()
    never_fit: Mapping[str, str] = field(default_factory=dict)
    """pod -> why no node of this pool can take it; a few of each kind."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """node -> why it stays, for nodes that a shrink would have liked to take."""


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """The result: ``desired`` is the absolute size.

    ``mark`` are nodes to cordon and mark now (the size follows one tick later, if they are still empty), ``remove``
    those that the size is lowered for, ``release`` those whose cordon and mark by us are to be taken back. A node that
    the size was lowered for is released only when the raised size has been seen: the provider never finds fewer marked
    nodes than it is to remove, in whichever order size and marks are written, and whichever write fails.
    """

    desired: int
    reason: Reason
    sentence: str
    memory: PoolMemory
    mark: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    trace: PoolTrace = PoolTrace()
