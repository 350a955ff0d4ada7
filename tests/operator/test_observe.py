from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controller.core.decide import decide
from controller.core.model import Failed, Observation, PodValues, Reason, Total
from controller.facts import PodFacts, Shape, TargetFacts, node_facts, pod_facts
from controller.labels import PodIndex
from controller.observe import Sources, asks, observe_workload
from controller.observe_pool import Planned, fits_pool, learn_template, observe_pool, pool_nodes
from controller.policy import workload_policy
from controller.pool_spec import PoolSpec
from controller.resources import parse_pool_scaler, parse_workload_scaler
from controller.sources.exporters import GpuReadings, HeldGpu
from controller.sources.prometheus import Ask, Fault, Numbers
from controller.sources.series import Fact, GpuValues
from controller.workload_spec import WorkloadSpec

TARGET = TargetFacts(2, 2, "app=x", Shape())


def spec(*metrics: Mapping[str, Any], **more: Any) -> WorkloadSpec:
    manifest = {
        "apiVersion": "gpuscale.dev/v1alpha1",
        "kind": "GPUWorkloadScaler",
        "metadata": {"name": "x", "namespace": "ml"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"},
            "maxReplicas": 9,
            "metrics": list(metrics),
            **more,
        },
    }
    return parse_workload_scaler(manifest).spec


def gpu(name: str = "utilization", target: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    default = {"type": "Utilization", "averageUtilization": 80}
    return {"type": "GPU", "gpu": {"name": name, "target": dict(target or default), **more}}


def pod(name: str, **status: Any) -> PodFacts:
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return pod_facts({"metadata": {"name": name, "namespace": "ml", "labels": {"app": "x"}}, "status": ready | status})


def held(container: str = "c", uuid: str = "GPU-a", at: float = 100.0, **values: int | str) -> HeldGpu:
    entry = GpuValues(at)
    for name, value in values.items():
        if isinstance(value, int):
            entry.values[Fact[name]] = value
        else:
            entry.rejected[Fact[name]] = value
    return HeldGpu(container, uuid, entry)


def readings(**pods: list[HeldGpu]) -> GpuReadings:
    return GpuReadings({("ml", name): tuple(rows) for name, rows in pods.items()}, {}, 1)


def observed(workload: WorkloadSpec, gpus: GpuReadings, *pods: PodFacts, **queries: Any) -> Observation:
    sources = Sources(gpus, queries.get("queries", {}))
    return observe_workload(workload, workload_policy(workload), TARGET, pods or (pod("a"), pod("b")), sources, 100.0)


def values(observation: Observation) -> dict[str, int]:
    (reading,) = observation.readings
    assert isinstance(reading, PodValues)
    return {name: sample.value for name, sample in reading.samples.items()}


@pytest.mark.parametrize(
    ("aggregation", "expected"), [(None, 90000), ("Max", 90000), ("Min", 30000), ("Average", 60000)]
)
def test_a_pods_gpus_are_aggregated_as_asked(aggregation: str | None, expected: int) -> None:
    more = {"podAggregation": aggregation} if aggregation else {}
    both = [held(uuid="GPU-a", UTILIZATION=90000), held(uuid="GPU-b", UTILIZATION=30000)]
    assert values(observed(spec(gpu(**more)), readings(a=both))) == {"a": expected}


def test_memory_is_summed_over_the_gpus_with_its_capacity() -> None:
    both = [
        held(uuid="GPU-a", MEMORY_USED=10, MEMORY_CAPACITY=80, at=90.0),
        held(uuid="GPU-b", MEMORY_USED=20, MEMORY_CAPACITY=80, at=80.0),
    ]
    target = {"type": "Headroom", "headroomMegabytes": 5}
    (reading,) = observed(spec(gpu("memoryUsed", target)), readings(a=both)).readings
    assert isinstance(reading, PodValues)
    sample = reading.samples["a"]
    assert (sample.value, sample.capacity, sample.at) == (30, 160, 80.0)


def test_memory_utilisation_is_used_of_capacity_in_milli_percent() -> None:
    row = [held(MEMORY_USED=20_000, MEMORY_CAPACITY=80_000)]
    assert values(observed(spec(gpu("memoryUtilization")), readings(a=row))) == {"a": 25_000}


def test_only_the_named_containers_gpus_count() -> None:
    both = [held("server", UTILIZATION=10), held("sidecar", uuid="GPU-b", UTILIZATION=99)]
    assert values(observed(spec(gpu(container="server")), readings(a=both))) == {"a": 10}


def test_one_gpu_without_its_value_makes_the_pods_value_unknown_and_says_which() -> None:
    both = [held(UTILIZATION=10), held(uuid="GPU-b", UTILIZATION="NaN")]
    observation = observed(spec(gpu()), readings(a=both))
    (reading,) = observation.readings
    assert isinstance(reading, PodValues)
    assert (reading.samples, reading.rejected) == ({}, {"a": "utilization of GPU-b: NaN"})
    assert observation.utilization == {}


def failed(observation: Observation) -> Failed:
    (reading,) = observation.readings
    assert isinstance(reading, Failed)
    return reading


def test_no_series_of_any_ready_pod_is_no_attribution() -> None:
    fault = failed(observed(spec(gpu()), readings(other=[held(UTILIZATION=1)])))
    assert fault.reason is Reason.NO_ATTRIBUTION


def test_a_pod_of_which_only_another_nodes_exporter_tells_has_no_value_and_the_reason_says_so() -> None:
    told = GpuReadings({}, {}, 1, {("ml", "b"): "the exporter x on node n1 tells of b as on node n2"})
    fault = failed(observed(spec(gpu()), told))
    assert fault.reason is Reason.NO_ATTRIBUTION
    assert fault.message.endswith("; the exporter x on node n1 tells of b as on node n2")


def test_where_no_exporter_was_found_the_reason_says_what_was_looked_for() -> None:
    fault = failed(observed(spec(gpu()), GpuReadings(sought="a pod in namespace gpus")))
    assert (fault.reason, fault.message) == (
        Reason.FAILED_GET_GPU_METRIC,
        "no GPU exporter was found: a pod in namespace gpus",
    )


def test_failing_exporters_are_the_reason_where_no_value_is_left() -> None:
    fault = failed(observed(spec(gpu()), GpuReadings({}, {"http://x": "HTTP 500"}, 2)))
    assert fault.reason is Reason.FAILED_GET_GPU_METRIC
    assert "1 of 2 GPU exporters fail, e.g. http://x: HTTP 500" in fault.message


def test_pods_that_all_still_start_are_no_fault_of_the_sources() -> None:
    starting = pod("a", conditions=[{"type": "Ready", "status": "False"}])
    (reading,) = observed(spec(gpu()), readings(), starting).readings
    assert reading == PodValues({}, {})


def external(**source: Any) -> dict[str, Any]:
    block: dict[str, Any] = {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "5"}}
    return {"type": "External", "external": block | ({"source": {"kind": "Prometheus", **source}} if source else {})}


def test_a_query_gives_its_numbers_and_its_faults_keep_their_word() -> None:
    workload = spec(external(query="up", maxAgeSeconds=60))
    ask = Ask("default", "up", 60.0)
    assert asks(workload) == [ask]
    (total,) = observed(workload, readings(), queries={ask: Numbers((5, 6), 90.0)}).readings
    assert total == Total((5, 6), 90.0)
    for fault, reason in (
        (Fault("NoData", "the query gives no series"), Reason.FAILED_GET_EXTERNAL_METRIC),
        (Fault("Stale", "900 s old"), Reason.STALE_DATA),
    ):
        found = failed(observed(workload, readings(), queries={ask: fault}))
        assert (found.reason, found.message) == (reason, f"{fault.word}: {fault.message}")


@pytest.mark.parametrize(
    ("metrics", "reason", "api"),
    [
        ((), Reason.FAILED_GET_RESOURCE_METRIC, "metrics.k8s.io"),
        ((external(),), Reason.FAILED_GET_EXTERNAL_METRIC, "external.metrics.k8s.io"),
    ],
)
def test_a_metric_whose_api_is_not_read_names_it(metrics: tuple[Any, ...], reason: Reason, api: str) -> None:
    fault = failed(observed(spec(*metrics), readings()))
    assert (fault.reason, api in fault.message) == (reason, True)


def test_p08_a_metric_that_fails_forbids_a_shrink_and_allows_growth() -> None:
    workload = spec(
        external(query="m1"),
        external(query="m2") | {"external": external(query="m2")["external"] | {"metric": {"name": "m2"}}},
    )
    policy = workload_policy(workload)
    ask, broken = Ask("default", "m1"), Ask("default", "m2")
    for total, wanted in ((5000, 3), (25000, 5)):
        results = {ask: Numbers((total,), 100.0), broken: Fault("Unreachable", "server default answered 503")}
        target = TargetFacts(3, 3, "app=x", Shape())
        pods = tuple(pod(name) for name in "abc")
        observation = observe_workload(workload, policy, target, pods, Sources(readings(), results), 100.0)
        assert decide(policy, observation, None, 100.0).desired == wanted


def test_the_utilisation_for_victims_is_the_busiest_gpu_and_never_stale() -> None:
    gpus = readings(a=[held(UTILIZATION=5), held(uuid="GPU-b", UTILIZATION=50)], b=[held(UTILIZATION=1, at=10.0)])
    assert observed(spec(gpu()), gpus).utilization == {"a": 50}


def pool_spec(**more: Any) -> PoolSpec:
    ref = {"apiVersion": "x.io/v1", "kind": "Pool", "name": "p"}
    body = {"pool": {"ref": ref, "nodeSelector": {"pool": "a"}, **more}, "bounds": {"max": 5}}
    head = {"apiVersion": "gpuscale.dev/v1alpha1", "kind": "GPUNodePoolScaler", "metadata": {"name": "p"}}
    return parse_pool_scaler({**head, "spec": body}).spec


def node(name: str, gpus: str = "8", created: str = "2026-01-01T00:00:00Z", **meta: Any) -> dict[str, Any]:
    labels = {"pool": "a", "kubernetes.io/hostname": name, **meta.pop("labels", {})}
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": created, **meta},
        "status": {
            "allocatable": {"cpu": "10", "nvidia.com/gpu": gpus},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def bound(name: str, on: str, *, daemon: bool = False, phase: str = "Running", gpus: str = "1") -> PodFacts:
    meta: dict[str, Any] = {"name": name, "namespace": "ml"}
    if daemon:
        meta["ownerReferences"] = [{"kind": "DaemonSet"}]
    limits = {"cpu": "1"} | ({} if daemon else {"nvidia.com/gpu": gpus})
    containers = [{"name": "c", "resources": {"limits": limits}}]
    return pod_facts({"metadata": meta, "spec": {"nodeName": on, "containers": containers}, "status": {"phase": phase}})


OURS = {"x/remove": "true", "gpuscale.dev/marked-by": "a"}


def test_a_node_counts_what_pods_ask_for_and_only_pods_that_keep_it() -> None:
    spec_ = pool_spec(victimMark={"annotation": "x/remove"})
    nodes = [node_facts(node("n1", annotations=OURS)), node_facts(node("n2", labels={"pool": "b"}))]
    index = PodIndex([bound("a", "n1"), bound("d", "n1", daemon=True), bound("e", "n1", phase="Succeeded")])
    mine = pool_nodes(spec_, nodes)
    (seen,) = observe_pool(spec_, 1, mine, index, [], []).nodes
    assert (seen.name, seen.pods, seen.marked) == ("n1", 1, True)
    assert seen.requested == {"cpu": 2000, "nvidia.com/gpu": 1000}


@pytest.mark.parametrize("annotations", [{"x/remove": "yes", "gpuscale.dev/marked-by": "a"}, {"x/remove": "true"}])
def test_a_mark_of_another_value_or_without_our_signature_is_somebody_elses(annotations: dict[str, str]) -> None:
    spec_ = pool_spec(victimMark={"annotation": "x/remove"})
    (seen,) = observe_pool(spec_, 1, [node_facts(node("n1", annotations=annotations))], PodIndex([]), [], []).nodes
    assert (seen.marked, seen.foreign_mark) == (False, f"x/remove={annotations['x/remove']}")


def test_the_template_is_learned_from_the_youngest_node_with_gpus_less_what_daemons_take() -> None:
    nodes = [
        node_facts(node("old", gpus="4")),
        node_facts(node("new", created="2026-02-01T00:00:00Z")),
        node_facts(node("bare", gpus="0", created="2026-03-01T00:00:00Z")),
    ]
    template = learn_template(nodes, PodIndex([bound("d", "new", daemon=True)]))
    assert template is not None
    assert template.allocatable == {"cpu": 9000, "nvidia.com/gpu": 8000}
    assert template.labels == {"pool": "a"}
    assert template.gpu_resources == ("nvidia.com/gpu",)
    assert learn_template(nodes[2:], PodIndex([])) is None


def test_a_pod_belongs_to_a_pool_by_its_labels_and_by_the_gpu_resource() -> None:
    template = learn_template([node_facts(node("n"))], PodIndex([]))
    whole = Shape(requests=(("nvidia.com/gpu", 1000),))
    assert fits_pool(whole, pool_spec(), template)
    assert not fits_pool(Shape(requests=(("nvidia.com/mig-1g.10gb", 1000),)), pool_spec(), template)
    assert not fits_pool(Shape(requests=whole.requests, node_selector=(("pool", "b"),)), pool_spec(), template)


def test_equal_pods_are_one_class_with_a_few_names() -> None:
    pods = [bound(f"p{number}", "") for number in range(5)]
    plan = Planned("Deployment ml/x", pods[0].shape, 2)
    observation = observe_pool(pool_spec(), 1, [], PodIndex([]), pods, [plan])
    (pending,), (planned,) = observation.pending, observation.planned
    assert (pending.count, pending.names) == (5, ("ml/p0", "ml/p1", "ml/p2"))
    assert (planned.count, planned.names) == (2, ("Deployment ml/x",))


def on(node_name: str, entry: HeldGpu) -> HeldGpu:
    entry.values.node = node_name
    return entry


def test_series_of_a_pod_of_the_same_name_on_another_node_are_not_the_pods() -> None:
    moved = replace(pod("a"), node="n2")
    elsewhere = readings(a=[on("n1", held(UTILIZATION=0))])
    observation = observed(spec(gpu()), elsewhere, moved)
    (reading,) = observation.readings
    assert isinstance(reading, PodValues)
    assert reading.rejected == {"a": "its series name node n1, the pod is on n2"}
    assert observation.utilization == {}
    both = readings(a=[on("n1", held(UTILIZATION=0)), on("n2", held(UTILIZATION=70_000))])
    assert values(observed(spec(gpu()), both, moved)) == {"a": 70_000}


def test_a_sample_from_before_the_pod_started_is_of_an_earlier_pod_of_that_name() -> None:
    reborn = replace(pod("a"), started_at=100.0, created_at=99.0)
    observation = observed(spec(gpu()), readings(a=[held(at=99.5, UTILIZATION=0)]), reborn, pod("b"))
    assert observation.utilization == {}
    assert values(observed(spec(gpu()), readings(a=[held(at=100.0, UTILIZATION=5)]), reborn)) == {"a": 5}


def test_a_start_far_in_the_future_says_that_clocks_differ_and_not_that_samples_are_old() -> None:
    ahead = replace(pod("a"), started_at=3700.0)
    assert values(observed(spec(gpu()), readings(a=[held(at=100.0, UTILIZATION=5)]), ahead)) == {"a": 5}


def test_a_pod_of_which_one_gpu_is_lost_has_no_value_rather_than_a_smaller_one() -> None:
    lost = held(uuid="GPU-b")
    lost.values.unknown = "gpu_absent"
    observation = observed(spec(gpu()), readings(a=[held(UTILIZATION=1), lost]), pod("a"))
    (reading,) = observation.readings
    assert isinstance(reading, PodValues)
    assert (dict(reading.samples), reading.rejected) == ({}, {"a": "utilization of GPU-b: gpu_absent"})
