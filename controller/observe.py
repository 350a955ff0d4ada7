"""PURE: what the stores and the sources know -> what one workload decision looks at.

Why it exists: the decision core knows no manifests, exporters or queries. Every way in which a value can be missing
ends here as a missing sample or as a failed reading with its reason; none ends as 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.core.model import Failed, Metric, Observation, Pod, PodValues, Policy, Reading, Reason, Sample, Total
from controller.core.model import Source as MetricSource
from controller.facts import PodFacts, TargetFacts
from controller.sources.exporters import GpuReadings, HeldGpu
from controller.sources.prometheus import Ask, Fault, QueryResult
from controller.sources.series import Fact
from controller.workload_spec import ExternalMetric, GpuMetric, MetricSpec, WorkloadSpec

DEFAULT_MAX_AGE_SECONDS = 30.0
_CLOCK_DOUBT_SECONDS = 60.0
"""A pod that was born so far in our future shows that clocks differ; its birth then says nothing about a reading."""

_FACTS = {"utilization": Fact.UTILIZATION, "memoryUsed": Fact.MEMORY_USED, "power": Fact.POWER}
_NO_API = {
    MetricSource.RESOURCE: (Reason.FAILED_GET_RESOURCE_METRIC, "the resource metrics API (metrics.k8s.io)"),
    MetricSource.CONTAINER_RESOURCE: (
        Reason.FAILED_GET_CONTAINER_RESOURCE_METRIC,
        "the resource metrics API (metrics.k8s.io)",
    ),
    MetricSource.PODS: (Reason.FAILED_GET_PODS_METRIC, "the custom metrics API (custom.metrics.k8s.io)"),
    MetricSource.OBJECT: (Reason.FAILED_GET_OBJECT_METRIC, "the custom metrics API (custom.metrics.k8s.io)"),
    MetricSource.EXTERNAL: (Reason.FAILED_GET_EXTERNAL_METRIC, "the external metrics API (external.metrics.k8s.io)"),
}


@dataclass(frozen=True, slots=True)
class Sources:
    """All readings of one tick."""

    gpu: GpuReadings = field(default_factory=GpuReadings)
    queries: Mapping[Ask, QueryResult] | None = None


@dataclass(frozen=True, slots=True)
class _Missing:
    """A pod's value that is not to be had, and why."""

    why: str


def asks(spec: WorkloadSpec) -> list[Ask]:
    """List the Prometheus queries that a spec needs."""
    found = (_ask(metric.external) for metric in spec.metrics if metric.external is not None)
    return [ask for ask in found if ask is not None]


def observe_workload(
    spec: WorkloadSpec,
    policy: Policy,
    target: TargetFacts,
    pods: Sequence[PodFacts],
    sources: Sources,
    now: float,
) -> Observation:
    """Gather what a decision on this target looks at. ``pods`` are those that its selector matches; ``now`` Unix s."""
    max_age = policy.gpu.max_age_seconds if policy.gpu else DEFAULT_MAX_AGE_SECONDS
    specs: Sequence[MetricSpec | None] = spec.metrics or [None] * len(policy.metrics)
    return Observation(
        replicas=target.replicas,
        status_replicas=target.status_replicas,
        pods=tuple(core_pod(pod) for pod in pods),
        readings=tuple(
            _reading(metric, metric_spec, pods, sources, now)
            for metric, metric_spec in zip(policy.metrics, specs, strict=True)
        ),
        utilization=_utilization(pods, sources.gpu, now, max_age),
    )


def core_pod(pod: PodFacts) -> Pod:
    """Give the decision core's view of a pod."""
    return Pod(
        name=pod.name,
        phase=pod.phase,
        deleting=pod.deleting,
        ready=pod.ready,
        ready_changed_at=pod.ready_changed_at,
        started_at=pod.started_at,
        created_at=pod.created_at,
        crashing=pod.crashing,
        requests=pod.requests,
    )


def _ask(external: ExternalMetric) -> Ask | None:
    source = external.source
    if source is None:
        return None
    limit = None if source.max_age_seconds is None else float(source.max_age_seconds)
    return Ask(source.server, source.query, limit)


def _reading(
    metric: Metric, spec: MetricSpec | None, pods: Sequence[PodFacts], sources: Sources, now: float
) -> Reading:
    if spec is not None and spec.gpu is not None:
        return _gpu_reading(spec.gpu, pods, sources.gpu, now)
    ask = _ask(spec.external) if spec is not None and spec.external is not None else None
    if ask is not None:
        return _query_reading((sources.queries or {}).get(ask))
    return _no_api(metric)


def _no_api(metric: Metric) -> Failed:
    if metric.source is MetricSource.GPU:
        return Failed(Reason.INVALID_METRIC_SOURCE_TYPE, f"{metric.label} has no gpu block")
    reason, api = _NO_API[metric.source]
    hint = "; a source of kind Prometheus can give it" if metric.source is MetricSource.EXTERNAL else ""
    return Failed(reason, f"{metric.label} would come from {api}, which this operator does not read{hint}")


def _query_reading(result: QueryResult | None) -> Reading:
    if result is None:
        return Failed(Reason.FAILED_GET_EXTERNAL_METRIC, "the query was not sent")
    if isinstance(result, Fault):
        reason = Reason.STALE_DATA if result.word == "Stale" else Reason.FAILED_GET_EXTERNAL_METRIC
        return Failed(reason, f"{result.word}: {result.message}")
    return Total(result.values, result.at)


def _gpu_reading(metric: GpuMetric, pods: Sequence[PodFacts], gpu: GpuReadings, now: float) -> Reading:
    samples: dict[str, Sample] = {}
    rejected: dict[str, str] = {}
    for pod in pods:
        held = _held(pod, gpu, now, metric.container)
        if held:
            sample = held if isinstance(held, _Missing) else _sample(metric, held)
            if isinstance(sample, _Missing):
                rejected[pod.name] = sample.why
            else:
                samples[pod.name] = sample
    if not samples and not rejected and any(pod.ready and not pod.deleting for pod in pods):
        return _nothing(metric, pods, gpu)
    return PodValues(samples, rejected)


def _nothing(metric: GpuMetric, pods: Sequence[PodFacts], gpu: GpuReadings) -> Failed:
    """No pod has a single series: the sources fail, or nobody says who holds which GPU."""
    if gpu.failures or not gpu.exporters:
        return Failed(Reason.FAILED_GET_GPU_METRIC, gpu.why_empty())
    container = f" with a container named {metric.container}" if metric.container else ""
    foreign = next((f"; {gpu.foreign[key]}" for pod in pods if (key := (pod.namespace, pod.name)) in gpu.foreign), "")
    return Failed(Reason.NO_ATTRIBUTION, f"no exporter has a GPU series of any pod of the target{container}{foreign}")


def _held(pod: PodFacts, gpu: GpuReadings, now: float, container: str | None = None) -> tuple[HeldGpu, ...] | _Missing:
    """Give what the pod holds. A name says little: an earlier pod bore it too, here or on another node."""
    named = gpu.pods.get((pod.namespace, pod.name), ())
    wanted = [one for one in named if container is None or one.container == container]
    born_at = pod.started_at or pod.created_at or 0.0
    if born_at > now + _CLOCK_DOUBT_SECONDS:
        born_at = 0.0
    held = tuple(one for one in wanted if one.values.node in ("", pod.node) and one.values.at >= born_at)
    elsewhere = [one.values.node for one in wanted if one.values.node not in ("", pod.node)]
    if elsewhere and not held:
        return _Missing(f"its series name node {elsewhere[0]}, the pod is on {pod.node or 'none'}")
    return held


def _sample(metric: GpuMetric, held: Sequence[HeldGpu]) -> Sample | _Missing:
    """Aggregate a pod's GPUs. One GPU without its value makes the pod's value unknown, not smaller."""
    values: list[int] = []
    for one in held:
        value = _value(metric.name, one)
        if isinstance(value, _Missing):
            return value
        values.append(value)
    aggregate = _AGGREGATES[metric.aggregation]
    at = min(one.values.at for one in held)
    return Sample(aggregate(values), at, capacity=_capacity(metric, held, aggregate))


def _value(name: str, one: HeldGpu) -> int | _Missing:
    if name == "memoryUtilization":
        used, capacity = _fact(Fact.MEMORY_USED, one), _fact(Fact.MEMORY_CAPACITY, one)
        if isinstance(used, _Missing):
            return used
        if isinstance(capacity, _Missing):
            return capacity
        return used * 100_000 // capacity if capacity else _Missing(f"capacity 0 on {one.gpu}")
    return _fact(_FACTS[name], one)


def _fact(fact: Fact, one: HeldGpu) -> int | _Missing:
    value = one.values.values.get(fact)
    if value is not None:
        return value
    why = one.values.rejected.get(fact) or one.values.unknown or "not given"
    return _Missing(f"{fact.value} of {one.gpu}: {why}")


def _capacity(metric: GpuMetric, held: Sequence[HeldGpu], aggregate: Callable[[Sequence[int]], int]) -> int | None:
    if metric.name != "memoryUsed":
        return None
    capacities = [one.values.values.get(Fact.MEMORY_CAPACITY) for one in held]
    known = [capacity for capacity in capacities if capacity is not None]
    return aggregate(known) if known and len(known) == len(held) else None


def _average(values: Sequence[int]) -> int:
    return sum(values) // len(values)


_AGGREGATES: Mapping[str, Callable[[Sequence[int]], int]] = {
    "Max": max,
    "Min": min,
    "Sum": sum,
    "Average": _average,
}


def _utilization(pods: Sequence[PodFacts], gpu: GpuReadings, now: float, max_age: float) -> dict[str, int]:
    """Find the busiest GPU of each pod, for the choice of victims; only of pods of which every GPU is known."""
    found: dict[str, int] = {}
    for pod in pods:
        held = _held(pod, gpu, now)
        if isinstance(held, _Missing):
            continue
        values = [one.values.values.get(Fact.UTILIZATION) for one in held if one.values.at >= now - max_age]
        known = [value for value in values if value is not None]
        if known and len(known) == len(held):
            found[pod.name] = max(known)
    return found
