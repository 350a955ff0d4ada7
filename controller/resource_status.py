"""``status`` of both custom resources: what the operator writes and reads back.

Why it exists: the memory that a restart or a new leader needs stands here, so it is typed and part of the CRDs:
an API server drops every field that the schema does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from controller.shapes import DateTime, Doc, Length, Quantity

Time = Annotated[str, DateTime()]
Sentence = Annotated[str, Length(4096)]
Word = Annotated[str, Length(253)]
Times = Annotated[Mapping[str, Time], Length(10_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionStatus:
    """A condition in Kubernetes' form."""

    type: Word
    status: Literal["True", "False", "Unknown"]
    reason: Word = ""
    message: Annotated[str, Length(32_768)] = ""
    last_transition_time: Time | None = None
    observed_generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionStatus:
    """One decision: what was changed and why, with the numbers that it looked at."""

    time: Annotated[Time, Doc("When it was decided.")]
    from_: Annotated[int | None, Doc("Size before.")] = None
    to: Annotated[int | None, Doc("Size wanted.")] = None
    reason: Annotated[Word, Doc("One word; docs/reasons.md explains each.")] = ""
    sentence: Annotated[Sentence, Doc("The same for people, with numbers.")] = ""
    inputs: Annotated[Mapping[str, Annotated[str, Length(1024)]], Length(32), Doc("Name -> value looked at.")] = field(
        default_factory=dict
    )


Decisions = Annotated[tuple[DecisionStatus, ...], Length(5), Doc("The last five decisions that changed a size.")]
Conditions = Annotated[tuple[ConditionStatus, ...], Length(16)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricStatus:
    """What one metric was, as text for people."""

    metric: Annotated[Word, Doc("Such as gpu/utilization.")]
    current: Annotated[str, Length(1024), Doc("Value with its unit.")] = ""
    target: Annotated[str, Length(1024), Doc("Target with its unit.")] = ""
    proposal: Annotated[int | None, Doc("Replicas that this metric alone would want.")] = None
    error: Annotated[Sentence, Doc("Why it could not be had.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A size that was recommended, for the stabilisation window."""

    time: Time
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleEvent:
    """A change that was written, for the rate policies."""

    time: Time
    change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadMemory:
    """What one decision passes to the next; oldest first."""

    recommendations: Annotated[tuple[Recommendation, ...], Length(2000)] = ()
    up_events: Annotated[tuple[ScaleEvent, ...], Length(2000)] = ()
    down_events: Annotated[tuple[ScaleEvent, ...], Length(2000)] = ()
    scaled_to_zero: Annotated[bool, Doc("The size 0 is this scaler's own, so that a metric may end it.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatus:
    """``status`` of a GPUWorkloadScaler."""

    observed_generation: int | None = None
    current_replicas: Annotated[int | None, Doc("Size of the target when last looked at.")] = None
    desired_replicas: Annotated[int | None, Doc("Size that was decided.")] = None
    ready_replicas: Annotated[int | None, Doc("Pods that serve.")] = None
    warming_replicas: Annotated[int | None, Doc("Pods that start: capacity on its way.")] = None
    last_scale_time: Time | None = None
    targets: Annotated[str | None, Length(1024), Doc('As an HPA shows them, such as "utilization: 95%/80%".')] = None
    current_metrics: Annotated[tuple[MetricStatus, ...], Length(10)] = ()
    decision: Annotated[DecisionStatus | None, Doc("The decision in force, a hold included.")] = None
    decisions: Decisions = ()
    memory: WorkloadMemory | None = None
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounts:
    """Nodes of the pool."""

    current: Annotated[int | None, Doc("Size that the pool's object asks for.")] = None
    desired: Annotated[int | None, Doc("Size that was decided.")] = None
    ready: Annotated[int | None, Doc("Nodes with all their GPUs.")] = None
    coming: Annotated[int | None, Doc("Nodes on their way.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounts:
    """GPUs of the pool, in units of its GPU resource."""

    total: int | None = None
    requested: Annotated[float | None, Doc("Asked for by pods on the nodes.")] = None
    waiting: Annotated[float | None, Doc("Asked for by pods that wait or are planned.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintStatus:
    """As in Kubernetes."""

    key: Word
    value: Word = ""
    effect: Word = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedTemplate:
    """What the pool's nodes offered when last seen; a pool at zero grows from it."""

    allocatable: Annotated[Mapping[str, Annotated[str, Quantity()]], Length(64)] = field(default_factory=dict)
    labels: Annotated[Mapping[str, Word], Length(256)] = field(default_factory=dict)
    taints: Annotated[tuple[TaintStatus, ...], Length(32)] = ()
    from_node: Annotated[Word, Doc("The node that it was learned from.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemoryStatus:
    """What one decision passes to the next: node -> time."""

    unneeded_since: Times = field(default_factory=dict)
    marked_at: Times = field(default_factory=dict)
    lowered_at: Annotated[Times, Doc("Marked nodes that the size was lowered for.")] = field(default_factory=dict)
    lowered_to: Annotated[int | None, Doc("The size that it was lowered to for them.")] = None
    size_changed_at: Time | None = None
    unseen_since: Annotated[Time | None, Doc("Since when the size has been above the nodes.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverFit:
    """A pod that no node of this pool can take."""

    pod: Word
    reason: Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedNode:
    """A node that a shrink would have liked to take, and why it stays."""

    node: Word
    reason: Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """``status`` of a GPUNodePoolScaler."""

    observed_generation: int | None = None
    nodes: NodeCounts | None = None
    gpus: GpuCounts | None = None
    template: Annotated[LearnedTemplate | None, Doc("Learned from the pool's nodes.")] = None
    last_scale_time: Time | None = None
    decision: Annotated[DecisionStatus | None, Doc("The decision in force, a hold included.")] = None
    decisions: Decisions = ()
    memory: PoolMemoryStatus | None = None
    never_fit: Annotated[tuple[NeverFit, ...], Length(50)] = ()
    blocked_nodes: Annotated[tuple[BlockedNode, ...], Length(50)] = ()
    conditions: Conditions = ()
