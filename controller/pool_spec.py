"""``spec`` of a GPUNodePoolScaler: the words that users write.

Why it exists beside workload_spec.py: pools and workloads share kinds of field, not fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from controller.shapes import Doc, Length, Quantity, Range
from controller.words import ApiVersion, DnsLabel, DnsName, KindName, LabelKey, LabelValue, Mode, ResourceName


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRef:
    """The object that holds the pool's size."""

    api_version: Annotated[ApiVersion, Doc('API version, such as "cluster.x-k8s.io/v1beta1".')]
    kind: Annotated[KindName, Doc('Kind, such as "MachineDeployment".')]
    namespace: Annotated[DnsLabel | None, Doc("Its namespace; absent for a kind without.")] = None
    name: Annotated[DnsName, Doc("Its name.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimMark:
    """The annotation on a Node by which the provider lets us name what a shrink removes."""

    annotation: Annotated[LabelKey, Doc("Annotation key that the provider honours.")]
    value: Annotated[str, Length(253), Doc("Its value.")] = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Which pool, and which nodes are in it."""

    provider: Annotated[DnsLabel, Doc("How the pool is resized; scale: by the object's /scale.")] = "scale"
    ref: Annotated[PoolRef, Doc("The object that holds the pool's size.")]
    node_selector: Annotated[
        Mapping[str, LabelValue], Length(16, 1), Doc("Labels that the pool's nodes, and only they, bear.")
    ]
    victim_mark: Annotated[VictimMark | None, Doc("Without it the pool is never shrunk while it has users.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """GPUs of one node."""

    resource: Annotated[ResourceName, Doc("Resource name that pods ask for.")] = "nvidia.com/gpu"
    count: Annotated[int, Range(1, 1024), Doc("How many of it a node offers, unless allocatable says otherwise.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintSpec:
    """As in Kubernetes."""

    key: Annotated[LabelKey, Doc("Taint key.")]
    value: Annotated[LabelValue, Doc("Taint value.")] = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a new node will offer; what is absent is learned from the pool's nodes."""

    devices: Annotated[Devices | None, Doc("Its GPUs.")] = None
    allocatable: Annotated[
        Mapping[str, Annotated[str, Quantity("nonnegative")]],
        Length(32),
        Doc("Resource -> quantity that a node offers to pods. With time-slicing x4, nvidia.com/gpu: 4 per GPU."),
    ] = field(default_factory=dict)
    labels: Annotated[Mapping[str, LabelValue], Length(64), Doc("Labels beside those of pool.nodeSelector.")] = field(
        default_factory=dict
    )
    taints: Annotated[tuple[TaintSpec, ...], Length(16), Doc("Taints that stay.")] = ()
    startup_taints: Annotated[
        tuple[TaintSpec, ...],
        Length(16),
        Doc("Taints that go when the node is ready for pods; until then it is coming."),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Free capacity to keep."""

    gpus: Annotated[int, Range(0, 100_000), Doc("Free GPUs to keep beyond what pods ask for.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Size limits of the pool."""

    min: Annotated[int, Range(0, 100_000), Doc("Fewest nodes.")] = 0
    max: Annotated[int, Range(0, 100_000), Doc("Most nodes.")]
    headroom: Annotated[Headroom | None, Doc("Free capacity to keep.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolScaleUp:
    """How a pool grows."""

    max_step: Annotated[int, Range(0, 100_000), Doc("Most nodes ordered and not yet seen; 0: no limit.")] = 0
    provision_deadline_seconds: Annotated[
        int, Range(1, 86_400), Doc("A node older than this without its GPUs no longer counts as coming.")
    ] = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolScaleDown:
    """How a pool shrinks: only empty nodes that nobody has needed for a while."""

    enabled: Annotated[bool, Doc("Whether it shrinks at all.")] = True
    quiet_seconds: Annotated[int, Range(0, 86_400), Doc("How long a node is empty and unneeded before it goes.")] = 600
    min_node_age_seconds: Annotated[int, Range(0, 86_400), Doc("Younger nodes stay.")] = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """``spec`` of a GPUNodePoolScaler."""

    mode: Mode = "Active"
    pool: Annotated[Pool, Doc("The pool to resize.")]
    template: Annotated[Template | None, Doc("What a new node will offer; learned where absent.")] = None
    bounds: Annotated[Bounds, Doc("Size limits.")]
    scale_up: Annotated[PoolScaleUp | None, Doc("How it grows.")] = None
    scale_down: Annotated[PoolScaleDown | None, Doc("How it shrinks.")] = None
