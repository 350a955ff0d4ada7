"""``spec`` of a GPUWorkloadScaler: the words that users write.

Why it exists: a manifest becomes this at the first line that touches it; below that line nobody reads
dictionaries. Every autoscaling/v2 field keeps its name, its meaning and its absence: what the API server would
fill in for a HorizontalPodAutoscaler beyond ``minReplicas`` (the cpu metric, ``behavior``) is left to the policy.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from controller.quantity import milli
from controller.shapes import Doc, Length, Quantity, Range
from controller.words import (
    ApiVersion,
    DnsLabel,
    DnsName,
    KindName,
    LabelKey,
    Labels,
    LabelValue,
    MetricName,
    Mode,
    PositiveQuantity,
    Replicas,
    ResourceName,
    Seconds,
)

# --- autoscaling/v2 ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTargetRef:
    """The object whose /scale is set."""

    api_version: Annotated[ApiVersion, Doc('API version of the target, such as "apps/v1".')] = "v1"
    kind: Annotated[KindName, Doc('Kind of the target, such as "Deployment".')]
    name: Annotated[DnsName, Doc("Name of the target, in the same namespace.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequirement:
    """One row of a selector's matchExpressions."""

    key: Annotated[LabelKey, Doc("Label key.")]
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[LabelValue, ...], Length(32)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """As everywhere in Kubernetes."""

    match_labels: Labels = field(default_factory=dict)
    match_expressions: Annotated[tuple[LabelRequirement, ...], Length(16)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricIdentifier:
    """Which metric."""

    name: Annotated[MetricName, Doc("Name of the metric.")]
    selector: Annotated[LabelSelector | None, Doc("Narrows the metric by its labels.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTarget:
    """The value to hold; exactly the field that belongs to ``type`` is given."""

    type: Literal["Utilization", "Value", "AverageValue"]
    value: Annotated[PositiveQuantity | None, Doc("Total to hold (type Value).")] = None
    average_value: Annotated[PositiveQuantity | None, Doc("Mean per pod to hold (type AverageValue).")] = None
    average_utilization: Annotated[
        int | None, Range(1, 1_000_000), Doc("Percent of the pods' requests to hold (type Utilization).")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceMetric:
    """cpu or memory of the whole pods."""

    name: Annotated[ResourceName, Doc("cpu or memory.")]
    target: MetricTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResourceMetric:
    """cpu or memory of one container of each pod."""

    name: Annotated[ResourceName, Doc("cpu or memory.")]
    container: Annotated[DnsLabel, Doc("Name of the container.")]
    target: MetricTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsMetric:
    """A custom metric of each pod, averaged."""

    metric: MetricIdentifier
    target: MetricTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMetric:
    """A custom metric of one object."""

    described_object: ScaleTargetRef
    metric: MetricIdentifier
    target: MetricTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusSource:
    """Where an External metric is read from instead of the external metrics API."""

    kind: Literal["Prometheus"]
    server: Annotated[DnsLabel, Doc("Name of a Prometheus server in the operator's settings; never a URL.")] = "default"
    query: Annotated[str, Length(4096, 1), Doc("PromQL; its series are summed.")]
    max_age_seconds: Annotated[int | None, Range(1, 86_400), Doc("Samples older than this are missing, never 0.")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalMetric:
    """A metric of something outside the cluster's objects."""

    metric: MetricIdentifier
    target: MetricTarget
    source: Annotated[PrometheusSource | None, Doc("Absent: the external metrics API, as for an HPA.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """At most ``value`` pods or percent per ``periodSeconds``."""

    type: Literal["Pods", "Percent"]
    value: Annotated[int, Range(1, 1_000_000), Doc("Pods or percent.")]
    period_seconds: Annotated[int, Range(1, 1800), Doc("Length of the period.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """One direction. What is absent gets the HPA's default."""

    stabilization_window_seconds: Annotated[Seconds | None, Doc("Look back this long before moving.")] = None
    select_policy: Annotated[
        Literal["Max", "Min", "Disabled"] | None, Doc("Which policy wins; Disabled forbids this direction.")
    ] = None
    policies: Annotated[tuple[ScalingPolicy, ...] | None, Length(10, 1), Doc("Limits of speed.")] = None
    tolerance: Annotated[
        Annotated[str, Quantity("nonnegative")] | None,
        Doc('Smallest relative difference that counts, such as "0.05"; absent: the operator\'s.'),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """Speed and calm of scaling, as autoscaling/v2."""

    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None


# --- what a GPU workload needs beyond it ------------------------------------------------------------------------

GpuMetricName = Literal["utilization", "memoryUsed", "memoryUtilization", "power"]
PERCENT_METRICS = frozenset({"utilization", "memoryUtilization"})
"""GPU metrics that are a percentage, and so have a Utilization target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """The value to hold per pod; exactly the field that belongs to ``type`` is given."""

    type: Literal["Utilization", "AverageValue", "Headroom"]
    average_utilization: Annotated[
        int | None, Range(1, 100), Doc("Percent to hold, of utilization and memoryUtilization (type Utilization).")
    ] = None
    average_value: Annotated[
        PositiveQuantity | None,
        Doc('Mean per pod (type AverageValue): memory such as "40Gi" for memoryUsed, watts such as 300 for power.'),
    ] = None
    headroom_megabytes: Annotated[
        int | None,
        Range(1, 100_000_000),
        Doc("Memory (2^20 bytes) to keep free on each pod, of memoryUsed (type Headroom)."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMetric:
    """A reading of the exporter, per pod."""

    name: Annotated[GpuMetricName, Doc("What is read of each GPU of a pod.")]
    pod_aggregation: Annotated[
        Literal["Max", "Average", "Min", "Sum"] | None,
        Doc("Over the GPUs of one pod. Absent: Max of percentages, Sum of memoryUsed and power."),
    ] = None
    container: Annotated[DnsLabel | None, Doc("Only this container's GPUs.")] = None
    target: GpuTarget

    @property
    def aggregation(self) -> str:
        """``podAggregation`` with its default."""
        return self.pod_aggregation or ("Max" if self.name in PERCENT_METRICS else "Sum")

    @property
    def target_milli(self) -> int:
        """The target in the decision's unit: milli-percent, milli-MiB (2^20 bytes) or milli-watts."""
        if self.target.average_utilization is not None:
            return self.target.average_utilization * 1000
        if self.target.headroom_megabytes is not None:
            return self.target.headroom_megabytes * 1000
        amount = milli(self.target.average_value or "0")
        return -(-amount // 2**20) if self.name == "memoryUsed" else amount


MetricType = Literal["Resource", "ContainerResource", "Pods", "Object", "External", "GPU"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric; exactly the block that belongs to ``type`` is given."""

    type: MetricType
    resource: ResourceMetric | None = None
    container_resource: ContainerResourceMetric | None = None
    pods: PodsMetric | None = None
    object: ObjectMetric | None = None
    external: ExternalMetric | None = None
    gpu: GpuMetric | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingData:
    """What to do where readings are missing. The block turns the GPU rules on."""

    min_sample_percent: Annotated[
        int, Range(1, 100), Doc("Scale down only when at least this share of the pods has a fresh reading.")
    ] = 50
    max_age_seconds: Annotated[int, Range(1, 3600), Doc("A reading older than this is missing.")] = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """How long a new pod may load before it stops counting as capacity on its way. Turns the GPU rules on."""

    max_startup_seconds: Annotated[int, Range(1, 86_400), Doc("Afterwards a pod that is not ready stops counting.")] = (
        900
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimSelection:
    """Which pods go on a scale-down."""

    strategy: Annotated[
        Literal["LeastBusy", "None"], Doc("LeastBusy: those whose GPUs do least. None: Kubernetes chooses.")
    ] = "LeastBusy"
    protect_above_utilization: Annotated[
        int | None, Range(0, 100), Doc("Pods above this GPU utilisation are not removed; the scale-down gets smaller.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """``spec`` of a GPUWorkloadScaler. Any autoscaling/v2 spec is one."""

    mode: Mode = "Active"
    scale_target_ref: Annotated[ScaleTargetRef, Doc("The object to scale.")]
    min_replicas: Annotated[Replicas, Doc("Fewest replicas.")] = 1
    max_replicas: Annotated[int, Range(1, 100_000), Doc("Most replicas.")]
    metrics: Annotated[
        tuple[MetricSpec, ...],
        Length(10),
        Doc("The largest proposal wins. Absent or empty: cpu at 80 % of the requests, as for an HPA."),
    ] = ()
    behavior: Annotated[Behavior | None, Doc("Speed and calm. Absent differs from empty, as for an HPA.")] = None
    missing_data: Annotated[MissingData | None, Doc("Rules for missing readings; turns the GPU rules on.")] = None
    warmup: Annotated[Warmup | None, Doc("Rules for pods that load; turns the GPU rules on.")] = None
    victim_selection: Annotated[VictimSelection | None, Doc("Which pods go on a scale-down.")] = None
