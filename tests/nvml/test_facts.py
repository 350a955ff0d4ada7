"""Facts and details for other exporters' names: through the real binding, in the units and spellings they ask for."""

from typing import Any, get_type_hints

import pytest

from exporter.details import DetailReading
from exporter.dialects import nvidia_smi
from exporter.nvml.facts import ASKED
from exporter.readings import ClocksEventReading
from tests.fakenvml.reader import Reader
from tests.fakenvml.scenario import DETAILS, gpus, load, uuid
from tests.fakenvml.state import LOST, NO_PERMISSION, NOT_SUPPORTED, FakeDriver

FACTS = {
    "compute_cap": "9.0",
    "cuda_version": "13.1",
    "pci_device_id": "0x233510DE",
    "pci_sub_device_id": "0x18BE10DE",
    "pci_base_class": "0x3",
    "pci_sub_class": "0x2",
    "pcie_link_gen_gpumax": "5",
    "inforom_ecc": "7.16",
    "inforom_oem": "2.1",
    "accounting_buffer_size": "4000",
    "ecc_mode_current": "1",
    "clocks_event_reasons_supported": "0x1FF",
    "power_default_limit_watts": "700",
    "power_min_limit_watts": "200.5",
    "power_max_limit_watts": "700",
    "clocks_max_graphics_hertz": "1980000000",
    "clocks_max_sm_hertz": "1980000000",
    "clocks_max_memory_hertz": "2619000000",
    "gsp_mode_current": "1",
    "gsp_mode_default": "0",
    "c2c_mode": "1",
    "platform_slot_number": "21",
    "platform_tray_index": "5",
    "platform_host_id": "1",
    "platform_module_id": "2",
    "platform_gpu_fabric_guid": "0x00B1C2D3E4F50617",
    "driver_model_current": "WDDM",
    "driver_model_pending": "TCC",
}
ONCE = ("nvmlDeviceGetPciInfoExt", "nvmlDeviceGetPlatformInfo", "nvmlDeviceGetGpuMaxPcieLinkGeneration")
DETAIL_CALLS = (
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetEncoderStats",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetConfComputeProtectedMemoryUsage",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetPersistenceMode",
)


def test_every_fact_is_told_as_the_dialects_spell_it(fake: FakeDriver, reader: Any) -> None:
    assert FACTS.keys() == ASKED.keys()
    load(fake, gpus(1, facts=FACTS))
    process: Reader = reader(slow_seconds=0)
    for _ in range(2):
        told = process.read()[0][uuid(0)].facts
        assert {name: told.get(name) for name in FACTS} == FACTS
    # facts that come by one call are asked for one by one, in a driver's life
    assert {name: fake.calls(0, name) for name in ONCE} == dict(zip(ONCE, (2, 5, 1), strict=True))


def test_a_fact_that_is_not_told_is_not_there(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1, facts={}))
    told = reader().read()[0][uuid(0)].facts
    assert not {"platform_host_id", "gsp_mode_current", "c2c_mode", "pci_base_class", "inforom_ecc"} & told.keys()


def test_every_fact_is_one_that_a_dialect_asks_for() -> None:
    asked = {row.metric.source for row in nvidia_smi.FACTS}
    in_labels = {f"GpuReading.facts[{name}]" for name in nvidia_smi.INFO.metric.labels}
    assert {f"GpuReading.facts[{name}]" for name in ASKED} <= asked | in_labels


def test_the_mask_of_reasons_is_told_by_drivers_that_know_only_its_older_name(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1, facts=FACTS))
    assert reader("r470").read()[0][uuid(0)].facts["clocks_event_reasons_supported"] == "0x1FF"


def told_as(reading: DetailReading) -> dict[str, Any]:
    return {subject: _plain(getattr(reading, subject)) for subject in get_type_hints(DetailReading)}


def _plain(part: Any) -> Any:
    return part and {name: getattr(part, name) for name in type(part).__dataclass_fields__}


def test_every_detail_is_told_in_base_units(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    details = reader(detailed=True).read()[0][uuid(0)].details
    assert told_as(details) == DETAILS


def test_details_are_asked_for_only_where_a_dialect_has_them(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    assert reader().read()[0][uuid(0)].details is None
    assert {name for name in DETAIL_CALLS if fake.calls(0, name)} == set()


def test_of_the_details_only_the_draw_is_read_at_each_poll(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    process: Reader = reader(detailed=True, slow_seconds=3600)
    process.read()
    before = fake.all_calls(0)
    fake.field(0, 186, 99_500, kind=1)
    fake.state.devices[0].jpeg_percent = 55
    for _ in range(3):
        details = process.read()[0][uuid(0)].details
    assert (details.power.instant_watts, details.power.requested_limit_watts) == (99.5, 650.0)
    assert details.engines.jpeg_utilization_percent == 11.0
    after = fake.all_calls(0)
    assert {name: after[name] - before[name] for name in DETAIL_CALLS} == dict.fromkeys(DETAIL_CALLS, 0)
    # one batch a poll, as without details
    assert after["nvmlDeviceGetFieldValues"] - before["nvmlDeviceGetFieldValues"] == 3


def test_a_detail_that_is_not_supported_is_asked_for_once_and_the_others_stay(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    for name in ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetEncoderStats"):
        fake.fail(0, name, NOT_SUPPORTED)
    process: Reader = reader(detailed=True, slow_seconds=0)
    for _ in range(3):
        details = process.read()[0][uuid(0)].details
    assert details.fabric is None
    assert process.read()[0][uuid(0)].absent == {"details.fabric": "not_supported"}
    assert (details.engines.encoder_sessions, details.engines.ofa_utilization_percent) == (None, 12.0)
    assert details.rows.banks_max == 3066
    assert fake.calls(0, "nvmlDeviceGetGpuFabricInfoV") == fake.calls(0, "nvmlDeviceGetEncoderStats") == 1


def test_a_detail_that_may_not_be_read_now_is_asked_for_again(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    fake.fail(0, "nvmlDeviceGetConfComputeProtectedMemoryUsage", NO_PERMISSION)
    process: Reader = reader(detailed=True, slow_seconds=0)
    reading = process.read()[0][uuid(0)]
    assert reading.details.protected_memory is None
    assert reading.absent == {"details.protected_memory": "no_permission"}
    fake.fail(0, "nvmlDeviceGetConfComputeProtectedMemoryUsage", 0)
    reading = process.read()[0][uuid(0)]
    assert (reading.details.protected_memory.used_bytes, reading.absent) == (2**30, {})


def test_a_gpu_lost_while_its_details_are_read_is_lost(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(2))
    fake.fail(0, "nvmlDeviceGetPersistenceMode", LOST)
    readings = reader(detailed=True).read()[0]
    assert (readings[uuid(0)].fault, readings[uuid(1)].fault) == ("lost", None)


def test_a_board_that_is_made_for_no_fabric_is_in_no_clique(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1, details={**DETAILS, "fabric": {"state": 0, "clique_id": 0}}))
    assert reader(detailed=True).read()[0][uuid(0)].details.fabric is None


def test_details_that_cannot_be_true_are_not_told(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    device = fake.state.devices[0]
    device.jpeg_percent, device.protected_memory[0], device.limits_mw[0] = 101, 2**64 - 1, 2**32 - 1
    fake.field(0, 186, 2**32 - 1, kind=1)
    details = reader(detailed=True).read()[0][uuid(0)].details
    assert details.engines.jpeg_utilization_percent is None
    assert details.protected_memory.total_bytes is None
    assert (details.power.requested_limit_watts, details.power.instant_watts) == (None, None)
    assert details.power.average_watts == 70.5


def test_an_old_driver_tells_the_details_that_it_knows(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    details = reader("r470", detailed=True).read()[0][uuid(0)].details
    assert (details.fabric, details.protected_memory) == (None, None)
    assert details.engines.jpeg_utilization_percent is None
    assert details.ecc.volatile_sram_parity is None
    assert details.ecc.aggregate_uncorrected_sram == DETAILS["ecc"]["aggregate_uncorrected_sram"]
    assert details.switches.compute_mode == 3


NEWER, OLDER = (269, 270, 271), (251, 252, 253)


@pytest.mark.parametrize(
    ("answering", "told"),
    [((NEWER,), (1.5, 0.25, 0.125)), ((OLDER,), (1.5, 0.25, 0.125)), ((NEWER, OLDER), (None, None, None))],
    ids=["newer", "older", "both"],
)
def test_seconds_of_held_clocks_are_told_under_either_numbering_and_not_where_both_answer(
    answering: tuple[tuple[int, int, int], ...],
    told: tuple[float | None, ...],
    fake: FakeDriver,
    reader: Any,
) -> None:
    load(fake, gpus(1))
    for group in (NEWER, OLDER):
        for number, nanoseconds in zip(group, (1_500_000_000, 250_000_000, 125_000_000), strict=True):
            fake.field(0, number, nanoseconds if group in answering else None)
    reading = reader().read()[0][uuid(0)].clocks_event
    assert reading == ClocksEventReading(200.74, 0.0, *told)
