"""Rules and alerts name only what exists: the exporter's rows, the controller's metrics, what another rule records."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.core.model import Reason
from exporter.catalogue import BY_NAME, RECORDED
from exporter.readings import AbsentReason
from tests.contract.known_metrics import labels_of
from tests.contract.promql import names

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "rules"
ALERT_NAMES = {
    "GPUMetricsMissing",
    "GPUUnhealthy",
    "GPUFatal",
    "GPUScalerMissingData",
    "GPUScalerAtMaximum",
    "GPUPoolCannotGrow",
}


def rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / file).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


RECORDING, ALERTS = rules("recording.yaml"), rules("alerts.yaml")
EXPRESSIONS = {rule.get("record") or rule["alert"]: rule["expr"] for rule in RECORDING + ALERTS}


def test_every_recorded_row_of_the_catalogue_has_exactly_one_rule_and_no_rule_records_anything_else() -> None:
    assert sorted(rule["record"] for rule in RECORDING) == sorted(row.name for row in RECORDED)


def test_a_recorded_row_has_the_labels_that_its_rule_leaves() -> None:
    for rule in RECORDING:
        kept = re.search(r"(?:sum|avg) by \((\w+)\)", rule["expr"])
        assert ((kept[1],) if kept else ()) == BY_NAME[rule["record"]].labels, rule["record"]


@pytest.mark.parametrize("rule", EXPRESSIONS)
def test_every_metric_and_label_of_a_rule_exists(rule: str) -> None:
    found = names(EXPRESSIONS[rule])
    assert found.selected
    everything: set[str] = set()
    for metric, selected in found.selected.items():
        assert selected <= labels_of(metric), metric
        everything |= labels_of(metric)
    assert found.grouped <= everything


def test_no_rule_reads_a_name_with_free_in_it() -> None:
    assert not [m for expression in EXPRESSIONS.values() for m in names(expression).selected if "_free_" in m]


def test_the_five_alerts_are_there() -> None:
    assert {alert["alert"] for alert in ALERTS} == ALERT_NAMES


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_severity_summary_description_and_a_section_in_the_runbook(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook"}
    file, _, anchor = alert["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\w+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower() for heading in headings}
    assert anchor == alert["alert"].lower()


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_a_reason_that_an_alert_waits_for_is_one_that_the_controller_gives(alert: dict[str, Any]) -> None:
    for operator, text in re.findall(r'reason(=~?)"([^"]+)"', alert["expr"]):
        for word in text.split("|") if operator == "=~" else [re.escape(text)]:
            assert any(re.fullmatch(word, reason.value) for reason in Reason), word


def test_the_runbook_has_no_reason_that_nobody_gives() -> None:
    text = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
    words = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z]\w+)+)`", text)) - ALERT_NAMES - {"DemandFits"}
    faults = {
        word for row in re.findall(r"^\| (`[a-z_`, ]+`) \|", text, re.MULTILINE) for word in re.findall(r"\w+", row)
    }
    assert words
    assert words <= {reason.value for reason in Reason}
    assert faults
    assert faults <= {reason.value for reason in AbsentReason}


@pytest.mark.parametrize("name", sorted(ALERT_NAMES))
def test_each_alert_is_tested_firing_and_silent(name: str) -> None:
    document = yaml.safe_load((RULES / "tests/alerts.yaml").read_text(encoding="utf-8"))
    expected = [
        row["exp_alerts"] for test in document["tests"] for row in test["alert_rule_test"] if row["alertname"] == name
    ]
    assert any(expected)
    assert not all(expected)


def test_each_recorded_name_is_tested_with_a_value() -> None:
    document = yaml.safe_load((RULES / "tests/recording.yaml").read_text(encoding="utf-8"))
    tested = {row["expr"] for test in document["tests"] for row in test["promql_expr_test"] if row["exp_samples"]}
    assert {row.name for row in RECORDED} <= tested


@pytest.mark.parametrize(
    ("expression", "selected", "grouped"),
    [
        ('sum by (a) (m{x="1",y=~"b(c"}) / on (a) group_left (q) n > 0', {"m": {"x", "y"}, "n": set()}, {"a", "q"}),
        ("rate(m_total[5m]) and on (a) max without (b) (n)", {"m_total": set(), "n": set()}, {"a", "b"}),
        ("topk by (a) (1, m offset 5m) == bool 1.5", {"m": set()}, {"a"}),
        ('quantile(0.9, sum(rate(m{node="$n"}[$__rate_interval])) by (le))', {"m": {"node"}}, {"le"}),
        ("m unless n", {"m": set(), "n": set()}, set()),
    ],
)  # fmt: skip
def test_the_reader_of_expressions_finds_metrics_and_labels(
    expression: str, selected: dict[str, set[str]], grouped: set[str]
) -> None:
    found = names(expression)
    assert (found.selected, found.grouped) == (selected, grouped)
