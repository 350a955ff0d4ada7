import math

import pytest

from exporter.readings import AbsentReason, GpuReading, SourceState
from exporter.samples import NODE_FIELDS, withdrawn
from tests.exporter.build import gpu, holds, names, published, snapshot, values

FREE = "aom_node_gpu_memory_free_megabytes"


def test_values_of_a_gpu_are_published_in_the_units_of_their_names() -> None:
    series = published(snapshot(gpu()))
    found = {
        name: values(series, name, uuid="GPU-a", node="n1", model="NVIDIA H100 80GB HBM3") for name in names(series)
    }
    assert found["aom_node_gpu_usage"] == [55]
    assert found["aom_node_gpu_memory_capacity_megabytes"] == [80000]
    assert found["aom_node_gpu_memory_used_megabytes"] == [20000]
    assert found["aom_node_gpu_memory_reserved_megabytes"] == [1000]
    assert found["aom_node_gpu_memory_usage"] == [25]
    assert found["aom_node_gpu_memory_controller_usage"] == [30]
    assert found["aom_node_gpu_temperature_centigrade"] == [48]
    assert found["aom_node_gpu_power_watts"] == [350.5]


def test_free_memory_is_the_drivers_figure_and_not_a_difference() -> None:
    assert values(published(snapshot(gpu(memory_free_bytes=5 * 2**20))), FREE) == [5]


def test_a_megabyte_is_two_to_the_twentieth() -> None:
    assert values(published(snapshot(gpu(memory_free_bytes=2**20 + 2**19))), FREE) == [1.5]


def test_zero_is_published_as_zero() -> None:
    series = published(snapshot(gpu(utilization_percent=0, memory_used_bytes=0, power_watts=0)))
    assert values(series, "aom_node_gpu_usage") == [0]
    assert values(series, "aom_node_gpu_memory_usage") == [0]
    assert values(series, "aom_node_gpu_power_watts") == [0]


@pytest.mark.parametrize("field", [row[0] for row in NODE_FIELDS])
def test_a_field_that_is_not_known_has_no_sample_but_a_reason(field: str) -> None:
    metric = next(row[1] for row in NODE_FIELDS if row[0] == field)
    series = published(snapshot(gpu(**{field: None}, absent={field: AbsentReason.NO_PERMISSION})))
    assert values(series, metric.name) == []
    assert values(series, "gpuscale_gpu_capability", field=field, reason="no_permission", uuid="GPU-a") == [0]
    assert len(values(series, "gpuscale_gpu_capability")) == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1, 101, 4294967295])
def test_a_utilisation_that_cannot_be_true_is_absent_as_out_of_range(wrong: float) -> None:
    series = published(snapshot(gpu(utilization_percent=wrong)))
    assert values(series, "aom_node_gpu_usage") == []
    assert values(series, "gpuscale_gpu_capability", field="utilization_percent", reason="out_of_range") == [0]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("memory_used_bytes", 80001 * 2**20),
        ("memory_free_bytes", 2**64 - 1),
        ("memory_reserved_bytes", -1),
        ("memory_total_bytes", 0),
        ("temperature_celsius", -3),
        ("power_watts", 4294967.295),
    ],
)
def test_memory_beyond_the_capacity_and_sentinels_are_absent(field: str, wrong: float) -> None:
    series = published(snapshot(gpu(**{field: wrong})))
    assert values(series, "gpuscale_gpu_capability", field=field, reason="out_of_range") == [0]


def test_no_percentage_is_made_of_an_unbelievable_part() -> None:
    series = published(snapshot(gpu(memory_used_bytes=90000 * 2**20)))
    assert values(series, "aom_node_gpu_memory_usage") == []
    assert values(series, "aom_node_gpu_memory_capacity_megabytes") == [80000]


def test_a_lost_gpu_keeps_its_identity_and_loses_its_values_and_the_others_stay() -> None:
    lost = GpuReading("GPU-b", 1, "Tesla T4", fault=AbsentReason.LOST)
    series = published(snapshot(gpu("GPU-a"), lost))
    assert values(series, "gpuscale_gpu_up", uuid="GPU-b", model="Tesla T4") == [0]
    assert values(series, "gpuscale_gpu_absent", uuid="GPU-b", model="Tesla T4", reason="lost") == [1]
    assert not [key for key in series if key[0].startswith("aom_") and ("uuid", "GPU-b") in key[1]]
    assert values(series, "aom_node_gpu_usage", uuid="GPU-a") == [55]
    assert values(series, "gpuscale_gpus_expected") == [2]
    assert values(series, "gpuscale_gpus_seen") == [1]


def test_a_gpu_that_hangs_tells_for_how_long() -> None:
    stuck = GpuReading("GPU-a", 0, "Tesla T4", fault=AbsentReason.TIMEOUT, read_seconds=61.5)
    assert values(published(snapshot(stuck)), "gpuscale_gpu_read_seconds", uuid="GPU-a") == [61.5]


def test_a_driver_that_is_down_is_said_with_its_reason() -> None:
    series = published(snapshot(driver=SourceState(up=False, reason="library_not_found", message="...")))
    assert values(series, "gpuscale_driver_up", reason="library_not_found") == [0]
    assert not [name for name in names(series) if name.startswith("aom_")]


def test_the_snapshots_time_is_published_and_not_its_age() -> None:
    series = published(snapshot())
    assert values(series, "gpuscale_snapshot_timestamp_seconds", node="n1") == [1700000000.5]
    assert values(series, "gpuscale_poll_duration_seconds") == [0.015625]
    assert values(series, "gpuscale_polls_total") == [7]


def test_index_and_driver_version_are_only_in_the_info_series() -> None:
    series = published(snapshot(gpu(index=3)))
    carriers = {name for name, labels in series if {"index", "driver_version"} & {key for key, _ in labels}}
    assert carriers == {"aom_node_gpu_info"}
    assert values(series, "aom_node_gpu_info", index="3", driver_version="550.54.15", uuid="GPU-a") == [1]


def test_of_a_snapshot_that_is_too_old_only_identities_are_left() -> None:
    series = published(withdrawn(snapshot(gpu(), allocations=(holds("p", "GPU-a"),))))
    assert not [name for name in names(series) if name.startswith("aom_")]
    assert values(series, "gpuscale_driver_up", reason="stale") == [0]
    assert values(series, "gpuscale_gpu_absent", uuid="GPU-a", reason="stale") == [1]
    assert values(series, "gpuscale_container_attribution") == []
    assert values(series, "gpuscale_snapshot_timestamp_seconds") == [1700000000.5]
