"""What is read of a GPU that answers, through the real binding on a fake driver."""

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exporter.readings import AbsentReason, ProcessReading
from tests.fakenvml.reader import Reader, environment
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.state import (
    FUNCTIONS,
    NOT_SUPPORTED,
    UNKNOWN_BYTES,
    UNKNOWN_PERCENT,
    Device,
    FakeDriver,
    State,
)

MIB = 2**20
BUSY = {
    "memory_used_bytes": 40_000 * MIB,
    "utilization_percent": 87,
    "memory_utilization_percent": 41,
    "temperature_celsius": 61,
    "power_watts": 512.25,
}


def test_every_value_of_every_gpu_is_read_in_base_units(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(8, **BUSY) | {"driver": "570.1.2"})
    process: Reader = reader()
    readings, state = process.read()
    assert state.up, state
    assert process.driver_version == "570.1.2"
    assert list(readings) == [uuid(i) for i in range(8)]
    for index, reading in enumerate(readings.values()):
        assert (reading.index, reading.name, reading.fault) == (index, "NVIDIA H100 80GB HBM3", None)
        assert reading.memory_total_bytes == 81559 * MIB
        assert reading.memory_used_bytes == 40_000 * MIB
        assert reading.memory_reserved_bytes == 551 * MIB
        assert reading.memory_free_bytes == (81559 - 40_000 - 551) * MIB
        assert (reading.utilization_percent, reading.memory_utilization_percent) == (87, 41)
        assert (reading.temperature_celsius, reading.power_watts) == (61, 512.25)
        assert reading.processes == ()
        assert reading.absent == {}


def test_the_next_poll_sees_what_changed(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    process: Reader = reader()
    assert process.read()[0][uuid(0)].utilization_percent == 0
    fake.state.devices[0].gpu_percent = 99
    assert process.read()[0][uuid(0)].utilization_percent == 99


def test_an_empty_node_is_up_and_has_no_gpus(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(0))
    readings, state = reader().read()
    assert readings == {}
    assert state.up


def test_a_driver_of_470_is_read_by_its_old_calls(fake: FakeDriver, reader: Any) -> None:
    form = gpus(1, **BUSY)
    form["processes"] = [{"pid": 7, "gpu_uuid": uuid(0), "memory_used_bytes": 5 * MIB, "utilization_percent": 3}]
    load(fake, form)
    reading = reader("r470").read()[0][uuid(0)]
    assert reading.fault is None
    assert reading.memory_used_bytes == (40_000 + 551) * MIB  # that call counts the driver's share as used
    assert reading.memory_reserved_bytes is None
    activity = (
        "graphics_active_ratio",
        "sm_active_ratio",
        "sm_occupancy_ratio",
        "tensor_active_ratio",
        "dram_active_ratio",
    )
    assert reading.absent == dict.fromkeys(
        ("memory_reserved_bytes", "temperature_margin_celsius", *activity), AbsentReason.NOT_SUPPORTED
    )
    assert reading.temperature_celsius == 61
    assert reading.processes == (ProcessReading(7, uuid(0), 5 * MIB, 3.0),)


@pytest.mark.parametrize(
    ("flavour", "asked"),
    [("current", "nvmlDeviceGetTemperatureV"), ("r535", "nvmlDeviceGetTemperature")],
)
def test_the_temperature_is_asked_for_by_the_newest_call_that_there_is(
    flavour: str, asked: str, fake: FakeDriver, reader: Any
) -> None:
    load(fake, gpus(1, temperature_celsius=44))
    assert reader(flavour).read()[0][uuid(0)].temperature_celsius == 44
    assert {name for name in fake.all_calls(0) if name.startswith("nvmlDeviceGetTemperature")} == {asked}


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_the_wide_process_entries_of_early_535_drivers_give_no_wrong_pids(
    processes: int, fake: FakeDriver, reader: Any
) -> None:
    form = gpus(1)
    form["processes"] = [
        {"pid": 1000 + k, "gpu_uuid": uuid(0), "memory_used_bytes": (k + 1) * MIB, "utilization_percent": 5}
        for k in range(processes)
    ]
    load(fake, form)
    process: Reader = reader("r535-early")
    for _ in range(2):
        assert process.read()[0][uuid(0)].processes == tuple(
            ProcessReading(1000 + k, uuid(0), (k + 1) * MIB, 5.0) for k in range(processes)
        )


def test_a_process_whose_pid_is_not_told_hides_no_other(fake: FakeDriver, reader: Any) -> None:
    form = gpus(1)
    form["processes"] = [
        {"pid": pid, "gpu_uuid": uuid(0), "memory_used_bytes": MIB, "utilization_percent": 5} for pid in (0, 17)
    ]
    load(fake, form)
    assert reader().read()[0][uuid(0)].processes == (ProcessReading(17, uuid(0), MIB, 5.0),)


def test_an_older_binding_reads_the_temperature_too(fake: FakeDriver, reader: Any, tmp_path: Path) -> None:
    """nvidia-ml-py 12.560, the oldest that is allowed, has no TemperatureV."""
    binding = importlib.util.find_spec("pynvml")
    assert binding is not None
    assert binding.origin is not None
    newer = Path(binding.origin).read_text()
    older = newer.replace("def nvmlDeviceGetTemperatureV(", "def _not_yet(")
    assert older != newer
    (tmp_path / "pynvml.py").write_text(older)
    load(fake, gpus(1, temperature_celsius=51))
    assert reader(binding=tmp_path).read()[0][uuid(0)].temperature_celsius == 51
    assert fake.calls(0, "nvmlDeviceGetTemperature") == 1


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("nvmlDeviceGetPowerUsage", {"power_watts"}),
        ("nvmlDeviceGetUtilizationRates", {"utilization_percent", "memory_utilization_percent"}),
        ("nvmlDeviceGetMigMode", set()),
        ("nvmlDeviceGetComputeRunningProcesses_v3", set()),
    ],
)
def test_what_is_not_supported_is_absent_and_asked_for_once(
    function: str, fields: set[str], fake: FakeDriver, reader: Any
) -> None:
    load(fake, gpus(2, **BUSY))
    fake.fail(0, function, NOT_SUPPORTED)
    process: Reader = reader()
    for _ in range(5):
        readings, _ = process.read()
        assert readings[uuid(0)].fault is None
        assert set(readings[uuid(0)].absent) == fields
        assert all(getattr(readings[uuid(0)], field) is None for field in fields)
        assert readings[uuid(1)].absent == {}
    assert fake.calls(0, function) == 1
    assert fake.calls(1, function) >= 5


def test_a_card_that_tells_no_memory_has_none_rather_than_zero(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1, memory_total_bytes=None))
    reading = reader().read()[0][uuid(0)]
    assert reading.memory_total_bytes is None
    assert reading.memory_used_bytes is None
    assert reading.absent["memory_free_bytes"] is AbsentReason.NOT_SUPPORTED
    assert reading.temperature_celsius == 30


@pytest.mark.parametrize(
    ("attribute", "value", "fields"),
    [
        ("power_mw", UNKNOWN_PERCENT, {"power_watts"}),
        ("gpu_percent", 200_000, {"utilization_percent"}),
        ("memory_percent", UNKNOWN_PERCENT, {"memory_utilization_percent"}),
        ("temperature", 1_000_000, {"temperature_celsius"}),
        (
            "memory_used",
            UNKNOWN_BYTES,
            {"memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"},
        ),
    ],
)
def test_a_sentinel_or_garbage_is_absent_and_back_with_the_next_good_value(
    attribute: str, value: int, fields: set[str], fake: FakeDriver, reader: Any
) -> None:
    load(fake, gpus(1, **BUSY))
    good = getattr(fake.state.devices[0], attribute)
    setattr(fake.state.devices[0], attribute, value)
    process: Reader = reader()
    reading = process.read()[0][uuid(0)]
    assert reading.absent == dict.fromkeys(fields, AbsentReason.OUT_OF_RANGE)
    assert all(getattr(reading, field) is None for field in fields)
    setattr(fake.state.devices[0], attribute, good)
    assert process.read()[0][uuid(0)].absent == {}


def test_on_a_split_gpu_utilisation_is_absent_because_of_that(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1, **BUSY))
    fake.state.devices[0].mig_mode = 1
    fake.fail(0, "nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)
    process: Reader = reader()
    assert process.read()[0][uuid(0)].absent["utilization_percent"] is AbsentReason.MIG_ENABLED
    fake.state.devices[0].mig_mode = 0
    fake.fail(0, "nvmlDeviceGetUtilizationRates", 0)
    assert process.read()[0][uuid(0)].utilization_percent == 87


def test_processes_carry_memory_and_their_share(fake: FakeDriver, reader: Any) -> None:
    form = gpus(1)
    form["processes"] = [
        {"pid": 30, "gpu_uuid": uuid(0), "memory_used_bytes": None, "utilization_percent": 20},
        {"pid": 10, "gpu_uuid": uuid(0), "memory_used_bytes": 7 * MIB, "utilization_percent": 0},
        {"pid": 20, "gpu_uuid": uuid(0), "memory_used_bytes": 8 * MIB, "utilization_percent": 55},
    ]
    load(fake, form)
    fake.state.devices[0].processes[2].kinds = 3  # it computes and draws
    process: Reader = reader()
    for _ in range(3):
        assert process.read()[0][uuid(0)].processes == (
            ProcessReading(10, uuid(0), 7 * MIB, 0.0),
            ProcessReading(20, uuid(0), 8 * MIB, 55.0),
            ProcessReading(30, uuid(0), None, 20.0),
        )
    fake.state.devices[0].process_count = 0
    assert process.read()[0][uuid(0)].processes == ()


def test_an_old_sample_of_a_process_is_not_its_present_share(fake: FakeDriver, reader: Any) -> None:
    form = gpus(1)
    form["processes"] = [{"pid": 1, "gpu_uuid": uuid(0), "memory_used_bytes": 1, "utilization_percent": 70}]
    load(fake, form)
    fake.state.devices[0].processes[0].sampled_us = 1_000
    process: Reader = reader()
    shares = [process.read()[0][uuid(0)].processes[0].utilization_percent for _ in range(4)]
    assert shares == [70, 70, 0, 0]  # a sample counts for two periods
    fake.state.devices[0].processes[0].sampled_us = 2_000
    assert process.read()[0][uuid(0)].processes[0].utilization_percent == 70


def test_where_shares_are_not_told_they_are_unknown(fake: FakeDriver, reader: Any) -> None:
    form = gpus(1)
    form["processes"] = [{"pid": 1, "gpu_uuid": uuid(0), "memory_used_bytes": 1}]
    load(fake, form)
    assert reader().read()[0][uuid(0)].processes == (ProcessReading(1, uuid(0), 1, None),)


@pytest.mark.parametrize("function", ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"])
def test_a_list_that_grew_under_the_question_is_asked_for_again(function: str, fake: FakeDriver, reader: Any) -> None:
    form = gpus(1)
    form["processes"] = [{"pid": 1, "gpu_uuid": uuid(0), "memory_used_bytes": 9, "utilization_percent": 4}]
    load(fake, form)
    fake.too_small(0, function, 2)
    assert reader().read()[0][uuid(0)].processes == (ProcessReading(1, uuid(0), 9, 4.0),)
    assert fake.knobs(0).too_small[FUNCTIONS.index(function)] == 0


def test_the_fakes_structs_are_those_of_the_binding(libraries: dict[str, Path], fake: FakeDriver) -> None:
    """In a process of its own: a second library of that name must not enter this one."""
    script = """
import ctypes, pynvml
library = ctypes.CDLL("libnvidia-ml.so.1")
library.fakenvml_fact_name.restype = ctypes.c_char_p
library.fakenvml_fact_value.restype = ctypes.c_size_t
at = 0
while name := library.fakenvml_fact_name(at):
    name, value = name.decode(), library.fakenvml_fact_value(at)
    at += 1
    if name in ("state", "device"):
        continue
    owner, _, field = name.partition(".")
    theirs = getattr(pynvml, owner)
    theirs = theirs if isinstance(theirs, int) else getattr(theirs, field).offset if field else ctypes.sizeof(theirs)
    assert theirs == value, f"{name}: binding {theirs}, fake {value}"
print(at, library.fakenvml_fact_value(0), library.fakenvml_fact_value(1))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(libraries["current"], fake.path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts, state, device = (int(word) for word in done.stdout.split())
    assert facts > 30
    assert (state, device) == (ctypes.sizeof(State), ctypes.sizeof(Device))


def test_a_state_file_of_another_layout_is_refused(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    fake.state.layout += 1
    readings, state = reader().read()
    assert readings == {}
    assert state.reason == "driver_not_loaded"
