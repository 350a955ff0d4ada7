import argparse
from pathlib import Path

import pytest

from controller.sandbox import demo


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.main(parser.parse_args(words))


def options(*words: str) -> demo.Options:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.options_from(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--for", "0"), "--for 0: expected seconds from 1 to 86400"),
        (("--for", "nan"), "--for nan: expected seconds"),
        (("--for", "soon"), "--for soon: expected seconds"),
        (("--tick", "0"), "--tick 0: expected seconds from 0.2 to 60"),
        (("--json", "/missing/folder/x.json"), "--json /missing/folder/x.json: cannot be written: No such file"),
        (("--kubeconfig", "/missing/folder/k"), "--kubeconfig /missing/folder/k: cannot be written: No such file"),
        (("--load", ""), ": cannot be read: "),
        (("--load", "/missing.csv"), "/missing.csv: cannot be read: No such file or directory"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gpuscale demo: {said}")
    assert len(err.splitlines()) == 1


def test_a_load_with_a_fault_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "load.csv"
    path.write_text("t,demand\n0,1\n5,-3\n")
    assert run("--load", str(path)) == 2
    assert capsys.readouterr().err == (
        f"gpuscale demo: {path}:3: demand -3 is negative; expected a number from 0 to 1e+15\n"
    )


def test_a_kubeconfig_that_is_not_the_demos_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("apiVersion: v1\nkind: Config\n")
    assert run("--kubeconfig", str(path)) == 2
    assert path.read_text() == "apiVersion: v1\nkind: Config\n"


@pytest.mark.parametrize("left", ["", demo.KUBECONFIG_MARK + "{}"])
def test_a_kubeconfig_that_a_demo_left_may_be_replaced(tmp_path: Path, left: str) -> None:
    path = tmp_path / "config"
    path.write_text(left)
    assert options("--kubeconfig", str(path)).kubeconfig == path


def test_without_flags_it_runs_two_minutes_under_the_built_in_load() -> None:
    chosen = options()
    assert (chosen.seconds, chosen.tick_seconds, chosen.load.source) == (120.0, 2.0, "built-in")
    assert (chosen.json, chosen.kubeconfig) == (None, None)


def test_a_disk_that_is_full_at_the_end_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "file" / "demo.json"
    full.parent.mkdir()
    stage = demo.Stage(options("--json", str(full)))
    full.unlink()
    full.parent.rmdir()
    full.parent.write_text("in its place")
    assert stage.conclude("interrupted", None) == 1
    assert capsys.readouterr().err == f"gpuscale demo: --json {full}: cannot be written: Not a directory\n"
    stage.folder.rmdir()
