"""The further facts of a board: what is read, how often, and what is said of what there is not."""

from typing import Any

import pytest

from exporter.readings import AbsentReason, ClocksEventReading, EccReading, NvlinkReading, RepairReading
from tests.fakenvml.reader import Reader
from tests.fakenvml.scenario import FURTHER, LINK_RECEIVED, MEMORY_TEMPERATURE, gpus, load, uuid
from tests.fakenvml.state import NO_PERMISSION, NOT_SUPPORTED, UNKNOWN_BYTES, UNKNOWN_PERCENT, FakeDriver

NESTED = {"ecc", "repair", "clocks_event", "nvlinks", "facts"}
NEWER = {"r470": {"temperature_margin_celsius"}}
LATER = {
    "graphics_active_ratio",
    "sm_active_ratio",
    "sm_occupancy_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
}
SLOW_CALLS = (
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetMemoryErrorCounter",
)
FIXED_CALLS = ("nvmlDeviceGetSerial", "nvmlDeviceGetVbiosVersion", "nvmlDeviceGetMaxPcieLinkWidth")
QUICK_CALLS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetEncoderUtilization")


@pytest.mark.parametrize("flavour", ["current", "r470"])
def test_every_further_fact_is_read_in_base_units(flavour: str, fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(2))
    for reading in reader(flavour).read()[0].values():
        for field in FURTHER.keys() - NESTED - LATER - NEWER.get(flavour, set()):
            assert getattr(reading, field) == FURTHER[field], field
        assert reading.ecc == EccReading(**FURTHER["ecc"])
        assert reading.repair == RepairReading(**FURTHER["repair"])
        assert reading.clocks_event == ClocksEventReading(**FURTHER["clocks_event"])
        assert reading.nvlinks == (NvlinkReading(0, 2**50, 7, 0),)
        assert FURTHER["facts"].items() <= reading.facts.items()
        assert reading.facts["pci_bus_id"].endswith(":00.0")


def test_slow_facts_wait_for_their_period_and_fixed_ones_are_read_once(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    process: Reader = reader(slow_seconds=3600)
    for _ in range(5):
        reading = process.read()[0][uuid(0)]
    assert reading.fan_percent == 30
    assert {name: fake.calls(0, name) for name in (*SLOW_CALLS, *FIXED_CALLS)} == dict.fromkeys(
        (*SLOW_CALLS, *FIXED_CALLS), 1
    )
    assert {name: fake.calls(0, name) for name in QUICK_CALLS} == dict.fromkeys(QUICK_CALLS, 5)
    assert fake.calls(0, "nvmlDeviceGetFieldValues") == 5 + 2


def test_after_the_period_slow_facts_are_read_again_and_fixed_ones_are_not(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    process: Reader = reader(slow_seconds=0)
    process.read()
    fake.state.devices[0].fan_percent = 77
    assert process.read()[0][uuid(0)].fan_percent == 77
    assert {fake.calls(0, name) for name in SLOW_CALLS} == {2}
    assert {fake.calls(0, name) for name in FIXED_CALLS} == {1}


def test_a_field_that_is_not_supported_leaves_the_batch_and_the_others_stay(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    fake.field(0, MEMORY_TEMPERATURE, None)
    process: Reader = reader()
    for _ in range(2):
        reading = process.read()[0][uuid(0)]
        assert reading.memory_temperature_celsius is None
        assert reading.absent == {"memory_temperature_celsius": AbsentReason.NOT_SUPPORTED}
        assert reading.energy_joules == 1234.5
    fake.field(0, MEMORY_TEMPERATURE, 50)
    assert process.read()[0][uuid(0)].memory_temperature_celsius is None  # it is not asked for again


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetFanSpeed", "fan_percent"),
        ("nvmlDeviceGetEncoderUtilization", "encoder_utilization_percent"),
        ("nvmlDeviceGetPcieReplayCounter", "pcie_replays"),
        ("nvmlDeviceGetNvLinkState", "nvlinks"),
    ],
)
def test_a_further_fact_that_is_not_supported_is_asked_for_once(
    function: str, field: str, fake: FakeDriver, reader: Any
) -> None:
    load(fake, gpus(1))
    fake.fail(0, function, NOT_SUPPORTED)
    process: Reader = reader(slow_seconds=0)
    for _ in range(4):
        reading = process.read()[0][uuid(0)]
        assert reading.absent == {field: AbsentReason.NOT_SUPPORTED}
    assert fake.calls(0, function) == 1


def test_a_board_without_ecc_has_no_errors_rather_than_zero(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1, ecc=None, repair=None, nvlinks=None, details=None))
    reading = reader().read()[0][uuid(0)]
    assert (reading.ecc, reading.repair, reading.nvlinks) == (None, None, None)
    assert reading.absent == dict.fromkeys(("ecc", "repair", "nvlinks"), AbsentReason.NOT_SUPPORTED)


def test_what_may_not_be_read_is_absent_because_of_that(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    fake.fail(0, "nvmlDeviceGetFieldValues", NO_PERMISSION)
    reading = reader().read()[0][uuid(0)]
    assert reading.absent["energy_joules"] is AbsentReason.NO_PERMISSION
    assert reading.ecc == EccReading(aggregate_sram_uncorrected=1)  # told by a call of its own
    assert reading.fan_percent == 30


@pytest.mark.parametrize(
    ("attribute", "value", "field"),
    [
        ("fan_percent", UNKNOWN_PERCENT, "fan_percent"),
        ("encoder_percent", 1000, "encoder_utilization_percent"),
        ("pcie_replays", UNKNOWN_PERCENT, "pcie_replays"),
        ("bar1_used", UNKNOWN_BYTES, "bar1_used_bytes"),
        ("bar1_total", 0, "bar1_total_bytes"),
    ],
)
def test_a_further_sentinel_is_absent(attribute: str, value: int, field: str, fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    setattr(fake.state.devices[0], attribute, value)
    reading = reader().read()[0][uuid(0)]
    assert getattr(reading, field) is None
    assert reading.absent[field] is AbsentReason.OUT_OF_RANGE


@pytest.mark.parametrize("total", [0, UNKNOWN_BYTES])
def test_a_memory_total_that_cannot_be_true_is_absent(total: int, fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    fake.state.devices[0].memory_total = total
    assert reader().read()[0][uuid(0)].absent["memory_total_bytes"] is AbsentReason.OUT_OF_RANGE


def test_of_two_gpus_with_one_uuid_neither_is_believed_and_the_others_stay(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(3, utilization_percent=40))
    fake.state.devices[1].uuid = uuid(0).encode()
    process: Reader = reader()
    for _ in range(2):
        readings, state = process.read()
        assert state.up
        assert {name: reading.fault for name, reading in readings.items()} == {
            uuid(0): AbsentReason.DUPLICATE_UUID,
            uuid(2): None,
        }
        assert readings[uuid(0)].utilization_percent is None
    fake.state.devices[1].uuid = uuid(1).encode()
    assert [reading.utilization_percent for reading in process.read()[0].values()] == [40, 40, 40]
    assert fake.overlaps == 0


def test_a_uuid_that_is_there_twice_is_a_fault_with_a_reason_and_one_line_in_the_log(
    fake: FakeDriver, exporter: Any
) -> None:
    load(fake, gpus(2))
    fake.state.devices[1].uuid = uuid(0).encode()
    program = exporter("--poll-seconds", "0.05", "--stale-polls", "400")
    fake.reset_calls()
    program.wait_for(lambda: fake.calls(0, "nvmlDeviceGetUUID") >= 5)
    assert program.absent() == {uuid(0): "duplicate_uuid"}
    series = program.scrape()
    assert ("aom_node_gpu_usage", uuid(0)) not in series
    assert series["gpuscale_gpu_health", uuid(0)] == 1
    program.process.terminate()
    _, log = program.process.communicate(timeout=10)
    assert len([line for line in log.splitlines() if "duplicate_uuid" in line]) == 1


def test_older_drivers_count_link_traffic_in_kibibytes(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    fake.field(0, LINK_RECEIVED, None)
    fake.field(0, 139, 5)
    (link,) = reader().read()[0][uuid(0)].nvlinks
    assert link == NvlinkReading(0, 5 * 1024, 7, 0)
