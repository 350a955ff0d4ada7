"""Prometheus' own judge over every dialect's page: it parses, alone and with all the others."""

import subprocess
from pathlib import Path

import pytest

from exporter.dialects import DIALECTS
from tests.exporter.foreign import rich, spoken
from tests.realparts import build


@pytest.mark.parametrize("names", [*((name,) for name in DIALECTS), tuple(DIALECTS)], ids=",".join)
def test_a_page_in_other_names_is_accepted(names: tuple[str, ...], tmp_path: Path) -> None:
    try:
        promtool = build.programs("promtool") / "promtool"
    except build.MissingError as missing:
        pytest.skip(f"real parts: {missing}")
    text = spoken(rich(), *names).plain
    # its lint judges names, and these are other exporters'; --extended makes it read and count every series
    command = [promtool, "check", "metrics", "--extended", "--lint=none"]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    series = sum(1 for line in text.splitlines() if not line.startswith("#"))
    assert f"Total {series} 100%" in " ".join(ran.stdout.split())
