"""Every row of the public tables is decided as it says, by the code of ``gpuscale decide``."""

from pathlib import Path

import pytest
import yaml

from tests.conformance.__main__ import main
from tests.conformance.judge import judge


@pytest.mark.parametrize(
    ("table", "at_least"), [("hpa-conformance.yaml", 72), ("gpu-extensions.yaml", 12)], ids=["hpa", "gpu"]
)
def test_every_row_of_a_public_table_is_decided_as_it_says(shared_cases: Path, table: str, at_least: int) -> None:
    verdicts = [judge(case) for case in yaml.safe_load((shared_cases / table).read_text())]
    assert [verdict for verdict in verdicts if not verdict.passed] == []
    assert len(verdicts) >= at_least


ROW = "{kind: limitUp, id: X1, replicas: 4, rules: {policies: [{type: Pods, value: 2, periodSeconds: 60}]}, want: %s}"


def test_the_command_counts_and_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "rows.yaml"
    table.write_text(f"- {ROW % 6}\n- {ROW % 7}\n")
    assert main([str(table)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "ok   X1     got 6  want 6"
    assert printed[1] == "FAIL X1     got 6  want 7"
    assert printed[2] == "1 passed, 1 failed"


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("{kind: limitSideways, id: X1, want: 1}", "kind limitSideways is not understood"),
        ("{kind: combine, id: X1, replicas: 1, proposals: [1], moon: full, want: 1}", "moon: not understood"),
        ("{kind: metric, id: X1, source: Moon, target: {type: Value, value: 1}, want: 1}", "source Moon"),
        ("{kind: gpu, id: X1, victims: [1], want: 1}", "not understood"),
        ("{kind: gpu, id: X1, ready: [1], replicas: .inf, want: 1}", "not understood"),
    ],
)
def test_what_is_not_understood_is_named_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, named: str
) -> None:
    table = tmp_path / "rows.yaml"
    table.write_text(f"- {row}\n")
    assert main([str(table)]) == 1
    assert named in capsys.readouterr().out


def test_a_file_that_cant_be_read_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.yaml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
