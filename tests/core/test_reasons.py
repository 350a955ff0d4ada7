"""Every reason is explained to people, and produced by some test."""

import re
from pathlib import Path

from controller.core.decide import decide
from controller.core.model import Failed, Memory, Reason
from tests.core.world import NOW, PODS, fleet, policy, samples, seen, shown

ROOT = Path(__file__).resolve().parents[2]
OTHER_PARTS = {
    Reason.FAILED_GET_SCALE,
    Reason.FAILED_UPDATE_SCALE,
    Reason.NOT_SYNCED,
    Reason.DECISION_FAILED,
    Reason.NO_COMPETING_WRITER,
    Reason.COMPETING_SCALER,
}
"""What the operator around the core says, and its own tests produce."""


def rows() -> list[list[str]]:
    lines = (ROOT / "docs/reasons.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_the_page_has_one_row_for_each_reason_and_no_other() -> None:
    named = [row[0].strip("`") for row in rows()]
    assert sorted(named) == sorted(reason.value for reason in Reason)


def test_every_row_says_what_it_means_and_what_to_do() -> None:
    assert [row for row in rows() if len(row) != 4 or not all(row)] == []


def test_every_reason_is_looked_for_by_a_test() -> None:
    words = {word for path in (ROOT / "tests").rglob("*.py") for word in re.findall(r"\w+", path.read_text())}
    assert {reason for reason in Reason if not {reason.name, reason.value} & words} <= OTHER_PARTS


def test_a_size_that_just_is_what_is_asked_for_is_a_hold_without_a_complaint() -> None:
    decision = decide(policy(PODS, tolerance=0.0), seen(fleet(4), samples(79, 80, 80, 80)), Memory(), NOW)
    assert (decision.desired, decision.reason) == (4, Reason.READY_FOR_NEW_SCALE)


def test_a_selector_that_is_no_good_stops_scaling_by_its_own_reason() -> None:
    for reason in (Reason.INVALID_SELECTOR, Reason.AMBIGUOUS_SELECTOR):
        decision = decide(policy(PODS), seen(fleet(4), Failed(reason, "see the target")), Memory(), NOW)
        assert (decision.desired, decision.reason) == (4, reason)
        assert shown(decision)["ScalingActive"] == f"False/{reason.value}"
