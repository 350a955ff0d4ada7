"""The further facts of a board and its MIG instances, from a simulation file to what Prometheus reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.catalogue_boards import MIG, NODE
from exporter.poller import Poller
from exporter.readings import AbsentReason, XidReading
from exporter.samples_boards import FIELDS
from exporter.simulated import SimulatedSource, SimulationError, parse
from tests.exporter.build import gpu, names, published, read, snapshot, values

MIB = 2**20
INSTANCE = {"gpu_instance": 2, "profile": "4g.71gb"}
# the H200 of the captures: two compute instances share the memory of GPU instance 2
INSTANCES = [
    {"uuid": f"MIG-{gi}-{ci}", "gpu_instance": gi, "compute_instance": ci, "profile": profile}
    | {"memory_total_bytes": total * MIB, "memory_used_bytes": used * MIB, "memory_free_bytes": free * MIB}
    for gi, ci, profile, total, used, free in (
        (2, 0, "1c.4g.71gb", 71424, 16925, 54499),
        (2, 1, "2c.4g.71gb", 71424, 16925, 54499),
        (3, 0, "2g.35gb", 33280, 17, 33264),
        (9, 0, "1g.18gb", 16384, 9, 16376),
        (10, 0, "1g.18gb", 16384, 9, 16376),
    )
]
WHOLE = {
    "uuid": "GPU-a",
    "name": "NVIDIA H200",
    "power_watts": 295.01,
    "memory_temperature_celsius": 39,
    "power_limit_watts": 700,
    "energy_joules": 123.5,
    "fan_percent": 30,
    "bar1_total_bytes": 64 * MIB,
    "bar1_used_bytes": MIB,
    "encoder_utilization_percent": 0,
    "decoder_utilization_percent": 7,
    "sm_clock_hertz": 1.98e9,
    "memory_clock_hertz": 3.2e9,
    "graphics_clock_hertz": 1.98e9,
    "video_clock_hertz": 1.5e9,
    "pcie_generation": 4,
    "pcie_width": 8,
    "pcie_generation_max": 5,
    "pcie_width_max": 16,
    "pcie_replays": 3,
    "clocks_event_reasons": 0x1044,
    "performance_state": 0,
    "temperature_margin_celsius": -3,
    "recovery_action": 2,
    "sm_active_ratio": 0.5,
    "sm_occupancy_ratio": 0.25,
    "tensor_active_ratio": 0.125,
    "dram_active_ratio": 0.75,
    "ecc": {
        "volatile_corrected": 1,
        "volatile_uncorrected": 2,
        "aggregate_corrected": 3,
        "aggregate_uncorrected": 4,
        "aggregate_sram_uncorrected": 5,
    },
    "repair": {
        "retired_pages_corrected": 6,
        "retired_pages_uncorrected": 7,
        "retired_pages_pending": True,
        "remapped_rows_corrected": 8,
        "remapped_rows_uncorrected": 9,
        "remapped_rows_pending": False,
        "remapped_rows_failed": True,
    },
    "clocks_event": {"sw_power_cap_seconds": 5451.02, "hw_thermal_slowdown_seconds": 0.25},
    "nvlinks": [{"link": 17, "received_bytes": 10, "transmitted_bytes": 2**53 + 1, "errors": 0}, {"link": 3}],
    "xids": [{"xid": 31, "count": 2, "last_at": 1700000000.25}],
    "mig_enabled": True,
    "mig": INSTANCES,
    "facts": {"serial": "165", "minor_number": "0", "pci_bus_id": "00000000:83:00.0", "vbios_version": "96.00"},
}


async def scraped(tmp_path: Path, *devices: dict[str, Any]) -> Any:
    file = tmp_path / "world.json"
    file.write_text(json.dumps({"devices": devices}))
    source = SimulatedSource(str(file))
    return read((await Poller(source, source, "n1", 1).poll()).fresh.plain.decode())


async def test_every_further_row_of_the_catalogue_has_the_value_of_its_fact(tmp_path: Path) -> None:
    series = await scraped(tmp_path, WHOLE)
    assert {row.name for row in (*NODE, *MIG)} - names(series) == {"aom_mig_gpu_memory_reserved_megabytes"} | {
        "aom_mig_gpu_sm_active_ratio"
    }
    for field, metric, divisor, *_ in FIELDS:
        assert values(series, metric.name, uuid="GPU-a", node="n1", model="NVIDIA H200") == [WHOLE[field] / divisor]
    ecc, repair = "aom_node_gpu_ecc_{}_errors_total", "aom_node_gpu_{}"
    assert values(series, ecc.format("volatile"), kind="corrected") == [1]
    assert values(series, ecc.format("volatile"), kind="uncorrected") == [2]
    assert values(series, ecc.format("aggregate")) == [3, 4]
    assert values(series, ecc.format("sram_uncorrected")) == [5]
    assert values(series, repair.format("retired_pages")) == [6, 7]
    assert values(series, repair.format("retired_pages_pending")) == [1]
    assert values(series, repair.format("remapped_rows")) == [8, 9]
    assert values(series, repair.format("remapped_rows_pending")) == [0]
    assert values(series, repair.format("remapped_rows_failed")) == [1]
    assert values(series, "aom_node_gpu_nvlink_received_bytes_total", link="17") == [10]
    assert values(series, "aom_node_gpu_nvlink_errors_total") == [0]  # of link 3 nothing is known
    assert values(series, "aom_node_gpu_info", minor_number="0", architecture="") == [1]
    assert values(series, "aom_node_gpu_board_info", serial="165", vbios_version="96.00") == [1]


async def test_reasons_that_hold_the_clocks_are_told_apart_and_a_new_one_is_other(tmp_path: Path) -> None:
    name = "aom_node_gpu_clocks_event"
    series = await scraped(tmp_path, WHOLE)
    held = {dict(labels)["reason"] for (known, labels), value in series.items() if known == name and value == 1}
    assert held == {"sw_power_cap", "hw_thermal_slowdown", "other"}
    assert len(values(series, name)) == 10
    seconds = "aom_node_gpu_clocks_event_seconds_total"
    assert values(series, seconds, reason="sw_power_cap") == [5451.02]
    assert values(series, seconds) == [0.25, 5451.02]  # of the other reasons nothing is known


async def test_x15_board_power_is_there_once_however_many_instances_the_board_has(tmp_path: Path) -> None:
    assert sum(values(await scraped(tmp_path, WHOLE), "aom_node_gpu_power_watts")) == 295.01


async def test_x28_memory_of_a_gpu_instance_is_counted_once_for_all_its_compute_instances(tmp_path: Path) -> None:
    series = await scraped(tmp_path, WHOLE)
    assert sum(values(series, "aom_mig_gpu_memory_used_megabytes")) == 16960
    assert sum(values(series, "aom_mig_gpu_memory_capacity_megabytes")) == 137472
    assert values(series, "aom_mig_gpu_memory_used_megabytes", gi="2", profile="4g.71gb") == [16925]
    assert len(values(series, "aom_mig_gpu_info", gi="2")) == 2
    assert values(series, "aom_mig_gpu_info", mig_uuid="MIG-2-1", ci="1", gi="2") == [1]


async def test_x14_utilisation_of_a_split_gpu_is_absent_and_not_zero(tmp_path: Path) -> None:
    series = await scraped(tmp_path, WHOLE)
    assert values(series, "aom_node_gpu_usage") == []
    assert not [name for name in names(series) if name.startswith("aom_mig") and name.endswith("gpu_usage")]


def test_an_xids_count_and_time_that_cannot_be_true_are_not_published() -> None:
    told = (XidReading(31, 2, 1.7e9), XidReading(48, 2**64 - 1, 2.0**63), XidReading(79, 1, float("nan")))
    series = published(snapshot(gpu(xids=told)))
    assert values(series, "aom_node_gpu_xid_events_total") == [2, 1]
    assert values(series, "aom_node_gpu_xid_last_timestamp_seconds") == [1.7e9]


def test_every_counter_stays_a_whole_number_beyond_what_a_float_can_hold() -> None:
    (reading,) = parse(json.dumps({"devices": [WHOLE]}).encode()).gpus
    series = published(snapshot(reading))
    assert values(series, "aom_node_gpu_nvlink_transmitted_bytes_total") == [2**53 + 1]


@pytest.mark.parametrize(("field", "wrong"), [("pcie_width", 2**32 - 1), ("fan_percent", -1), ("sm_active_ratio", 1.5)])
def test_a_further_fact_that_cannot_be_true_is_absent_as_out_of_range(field: str, wrong: float) -> None:
    series = published(snapshot(gpu(**{field: wrong})))
    metric = next(row[1].name for row in FIELDS if row[0] == field)
    assert values(series, metric) == []
    assert values(series, "gpuscale_gpu_capability", field=field, reason="out_of_range") == [0]


def test_a_further_fact_that_is_absent_has_its_reason() -> None:
    series = published(snapshot(gpu(absent={"ecc": AbsentReason.NOT_SUPPORTED})))
    assert values(series, "gpuscale_gpu_capability", field="ecc", reason="not_supported") == [0]


def test_every_fault_of_a_further_fact_in_a_file_is_named() -> None:
    bad = {
        "uuid": "GPU-a",
        "fan_percent": "30",
        "mig_enabled": 1,
        "ecc": {"volatile_corrected": 1.5, "colour": 1},
        "details": {"switches": {"persistence": 1}, "power": {"instant_watts": "70"}, "ecc": 5, "taste": {}},
        "repair": [],
        "nvlinks": [{"received_bytes": 1}],
        "mig": [INSTANCE],
        "facts": {"serial": 165},
        "fan": 1,
    }
    with pytest.raises(SimulationError) as caught:
        parse(json.dumps({"devices": [bad]}).encode())
    for path in (
        "fan_percent",
        "mig_enabled",
        "ecc.volatile_corrected",
        "ecc.colour",
        "details.switches.persistence",
        "details.power.instant_watts",
        "details.ecc",
        "details.taste",
        "repair",
        "nvlinks[0].link",
        "mig[0].uuid",
        "mig[0].compute_instance",
        "facts",
        "fan",
    ):
        assert f"devices[0].{path}" in str(caught.value)
