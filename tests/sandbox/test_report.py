import json
from pathlib import Path

import pytest

from controller.sandbox.load import waves
from controller.sandbox.plant import PlantState
from controller.sandbox.record import Change, Moment, NodeRemoval, Record, Removal, Said, Target
from controller.sandbox.report import Limits, asks_for_more, findings, percentile
from controller.sandbox.scenario import Scenario, pool_scaler, workload_scaler
from controller.sandbox.summary import Run, lines, summary

LIMITS = Limits(target_percent=60, max_replicas=8, gpus_per_node=2, max_nodes=4)
W, P = Target.WORKLOAD, Target.POOL


def moment(at: float, utilization: float, replicas: int = 1, nodes: int = 1, held: int = 1) -> Moment:
    return Moment(at, utilization / 100, replicas, utilization, replicas, 0, nodes, nodes, nodes * 2, held, 0.0)


def test_a_reaction_runs_from_the_crossing_in_the_files_to_the_change() -> None:
    record = Record(
        moments=[moment(0, 30), moment(1, 66), moment(2, 67), moment(3, 90), moment(5, 90, replicas=2)],
        changes=[Change(4.5, W, "llm", 1, 2)],
    )
    found = findings(record, LIMITS)
    assert found.workload.most == pytest.approx(2.5)
    assert found.told[0].reaction_seconds == pytest.approx(2.5)
    assert found.workload.unanswered == 0


def test_a_crossing_that_goes_away_is_none_and_one_without_an_answer_is_counted() -> None:
    record = Record(moments=[moment(0, 90), moment(1, 30), moment(2, 95)], changes=[])
    found = findings(record, LIMITS)
    assert (found.workload.count, found.workload.unanswered) == (0, 1)


def test_a_change_that_is_too_small_begins_a_new_crossing() -> None:
    record = Record(
        moments=[moment(0, 100), moment(2.25, 100, replicas=1), moment(3.25, 200, replicas=2)],
        changes=[Change(2, W, "llm", 1, 2), Change(5, W, "llm", 2, 4)],
    )
    assert findings(record, LIMITS).workload.most == pytest.approx(2.75)


def test_a_change_downwards_has_no_reaction_time() -> None:
    record = Record(moments=[moment(0, 10, replicas=4)], changes=[Change(2, W, "llm", 4, 1)])
    found = findings(record, LIMITS)
    assert found.told[0].reaction_seconds is None
    assert found.workload.count == 0


@pytest.mark.parametrize(
    ("utilization", "replicas", "asks"), [(65.9, 1, False), (66.1, 1, True), (132.1, 2, True), (800, 8, False)]
)
def test_the_tolerance_and_the_maximum_count(utilization: float, replicas: int, *, asks: bool) -> None:
    assert asks_for_more(moment(0, utilization, replicas), LIMITS) is asks


def test_a_pool_reacts_from_the_moment_in_which_its_gpus_are_too_few() -> None:
    record = Record(
        moments=[moment(0, 30)],
        changes=[
            Change(1.0, W, "llm", 1, 2),
            Change(3.0, W, "llm", 2, 5),
            Change(3.25, P, "h100", 1, 2),
            Change(3.75, P, "h100", 2, 3),
        ],
    )
    found = findings(record, LIMITS)
    assert [t.reaction_seconds for t in found.told[2:]] == pytest.approx([0.25, 0.5])
    assert found.pool.unanswered == 0


def test_each_change_gets_the_reason_that_the_status_gave_for_it_and_no_other() -> None:
    record = Record(
        changes=[Change(1.0, W, "llm", 1, 2), Change(9.0, W, "llm", 2, 1), Change(30.0, W, "llm", 1, 2)],
        said=[
            Said(1.1, W, 1, 2, "MetricAboveTarget", "90 % is above 60 %"),
            Said(9.1, P, 2, 1, "NodesMarked", "not about the workload"),
            Said(9.2, W, 2, 1, "AllMetricsBelowTarget", "10 % is below 60 %"),
        ],
    )
    told = findings(record, LIMITS).told
    assert [t.reason for t in told] == ["MetricAboveTarget", "AllMetricsBelowTarget", ""]
    assert told[0].sentence == "90 % is above 60 %"


def test_a_busy_pod_counts_against_us_only_if_an_idle_one_stayed() -> None:
    record = Record(
        removals=[
            Removal(1, "a", "shrink", 0.0, 0.0),
            Removal(2, "b", "shrink", 60.0, 60.0),
            Removal(3, "c", "shrink", 60.0, None),
            Removal(4, "d", "node", 60.0, 0.0),
        ]
    )
    found = findings(record, LIMITS)
    assert (found.busy_removed, found.busy_removed_while_idle_stayed) == (3, 1)


def test_gpu_hours_are_what_stood_between_the_moments() -> None:
    record = Record(moments=[moment(0, 0, nodes=1, held=1), moment(1800, 0, nodes=3, held=2), moment(3600, 0)])
    found = findings(record, LIMITS)
    assert found.gpu_hours_nodes == pytest.approx(0.5 * 2 + 0.5 * 6)
    assert found.gpu_hours_pods == pytest.approx(0.5 * 1 + 0.5 * 2)


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([], 0.95) is None
    assert percentile([3.0], 0.5) == 3.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert percentile([2.0, 1.0], 1.0) == 2.0


def test_the_status_of_a_scaler_is_kept_once_however_often_it_is_written() -> None:
    record = Record()
    decision = {"from": 1, "to": 2, "reason": "MetricAboveTarget", "sentence": "s", "time": "2026-11-30T12:00:00Z"}
    record.note_said(5.0, W, {"decision": decision})
    record.note_said(6.0, W, {"decision": decision, "decisions": [decision]})
    record.note_said(7.0, W, {"decision": {"from": 2, "to": 2, "reason": "WithinTolerance", "sentence": "hold"}})
    record.note_said(8.0, W, {"decision": decision | {"time": "2026-11-30T12:00:09Z"}, "decisions": [decision]})
    assert [(s.at, s.reason) for s in record.said] == [(5.0, "MetricAboveTarget"), (8.0, "MetricAboveTarget")]


@pytest.fixture
def document() -> dict[str, object]:
    record = Record(
        moments=[moment(10, 30), moment(11, 100), moment(14, 160, 2, 2, 2), moment(70, 20)],
        changes=[Change(13.0, W, "llm", 1, 2), Change(40.0, P, "h100", 2, 1)],
        said=[Said(13.1, W, 1, 2, "MetricAboveTarget", "100 % is above 60 %")],
        removals=[Removal(30, "a", "shrink", 60.0, 0.0)],
        node_removals=[NodeRemoval(40.0, "h100-2", False, 1)],
    )
    run = Run(10.0, 70.0, 60.0, 4.0, 2.0, "finished")
    plant = PlantState(70.0, 0.0, 100.0, 96.0, 4.0, 7.5)
    return summary(record, plant, Scenario(), waves(60, 3.5), run)


def test_the_document_is_json_and_docs_explain_every_key(document: dict[str, object]) -> None:
    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {k for v in value.values() for k in keys(v)}
        return {k for v in value for k in keys(v)} if isinstance(value, list) else set()

    json.dumps(document, allow_nan=False)
    page = (Path(__file__).resolve().parents[2] / "docs" / "demo.md").read_text()
    assert [key for key in sorted(keys(document)) if f"`{key}`" not in page] == []


def test_the_lines_say_what_the_document_says_and_that_windows_were_shortened(document: dict[str, object]) -> None:
    text = "\n".join(lines(document, waves(60, 3.5)))
    for fact in (
        "llm: 1 -> 2 -> 1 replicas",
        "MetricAboveTarget (2.0 s after its cause)",
        "100 % is above 60 %",
        "no reason seen in status",
        "p95 2.00 s",
        "overload 7.5 s",
        "4.0 of 100.0 GPU-seconds of work given up",
        "busy though an idle one stayed 1",
        "not named by the operator 1",
        "not defaults",
        "scaleDown.quietSeconds 3",
    ):
        assert fact in text


def test_the_manifests_of_the_demo_are_valid_custom_resources() -> None:
    from controller.resources import parse_pool_scaler, parse_workload_scaler

    numbers = Scenario()
    assert parse_workload_scaler(workload_scaler(numbers)).spec.max_replicas == numbers.max_replicas
    assert parse_pool_scaler(pool_scaler(numbers)).spec.pool.victim_mark is not None
