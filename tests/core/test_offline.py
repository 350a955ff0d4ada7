"""``gpuscale decide``: what it prints, what it refuses, and that its page tells the truth."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller import user_yaml
from controller.__main__ import main
from controller.core.model import Memory, PodValues, Sample, Total
from controller.schema import Invalid
from controller.situation import decisions, read
from tests.interruption import interrupted_at

ROOT = Path(__file__).resolve().parents[2]
HPA = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "web"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "maxReplicas": 10,
    },
}
GPU = {"type": "GPU", "gpu": {"name": "utilization", "target": {"type": "Utilization", "averageUtilization": 80}}}
QUEUE = {
    "type": "External",
    "external": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "10"}},
}


def form(**more: Any) -> dict[str, Any]:
    spec = {"maxReplicas": 10, "metrics": [GPU]}
    return {"spec": spec, "target": {"replicas": 2}, "metrics": [{"samples": {"a": 40, "b": 40}}]} | more


def run(tmp_path: Path, document: Any, *flags: str) -> int:
    path = tmp_path / "situation.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return main(["decide", "--file", str(path), *flags])


def faults(document: Any) -> list[str]:
    with pytest.raises(Invalid) as caught:
        read(document)
    return [str(fault) for fault in caught.value.faults]


def test_the_example_of_the_page_prints_what_the_page_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/decide.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    printed = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert example is not None
    assert printed is not None
    monkeypatch.setattr("sys.stdin", io.StringIO(example[1]))
    assert main(["decide", "--file", "-"]) == 0
    assert capsys.readouterr().out == printed[1]


def test_an_hpa_manifest_is_a_spec_with_the_api_servers_defaults() -> None:
    pods = [{"name": "web", "count": 3, "requests": {"app": {"cpu": 1}}}]
    readings = [{"samples": {f"web-{index}": "1200m" for index in range(3)}}]
    (made,) = decisions({"spec": HPA, "target": {"replicas": 3}, "pods": pods, "metrics": readings})
    assert made.decision.trace.metrics[0].metric == "resource/cpu"
    assert made.decision.desired == 5


def test_a_sequence_goes_on_from_what_was_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"at": 0, "metrics": [{"values": [400]}]}, {"at": 15}, {"at": 30, "target": {"replicas": 2}}]
    document = form(spec={"maxReplicas": 100, "metrics": [QUEUE]}, target={"replicas": 3}, steps=steps)
    document["metrics"] = [{"values": [400]}]
    assert [one.decision.desired for one in decisions(document)] == [6, 12, 4]
    assert run(tmp_path, document) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("==")] == ["== at 0 s", "== at 15 s", "== at 30 s"]


def test_json_gives_the_memory_to_go_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = form(pods=[{"name": "a"}, {"name": "b"}], now=50)
    assert run(tmp_path, document, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["now"], row["replicas"], row["desired"], row["reason"]) == (50, 2, 2, "ScaleDownStabilized")
    assert row["memory"]["recommendations"] == [[50, 2], [50, 1]]


def test_all_faults_are_said_at_once_each_with_its_path_and_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {
        "spec": {"maxReplcas": 3, "metrics": [GPU]},
        "target": {"replicas": -1},
        "pods": [{"nme": "a"}],
        "metrics": [{"samples": {"a": "much"}}],
    }
    assert run(tmp_path, document) == 2
    printed = capsys.readouterr()
    lines = [line.split(": ", 1)[1] for line in printed.err.splitlines()]
    assert printed.out == ""
    for start in (
        "spec.maxReplcas: is not a field of spec; did you mean maxReplicas?",
        "spec.maxReplicas: is required",
        "target.replicas: must be a whole number",
        "pods[0].nme: is not a field",
        "metrics[0].samples.a: must be a value such as 95",
    ):
        assert any(line.startswith(start) for line in lines), start


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "form: must be a mapping"),
        (HPA, "kind: this is a manifest: write it under spec:"),
        ({"target": {"replicas": 1}}, "spec: is required"),
        (form(metrics=[]), "metrics: must have one entry for each of the spec's 1 metrics"),
        (form(metrics=[{"values": [1]}]), "metrics[0]: must have samples or an error, as gpu/utilization needs them"),
        (form(metrics=[{}]), "here it has neither"),
        (form(metrics=[{"error": "x", "reason": "Moon"}]), "metrics[0].reason: must be a reason of docs/reasons.md"),
        (form(memory={"upEvents": [[1]]}), "memory.upEvents[0]: must have 2 to 2 items"),
        (form(steps=[{"at": 5}, {"at": 4}]), "steps[1].at: must not be before the step before it"),
        (form(spec={**HPA, "spec": {"maxReplicas": "x"}}), "spec.spec.maxReplicas: must be a whole number"),
    ],
)
def test_a_fault_is_named(document: Any, said: str) -> None:
    assert any(said in fault for fault in faults(document)), faults(document)


@pytest.mark.parametrize("document", ["spec: [", "\x00"])
def test_a_file_that_is_no_yaml_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], document: str) -> None:
    assert run(tmp_path, document) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("spec: {maxReplicas: 5}\ntarget: {replicas: 2}\nspec: {}\n", "line 3: spec is given twice, first in line 1"),
        ("spec:\n  maxReplicas: 5\n  maxReplicas: 6\n", "line 3: maxReplicas is given twice, first in line 2"),
        ('{"spec": {"a": 1, "a": 1}}', "line 1: a is given twice, first in line 1"),
    ],
)
def test_a_key_that_is_given_twice_is_named_with_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: str, said: str
) -> None:
    assert run(tmp_path, document) == 2
    assert capsys.readouterr().err == f"{tmp_path}/situation.yaml: can't be read: {said}\n"


def test_the_same_key_in_two_mappings_or_over_a_merged_one_is_no_fault() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, x: 3}\nd: {1: one, '1': text}"
    a, b, c = {"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 3, "y": 1}
    assert user_yaml.load(text) == {"a": a, "b": b, "c": c, "d": {1: "one", "1": "text"}}


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decide", "--file", str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_values_that_are_no_numbers_are_missing_and_never_zero() -> None:
    document = yaml.safe_load("{a: .nan, b: 40, c: .inf, d: 40.5, e: null}")
    reading = read(form(metrics=[{"samples": document}])).moments[0].observation.readings[0]
    assert reading == PodValues({"b": Sample(40_000, 0.0), "d": Sample(40_500, 0.0)}, {"a": "NaN", "c": "Inf"})
    spoilt = form(spec={"maxReplicas": 5, "metrics": [QUEUE]}, metrics=[{"values": [3, float("nan")]}])
    (made,) = decisions(spoilt)
    assert made.decision.desired == 2
    assert "NaN" in made.decision.sentence


def test_ages_make_times_and_times_stand_as_they_are() -> None:
    pods = [{"name": "a", "ageSeconds": 40}, {"name": "b", "createdAt": 1, "startedAt": 2, "readyChangedAt": 3}]
    readings = [{"samples": {"a": 1, "b": 2}, "ageSeconds": 4, "agesSeconds": {"b": 9}, "windowSeconds": 30}]
    observation = read(form(now=100, pods=pods, metrics=readings)).moments[0].observation
    a, b = observation.pods
    assert (a.created_at, a.started_at, a.ready_changed_at) == (60, 60, 60)
    assert (b.created_at, b.started_at, b.ready_changed_at) == (1, 2, 3)
    assert observation.readings == (PodValues({"a": Sample(1000, 96, 30), "b": Sample(2000, 91, 30)}),)


def test_totals_floors_idleness_and_memory_are_read() -> None:
    document = form(
        spec={"maxReplicas": 5, "minReplicas": 0, "metrics": [QUEUE]},
        metrics=[{"values": ["500m", 2], "ageSeconds": 3}],
        floors=[{"name": "night", "replicas": 1}],
        idleness={"seconds": 700, "maxUtilization": 2},
        settings={"tolerance": 0.2, "idle": {"afterSeconds": 60}},
        memory={"recommendations": [[9, 3], [5, 4]], "scaledToZero": True},
    )
    situation = read(document)
    (moment,) = situation.moments
    assert moment.observation.readings == (Total((500, 2000), -3.0),)
    assert moment.observation.floors[0].replicas == 1
    assert moment.observation.idleness is not None
    assert moment.observation.idleness.max_utilization == 2000
    assert situation.policy.tolerance == 0.2
    assert situation.policy.idle is not None
    assert situation.policy.idle.after_seconds == 60
    assert situation.memory == Memory(((5, 4), (9, 3)), scaled_to_zero=True)


def test_warnings_victims_and_errors_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {
        "maxReplicas": 9,
        "metrics": [QUEUE],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        "victimSelection": {},
    }
    pods = [{"name": name, "utilization": util} for name, util in (("a", 50), ("b", 1))]
    assert run(tmp_path, form(spec=spec, pods=pods, metrics=[{"values": [5]}])) == 0
    assert "pods to go, in this order: b" in capsys.readouterr().out
    assert run(tmp_path, form(metrics=[{"error": "no exporter answers"}])) == 0
    assert "no proposal: no exporter answers" in capsys.readouterr().out
    plain = {"type": "Pods", "pods": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": 80}}}
    loading = [{"name": "a", "count": 2}, {"name": "b", "count": 2, "ready": False}]
    readings = [{"samples": {"a-0": 95, "a-1": 95, "b-0": 0, "b-1": 0}}]
    spec = {"maxReplicas": 9, "metrics": [plain]}
    assert run(tmp_path, form(spec=spec, target={"replicas": 4}, pods=loading, metrics=readings)) == 0
    assert "warning: pods/q: the HPA proposes 3, the GPU rules 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"now": float("nan")}, "now: must be a number; here it is NaN"),
        ({"now": float("inf")}, "now: must be a number; here it is Infinity"),
        ({"now": 10**400}, "now: must be a number; here it is 1000000"),
        (
            {"memory": {"upEvents": [[0, 1.5]]}},
            "memory.upEvents[0][1]: must be a whole number from 0 on; here it is 1.5",
        ),
        ({"memory": {"recommendations": [[float("nan"), 1]]}}, "memory.recommendations[0][0]: must be a number"),
        ({"settings": {"idle": {"maxUtilization": "NaN"}}}, "settings.idle.maxUtilization: must be a quantity"),
        ({"target": {"replicas": 2.5}}, "target.replicas: must be a whole number from 0"),
        (
            {"pods": [{"name": "a"}, {"name": "b-0"}, {"name": "b", "count": 2}]},
            "pods: must have names of their own; 2 are named b-0",
        ),
        (
            {"steps": [{"at": 1, "pods": [{"name": "a"}, {"name": "a"}]}]},
            "steps[0].pods: must have names of their own; 2 are named a",
        ),
    ],
)
def test_what_no_situation_can_have_is_said_with_its_path(more: dict[str, Any], said: str) -> None:
    (fault,) = faults(form(**more))
    assert fault.startswith(said)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert decisions(form(target={"replicas": 2.0}))[0].observation.replicas == 2


def test_a_utilisation_that_is_no_number_is_unknown() -> None:
    (made,) = decisions(form(pods=[{"name": "a", "utilization": float("inf")}, {"name": "b", "utilization": 3}]))
    assert made.observation.utilization == {"b": 3000}


def test_an_hpa_may_bear_bare_fractions_as_the_api_server_takes_them_there() -> None:
    spec = HPA["spec"] | {"behavior": {"scaleUp": {"tolerance": 0.5}}}
    pods = [{"name": name, "requests": {"main": {"cpu": 1}}} for name in ("a", "b")]
    (made,) = decisions(form(spec=HPA | {"spec": spec}, pods=pods, metrics=[{"samples": {"a": 1.1, "b": 1.1}}]))
    assert made.decision.desired == 2
    assert "tolerance: must be a quantity" in faults(form(spec=spec))[0]


def test_a_document_that_contains_itself_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "a: &a [*a]") == 2
    assert run(tmp_path, "[" * 5000) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_name_that_the_terminal_cant_show_is_shown_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "situation.yaml"
    path.write_text(json.dumps(form(pods=[{"name": "\ud800"}, {"name": "b"}])))
    command = [sys.executable, "-m", "controller", "decide", "--file", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\ud800" in done.stdout


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("gpuscale ")


@pytest.mark.parametrize(("ends", "code"), [(KeyboardInterrupt, 130), (BrokenPipeError, 1)])
def test_who_stops_it_or_reads_no_further_gets_no_traceback(
    ends: type[BaseException], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise ends

    monkeypatch.setattr("controller.offline.as_text", stopped)
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # given back afterwards
    assert run(tmp_path, form()) == code


@pytest.mark.parametrize("module", ["argparse", "importlib.metadata", "controller.run", "kopf"])
def test_ctrl_c_while_the_command_is_being_loaded_ends_it_quietly(module: str) -> None:
    program = interrupted_at(module, "from controller.__main__ import main; sys.exit(main(['run', '--server', 'x']))")
    done = subprocess.run((sys.executable, "-c", program), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_manifest_with_a_strange_head_is_a_fault_or_of_no_matter() -> None:
    assert faults(form(spec=HPA | {"kind": ["HorizontalPodAutoscaler"]}))[0].startswith("spec.kind: must be ")
    strange = HPA | {"metadata": {"name": "web", "generation": "new"}}
    assert decisions(form(spec=strange, metrics=[{"error": "none"}]))[0].decision.desired == 2
