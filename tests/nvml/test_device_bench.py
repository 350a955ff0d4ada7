"""A dry run of bench/device/compare.py: the fake driver, and an nvidia-smi made from the same scenario."""

import copy
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.device.compare import Key, Report, compare, exporter, page, scrape
from bench.device.fields import FIELDS, NOT_PRINTED
from tests.fakenvml.reader import ROOT, environment
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.smi_xml import document, tree
from tests.fakenvml.state import FakeDriver

MIB = 2**20
Run = Callable[[dict[str, Any]], subprocess.CompletedProcess[str]]
IDENTITY = {"uuid", "product_name", "pid", "type", "gpu_instance_id", "compute_instance_id"}
"""What tells which series is meant, and is not compared itself."""


def scenario() -> dict[str, Any]:
    """A new board, an old one that retires pages, one that is split: between them they have every family."""
    form = gpus(3, memory_used_bytes=4000 * MIB, utilization_percent=80, memory_utilization_percent=30)
    _, old, split = form["devices"]
    old["repair"] = {"retired_pages_corrected": 3, "retired_pages_uncorrected": 1, "retired_pages_pending": True}
    split |= {"mig_enabled": True, "utilization_percent": None, "memory_utilization_percent": None}
    split["mig"] = [
        {"uuid": f"MIG-{gi}-{ci}", "gpu_instance": gi, "compute_instance": ci, "profile": "1c.2g.35gb"}
        | {"memory_total_bytes": 33280 * MIB, "memory_used_bytes": used * MIB, "memory_reserved_bytes": 64 * MIB}
        for gi, ci, used in ((3, 0, 17), (3, 1, 17), (5, 0, 900))
    ]
    form["processes"] = [{"pid": 4711, "gpu_uuid": uuid(0), "memory_used_bytes": 3900 * MIB}]
    return form


@pytest.fixture
def run(libraries: dict[str, Path], fake: FakeDriver, tmp_path: Path) -> Run:
    load(fake, scenario())

    def start(said: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        (tmp_path / "said.xml").write_text(document(said))
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

    return start


def test_equal_values_agree_and_each_call_is_timed(run: Run) -> None:
    done = run(scenario())
    assert done.returncode == 0, done.stderr
    assert f"| `aom_node_gpu_memory_used_megabytes` |  | {uuid(1)} | 1 | 1 | 4000 | 4000 |" in done.stdout
    assert f"| `aom_node_gpu_usage` |  | {uuid(0)} | 1 | 1 | 80 | 80 |" in done.stdout
    assert f"| `nvidia_smi_compute_app_used_memory_bytes` | pid=4711 | {uuid(0)} | 1 | 1 |" in done.stdout
    assert "| `nvmlDeviceGetUtilizationRates` |" in done.stdout
    assert f"| {uuid(0)} | " in done.stdout.split("graphics_active_ratio")[1]


def test_a_value_that_never_agrees_is_named_and_ends_with_1(run: Run) -> None:
    other = scenario()
    other["devices"][0]["memory_used_bytes"] += 1000 * MIB
    done = run(other)
    assert done.returncode == 1
    assert f"never agreed: aom_node_gpu_memory_used_megabytes of {uuid(0)}" in done.stderr
    assert "aom_node_gpu_power_watts" not in done.stderr


@pytest.fixture
def scraped(
    libraries: dict[str, Path], fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[Key, float]]:
    """What the real exporter says of the scenario."""
    load(fake, scenario())
    for name, value in environment(libraries["current"], fake.path).items():
        monkeypatch.setenv(name, value)
    with exporter() as url:
        yield scrape(url)


def faults(scraped: dict[Key, float], smi: ET.Element) -> list[str]:
    report = Report()
    compare(report, scraped, smi, scraped)
    return report.faults()


def test_every_family_of_the_table_is_compared_and_whatever_is_off_is_found(scraped: dict[Key, float]) -> None:
    smi = tree(scenario())
    report = Report()
    compare(report, scraped, smi, scraped)
    assert report.faults() == []
    assert {family for family, _, _ in report.agreements} == {field.family for field in FIELDS}
    planted = 0
    for element in smi.iter():
        told = element.text or ""
        if len(element) or told in {"", "N/A"} or element.tag in {*IDENTITY, "driver_version"}:
            continue
        element.text = off(told)
        assert faults(scraped, smi), f"{element.tag}: {told} -> {element.text} goes unnoticed"
        element.text = told
        planted += 1
    assert planted > 150


def off(told: str) -> str:
    """Return something else of the same kind."""
    others = {"None": "Reset", "No": "Yes", "Disabled": "Enabled", "Not Active": "Active"}
    others |= {yes: no for no, yes in others.items()}
    if told in others:
        return others[told]
    number = re.fullmatch(r"(P?)(-?\d+(?:\.\d+)?)(x| .+)?", told)
    if number is None:
        return "other"
    far = 1 if number[1] else 10**9 if told.endswith("us") else 1000
    return f"{number[1]}{float(number[2]) + far:.0f}{number[3] or ''}"


def test_what_only_nvidia_smi_says_is_a_fault_unless_it_came_or_went_meanwhile(scraped: dict[Key, float]) -> None:
    smi = tree(scenario())
    key = ("aom_node_gpu_fan_speed", uuid(0), "")
    without = {known: value for known, value in scraped.items() if known != key}
    assert faults(without, smi) == [f"only nvidia-smi says: aom_node_gpu_fan_speed of {uuid(0)}"]
    meanwhile = Report()
    compare(meanwhile, without, smi, scraped)
    assert meanwhile.faults() == []


def test_a_process_that_only_draws_is_left_out_and_one_that_computes_too_is_not(scraped: dict[Key, float]) -> None:
    smi = tree(scenario())
    drawing = ET.SubElement(next(smi.iter("processes")), "process_info")
    for tag, text in (("pid", "99"), ("type", "G"), ("used_memory", "40 MiB")):
        ET.SubElement(drawing, tag).text = text
    assert faults(scraped, smi) == []
    next(drawing.iter("type")).text = "C+G"
    assert faults(scraped, smi) == [
        f"only nvidia-smi says: nvidia_smi_compute_app_used_memory_bytes{{pid=99}} of {uuid(0)}"
    ]


def test_older_words_of_nvidia_smi_are_understood(scraped: dict[Key, float]) -> None:
    smi = tree(scenario())
    for gpu in smi.iter("gpu"):
        renamed(gpu, "clocks_event", "clocks_throttle")
        renamed(gpu, "gpu_power_readings", "power_readings")
        power = gpu.find("power_readings")
        assert power is not None
        renamed(power, "average_power_draw", "power_draw")
        renamed(power, "current_power_limit", "enforced_power_limit")
        for span in gpu.findall("ecc_errors/*"):
            sums = {
                bit: sum(int(span.findtext(part) or 0) for part in parts)
                for bit, parts in (
                    ("single_bit", ("dram_correctable",)),
                    ("double_bit", ("sram_uncorrectable_secded", "dram_uncorrectable")),
                )
            }
            span.clear()
            for bit, total in sums.items():
                ET.SubElement(ET.SubElement(span, bit), "total").text = str(total)
    report = Report()
    compare(report, scraped, smi, scraped)
    assert report.faults() == []
    families = {family for family, _, _ in report.agreements}
    assert {"aom_node_gpu_clocks_event", "aom_node_gpu_power_limit_watts", "aom_node_gpu_power_watts"} <= families
    assert ("aom_node_gpu_ecc_aggregate_errors_total", uuid(0), "kind=uncorrected") in report.agreements


def renamed(element: ET.Element, old: str, new: str) -> None:
    for child in element.iter():
        child.tag = child.tag.replace(old, new)


def test_the_page_says_what_was_not_compared_and_why(scraped: dict[Key, float]) -> None:
    report = Report()
    form = copy.deepcopy(scenario())
    form["devices"] = form["devices"][:1]
    compare(report, scraped, tree(form), scraped)
    text = page(report, 60)
    uncompared = text.partition("Not compared here")[2].partition("Never printed")[0]
    assert "- `aom_node_gpu_retired_pages`" in uncompared
    assert "- `aom_mig_gpu_memory_used_megabytes`" in uncompared
    assert "aom_node_gpu_remapped_rows`" not in uncompared
    assert all(f"| `{family}` | {why} |" in text for family, why in NOT_PRINTED.items())
