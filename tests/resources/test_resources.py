"""What users may write: good objects are read whole, bad ones are refused with every fault and its path."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from controller import crds
from controller.policy import pool_policy
from controller.resources import GPUNodePoolScaler, GPUWorkloadScaler, Invalid, parse_pool_scaler, parse_workload_scaler
from controller.schema import dump

TESTS = Path(__file__).resolve().parents[1]
PARSERS = {"GPUWorkloadScaler": parse_workload_scaler, "GPUNodePoolScaler": parse_pool_scaler}
SCHEMAS = {
    d["spec"]["names"]["kind"]: d["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for d in crds.definitions()
}
Entry = dict[str, Any]


def entries(folder: str) -> list[Entry]:
    return [entry for path in sorted((TESTS / folder).glob("*.yaml")) for entry in yaml.safe_load(path.read_text())]


def read(manifest: Entry) -> GPUWorkloadScaler | GPUNodePoolScaler:
    return PARSERS[manifest["kind"]](manifest)


def named(entry: Entry) -> str:
    return str(entry["name"]).replace(" ", "-")


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def includes(whole: Any, part: Any) -> bool:
    """Every word of ``part`` is in ``whole``; numbers and quantities are compared as text."""
    if isinstance(part, dict):
        return all(key in whole and includes(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(includes(a, b) for a, b in zip(whole, part, strict=True))
    return str(whole) == str(part)


@pytest.mark.parametrize("entry", entries("bad_objects"), ids=named)
def test_a_bad_object_is_refused_with_all_its_faults_at_once(entry: Entry) -> None:
    with pytest.raises(Invalid) as caught:
        read(entry["manifest"])
    assert sorted(fault.path for fault in caught.value.faults) == sorted(entry["faults"])


@pytest.mark.parametrize("entry", entries("bad_objects"), ids=named)
def test_a_fault_says_what_would_be_right(entry: Entry) -> None:
    with pytest.raises(Invalid) as caught:
        read(entry["manifest"])
    for fault in caught.value.faults:
        words = ("must", "is required", "is not a field", "needs", "it is for", "use ", "leave ")
        assert any(word in fault.message for word in words), fault


@pytest.mark.parametrize("entry", entries("good_objects"), ids=named)
def test_a_good_object_is_read_whole(entry: Entry) -> None:
    spec = dump(read(entry["manifest"]).spec)
    assert includes(spec, without_nulls(entry["manifest"]["spec"]))


@pytest.mark.parametrize("entry", entries("good_objects"), ids=named)
def test_the_schema_takes_a_good_object(entry: Entry) -> None:
    manifest = json.loads(json.dumps(without_nulls(entry["manifest"])))
    assert list(jsonschema.Draft202012Validator(SCHEMAS[manifest["kind"]]).iter_errors(manifest)) == []


@pytest.mark.parametrize("entry", entries("good_objects"), ids=named)
def test_what_was_read_reads_the_same_again(entry: Entry) -> None:
    first = read(entry["manifest"])
    again = read({**entry["manifest"], "spec": dump(first.spec)})
    assert again == first


def broken(manifest: Entry, rng: random.Random) -> Entry:
    """Put a wrong value somewhere into the spec."""
    copied = copy.deepcopy(manifest)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            places.append((node, key))
            if isinstance(value, dict | list):
                walk(value)

    walk(copied["spec"])
    node, key = rng.choice(places)
    node[key] = rng.choice([None, True, -1, 1.5, "", "x" * 5000, [], {}, [None], {"a": 1}, [[]], 10**30])
    return copied


def paths_of_faults(manifest: Entry) -> list[str]:
    try:
        read(manifest)
    except Invalid as invalid:
        return [fault.path for fault in invalid.faults]
    return []


@pytest.mark.parametrize("seed", range(8))
def test_whatever_stands_in_a_spec_the_parser_answers_with_a_value_or_with_faults(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  a repeatable one
    good = [entry["manifest"] for entry in entries("good_objects")]
    answers = [paths_of_faults(broken(rng.choice(good), rng)) for _ in range(200)]
    assert all(path.startswith("spec") for paths in answers for path in paths)
    assert sum(bool(paths) for paths in answers) > 50


@pytest.mark.parametrize("seed", range(8))
def test_what_the_schema_refuses_the_parser_refuses_too(seed: int) -> None:
    rng = random.Random(1000 + seed)  # noqa: S311  a repeatable one
    good = [entry["manifest"] for entry in entries("good_objects")]
    for _ in range(100):
        manifest = without_nulls(broken(rng.choice(good), rng))
        validator = jsonschema.Draft202012Validator(SCHEMAS[manifest["kind"]])
        if not validator.is_valid(json.loads(json.dumps(manifest))):
            with pytest.raises(Invalid):
                read(manifest)


HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: shop, uid: u-1, generation: 7, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 10
status: {currentReplicas: 3}
"""


def test_a_plain_hpa_manifest_is_read_and_what_is_absent_stays_absent() -> None:
    scaler = parse_workload_scaler(yaml.safe_load(HPA))
    assert (scaler.name, scaler.namespace, scaler.uid, scaler.generation) == ("web", "shop", "u-1", 7)
    assert (scaler.is_hpa, scaler.created, scaler.status) == (True, "2026-01-01T00:00:00Z", {"currentReplicas": 3})
    assert (scaler.spec.min_replicas, scaler.spec.metrics, scaler.spec.behavior) == (1, (), None)
    assert (scaler.spec.missing_data, scaler.spec.warmup, scaler.spec.victim_selection) == (None, None, None)


def test_an_empty_behavior_is_not_an_absent_one() -> None:
    manifest = yaml.safe_load(HPA)
    manifest["spec"]["behavior"] = {}
    assert parse_workload_scaler(manifest).spec.behavior is not None


def test_an_older_hpa_is_refused_by_its_version() -> None:
    manifest = {**yaml.safe_load(HPA), "apiVersion": "autoscaling/v1"}
    with pytest.raises(Invalid, match=r"apiVersion: must be autoscaling/v2 for HorizontalPodAutoscaler"):
        parse_workload_scaler(manifest)


@pytest.mark.parametrize("manifest", [{}, {"kind": None, "metadata": None, "spec": 5}, {"metadata": [], "spec": []}])
def test_an_object_of_no_kind_names_everything_that_is_missing(manifest: Entry) -> None:
    for parser in PARSERS.values():
        with pytest.raises(Invalid) as caught:
            parser(manifest)
        assert [fault.path for fault in caught.value.faults][:3] == ["kind", "metadata.name", "spec"]


def test_bounds_that_cross_are_named_with_both_numbers() -> None:
    manifest = yaml.safe_load(HPA)
    manifest["spec"] |= {"minReplicas": 12}
    with pytest.raises(Invalid, match="maxReplicas is 10 and minReplicas is 12"):
        parse_workload_scaler(manifest)


def test_a_misspelt_field_is_named_with_the_nearest_right_one() -> None:
    manifest = yaml.safe_load(HPA)
    manifest["spec"] |= {"minreplica": 1, "colour": "red"}
    with pytest.raises(Invalid) as caught:
        parse_workload_scaler(manifest)
    near, far = (str(fault) for fault in caught.value.faults)
    assert near == "spec.minreplica: is not a field of spec; did you mean minReplicas?"
    assert far.startswith("spec.colour: is not a field of spec; its fields are mode, scaleTargetRef")


@pytest.mark.parametrize(
    ("gpu", "milli", "aggregation"),
    [
        ({"name": "utilization", "target": {"type": "Utilization", "averageUtilization": 75}}, 75_000, "Max"),
        ({"name": "memoryUsed", "target": {"type": "AverageValue", "averageValue": "40Gi"}}, 40_960_000, "Sum"),
        ({"name": "memoryUsed", "target": {"type": "AverageValue", "averageValue": "1k"}}, 1, "Sum"),
        ({"name": "memoryUsed", "target": {"type": "Headroom", "headroomMegabytes": 4096}}, 4_096_000, "Sum"),
        ({"name": "power", "target": {"type": "AverageValue", "averageValue": 300}}, 300_000, "Sum"),
        (
            {"name": "power", "podAggregation": "Min", "target": {"type": "AverageValue", "averageValue": "1.5k"}},
            1_500_000,
            "Min",
        ),
    ],
)
def test_a_gpu_target_is_read_in_the_unit_of_its_metric(gpu: Entry, milli: int, aggregation: str) -> None:
    manifest = yaml.safe_load(HPA)
    manifest["spec"]["metrics"] = [{"type": "GPU", "gpu": gpu}]
    metric = parse_workload_scaler(manifest).spec.metrics[0].gpu
    assert metric is not None
    assert (metric.target_milli, metric.aggregation) == (milli, aggregation)


def test_declared_startup_taints_reach_the_decision() -> None:
    full = next(e["manifest"] for e in entries("good_objects") if "startupTaints" in str(e["manifest"]))
    template = pool_policy(parse_pool_scaler(full).spec).template
    assert template is not None
    assert [(taint.key, taint.effect) for taint in template.startup_taints] == [("gpu-not-ready", "NoSchedule")]
    assert [taint.key for taint in template.taints] == ["nvidia.com/gpu"]
