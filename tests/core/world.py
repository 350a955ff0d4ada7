"""Short words for the situations that the core's tests look at."""

from collections.abc import Iterable
from typing import Any

from controller.core.model import (
    Behavior,
    Decision,
    GpuRules,
    Metric,
    Observation,
    Pod,
    PodValues,
    Policy,
    RatePolicy,
    Reading,
    Sample,
    ScalingRules,
    Source,
    TargetType,
    Total,
)

NOW = 100_000.0
FREE = Behavior(
    ScalingRules(0, (RatePolicy("Pods", 1_000_000, 15),)), ScalingRules(0, (RatePolicy("Percent", 100, 15),))
)
UTILIZATION = Metric(Source.GPU, "utilization", TargetType.UTILIZATION, 80_000)
HEADROOM = Metric(Source.GPU, "memoryUsed", TargetType.HEADROOM, 8_000_000)
CPU = Metric(Source.RESOURCE, "cpu", TargetType.UTILIZATION, 50)
PODS = Metric(Source.PODS, "queries", TargetType.AVERAGE_VALUE, 80_000)


def external(target: int, kind: TargetType = TargetType.AVERAGE_VALUE, name: str = "queue", **more: Any) -> Metric:
    return Metric(Source.EXTERNAL, name, kind, target * 1000, **more)


def policy(*metrics: Metric, gpu: GpuRules | None = None, **more: Any) -> Policy:
    words: dict[str, Any] = {"min_replicas": 1, "max_replicas": 100, "behavior": FREE} | more
    return Policy(metrics=metrics, gpu=gpu, **words)


def gpu_policy(*metrics: Metric, rules: GpuRules | None = None, **more: Any) -> Policy:
    return policy(*(metrics or (UTILIZATION,)), gpu=rules or GpuRules(), **more)


def ready(name: str, **more: Any) -> Pod:
    return Pod(
        **{"name": name, "created_at": NOW - 7200, "started_at": NOW - 7200, "ready_changed_at": NOW - 7000} | more
    )


def loading(name: str, age: float = 60.0, **more: Any) -> Pod:
    born = NOW - age
    words = {"created_at": born, "started_at": born, "ready_changed_at": born, "ready": False}
    return Pod(**{"name": name} | words | more)


def pending(name: str, age: float = 60.0, **more: Any) -> Pod:
    return Pod(name, phase="Pending", ready=False, created_at=NOW - age, **more)


def crashing(name: str) -> Pod:
    return Pod(name, ready=False, crashing=True, created_at=NOW - 60)


def fleet(count: int, first: int = 0) -> tuple[Pod, ...]:
    return tuple(ready(f"p{index}") for index in range(first, first + count))


def samples(*values: int | None, scale: int = 1000, age: float = 1.0, capacity: int | None = None) -> PodValues:
    return PodValues(
        {
            f"p{index}": Sample(value * scale, NOW - age, capacity=None if capacity is None else capacity * 1000)
            for index, value in enumerate(values)
            if value is not None
        }
    )


def total(*values: int, age: float = 0.0) -> Total:
    return Total(tuple(value * 1000 for value in values), NOW - age)


def seen(pods: Iterable[Pod], *readings: Reading, replicas: int | None = None, **more: Any) -> Observation:
    there = tuple(pods)
    size = len(there) if replicas is None else replicas
    return Observation(**{"replicas": size, "status_replicas": size, "pods": there, "readings": readings} | more)


def shown(decision: Decision) -> dict[str, str]:
    """Type -> Status/Reason."""
    return {one.type: f"{one.status}/{one.reason.value}" for one in decision.conditions}
