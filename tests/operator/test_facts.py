from typing import Any

import pytest

from controller.facts import (
    ExporterFacts,
    exporter_facts,
    hpa_facts,
    is_gpu,
    node_facts,
    pod_facts,
    seconds,
    target_facts,
)
from controller.labels import PodIndex, parse_selector


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "ml"}, "spec": spec, "status": {}}


def container(name: str = "c", **requests: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {k.replace("__", "/"): v for k, v in requests.items()}}}


def shape(**spec: Any) -> dict[str, int]:
    return dict(pod_facts(pod(**spec)).shape.requests)


@pytest.mark.parametrize(
    "manifest", [{}, {"metadata": None, "spec": None, "status": None}, {"status": {"conditions": None}}]
)
def test_a_manifest_without_anything_is_survived(manifest: dict[str, Any]) -> None:
    assert pod_facts(manifest).phase == "Pending"
    assert node_facts(manifest).ready is False
    assert hpa_facts(manifest).target_name == ""
    assert target_facts(manifest).replicas == 1


def test_requests_are_the_sum_of_containers_and_sidecars_but_at_least_the_largest_init_container() -> None:
    asked = shape(
        containers=[container("a", cpu="1"), container("b", cpu="500m")],
        initContainers=[
            {**container("side", cpu="250m"), "restartPolicy": "Always"},
            container("init", cpu="1", memory="1Gi"),
        ],
        overhead={"cpu": "50m"},
    )
    assert asked == {"cpu": 1800, "memory": 1024**3 * 1000}


def test_a_limit_without_a_request_is_the_request() -> None:
    limits = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    facts = pod_facts(pod(containers=[limits]))
    assert facts.shape.gpus == 2000
    assert facts.requests == {"c": {"nvidia.com/gpu": 2000}}


def test_a_quantity_that_is_none_is_left_out() -> None:
    assert shape(containers=[container(cpu="lots", memory="1k")]) == {"memory": 1_000_000}


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "ImagePullBackOff", "CreateContainerConfigError"])
def test_a_container_that_cannot_start_makes_the_pod_crashing(reason: str) -> None:
    manifest = pod() | {"status": {"containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}}
    assert pod_facts(manifest).crashing
    manifest["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] = "ContainerCreating"
    assert not pod_facts(manifest).crashing


def test_only_an_unschedulable_gpu_pod_that_is_nowhere_waits_for_a_gpu() -> None:
    waiting = pod(containers=[container(nvidia__com="0") | {"resources": {"limits": {"nvidia.com/gpu": 1}}}])
    waiting["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    assert pod_facts(waiting).waits_for_gpu
    gated = {
        **waiting,
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
    }
    assert not pod_facts(gated).waits_for_gpu
    assert not pod_facts({**waiting, "spec": {"containers": [container(cpu="1")]}}).waits_for_gpu
    assert not pod_facts({**waiting, "spec": {**waiting["spec"], "nodeName": "n"}}).waits_for_gpu


def test_daemon_and_mirror_pods_do_not_keep_a_node() -> None:
    for kind, keeps in (("DaemonSet", False), ("Node", False), ("ReplicaSet", True)):
        manifest = pod()
        manifest["metadata"]["ownerReferences"] = [{"kind": kind}]
        assert pod_facts(manifest).keeps_node is keeps


def test_node_affinity_rows_are_alternatives_and_their_requirements_all_count() -> None:
    rows = [
        {
            "matchExpressions": [
                {"key": "gpu", "operator": "In", "values": ["h100"]},
                {"key": "spot", "operator": "DoesNotExist"},
            ]
        },
        {"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["4"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": rows}}
    wish = pod_facts(pod(affinity={"nodeAffinity": required}, nodeSelector={"zone": "a"})).shape
    assert wish.accepts({"zone": "a", "gpu": "h100"})
    assert wish.accepts({"zone": "a", "size": "8"})
    assert not wish.accepts({"zone": "b", "gpu": "h100"})
    assert not wish.accepts({"zone": "a", "gpu": "h100", "spot": "true"})
    assert not wish.accepts({"zone": "a", "size": "many"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T00:01:00.500000Z", 60.5),
        ("1970-01-01T00:01:00", None),
        ("now", None),
        (None, None),
        (5, None),
    ],
)
def test_times_are_read_or_unknown(text: object, expected: float | None) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("nvidia.com/gpu.shared", True),
        ("cpu", False),
        ("rdma/ib", False),
    ],
)
def test_gpu_resources_are_known_by_their_names(name: str, *, gpu: bool) -> None:
    assert is_gpu(name) is gpu


def exporter(**status: Any) -> dict[str, Any]:
    ports = [{"name": "metrics", "containerPort": 9836}]
    return {
        "spec": {"nodeName": "n1", "containers": [{"ports": ports}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7", **status},
    }


@pytest.mark.parametrize(
    ("manifest", "port", "url"),
    [
        (exporter(), "metrics", "http://10.0.0.7:9836/metrics/native"),
        (exporter(), "9400", "http://10.0.0.7:9400/metrics/native"),
        (exporter(podIP="fd00::7"), "metrics", "http://[fd00::7]:9836/metrics/native"),
        (exporter(), "other", None),
        (exporter(podIP=None), "metrics", None),
        (exporter(phase="Pending"), "metrics", None),
    ],
)
def test_an_exporter_is_found_by_its_pods_address_and_port(
    manifest: dict[str, Any], port: str, url: str | None
) -> None:
    assert exporter_facts(manifest, port) == (ExporterFacts(url, "n1") if url else None)


def test_an_exporter_is_asked_by_the_scheme_of_the_settings() -> None:
    assert exporter_facts(exporter(), "metrics", "https") == ExporterFacts("https://10.0.0.7:9836/metrics/native", "n1")


def test_a_selector_object_becomes_text_that_means_the_same() -> None:
    selector = {
        "matchLabels": {"app": "x"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]},
            {"key": "old", "operator": "DoesNotExist"},
            {"key": "v", "operator": "NotIn", "values": ["1"]},
            {"key": "k", "operator": "Exists"},
        ],
    }
    parsed = parse_selector(target_facts({"spec": {"selector": selector}}).selector)
    assert parsed.matches({"app": "x", "tier": "b", "k": ""})
    for changed in ({"app": "y"}, {"tier": "c"}, {"old": "1"}, {"v": "1"}):
        assert not parsed.matches({"app": "x", "tier": "b", "k": "", **changed})


@pytest.mark.parametrize("text", ["a in b", "a==b==c", "=x", "a in (b", "a,,b", "a b"])
def test_what_is_no_selector_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="not a label selector"):
        parse_selector(text)


def test_an_empty_selector_matches_no_pod() -> None:
    assert not parse_selector("").matches({"app": "x"})


def test_the_index_finds_just_the_pods_of_the_namespace_and_selector() -> None:
    def labelled(namespace: str, name: str, **labels: str) -> Any:
        return pod_facts({"metadata": {"namespace": namespace, "name": name, "labels": labels}})

    index = PodIndex([labelled("a", "2", app="x"), labelled("a", "1", app="x", v="1"), labelled("b", "3", app="x")])
    assert [p.name for p in index.selected("a", parse_selector("app=x"))] == ["1", "2"]
    assert [p.name for p in index.selected("a", parse_selector("app=x,!v"))] == ["2"]
    assert [p.name for p in index.selected("a", parse_selector("app in (x,y),app!=y"))] == ["1", "2"]
    assert index.selected("c", parse_selector("app=x")) == ()
