"""A real H200, as recorded idle and under load, through the fake driver to what Prometheus reads."""

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from exporter.readings import ProcessReading
from tests.fakenvml.captures import form, section
from tests.fakenvml.scenario import load
from tests.fakenvml.state import FakeDriver

MIB = 2**20
UUID = "GPU-00000000-0000-0000-0000-000000000000"


@pytest.fixture
def h200(shared_data: Path) -> str:
    return (shared_data / "gpu-smi-captures" / "linux-x86_64__nvidia-h200__590.48.01.txt").read_text()


@pytest.mark.parametrize(
    ("moment", "used", "free", "celsius", "watts", "percent"),
    [("idle", 0, 143158, 28, 77.67, 0), ("load", 32362, 110796, 52, 627.32, 100)],
)
def test_what_an_h200_was_seen_to_do_is_what_is_published(
    moment: str,
    used: int,
    free: int,
    celsius: int,
    watts: float,
    percent: int,
    h200: str,
    fake: FakeDriver,
    exporter: Any,
) -> None:
    load(fake, form(section(h200, f"{moment} :: query (-q)")))
    series = exporter("--poll-seconds", "0.1", "--stale-polls", "100").scrape()
    published = {name.removeprefix("aom_node_gpu_"): value for (name, uuid), value in series.items() if uuid == UUID}
    assert published["memory_used_megabytes"] == used
    assert published["memory_free_megabytes"] == free  # not capacity - used: the driver keeps 614 MiB for itself
    assert published["memory_capacity_megabytes"] == 143771
    assert published["memory_reserved_megabytes"] == 614
    assert published["temperature_centigrade"] == celsius
    assert published["power_watts"] == watts
    assert published["usage"] == percent


def test_its_processes_are_read_with_their_memory(h200: str, fake: FakeDriver, reader: Any) -> None:
    load(fake, form(section(h200, "load :: query (-q)")))
    process = reader()
    reading = process.read()[0][UUID]
    assert process.driver_version == "590.48.01"
    assert (reading.name, reading.index) == ("NVIDIA H200", 0)
    assert reading.processes == (
        ProcessReading(10291, UUID, 2566 * MIB, None),
        ProcessReading(10293, UUID, 1542 * MIB, None),
        ProcessReading(10309, UUID, 28234 * MIB, None),
    )


def test_a_capture_without_the_section_says_which_it_has() -> None:
    text = "####################\n# idle :: query (-q)\n# $ nvidia-smi -q\n####################\nDriver Version : 1\n"
    assert form(section(text, "idle")) == {"driver": "1", "devices": [], "processes": []}
    with pytest.raises(ValueError, match="idle :: query"):
        section(text, "load")


CAPTURES = (
    "linux-x86_64__nvidia-h200__590.48.01",
    "linux-x86_64__nvidia-h200-mig__590.48.01",
    "linux-x86_64__nvidia-l40s__595.80",
    "linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05",
    "windows-x86_64__nvidia-geforce-rtx-2080-super__591.86",
)
UNTOLD = {"processes", "facts", "absent", "read_seconds", "fault", "xids", "nvlinks", "mig", "ecc", "repair"} | {
    "clocks_event",
    "details",
}


@pytest.mark.parametrize("moment", ["idle", "load"])
@pytest.mark.parametrize("name", CAPTURES)
def test_every_number_of_every_capture_comes_through_the_driver_as_it_was(
    name: str, moment: str, shared_data: Path, fake: FakeDriver, reader: Any
) -> None:
    text = (shared_data / "gpu-smi-captures" / f"{name}.txt").read_text()
    captured = form(section(text, f"{moment} :: query (-q)"))
    load(fake, captured)
    readings, _ = reader(detailed=True).read()
    compared = 0
    for device in captured["devices"]:
        reading = readings[device["uuid"]]
        for field, value in device.items():
            if field in UNTOLD or (value is None and field == "mig_enabled"):
                continue
            assert getattr(reading, field) == value, field
            compared += value is not None
        parts = {part: device.get(part, {}) for part in ("ecc", "repair", "clocks_event")}
        parts |= {f"details.{subject}": told for subject, told in device["details"].items()}
        for part, told in parts.items():
            held = attrgetter(part)(reading)
            for field, value in told.items():
                assert getattr(held, field) == value, (part, field)
            compared += len(told)
        assert {name: reading.facts.get(name) for name in device["facts"]} == device["facts"]
        assert len(reading.mig) == len(device.get("mig", ()))
    print(f"{name} {moment}: {compared} numbers compared, and {len(device['facts'])} facts")
    assert compared >= 40


@pytest.mark.parametrize(("moment", "watts", "used"), [("load", 294.94, 16960)])
def test_x14_x15_x28_the_sums_over_a_split_h200_are_those_of_the_board(
    moment: str, watts: float, used: int, shared_data: Path, fake: FakeDriver, exporter: Any
) -> None:
    text = (shared_data / "gpu-smi-captures" / f"{CAPTURES[1]}.txt").read_text()
    load(fake, form(section(text, f"{moment} :: query (-q)")))
    lines = exporter("--poll-seconds", "0.1", "--stale-polls", "100", "--process-series").text().splitlines()

    def numbers(family: str) -> list[float]:
        return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(family + "{")]

    assert numbers("aom_node_gpu_power_watts") == [watts]
    assert sum(numbers("aom_mig_gpu_memory_used_megabytes")) == used
    assert sum(numbers("aom_mig_gpu_memory_capacity_megabytes")) == 137472
    assert len(numbers("aom_mig_gpu_info")) == 5
    assert numbers("aom_node_gpu_usage") == []
    of_processes = [line for line in lines if line.startswith("aom_process_gpu_memory_used_megabytes{")]
    assert all(',gi="2",ci="1",' in line for line in of_processes)
    assert sorted(numbers("aom_process_gpu_memory_used_megabytes")) == [1170, 2194, 13526]
