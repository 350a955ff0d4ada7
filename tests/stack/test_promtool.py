"""Prometheus' own judge of what is published and of the rules."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from controller.telemetry import Telemetry
from tests.realparts.processes import Process
from tests.stack.prometheus import RULES

OWN_UNIT = re.compile(r'aom_\w+_megabytes use base unit "bytes" instead of "megabytes"')
"""AOM's names have AOM's units; nothing else may be complained of."""


@pytest.fixture
def exposition(tmp_path: Path) -> Iterator[bytes]:
    """The page of a running exporter."""
    address = tmp_path / "address"
    command = [sys.executable, "-m", "exporter", "--simulate", "2xH100", "--kubelet-socket", ""]
    exporter = Process([*command, "--listen", "127.0.0.1:0", "--address-file", str(address)], tmp_path / "exporter.log")
    exporter.wait_until(lambda: address.is_file() and is_polled(address), 30)
    with urlopen(f"http://{address.read_text().strip()}/metrics", timeout=5) as answer:
        yield answer.read()
    exporter.end()


def is_polled(address: Path) -> bool:
    """Whether the first poll is finished; until then there is no page."""
    try:
        with urlopen(f"http://{address.read_text().strip()}/readyz", timeout=5):
            return True
    except HTTPError:
        return False


def complaints(promtool: Path, page: bytes) -> list[str]:
    ran = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    assert ran.returncode in (0, 3), ran.stderr
    return [line for line in ran.stderr.decode().splitlines() if not OWN_UNIT.fullmatch(line)]


def test_the_exporters_page_is_as_prometheus_wants_it(monitoring: Path, exposition: bytes) -> None:
    assert b"aom_container_gpu_usage{" in exposition
    assert complaints(monitoring / "promtool", exposition) == []


def test_the_operators_page_is_as_prometheus_wants_it(monitoring: Path) -> None:
    telemetry = Telemetry()
    telemetry.decided("GPUWorkloadScaler", "ml", "llm", "ScaledUp", 2, 3)
    telemetry.wrote("scale", "Done")
    telemetry.sources(1, {"exporters": 0}, foreign_pods=0)
    assert complaints(monitoring / "promtool", telemetry.page()) == []


def test_a_bad_page_is_complained_of(monitoring: Path) -> None:
    page = b"# HELP things_total .\n# TYPE things_total gauge\nthings_total 1\n"
    assert complaints(monitoring / "promtool", page) != []


@pytest.mark.parametrize("command", [("check", "rules", "--lint=all", "--lint-fatal"), ("test", "rules")], ids=" ".join)
def test_the_rules_pass(monitoring: Path, command: tuple[str, ...]) -> None:
    folder = RULES / "tests" if command[0] == "test" else RULES
    files = sorted(folder.glob("*.yaml"))
    assert files
    ran = subprocess.run([monitoring / "promtool", *command, *files], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
