import io
from pathlib import Path

import pytest

from controller.sandbox.display import LINE_SECONDS, PATIENCE_SECONDS, Display
from controller.sandbox.record import Said, Target
from controller.sandbox.scenario import Scenario
from tests.sandbox.stage import Stage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    stage.pool(1)
    stage.deployment(2)
    stage.warm()
    stage.demand = 1.2
    stage.steps(1)
    return stage


def test_without_a_terminal_there_is_a_line_now_and_then_and_no_escape_sequence(stage: Stage) -> None:
    out = io.StringIO()
    display = Display(out, stage.world, Scenario(), began=stage.now)
    for _ in range(round(LINE_SECONDS * 2 / 0.5)):
        display.show(stage.now)
        stage.steps(0.5)
    assert out.getvalue().count("load  1.2 GPUs") == 2
    assert "utilisation  60 %/60 %" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_change_is_told_once_with_its_reason_as_soon_as_the_status_gives_it(stage: Stage) -> None:
    out = io.StringIO()
    display = Display(out, stage.world, Scenario(), began=stage.now)
    stage.resize(3)
    display.show(stage.now)
    assert "2 -> 3" not in out.getvalue()
    stage.world.record.said.append(Said(stage.now, Target.WORKLOAD, 2, 3, "MetricAboveTarget", "too busy"))
    display.show(stage.now)
    display.show(stage.now)
    assert out.getvalue().count("llm 2 -> 3 replicas: MetricAboveTarget: too busy") == 1


def test_a_change_without_a_reason_is_told_after_some_patience(stage: Stage) -> None:
    out = io.StringIO()
    display = Display(out, stage.world, Scenario(), began=stage.now)
    stage.resize(3)
    stage.steps(PATIENCE_SECONDS + 1)
    display.show(stage.now)
    assert "llm 2 -> 3 replicas\n" in out.getvalue()


def test_a_terminal_sees_a_table_that_replaces_itself(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    out = Terminal()
    display = Display(out, stage.world, Scenario(), began=stage.now)
    display.show(stage.now)
    first = out.getvalue()
    assert first.startswith("\x1b[J")
    assert "h100-1" in first
    assert "85 %" in first
    assert all(len(line.replace("\x1b[J", "")) < 70 for line in first.splitlines())
    height = len(first.splitlines())
    stage.steps(2)
    display.show(stage.now)
    assert out.getvalue()[len(first) :].startswith(f"\x1b[{height}F\x1b[J")
    before = out.getvalue()
    display.finish()
    assert len(out.getvalue()) > len(before)
