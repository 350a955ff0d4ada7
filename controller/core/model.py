"""The values that a workload decision is made of: what goes in, what comes out.

Why it exists: live operator, preview, demo, ``gpuscale decide`` and tests meet here. Everything is a
frozen value; nothing here reads a clock, a file or a network. Units: a metric value is an int in
milli-units (1000 = 1, 95 % = 95000), a Utilization target is a percent, times are seconds as float
(any epoch, the same one for all values of a decision), resource quantities are milli-units.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """Why a decision is what it is. The same word is condition reason, Event reason, metric label and log field."""

    # AbleToScale
    SUCCEEDED_GET_SCALE = "SucceededGetScale"
    FAILED_GET_SCALE = "FailedGetScale"
    SUCCEEDED_RESCALE = "SucceededRescale"
    FAILED_UPDATE_SCALE = "FailedUpdateScale"
    READY_FOR_NEW_SCALE = "ReadyForNewScale"
    SCALE_UP_STABILIZED = "ScaleUpStabilized"
    SCALE_DOWN_STABILIZED = "ScaleDownStabilized"
    # ScalingActive
    VALID_METRIC_FOUND = "ValidMetricFound"
    SCALING_DISABLED = "ScalingDisabled"
    INVALID_SELECTOR = "InvalidSelector"
    AMBIGUOUS_SELECTOR = "AmbiguousSelector"
    FAILED_GET_RESOURCE_METRIC = "FailedGetResourceMetric"
    FAILED_GET_CONTAINER_RESOURCE_METRIC = "FailedGetContainerResourceMetric"
    FAILED_GET_PODS_METRIC = "FailedGetPodsMetric"
    FAILED_GET_OBJECT_METRIC = "FailedGetObjectMetric"
    FAILED_GET_EXTERNAL_METRIC = "FailedGetExternalMetric"
    FAILED_GET_GPU_METRIC = "FailedGetGPUMetric"
    INVALID_METRIC_SOURCE_TYPE = "InvalidMetricSourceType"
    NOT_SYNCED = "NotSynced"
    INVALID_SPEC = "InvalidSpec"
    DECISION_FAILED = "DecisionFailed"
    # ScalingLimited
    DESIRED_WITHIN_RANGE = "DesiredWithinRange"
    SCALE_UP_LIMIT = "ScaleUpLimit"
    SCALE_DOWN_LIMIT = "ScaleDownLimit"
    TOO_MANY_REPLICAS = "TooManyReplicas"
    TOO_FEW_REPLICAS = "TooFewReplicas"
    BUSY_PODS_PROTECTED = "BusyPodsProtected"
    SCALE_UP_BLOCKED = "ScaleUpBlocked"
    # ScaledToZero
    SCALED_TO_ZERO = "ScaledToZero"
    NOT_SCALED_TO_ZERO = "NotScaledToZero"
    # SignalHealthy
    SIGNAL_USABLE = "SignalUsable"
    SIGNAL_CAPPED = "SignalCapped"
    STALE_DATA = "StaleData"
    NO_ATTRIBUTION = "NoAttribution"
    # TargetOwned
    NO_COMPETING_WRITER = "NoCompetingWriter"
    COMPETING_SCALER = "CompetingScaler"
    # what the decision did (Decision.reason), beside the words above
    METRIC_ABOVE_TARGET = "MetricAboveTarget"
    ALL_METRICS_BELOW_TARGET = "AllMetricsBelowTarget"
    WITHIN_TOLERANCE = "WithinTolerance"
    CAPACITY_WARMING = "CapacityWarming"
    FLOOR_IN_FORCE = "FloorInForce"
    # node pools
    PENDING_GPU_PODS = "PendingGPUPods"
    PLANNED_REPLICAS = "PlannedReplicas"
    HEADROOM_SHORT = "HeadroomShort"
    CAPACITY_ARRIVING = "CapacityArriving"
    DEMAND_MET = "DemandMet"
    NODES_UNNEEDED = "NodesUnneeded"
    NODES_MARKED = "NodesMarked"
    QUIET_TIME = "QuietTime"
    VICTIM_NOT_NAMEABLE = "VictimNotNameable"
    NEVER_FITS = "NeverFits"
    POOL_AT_MAXIMUM = "PoolAtMaximum"
    POOL_AT_MINIMUM = "PoolAtMinimum"
    TEMPLATE_UNKNOWN = "TemplateUnknown"
    NODES_RELEASED = "NodesReleased"
    NODES_OVERDUE = "NodesOverdue"
    NODES_IN_TIME = "NodesInTime"


class Source(StrEnum):
    """``type`` of a metric in the spec."""

    RESOURCE = "Resource"
    CONTAINER_RESOURCE = "ContainerResource"
    PODS = "Pods"
    OBJECT = "Object"
    EXTERNAL = "External"
    GPU = "GPU"


class TargetType(StrEnum):
    """``type`` of a metric's target."""

    UTILIZATION = "Utilization"
    AVERAGE_VALUE = "AverageValue"
    VALUE = "Value"
    HEADROOM = "Headroom"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the policy. ``target`` is percent for Resource Utilization, else milli-units.

    For ``Source.GPU``, utilisation and memoryUtilization are percent in milli-units (80 % = 80000), memoryUsed and
    Headroom are MiB in milli-units, power is watts in milli-units.
    """

    source: Source
    name: str
    target_type: TargetType
    target: int
    container: str | None = None
    max_age_seconds: float | None = None
    """A Total older than this is stale, an error; None = its age is not judged. Pods' samples have GpuRules' limit."""

    @property
    def label(self) -> str:
        """``gpu/utilization``, ``resource/cpu``: how reasons and status name this metric."""
        return f"{self.source.value.lower()}/{self.name}"


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """One row of ``behavior.*.policies``: ``kind`` is ``Pods`` or ``Percent``."""

    kind: str
    value: int
    period_seconds: int


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """One direction of ``behavior``, defaults filled in. ``tolerance`` None = the policy's own."""

    stabilization_window_seconds: int
    policies: tuple[RatePolicy, ...]
    select_policy: str = "Max"
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Behavior:
    """``spec.behavior`` with the API server's defaults."""

    scale_up: ScalingRules
    scale_down: ScalingRules


class VictimOrder(StrEnum):
    """In which order a target's pods go when it shrinks, as its kind has it."""

    OURS = "ours"
    """By the deletion costs that we write."""
    HIGHEST_ORDINAL = "highest-ordinal"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GpuRules:
    """What is on only where the spec goes beyond autoscaling/v2: warming, quorum, never against the ratio."""

    min_sample_percent: int = 50
    max_age_seconds: float = 30.0
    max_startup_seconds: float = 900.0
    protect_above_utilization: int | None = None
    pick_victims: bool = True
    victim_order: VictimOrder = VictimOrder.OURS


@dataclass(frozen=True, slots=True)
class IdleRules:
    """Scale to zero on proven idleness: no GPU of the target was above ``max_utilization`` (milli-percent) so long."""

    after_seconds: float = 600.0
    max_utilization: int = 5000


@dataclass(frozen=True, slots=True)
class Policy:
    """The maths of one scaler, resolved: what ``decide`` needs of the spec and of the operator's settings.

    ``behavior`` None is the HPA's path for a spec without the block, which differs from one with an empty block.
    ``gpu`` None means: decide exactly as the HPA does.
    """

    min_replicas: int
    max_replicas: int
    metrics: tuple[Metric, ...]
    behavior: Behavior | None = None
    gpu: GpuRules | None = None
    tolerance: float = 0.1
    downscale_stabilization_seconds: float = 300.0
    cpu_initialization_seconds: float = 300.0
    initial_readiness_delay_seconds: float = 30.0
    idle: IdleRules | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """The facts about one pod of the target that a decision uses. Times None = the field is not set."""

    name: str
    phase: str = "Running"
    deleting: bool = False
    ready: bool | None = True
    ready_changed_at: float | None = None
    started_at: float | None = None
    created_at: float | None = None
    crashing: bool = False
    """A container waits in CrashLoopBackOff, or cannot be started (image, config): no capacity on its way."""
    requests: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """container -> resource -> milli-units; a container that asks for nothing has an empty mapping.

    Containers are the pod's own and its restartable init containers. Requests of the pod as a whole (pod-level
    resources) stand under the empty name and then count instead of the containers'.
    """


@dataclass(frozen=True, slots=True)
class Sample:
    """One pod's value: milli-units, when it was true, over which window (seconds); capacity only for memory metrics."""

    value: int
    at: float
    window_seconds: float = 0.0
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class PodValues:
    """A per-pod reading. A pod that is not in ``samples`` is missing; ``rejected`` says of some why (NaN, negative)."""

    samples: Mapping[str, Sample]
    rejected: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Total:
    """An Object or External reading: one or several values, to be summed; milli-units."""

    values: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A reading that could not be had. ``reason`` e.g. FAILED_GET_EXTERNAL_METRIC or NO_ATTRIBUTION."""

    reason: Reason
    message: str


Reading = PodValues | Total | Failed


@dataclass(frozen=True, slots=True)
class Floor:
    """A size that must not be undercut now (a schedule, a forecast). It may only raise; the policy's maximum wins."""

    name: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Idleness:
    """The highest utilisation (milli-percent) that any GPU of the target had over the last ``seconds``."""

    seconds: float
    max_utilization: int


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything one decision looks at. ``readings`` stands in the order of ``Policy.metrics``."""

    replicas: int
    status_replicas: int
    pods: tuple[Pod, ...]
    readings: tuple[Reading, ...]
    utilization: Mapping[str, int] = field(default_factory=dict)
    """pod -> GPU utilisation in milli-percent, for the choice of victims; absent = unknown, never idle."""
    floors: tuple[Floor, ...] = ()
    idleness: Idleness | None = None
    """None = not known, so never idle."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one decision passes to the next; kept in status, so that a restart goes on where it was.

    ``recommendations`` are (time, value) oldest first, only those that can still win. An event is (time, size of a
    change that was written); a new event takes the place of the last outdated one, as in the HPA.
    ``scaled_to_zero``: the size 0 is ours, so that metrics may wake the target. None as memory = never decided before.
    """

    recommendations: tuple[tuple[float, int], ...] = ()
    up_events: tuple[tuple[float, int], ...] = ()
    down_events: tuple[tuple[float, int], ...] = ()
    scaled_to_zero: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """One status condition; ``status`` is ``True``, ``False`` or ``Unknown``."""

    type: str
    status: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class MetricTrace:
    """How one metric came to its proposal. Names of pods by what was done with them; values as text for people.

    ``average`` and ``total`` (milli-units) and ``utilization`` (percent) are what the HPA's status.currentMetrics would
    say. ``outcome`` says why the proposal is the current size, ``signal`` what is wrong with the reading, and
    ``error_reason`` the reason of ScalingActive=False if this metric is the one that stops the decision.
    """

    metric: str
    target: str
    current: str
    ratio: float | None
    proposal: int | None
    error: str = ""
    error_reason: Reason | None = None
    counted: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    filled_with: str = ""
    warming: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    note: str = ""
    average: int | None = None
    total: int | None = None
    utilization: int | None = None
    needed: int | None = None
    """With the GPU rules: the size that the load asks for, before the direction and warming pods are looked at."""
    outcome: Reason | None = None
    signal: Reason | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One stage between the proposal and the size: what it was given, what it gave, why."""

    stage: str
    before: int
    after: int
    why: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Every number from metric to replica count. ``proposal`` is the metrics' (and floors') size before any limit."""

    proposal: int | None = None
    winner: str = ""
    metrics: tuple[MetricTrace, ...] = ()
    steps: tuple[Step, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The result: ``desired`` is the size to have (equal to the observed one = a hold, and ``reason`` says why).

    ``memory`` is what the next decision gets if ``desired`` was written (or nothing had to be), and
    ``memory_if_unwritten`` if it was not: the write failed, or the scaler is in preview. Conditions are those before
    the write; types that are not among them keep what they said before.
    """

    desired: int
    reason: Reason
    sentence: str
    memory: Memory
    conditions: tuple[Condition, ...] = ()
    victims: tuple[str, ...] = ()
    """Names of the pods to go on a scale-down, in order; empty = no choice is made."""
    trace: Trace = Trace()
    memory_if_unwritten: Memory = Memory()
