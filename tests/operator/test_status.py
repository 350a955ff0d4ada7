import json
from dataclasses import fields, replace
from typing import Any

import jsonschema
import pytest

from controller.core import words
from controller.core.model import (
    Condition,
    Decision,
    Memory,
    Metric,
    MetricTrace,
    Observation,
    Pod,
    Reason,
    Source,
    Step,
    TargetType,
    Trace,
)
from controller.core.pool_model import (
    Node,
    NodeTemplate,
    PoolDecision,
    PoolMemory,
    PoolObservation,
    PoolTrace,
    Taint,
)
from controller.resource_status import PoolStatus, WorkloadStatus
from controller.schema import openapi
from controller.status import (
    Moment,
    Worth,
    faults_of,
    held_document,
    load_memory,
    merged_conditions,
    new_faults,
    timestamp,
    workload_document,
    worth_writing,
)
from controller.status_pool import load_pool_memory, load_template, pool_document

NOW = 1_800_000_000.0
MOMENT = Moment(NOW, 3)
ACTIVE = Condition("ScalingActive", "True", Reason.VALID_METRIC_FOUND, "fine")
MEMORY = Memory(((NOW - 60, 5), (NOW, 4)), ((NOW - 10, 1),), ((NOW - 5, 2),))


def decision(desired: int = 5, current: str = "95%", **more: Any) -> Decision:
    trace = Trace(
        metrics=(MetricTrace("gpu/utilization", "80%", current, 1.19, 5, warming=("c",)),),
        steps=(Step("bounds", 5, 5, "within"),),
    )
    return Decision(desired, Reason.METRIC_ABOVE_TARGET, "busy", MEMORY, (ACTIVE,), trace=trace, **more)


OBSERVATION = Observation(4, 4, (Pod("a"), Pod("b", ready=False), Pod("c", deleting=True)), ())


def document(old: dict[str, Any] | None = None, made: Decision | None = None, **more: Any) -> dict[str, Any]:
    moment = more.pop("moment", MOMENT)
    return workload_document(old or {}, made or decision(), OBSERVATION, MEMORY, moment, **more)


def test_the_document_of_a_decision_is_what_the_schema_allows_and_says_it_all() -> None:
    made = document(changed=True)
    jsonschema.validate(json.loads(json.dumps(made)), openapi(WorkloadStatus))
    assert (made["currentReplicas"], made["desiredReplicas"], made["readyReplicas"], made["warmingReplicas"]) == (
        4,
        5,
        1,
        1,
    )
    assert made["targets"] == "utilization: 95%/80%"
    assert made["decision"]["inputs"] == {"gpu/utilization": "95% of 80% -> 5", "bounds": "5 -> 5: within"}
    assert made["lastScaleTime"] == timestamp(NOW)
    assert made["observedGeneration"] == 3


GPU_80 = Metric(Source.GPU, "utilization", TargetType.AVERAGE_VALUE, 80_000)
CPU_80 = Metric(Source.RESOURCE, "cpu", TargetType.UTILIZATION, 80)
QUEUE = Metric(Source.EXTERNAL, "queue/depth", TargetType.AVERAGE_VALUE, 20_000)
ALL_OF_IT = Metric(Source.EXTERNAL, "requests", TargetType.VALUE, 1_500)
ROOM = Metric(Source.GPU, "memoryUsed", TargetType.HEADROOM, 8_000_000)


@pytest.mark.parametrize(
    ("metric", "current", "column"),
    [
        (GPU_80, "95.5 %", "utilization: 95.5%/80%"),
        (CPU_80, "95 % of requests", "cpu: 95%/80%"),
        (CPU_80, "unknown", "cpu: <unknown>/80%"),
        (QUEUE, "17.5", "queue/depth: 17.5/20 (avg)"),
        (ALL_OF_IT, "3", "requests: 3/1.5"),
        (ROOM, "71000 MiB", "memoryUsed: 71000Mi/8000Mi free"),
    ],
)
def test_targets_are_shown_as_kubectl_shows_those_of_an_hpa(metric: Metric, current: str, column: str) -> None:
    trace = MetricTrace(metric.label, words.target(metric), current, None, None)
    made = document(made=replace(decision(), trace=Trace(metrics=(trace,))))
    assert made["targets"] == column


def test_of_many_metrics_two_are_shown_and_the_rest_is_counted() -> None:
    traces = tuple(MetricTrace(f"gpu/m{i}", "80 %", f"{i} %", None, None) for i in range(4))
    made = document(made=replace(decision(), trace=Trace(metrics=traces)))
    assert made["targets"] == "m0: 0%/80%, m1: 1%/80% + 2 more..."


def test_texts_longer_than_the_schema_allows_are_cut() -> None:
    long = replace(decision(current="9" * 5000), sentence="x" * 10_000)
    jsonschema.validate(json.loads(json.dumps(document(made=long))), openapi(WorkloadStatus))


def test_the_last_five_changes_are_kept_and_a_hold_is_none() -> None:
    made: dict[str, Any] = {}
    for desired in range(10):
        made = document(made, decision(desired), changed=desired % 2 == 0)
    assert [row["to"] for row in made["decisions"]] == [0, 2, 4, 6, 8]


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    first = merged_conditions({}, [ACTIVE], MOMENT)
    later = Moment(NOW + 60, 4)
    same = merged_conditions({"conditions": first}, [replace(ACTIVE, message="other")], later)
    assert (same[0]["lastTransitionTime"], same[0]["message"]) == (timestamp(NOW), "other")
    turned = merged_conditions({"conditions": first}, [replace(ACTIVE, status="False")], later)
    assert turned[0]["lastTransitionTime"] == timestamp(NOW + 60)


def test_a_condition_that_is_not_among_the_new_keeps_what_it_said() -> None:
    owned = Condition("TargetOwned", "True", Reason.NO_COMPETING_WRITER, "")
    first = {"conditions": merged_conditions({}, [owned], MOMENT)}
    assert [row["type"] for row in merged_conditions(first, [ACTIVE], MOMENT)] == ["TargetOwned", "ScalingActive"]


def test_a_hold_keeps_counts_and_memory_and_says_why() -> None:
    first = document()
    condition = Condition("AbleToScale", "False", Reason.FAILED_GET_SCALE, "gone")
    held = held_document(first, [condition], condition.reason, condition.message, MOMENT)
    assert held["memory"] == first["memory"]
    assert held["currentReplicas"] == 4
    assert held["decision"]["reason"] == "FailedGetScale"
    jsonschema.validate(json.loads(json.dumps(held)), openapi(WorkloadStatus))


def test_memory_comes_back_as_it_was_written() -> None:
    assert load_memory(document(), NOW) == MEMORY


def test_by_a_restart_a_window_gets_longer_and_never_shorter() -> None:
    loaded = load_memory(document(), NOW + 100)
    assert loaded is not None
    assert loaded.recommendations == ((NOW + 40, 5), (NOW + 100, 4))
    assert loaded.up_events == MEMORY.up_events


def test_a_time_in_the_future_counts_as_now() -> None:
    loaded = load_memory(document(), NOW - 1000)
    assert loaded is not None
    assert len(loaded.recommendations) == 2
    assert {at for at, _ in loaded.recommendations + loaded.up_events + loaded.down_events} == {NOW - 1000}


@pytest.mark.parametrize(
    "wrecked",
    [
        {},
        {"memory": None},
        {"memory": []},
        {"memory": {"recommendations": [{"time": "soon", "replicas": 3}, {"replicas": 3}, "x"]}},
        {"memory": {"recommendations": {"a": 1}, "upEvents": None}, "decision": {"time": 5}},
    ],
)
def test_a_wrecked_memory_is_no_memory_and_no_error(wrecked: dict[str, Any]) -> None:
    assert load_memory(wrecked, NOW) in (None, Memory())


def test_where_all_recommendations_are_lost_the_window_begins_with_the_last_known_size() -> None:
    wrecked = document() | {"memory": {"recommendations": "gone", "upEvents": []}}
    assert load_memory(wrecked, NOW) == Memory(recommendations=((NOW, 4),))


@pytest.mark.parametrize("number", [-5, True, 10**400, 2.5, "3", None])
def test_numbers_that_no_operator_writes_are_left_out_of_a_memory(number: object) -> None:
    rows = [{"time": timestamp(NOW), "change": number}, {"time": timestamp(NOW), "change": 2}]
    loaded = load_memory({"memory": {"downEvents": rows}}, NOW)
    assert loaded is not None
    assert loaded.down_events == ((NOW, 2),)


def test_a_time_of_decision_that_moved_on_without_recommendations_shortens_no_window() -> None:
    held = document() | {"decision": {"time": timestamp(NOW + 3600)}}
    loaded = load_memory(held, NOW + 3600)
    assert loaded is not None
    assert loaded.recommendations == ((NOW + 3540, 5), (NOW + 3600, 4))


def test_that_a_size_of_0_is_ours_survives_a_restart() -> None:
    ours = replace(MEMORY, scaled_to_zero=True)
    loaded = load_memory(workload_document({}, decision(), OBSERVATION, ours, MOMENT), NOW)
    assert loaded == ours


def changed(**fields: Any) -> dict[str, Any]:
    return {**document(), **fields}


def test_an_equal_document_is_never_written_again() -> None:
    assert worth_writing(document(), document(moment=Moment(NOW + 5, 3))) is Worth.NEVER


@pytest.mark.parametrize(
    "new",
    [
        changed(currentReplicas=5),
        changed(desiredReplicas=6),
        changed(observedGeneration=4),
        document(made=replace(decision(), reason=Reason.WITHIN_TOLERANCE)),
        document(made=replace(decision(), conditions=(replace(ACTIVE, status="False"),))),
        document(made=replace(decision(), conditions=(replace(ACTIVE, reason=Reason.NOT_SYNCED),))),
        document(changed=True),
    ],
)
def test_size_reason_and_conditions_are_written_at_once(new: dict[str, Any]) -> None:
    assert worth_writing(document(), new) is Worth.NOW


@pytest.mark.parametrize(
    ("current", "worth"), [("95.5%", Worth.NEVER), ("94.2%", Worth.NEVER), ("97%", Worth.LATER), ("95 W", Worth.LATER)]
)
def test_a_value_alone_waits_and_within_one_percent_is_not_written(current: str, worth: Worth) -> None:
    assert worth_writing(document(), document(made=decision(current=current))) is worth


def test_a_memory_whose_newest_entry_is_much_younger_is_written_when_there_is_room() -> None:
    for age, worth in ((50, Worth.NEVER), (100, Worth.LATER)):
        memory = Memory(((NOW + age, 4),))
        new = workload_document({}, decision(), OBSERVATION, memory, MOMENT)
        assert worth_writing(document(), new, 90) is worth


def test_faults_are_news_once_and_a_limit_is_none() -> None:
    bad = document(
        made=replace(
            decision(),
            conditions=(
                Condition("ScalingActive", "False", Reason.NO_ATTRIBUTION, "why"),
                Condition("ScalingLimited", "True", Reason.TOO_MANY_REPLICAS, "max"),
            ),
        )
    )
    assert [fault.reason for fault in faults_of(bad)] == ["NoAttribution", "TooManyReplicas"]
    assert [fault.message for fault in new_faults(document(), bad)] == ["why"]
    assert new_faults(bad, bad) == []


POOL_MEMORY = PoolMemory(
    unneeded_since={"a": NOW - 5},
    marked_at={"b": NOW - 3},
    lowered_at={"b": NOW - 1},
    lowered_to=1,
    size_changed_at=NOW - 9,
    unseen_since=NOW - 7,
)
TEMPLATE = NodeTemplate({"cpu": 1500, "nvidia.com/gpu": 8000}, {"pool": "a"}, (Taint("gpu", "", "NoSchedule"),))


def pool(memory: PoolMemory = POOL_MEMORY) -> dict[str, Any]:
    nodes = (Node("a", {"nvidia.com/gpu": 8000}, {"nvidia.com/gpu": 2500}, 1, NOW),)
    trace = PoolTrace(1, 2, 3.0, 1, 0, 2, (Step("nodes needed", 1, 2, "x"),), {"ml/p": "too big"}, {"a": "busy"})
    made = PoolDecision(2, Reason.PENDING_GPU_PODS, "grow", memory, conditions=(ACTIVE,), trace=trace)
    return pool_document({}, made, PoolObservation(1, nodes), memory, TEMPLATE, MOMENT, changed=True)


def test_the_pool_memory_of_these_tests_leaves_no_field_at_its_default() -> None:
    empty = PoolMemory()
    assert all(getattr(POOL_MEMORY, one.name) != getattr(empty, one.name) for one in fields(PoolMemory))


def test_a_pools_document_is_what_its_schema_allows_and_comes_back() -> None:
    made = pool()
    jsonschema.validate(json.loads(json.dumps(made)), openapi(PoolStatus))
    assert made["nodes"] == {"current": 1, "desired": 2, "ready": 1, "coming": 0}
    assert made["gpus"]["requested"] == 2.5
    assert made["neverFit"] == [{"pod": "ml/p", "reason": "too big"}]
    assert load_pool_memory(made) == POOL_MEMORY
    assert load_template(made) == TEMPLATE


def test_a_new_mark_is_written_at_once_so_that_a_new_leader_knows_it() -> None:
    assert worth_writing(pool(), pool(replace(POOL_MEMORY, marked_at={"a": NOW, "b": NOW}))) is Worth.NOW


@pytest.mark.parametrize("wrecked", [{}, {"memory": 1, "template": 1}, {"template": {"allocatable": None}}])
def test_a_wrecked_pool_status_is_no_error(wrecked: dict[str, Any]) -> None:
    assert load_pool_memory(wrecked) is None
    assert load_template(wrecked) is None
