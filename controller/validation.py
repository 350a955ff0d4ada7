"""Every validation across fields, one row each: field, predicate, CEL, message.

Why it exists: the operator, the emulator and the offline commands run the predicate, a real API server runs the
CEL; side by side in one row they stay the same. Limits of one field alone stand at the field.
"""

from typing import Any

from controller.pool_spec import Bounds, Template
from controller.schema import Rule, Rules
from controller.shapes import word_of
from controller.workload_spec import (
    PERCENT_METRICS,
    ContainerResourceMetric,
    ExternalMetric,
    GpuMetric,
    GpuTarget,
    LabelRequirement,
    MetricSpec,
    MetricTarget,
    ObjectMetric,
    PodsMetric,
    ResourceMetric,
    WorkloadSpec,
)


def _given_exactly_for(owner: type[Any], kind: str, name: str) -> Rule[Any]:
    """Row: the field is given if ``type`` is ``kind``, and only then."""
    word = word_of(name)
    return Rule(
        owner,
        (name, "type"),
        lambda value: (getattr(value, name) is not None) == (value.type == kind),
        f"has(self.{word}) == (self.type == '{kind}')",
        f"{word} must be given where type is {kind}, and only there",
    )


def _target_type(owner: type[Any], *kinds: str) -> Rule[Any]:
    """Row: the target of this kind of metric has one of these types."""
    return Rule(
        owner,
        ("target",),
        lambda metric: metric.target.type in kinds,
        f"self.target.type in [{', '.join(repr(kind) for kind in kinds)}]",
        f"the target's type must be {' or '.join(kinds)} for this type of metric",
    )


def _only_for(kind: str, names: frozenset[str], message: str) -> Rule[GpuMetric]:
    """Row: a GPU target of this type belongs to these readings only."""
    listed = ", ".join(f"'{name}'" for name in sorted(names))
    return Rule(
        GpuMetric,
        ("target", "name"),
        lambda gpu: gpu.target.type != kind or gpu.name in names,
        f"self.target.type != '{kind}' || self.name in [{listed}]",
        message,
    )


def _gpu_metrics_differ(spec: WorkloadSpec) -> bool:
    keys = [(metric.gpu.name, metric.gpu.container) for metric in spec.metrics if metric.gpu]
    return len(keys) == len(set(keys))


def _sourced_names_differ(spec: WorkloadSpec) -> bool:
    external = [metric.external for metric in spec.metrics if metric.external]
    names = [metric.metric.name for metric in external]
    return all(names.count(metric.metric.name) == 1 for metric in external if metric.source)


def _zero_has_a_way_back(spec: WorkloadSpec) -> bool:
    return spec.min_replicas > 0 or any(metric.type in ("Object", "External") for metric in spec.metrics)


RULES: Rules = (
    Rule(
        WorkloadSpec,
        ("max_replicas", "min_replicas"),
        lambda spec: spec.min_replicas <= spec.max_replicas,
        "self.minReplicas <= self.maxReplicas",
        "maxReplicas must be at least minReplicas",
    ),
    Rule(
        WorkloadSpec,
        ("min_replicas", "metrics"),
        _zero_has_a_way_back,
        "self.minReplicas > 0 || (has(self.metrics) && self.metrics.exists(m, m.type in ['Object', 'External']))",
        "minReplicas 0 needs a metric of type Object or External: without pods no other says when to come back",
    ),
    Rule(
        WorkloadSpec,
        ("metrics",),
        _gpu_metrics_differ,
        "!has(self.metrics) || self.metrics.all(m, !has(m.gpu) || self.metrics.exists_one(n, has(n.gpu) && "
        "n.gpu.name == m.gpu.name && "
        "(has(n.gpu.container) ? n.gpu.container : '') == (has(m.gpu.container) ? m.gpu.container : '')))",
        "each GPU metric must be given once: two have the same name and container",
    ),
    Rule(
        WorkloadSpec,
        ("metrics",),
        _sourced_names_differ,
        "!has(self.metrics) || self.metrics.all(m, !has(m.external) || !has(m.external.source) || "
        "self.metrics.exists_one(n, has(n.external) && n.external.metric.name == m.external.metric.name))",
        "each External metric with a source must have a name of its own: two have the same",
    ),
    _given_exactly_for(MetricSpec, "Resource", "resource"),
    _given_exactly_for(MetricSpec, "ContainerResource", "container_resource"),
    _given_exactly_for(MetricSpec, "Pods", "pods"),
    _given_exactly_for(MetricSpec, "Object", "object"),
    _given_exactly_for(MetricSpec, "External", "external"),
    _given_exactly_for(MetricSpec, "GPU", "gpu"),
    _given_exactly_for(MetricTarget, "Utilization", "average_utilization"),
    _given_exactly_for(MetricTarget, "Value", "value"),
    _given_exactly_for(MetricTarget, "AverageValue", "average_value"),
    _target_type(ResourceMetric, "Utilization", "AverageValue"),
    _target_type(ContainerResourceMetric, "Utilization", "AverageValue"),
    _target_type(PodsMetric, "AverageValue"),
    _target_type(ObjectMetric, "Value", "AverageValue"),
    _target_type(ExternalMetric, "Value", "AverageValue"),
    _given_exactly_for(GpuTarget, "Utilization", "average_utilization"),
    _given_exactly_for(GpuTarget, "AverageValue", "average_value"),
    _given_exactly_for(GpuTarget, "Headroom", "headroom_megabytes"),
    _only_for(
        "Utilization",
        PERCENT_METRICS,
        "a Utilization target is a percentage: it is for utilization and memoryUtilization; "
        "give memoryUsed and power an AverageValue",
    ),
    _only_for(
        "AverageValue",
        frozenset({"memoryUsed", "power"}),
        "an AverageValue target is an amount: it is for memoryUsed and power; "
        "give utilization and memoryUtilization a Utilization target with averageUtilization",
    ),
    _only_for("Headroom", frozenset({"memoryUsed"}), "a Headroom target is free memory: it is for memoryUsed"),
    Rule(
        GpuMetric,
        ("pod_aggregation", "name"),
        lambda gpu: gpu.pod_aggregation != "Sum" or gpu.name not in PERCENT_METRICS,
        "!has(self.podAggregation) || self.podAggregation != 'Sum' || self.name in ['memoryUsed', 'power']",
        "a sum of percentages means nothing: use Max, Average or Min",
    ),
    Rule(
        GpuMetric,
        ("pod_aggregation", "target"),
        lambda gpu: gpu.target.type != "Headroom" or gpu.pod_aggregation in (None, "Sum"),
        "self.target.type != 'Headroom' || !has(self.podAggregation) || self.podAggregation == 'Sum'",
        "a Headroom target looks at a pod's memory as a whole: leave podAggregation out or write Sum",
    ),
    Rule(
        GpuMetric,
        ("target", "name"),
        lambda gpu: gpu.name != "memoryUsed" or _has_memory_unit(gpu.target.average_value),
        "self.name != 'memoryUsed' || !has(self.target.averageValue) || "
        "(type(self.target.averageValue) == string && self.target.averageValue.matches('[kMGTPE]i?$'))",
        'averageValue of memoryUsed must bear its unit, such as "40Gi" or "40960Mi"',
    ),
    Rule(
        LabelRequirement,
        ("values", "operator"),
        lambda row: bool(row.values) == (row.operator in ("In", "NotIn")),
        "(has(self.values) && size(self.values) > 0) == (self.operator in ['In', 'NotIn'])",
        "values must be given for In and NotIn, and only for them",
    ),
    Rule(
        Bounds,
        ("max", "min"),
        lambda bounds: bounds.min <= bounds.max,
        "self.min <= self.max",
        "max must be at least min",
    ),
    Rule(
        Template,
        ("devices", "allocatable"),
        lambda template: template.devices is not None or not template.allocatable or _has_gpu(template),
        "has(self.devices) || !has(self.allocatable) || size(self.allocatable) == 0 || "
        "self.allocatable.exists(name, name.contains('/'))",
        "allocatable without devices must name the GPU resource, such as nvidia.com/gpu",
    ),
)
"""Checked bottom-up: a rule whose fields are faulty already is skipped."""


def _has_memory_unit(amount: str | None) -> bool:
    return amount is None or amount.rstrip("i")[-1] in "kMGTPE"


def _has_gpu(template: Template) -> bool:
    return any("/" in name for name in template.allocatable)
