"""A dry run of bench/device/compare.py: the fake driver, and an nvidia-smi made from the same scenario."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakenvml.reader import ROOT, environment
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.state import FakeDriver

MIB = 2**20
FORM = gpus(2, memory_used_bytes=4000 * MIB, utilization_percent=80, memory_utilization_percent=30)
Compare = Callable[[dict[str, Any]], subprocess.CompletedProcess[str]]


def xml(form: dict[str, Any]) -> str:
    boards = []
    for device in form["devices"]:
        free = device["memory_total_bytes"] - device["memory_used_bytes"] - device["memory_reserved_bytes"]
        boards.append(f"""<gpu id="x"><product_name>{device["name"]}</product_name><uuid>{device["uuid"]}</uuid>
<fan_speed>N/A</fan_speed>
<fb_memory_usage><total>{device["memory_total_bytes"] // MIB} MiB</total>
<reserved>{device["memory_reserved_bytes"] // MIB} MiB</reserved>
<used>{device["memory_used_bytes"] // MIB} MiB</used><free>{free // MIB} MiB</free></fb_memory_usage>
<utilization><gpu_util>{device["utilization_percent"]} %</gpu_util>
<memory_util>{device["memory_utilization_percent"]} %</memory_util></utilization>
<temperature><gpu_temp>{device["temperature_celsius"]} C</gpu_temp></temperature>
<gpu_power_readings><average_power_draw>{device["power_watts"]} W</average_power_draw></gpu_power_readings></gpu>""")
    return f"<nvidia_smi_log><driver_version>590.48.01</driver_version>{''.join(boards)}</nvidia_smi_log>"


@pytest.fixture
def compare(libraries: dict[str, Path], fake: FakeDriver, tmp_path: Path) -> Compare:
    load(fake, FORM)

    def run(said: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        (tmp_path / "said.xml").write_text(xml(said))
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat {tmp_path / 'said.xml'}\n")
        program.chmod(0o755)
        options = ("--seconds", "0.2", "--polls", "3", "--nvidia-smi", str(program))
        return subprocess.run(
            [sys.executable, str(ROOT / "bench/device/compare.py"), *options],
            env=environment(libraries["current"], fake.path) | {"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def test_equal_values_agree_and_each_call_is_timed(compare: Compare) -> None:
    done = compare(FORM)
    assert done.returncode == 0, done.stderr
    assert f"| `aom_node_gpu_memory_used_megabytes` | {uuid(1)} | 1 | 1 | 4000 | 4000 |" in done.stdout
    assert f"| `aom_node_gpu_usage` | {uuid(0)} | 1 | 1 | 80 | 80 |" in done.stdout
    assert "| `nvmlDeviceGetUtilizationRates` | 6 |" in done.stdout
    assert f"| {uuid(0)} | " in done.stdout.split("graphics_active_ratio")[1]


def test_a_value_that_never_agrees_is_named_and_ends_with_1(compare: Compare) -> None:
    other = gpus(2, memory_used_bytes=5000 * MIB, utilization_percent=80, memory_utilization_percent=30)
    done = compare(other)
    assert done.returncode == 1
    assert f"never agreed: aom_node_gpu_memory_used_megabytes of {uuid(0)}" in done.stderr
    assert "aom_node_gpu_usage" not in done.stderr
