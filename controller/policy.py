"""PURE: what a resource says -> the policy that decisions are made by.

Why it exists: defaults have one home. Those of autoscaling/v2 are the API server's: which of them apply depends on
whether a block is there at all. Those of the operator's flags come in as ``PolicyDefaults``.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from controller.core import model
from controller.core.model import GpuRules, Metric, Policy, RatePolicy, Source, TargetType, VictimOrder
from controller.core.pool_model import NodeTemplate, PoolPolicy, Taint
from controller.pool_spec import Devices, PoolScaleDown, PoolScaleUp, PoolSpec, TaintSpec, Template
from controller.quantity import milli
from controller.workload_spec import (
    Behavior,
    MetricSpec,
    MetricTarget,
    MissingData,
    ScalingRules,
    VictimSelection,
    Warmup,
    WorkloadSpec,
)

CPU_AT_80_PERCENT = Metric(Source.RESOURCE, "cpu", TargetType.UTILIZATION, 80)
"""What the API server gives an HPA without metrics."""
UP_POLICIES = (RatePolicy("Pods", 4, 15), RatePolicy("Percent", 100, 15))
DOWN_POLICIES = (RatePolicy("Percent", 100, 15),)


@dataclass(frozen=True, slots=True)
class PolicyDefaults:
    """The operator's flags that a policy depends on; the names and values are the kube-controller-manager's."""

    tolerance: float = 0.1
    downscale_stabilization_seconds: float = 300.0
    cpu_initialization_seconds: float = 300.0
    initial_readiness_delay_seconds: float = 30.0


def workload_policy(spec: WorkloadSpec, settings: PolicyDefaults | None = None) -> Policy:
    """Give the policy of a valid spec, all defaults resolved."""
    flags = settings or PolicyDefaults()
    return Policy(
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        metrics=tuple(metric_of(metric) for metric in spec.metrics) or (CPU_AT_80_PERCENT,),
        behavior=None if spec.behavior is None else behavior_of(spec.behavior, flags),
        gpu=gpu_rules(spec),
        tolerance=flags.tolerance,
        downscale_stabilization_seconds=flags.downscale_stabilization_seconds,
        cpu_initialization_seconds=flags.cpu_initialization_seconds,
        initial_readiness_delay_seconds=flags.initial_readiness_delay_seconds,
    )


def victim_order(kind: str) -> VictimOrder:
    """Tell in which order the pods of a target of this kind go; only a ReplicaSet looks at its pods' deletion costs."""
    orders = {
        "Deployment": VictimOrder.OURS,
        "ReplicaSet": VictimOrder.OURS,
        "StatefulSet": VictimOrder.HIGHEST_ORDINAL,
    }
    return orders.get(kind, VictimOrder.UNKNOWN)


def gpu_rules(spec: WorkloadSpec) -> GpuRules | None:
    """Give the GPU rules, or None for a spec of only autoscaling/v2 fields."""
    ours = (spec.missing_data, spec.warmup, spec.victim_selection)
    if all(block is None for block in ours) and all(metric.type != "GPU" for metric in spec.metrics):
        return None
    missing, warmup = spec.missing_data or MissingData(), spec.warmup or Warmup()
    victims = spec.victim_selection or VictimSelection()
    return GpuRules(
        min_sample_percent=missing.min_sample_percent,
        max_age_seconds=float(missing.max_age_seconds),
        max_startup_seconds=float(warmup.max_startup_seconds),
        protect_above_utilization=victims.protect_above_utilization,
        pick_victims=victims.strategy != "None",
        victim_order=victim_order(spec.scale_target_ref.kind),
    )


def metric_of(metric: MetricSpec) -> Metric:
    """Give one metric as the core reads it. A metric whose block is missing is not valid and not expected here."""
    if metric.gpu is not None:
        gpu = metric.gpu
        return Metric(Source.GPU, gpu.name, TargetType(gpu.target.type), gpu.target_milli, gpu.container)
    if metric.resource is not None:
        return against(Source.RESOURCE, metric.resource.name, metric.resource.target)
    if metric.container_resource is not None:
        resource = metric.container_resource
        return replace(against(Source.CONTAINER_RESOURCE, resource.name, resource.target), container=resource.container)
    if metric.pods is not None:
        return against(Source.PODS, metric.pods.metric.name, metric.pods.target)
    if metric.object is not None:
        return against(Source.OBJECT, metric.object.metric.name, metric.object.target)
    if metric.external is None:
        raise ValueError(f"a metric of type {metric.type} has no block of that type")
    source = metric.external.source
    age = None if source is None or source.max_age_seconds is None else float(source.max_age_seconds)
    external = against(Source.EXTERNAL, metric.external.metric.name, metric.external.target)
    return replace(external, max_age_seconds=age)


def against(source: Source, name: str, target: MetricTarget) -> Metric:
    """Give a metric of autoscaling/v2 with its target: percent for Utilization, else milli-units."""
    if target.average_utilization is not None:
        return Metric(source, name, TargetType.UTILIZATION, target.average_utilization)
    if target.average_value is not None:
        return Metric(source, name, TargetType.AVERAGE_VALUE, milli(target.average_value))
    return Metric(source, name, TargetType.VALUE, milli(target.value or "0"))


def behavior_of(behavior: Behavior, flags: PolicyDefaults) -> model.Behavior:
    """Give a ``behavior`` block with what the API server and the controller fill in for its absent parts."""
    window = int(flags.downscale_stabilization_seconds)
    return model.Behavior(
        scale_up=rules_of(behavior.scale_up or ScalingRules(), 0, UP_POLICIES),
        scale_down=rules_of(behavior.scale_down or ScalingRules(), window, DOWN_POLICIES),
    )


def rules_of(rules: ScalingRules, window: int, policies: tuple[RatePolicy, ...]) -> model.ScalingRules:
    """Give one direction, each absent part filled in by itself."""
    own = rules.stabilization_window_seconds
    return model.ScalingRules(
        stabilization_window_seconds=window if own is None else own,
        policies=policies
        if rules.policies is None
        else tuple(RatePolicy(policy.type, policy.value, policy.period_seconds) for policy in rules.policies),
        select_policy=rules.select_policy or "Max",
        tolerance=None if rules.tolerance is None else fraction(rules.tolerance),
    )


_LARGEST_QUANTITY = Decimal(2**63 - 1)
"""Where Kubernetes caps every quantity."""


def fraction(quantity: str) -> float:
    """Give a tolerance as the float that a controller gets from the stored quantity (``0.05`` is stored as ``50m``)."""
    try:
        exact = min(Decimal(quantity), _LARGEST_QUANTITY)
    except InvalidOperation:
        return milli(quantity) * 1e-3
    for power in (0, 3, 6):
        scaled = exact.scaleb(power)
        if scaled == int(scaled):
            return int(scaled) * float(f"1e-{power}")
    return math.ceil(exact.scaleb(9)) * 1e-9


def pool_policy(spec: PoolSpec, learned: NodeTemplate | None = None) -> PoolPolicy:
    """Give the policy of a valid pool spec; ``learned`` is what its nodes offered when last seen."""
    up, down = spec.scale_up or PoolScaleUp(), spec.scale_down or PoolScaleDown()
    return PoolPolicy(
        min_nodes=spec.bounds.min,
        max_nodes=spec.bounds.max,
        template=template_of(spec.template, learned, spec.pool.node_selector),
        headroom_gpus=spec.bounds.headroom.gpus if spec.bounds.headroom is not None else 0,
        max_step_up=up.max_step,
        scale_down_enabled=down.enabled,
        quiet_seconds=float(down.quiet_seconds),
        min_node_age_seconds=float(down.min_node_age_seconds),
        provision_deadline_seconds=float(up.provision_deadline_seconds),
        nameable=spec.pool.victim_mark is not None,
    )


def template_of(
    declared: Template | None, learned: NodeTemplate | None, selector: Mapping[str, str]
) -> NodeTemplate | None:
    """Give what a new node will offer: what is declared, over what was learned. None if neither names a GPU."""
    base = learned or NodeTemplate(allocatable={})
    if declared is None:
        return None if learned is None else replace(learned, labels={**learned.labels, **selector})
    allocatable = {**base.allocatable, **of_devices(declared.devices)}
    allocatable |= {name: milli(amount) for name, amount in declared.allocatable.items()}
    gpus = tuple(sorted({*gpu_names(declared.devices, declared.allocatable), *(base.gpu_resources if learned else ())}))
    if not any(allocatable.get(name) for name in gpus):
        return None
    taints = taints_of(declared.taints) or base.taints
    labels = {**base.labels, **declared.labels, **selector}
    return NodeTemplate(allocatable, labels, taints, gpus, taints_of(declared.startup_taints))


def taints_of(declared: Iterable[TaintSpec]) -> tuple[Taint, ...]:
    """Give declared taints as the decision's."""
    return tuple(Taint(taint.key, taint.value, taint.effect) for taint in declared)


def of_devices(devices: Devices | None) -> dict[str, int]:
    """Give the allocatable GPUs that ``devices`` stands for, in milli-units."""
    return {} if devices is None else {devices.resource: devices.count * 1000}


def gpu_names(devices: Devices | None, allocatable: Iterable[str]) -> set[str]:
    """Give the resource names that make a node a GPU node: the declared one, and extended resources beside it."""
    declared = set() if devices is None else {devices.resource}
    return declared | {name for name in allocatable if "/" in name}
