"""What the exporter says while GPUs or the driver fail, through the real binding on a fake driver."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.readings import AbsentReason, GpuReading, SourceState
from tests.fakenvml.reader import Reader
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.state import LOST, MISMATCH, NO_PERMISSION, NOT_LOADED, NOT_SUPPORTED, RESET_REQUIRED, UNKNOWN
from tests.fakenvml.state import FakeDriver as Fake

SHORT = 1.0
SOON = {"first_retry_seconds": 0.05, "longest_retry_seconds": 0.1}
POWER = "nvmlDeviceGetPowerUsage"
LOOK_UP = "nvmlDeviceGetHandleByIndex_v2"
COUNT = "nvmlDeviceGetCount_v2"
INIT = "nvmlInitWithFlags"

Answer = tuple[dict[str, GpuReading], SourceState]


def until(process: Reader, holds: Callable[[dict[str, GpuReading], SourceState], bool]) -> Answer:
    """Poll until something holds; the caller says what it waits for by the predicate."""
    give_up = time.monotonic() + 30
    while True:
        readings, state = process.read()
        if holds(readings, state):
            return readings, state
        assert time.monotonic() < give_up, f"not within 30 s; last answer: {state} {readings}"
        time.sleep(0.01)


def is_up(_: object, state: SourceState) -> bool:
    return state.up


def without_values(reading: GpuReading) -> bool:
    return all(
        value is None or value == () or value == {}
        for name in GpuReading.__dataclass_fields__
        if name not in {"uuid", "index", "name", "fault", "absent", "read_seconds"}
        for value in [getattr(reading, name)]
    )


# ---- one GPU ----


def test_a_hung_and_a_lost_gpu_cost_only_themselves(fake: Fake, reader: Any) -> None:
    load(fake, gpus(8))
    process: Reader = reader(deadline_seconds=SHORT)
    process.read()
    fake.state.devices[2].hang = 1
    fake.state.devices[5].error = LOST
    for share in (10, 20, 30):
        for device in fake.state.devices:
            device.gpu_percent = share
        readings, state = process.read()
        assert state.up
        assert [reading.index for reading in readings.values()] == list(range(8))
        faults = {reading.index: reading.fault for reading in readings.values() if reading.fault}
        assert faults == {2: AbsentReason.TIMEOUT, 5: AbsentReason.LOST}
        for index in (2, 5):
            assert without_values(readings[uuid(index)])
            assert readings[uuid(index)].name == "NVIDIA H100 80GB HBM3"
        fresh = [reading.utilization_percent for reading in readings.values() if not reading.fault]
        assert fresh == [share] * 6
    fake.release()
    fake.state.devices[5].error = 0
    until(process, lambda readings, _: all(reading.utilization_percent == 30 for reading in readings.values()))
    assert fake.overlaps == 0


def test_x07_a_hung_call_is_the_only_one_on_its_handle(fake: Fake, reader: Any) -> None:
    load(fake, gpus(2))
    fake.hang(0, POWER)
    process: Reader = reader(deadline_seconds=SHORT)
    for _ in range(4):
        readings, _ = process.read()
        assert readings[uuid(0)].fault is AbsentReason.TIMEOUT
        assert readings[uuid(1)].power_watts == 70.5
    assert fake.calls(0, POWER) == 1
    assert fake.overlaps == 0


def test_what_a_late_call_answers_is_dropped(fake: Fake, reader: Any) -> None:
    load(fake, gpus(1, utilization_percent=11))
    process: Reader = reader(deadline_seconds=SHORT)
    fake.hang(0, POWER)
    assert process.read()[0][uuid(0)].fault is AbsentReason.TIMEOUT
    fake.state.devices[0].gpu_percent = 22
    fake.release()
    readings, _ = until(process, lambda readings, _: readings[uuid(0)].fault is None)
    assert readings[uuid(0)].utilization_percent == 22


@pytest.mark.parametrize("function", [LOOK_UP, "nvmlDeviceGetUUID"])
def test_a_gpu_that_hangs_before_it_told_its_uuid_is_shown_by_its_index(function: str, fake: Fake, reader: Any) -> None:
    load(fake, gpus(3))
    fake.hang(1, function)
    process: Reader = reader(deadline_seconds=SHORT)
    readings, state = process.read()
    assert state.up
    assert list(readings) == [uuid(0), "unknown-index-1", uuid(2)]
    assert readings["unknown-index-1"].fault is AbsentReason.TIMEOUT
    assert readings[uuid(2)].fault is None
    fake.release()
    readings, _ = until(process, lambda readings, _: uuid(1) in readings)
    assert list(readings) == [uuid(0), uuid(1), uuid(2)]


@pytest.mark.parametrize(
    ("function", "code", "fault"),
    [
        (LOOK_UP, LOST, AbsentReason.LOST),
        (LOOK_UP, UNKNOWN, AbsentReason.DRIVER_ERROR),
        (LOOK_UP, NO_PERMISSION, AbsentReason.NO_PERMISSION),
        ("nvmlDeviceGetUUID", UNKNOWN, AbsentReason.DRIVER_ERROR),
        ("nvmlDeviceGetMemoryInfo_v2", LOST, AbsentReason.LOST),
        (POWER, RESET_REQUIRED, AbsentReason.RESET_REQUIRED),
    ],
)
def test_an_error_that_concerns_the_whole_gpu_is_its_fault(
    function: str, code: int, fault: AbsentReason, fake: Fake, reader: Any
) -> None:
    load(fake, gpus(2))
    process: Reader = reader()
    process.read()
    fake.fail(1, function, code)
    readings, state = process.read()
    assert state.up
    assert readings[uuid(1)].fault is fault
    assert without_values(readings[uuid(1)])
    assert readings[uuid(0)].fault is None
    fake.fail(1, function, 0)
    assert process.read()[0][uuid(1)].fault is None


@pytest.mark.parametrize(("code", "reason"), [(UNKNOWN, "driver_error"), (NO_PERMISSION, "no_permission")])
def test_an_error_of_one_call_costs_one_value(code: int, reason: str, fake: Fake, reader: Any) -> None:
    load(fake, gpus(1))
    fake.fail(0, POWER, code)
    process: Reader = reader()
    for _ in range(2):
        reading = process.read()[0][uuid(0)]
        assert reading.fault is None
        assert reading.absent == {"power_watts": reason}
        assert reading.temperature_celsius == 30
    assert fake.calls(0, POWER) == 2  # such an error may pass, so it is asked again


def test_a_gpu_lost_before_the_start_is_shown_by_its_index(fake: Fake, reader: Any) -> None:
    load(fake, gpus(2))
    fake.fail(0, LOOK_UP, LOST)
    readings, _ = reader().read()
    assert {name: reading.fault for name, reading in readings.items()} == {
        "unknown-index-0": AbsentReason.LOST,
        uuid(1): None,
    }


def test_gpus_that_all_refuse_are_explained(fake: Fake, reader: Any) -> None:
    load(fake, gpus(2))
    process: Reader = reader()
    process.read()
    for device in fake.state.devices:
        device.error = UNKNOWN
    readings, state = process.read()
    assert {reading.fault for reading in readings.values()} == {AbsentReason.DRIVER_ERROR}
    assert state.reason == "all_gpus_fail"


# ---- which GPUs there are ----


def test_a_gpu_that_is_added_appears_within_two_polls(fake: Fake, reader: Any) -> None:
    load(fake, gpus(2))
    process: Reader = reader()
    process.read()
    load(fake, gpus(3))
    process.read()
    assert process.read()[0][uuid(2)].fault is None


def test_a_gpu_that_is_removed_is_reported_lost_until_it_returns(fake: Fake, reader: Any) -> None:
    load(fake, gpus(4))
    process: Reader = reader()
    process.read()
    fake.state.devices[1].present = 0
    for _ in range(3):
        readings, _ = process.read()
        assert sorted(readings) == [uuid(i) for i in range(4)]
        assert {name for name, reading in readings.items() if reading.fault} <= {uuid(1), uuid(3)}
    readings, _ = process.read()
    assert {name: reading.fault for name, reading in readings.items() if reading.fault} == {uuid(1): AbsentReason.LOST}
    fake.state.devices[1].present = 1
    process.read()
    assert all(reading.fault is None for reading in process.read()[0].values())


def test_a_removed_gpu_is_forgotten_when_the_driver_is_opened_anew(fake: Fake, reader: Any) -> None:
    load(fake, gpus(2))
    process: Reader = reader(**SOON)
    process.read()
    fake.state.devices[1].present = 0
    fake.state.system_error = MISMATCH
    assert not process.read()[1].up
    fake.state.system_error = 0
    readings, _ = until(process, is_up)
    assert list(readings) == [uuid(0)]


def test_a_removal_beside_a_hung_gpu_moves_indices_but_no_values(fake: Fake, reader: Any) -> None:
    load(fake, gpus(5))
    for index, device in enumerate(fake.state.devices):
        device.gpu_percent = 10 + index
    process: Reader = reader(deadline_seconds=SHORT)
    process.read()
    fake.hang(2, POWER)
    fake.state.devices[0].present = 0
    process.read()
    for _ in range(3):
        readings, _ = process.read()
        values = {name: (reading.fault, reading.utilization_percent) for name, reading in readings.items()}
        assert values == {
            uuid(0): (AbsentReason.LOST, None),
            uuid(1): (None, 11),
            uuid(2): (AbsentReason.TIMEOUT, None),
            uuid(3): (None, 13),
            uuid(4): (None, 14),
        }
    assert fake.overlaps == 0


def test_x22_another_order_of_the_cards_swaps_no_values(fake: Fake, reader: Any) -> None:
    first = gpus(2)
    first["devices"][1]["utilization_percent"] = 80
    load(fake, first)
    process: Reader = reader()
    before, _ = process.read()
    swapped = [device | {"index": 1 - device["index"]} for device in first["devices"]]
    load(fake, first | {"devices": swapped})
    after, _ = process.read()
    restarted, _ = reader().read()
    for readings in (before, after, restarted):
        assert {name: reading.utilization_percent for name, reading in readings.items()} == {uuid(0): 0, uuid(1): 80}
    assert [before[uuid(1)].index, after[uuid(1)].index, restarted[uuid(1)].index] == [1, 0, 0]


def test_a_card_swapped_for_another_is_a_new_gpu(fake: Fake, reader: Any) -> None:
    load(fake, gpus(1, name="old card"))
    process: Reader = reader()
    process.read()
    fake.state.devices[0].uuid = b"GPU-other"
    fake.state.devices[0].name = b"new card"
    readings, _ = process.read()
    assert {name: (reading.name, reading.fault) for name, reading in readings.items()} == {
        "GPU-other": ("new card", None),
        uuid(0): ("old card", AbsentReason.LOST),
    }


def test_a_count_that_hangs_leaves_the_known_gpus_readable(fake: Fake, reader: Any) -> None:
    load(fake, gpus(2))
    process: Reader = reader(deadline_seconds=SHORT)
    process.read()
    fake.hang(None, COUNT)
    load(fake, gpus(3, utilization_percent=7))
    for _ in range(2):
        readings, state = process.read()
        assert (state.up, state.reason) == (True, "enumeration_timeout")
        assert [reading.utilization_percent for reading in readings.values()] == [7, 7]
    fake.release()
    readings, state = until(process, lambda readings, _: uuid(2) in readings)
    assert (state.up, state.reason) == (True, "")


# ---- the driver ----


def test_without_a_library_it_waits_for_one(
    fake: Fake, reader: Any, libraries: dict[str, Path], tmp_path: Path
) -> None:
    load(fake, gpus(1))
    folder = tmp_path / "driver"
    folder.mkdir()
    process: Reader = reader(library=folder, **SOON)
    readings, state = process.read()
    assert readings == {}
    assert (state.up, state.reason) == (False, "library_not_found")
    assert "install the driver" in state.message
    shutil.copy(libraries["current"] / "libnvidia-ml.so.1", folder)
    readings, _ = until(process, is_up)
    assert readings[uuid(0)].fault is None
    assert process.needs_restart is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [(NOT_LOADED, "driver_not_loaded"), (NO_PERMISSION, "no_permission"), (UNKNOWN, "driver_error")],
)
def test_a_driver_that_does_not_open_says_why_and_is_tried_again(
    code: int, reason: str, fake: Fake, reader: Any
) -> None:
    load(fake, gpus(1))
    fake.state.init_error = code
    process: Reader = reader(**SOON)
    readings, state = process.read()
    assert readings == {}
    assert (state.up, state.reason) == (False, reason)
    assert str(code) in state.message
    fake.state.init_error = 0
    readings, _ = until(process, is_up)
    assert readings[uuid(0)].fault is None


def test_a_driver_that_is_not_there_is_not_asked_at_each_poll(fake: Fake, reader: Any) -> None:
    fake.state.init_error = NOT_LOADED
    process: Reader = reader(first_retry_seconds=3600)
    for _ in range(5):
        assert process.read()[1].reason == "driver_not_loaded"
    assert fake.calls(None, INIT) == 1


def test_x04_a_driver_upgrade_under_way_withdraws_the_gpus_and_ends_in_the_same_process(
    fake: Fake, reader: Any
) -> None:
    load(fake, gpus(2))
    process: Reader = reader(**SOON)
    process.read()
    fake.state.init_error = fake.state.system_error = MISMATCH
    for _ in range(4):
        readings, state = process.read()
        assert readings == {}
        assert (state.up, state.reason) == (False, "lib_rm_version_mismatch")
    load(fake, gpus(2, utilization_percent=66) | {"driver": "560.1"})
    fake.state.init_error = fake.state.system_error = 0
    readings, _ = until(process, is_up)
    assert [reading.utilization_percent for reading in readings.values()] == [66, 66]
    assert process.driver_version == "560.1"
    assert process.needs_restart is None
    assert fake.calls(None, "nvmlShutdown") >= 1
    assert fake.state.shutdowns_while_busy == 0


def test_x04_a_library_that_was_replaced_asks_for_a_new_process(
    fake: Fake, reader: Any, libraries: dict[str, Path], tmp_path: Path
) -> None:
    load(fake, gpus(1))
    library = tmp_path / "driver" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    shutil.copy(libraries["current"] / library.name, library)
    process: Reader = reader(library=library.parent, **SOON)
    process.read()
    library.unlink()
    fake.state.init_error = fake.state.system_error = MISMATCH
    until(process, lambda *_: fake.calls(None, INIT) > 2)
    assert process.needs_restart is None  # there is no new library yet
    shutil.copy(libraries["r535"] / library.name, library)
    until(process, lambda *_: process.needs_restart is not None)
    assert process.needs_restart == "library_replaced"


def test_a_call_that_is_stuck_forbids_to_open_anew_and_asks_for_a_new_process(fake: Fake, reader: Any) -> None:
    load(fake, gpus(2))
    fake.hang(0, POWER)
    process: Reader = reader(deadline_seconds=SHORT, **SOON)
    process.read()
    fake.state.system_error = MISMATCH
    until(process, lambda *_: process.needs_restart is not None)
    assert process.needs_restart == "stuck_call"
    assert fake.calls(None, "nvmlShutdown") == 0
    fake.state.system_error = 0
    fake.release()
    until(process, is_up)
    assert process.needs_restart is None
    assert fake.state.shutdowns_while_busy == 0


def test_what_was_not_supported_is_asked_again_after_the_driver_was_opened_anew(fake: Fake, reader: Any) -> None:
    load(fake, gpus(1))
    fake.fail(0, POWER, NOT_SUPPORTED)
    process: Reader = reader(**SOON)
    assert process.read()[0][uuid(0)].power_watts is None
    fake.fail(0, POWER, 0)
    assert process.read()[0][uuid(0)].power_watts is None
    fake.state.system_error = MISMATCH
    assert not process.read()[1].up
    fake.state.system_error = 0
    assert until(process, is_up)[0][uuid(0)].power_watts == 70.5


def test_opening_that_hangs_is_reported_and_used_when_it_ends(fake: Fake, reader: Any) -> None:
    load(fake, gpus(1))
    fake.hang(None, INIT)
    process: Reader = reader(deadline_seconds=SHORT)
    for _ in range(2):
        readings, state = process.read()
        assert readings == {}
        assert (state.up, state.reason) == (False, "init_timeout")
    fake.release()
    readings, _ = until(process, is_up)
    assert readings[uuid(0)].fault is None
    assert fake.calls(None, INIT) == 1


# ---- leaving ----


def test_leaving_closes_the_driver_once(fake: Fake, reader: Any) -> None:
    load(fake, gpus(2))
    process: Reader = reader()
    process.read()
    process.close()
    assert fake.calls(None, "nvmlShutdown") == 1
    assert fake.state.shutdowns_while_busy == 0


@pytest.mark.parametrize(
    ("device", "function"),
    [(0, POWER), (0, LOOK_UP), (None, COUNT), (None, INIT), (None, "nvmlShutdown")],
)
def test_leaving_waits_for_no_call_that_hangs(device: int | None, function: str, fake: Fake, reader: Any) -> None:
    load(fake, gpus(2))
    process: Reader = reader(deadline_seconds=SHORT)
    with fake.hanging(device, function):
        process.read()
        process.close()  # would not return, because nothing releases the call before
        assert fake.calls(None, "nvmlShutdown") == (1 if function == "nvmlShutdown" else 0)
        process.process.stdin.close()
        assert process.process.wait(30) == 0


def test_leaving_before_the_first_poll_is_fine(fake: Fake, reader: Any) -> None:
    process: Reader = reader()
    process.close()
    assert fake.calls(None, INIT) == 0
