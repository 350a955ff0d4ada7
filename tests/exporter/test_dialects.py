"""Other exporters' names: their units, labels, types and quirks. UPDATE_GOLDEN=1 rewrites the golden files."""

import os
from pathlib import Path

import pytest

from exporter.catalogue import BY_NAME
from exporter.details import DetailReading, PowerDetails, RowDetails
from exporter.dialects import DIALECTS, Dialect, Spoken
from exporter.exposition import finish
from exporter.filters import select
from exporter.readings import SourceState
from exporter.samples import withdrawn
from tests.exporter.build import MIB, gpu, holds, read_openmetrics, snapshot, values
from tests.exporter.foreign import full_gpu, heard, mig_gpu, rich, spoken

GOLDEN = Path(__file__).parent / "golden"

each_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)


@each_dialect
def test_a_dialect_is_the_golden_one(dialect: Dialect) -> None:
    file = GOLDEN / f"{dialect.name}.prom"
    text = spoken(rich(), dialect.name).plain
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


@each_dialect
def test_both_parsers_read_the_same_from_both_formats(dialect: Dialect) -> None:
    body = finish(spoken(rich(), dialect.name))
    series = heard(body.plain.decode())
    assert series == read_openmetrics(body.openmetrics.decode())
    assert len(series) >= 8


def test_all_dialects_together_are_parsed_too() -> None:
    body = finish(spoken(rich()))
    assert heard(body.plain.decode()) == read_openmetrics(body.openmetrics.decode())


def test_no_family_has_two_meanings_in_one_exposition() -> None:
    foreign = [metric.name for metric in Spoken(tuple(DIALECTS)).order]
    assert len(foreign) == len(set(foreign))
    kept = BY_NAME.keys() - {metric.name for metric in Spoken(tuple(DIALECTS)).replaced}
    assert not kept & set(foreign)


def test_a_counter_of_another_name_is_of_unknown_type_in_openmetrics() -> None:
    body = finish(spoken(rich(), "dcgm"))
    assert b"# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" in body.plain
    assert b"# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n" in body.openmetrics


@each_dialect
def test_every_row_is_printed_of_a_node_of_which_everything_is_known(dialect: Dialect) -> None:
    printed = {name for name, _ in heard(spoken(rich(), dialect.name).plain)}
    assert {row.metric.name for row in dialect.rows} - printed == set()


@each_dialect
def test_every_row_names_a_native_family_that_there_is_or_none(dialect: Dialect) -> None:
    assert {row.native for row in dialect.rows} - {""} <= BY_NAME.keys()
    assert all(row.metric.help.endswith(".") for row in dialect.rows)


@each_dialect
def test_a_lost_gpu_and_a_stale_snapshot_have_no_values(dialect: Dialect) -> None:
    text = spoken(rich(), dialect.name).plain
    assert "GPU-lost" not in text
    assert " nan" not in text.lower()
    assert "18446744073709551615" not in text
    stale = heard(spoken(withdrawn(rich()), dialect.name).plain)
    assert [labels for _, labels in stale if any(key.lower() in {"uuid", "gpuid"} for key, _ in labels)] == []


def test_nothing_is_said_of_a_node_without_a_driver() -> None:
    down = SourceState(up=False, reason="library_not_found")
    assert heard(spoken(snapshot(driver=down), "dcgm").plain) == {}


class TestDcgm:
    def test_memory_is_in_whole_mebibytes_and_energy_in_millijoules(self) -> None:
        series = heard(spoken(snapshot(full_gpu()), "dcgm").plain)
        assert values(series, "DCGM_FI_DEV_FB_USED") == [20000]
        assert values(series, "DCGM_FI_DEV_FB_FREE") == [59000]
        assert values(series, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") == [1234567]
        assert values(series, "DCGM_FI_DEV_POWER_USAGE") == [350.5]
        assert values(series, "DCGM_FI_DEV_XID_ERRORS") == [31]

    def test_a_container_is_named_where_it_alone_holds_the_gpu(self) -> None:
        alone = snapshot(gpu("GPU-a"), gpu("GPU-b"), allocations=(holds("p", "GPU-a"),))
        series = heard(spoken(alone, "dcgm").plain)
        assert len(values(series, "DCGM_FI_DEV_GPU_UTIL", namespace="ml", pod="p", container="main")) == 1
        assert len(values(series, "DCGM_FI_DEV_GPU_UTIL")) == 2
        shared = snapshot(gpu("GPU-a"), allocations=(holds("p", "GPU-a::0"), holds("q", "GPU-a::1")))
        (labels,) = [labels for name, labels in heard(spoken(shared, "dcgm").plain) if name == "DCGM_FI_DEV_GPU_UTIL"]
        assert "pod" not in dict(labels)

    def test_memory_of_a_partitioned_gpu_is_told_once_for_each_gpu_instance_and_the_rest_once(self) -> None:
        held = snapshot(mig_gpu(), allocations=(holds("p", "MIG-c"), holds("q", "MIG-a"), holds("r", "MIG-b")))
        series = heard(spoken(held, "dcgm").plain)
        assert values(series, "DCGM_FI_DEV_FB_USED") == [16925, 9]
        assert values(series, "DCGM_FI_DEV_FB_USED", GPU_I_ID="9", GPU_I_PROFILE="1g.18gb", pod="p") == [9]
        (shared,) = [dict(have) for name, have in series if name == "DCGM_FI_PROF_SM_ACTIVE"]
        assert "pod" not in shared
        assert len(values(series, "DCGM_FI_DEV_POWER_USAGE")) == 1
        assert values(series, "DCGM_FI_DEV_GPU_UTIL") == []

    def test_the_part_of_memory_used_leaves_out_what_is_reserved(self) -> None:
        half = gpu(memory_total_bytes=90 * MIB, memory_reserved_bytes=10 * MIB, memory_used_bytes=40 * MIB)
        assert values(heard(spoken(snapshot(half), "dcgm").plain), "DCGM_FI_DEV_FB_USED_PERCENT") == [0.5]


class TestAom:
    def test_free_is_the_capacity_at_node_and_container_level_and_help_says_so(self) -> None:
        text = spoken(snapshot(full_gpu(), allocations=(holds("p", "GPU-full"),)), "aom").plain
        series = heard(text)
        assert values(series, "aom_node_gpu_memory_free_megabytes") == [80000]
        assert values(series, "aom_container_gpu_memory_free_megabytes", podName="p", nameSpace="ml") == [80000]
        assert values(series, "gpuMemCapacity") == [80000]
        helps = [line for line in text.splitlines() if line.startswith("# HELP") and "_free_" in line]
        assert len(helps) == 2
        assert all("not what is free" in line for line in helps)

    def test_labels_are_spelled_as_aom_does_and_those_of_the_settings_are_added(self) -> None:
        (labels,) = [dict(have) for name, have in heard(spoken(snapshot(full_gpu()), "aom").plain) if name == "gpuUtil"]
        assert labels == {
            "clusterName": "prod",
            "gpuName": "NVIDIA H100 80GB HBM3",
            "gpuID": "GPU-full",
            "nodeIP": "10.0.0.7",
            "hostName": "node-1",
        }

    def test_only_this_dialect_takes_the_place_of_native_families(self) -> None:
        replaced = {name: {metric.name for metric in Spoken((name,)).replaced} for name in DIALECTS}
        assert "aom_node_gpu_memory_free_megabytes" in replaced.pop("aom")
        assert not any(replaced.values())


class TestNvidiaSmi:
    def test_values_are_in_base_units_under_a_uuid_without_its_prefix(self) -> None:
        series = heard(spoken(snapshot(full_gpu()), "nvidia_smi").plain)
        assert values(series, "nvidia_smi_utilization_gpu_ratio", uuid="full") == [0.55]
        assert values(series, "nvidia_smi_memory_used_bytes") == [20000 * MIB + 700_000]
        assert values(series, "nvidia_smi_clocks_current_sm_clock_hz") == [1.98e9]
        assert values(series, "nvidia_smi_energy_joules_total") == [1234.5678]

    def test_reasons_of_held_clocks_have_their_names_of_new_and_of_old_drivers(self) -> None:
        series = heard(spoken(snapshot(full_gpu(clocks_event_reasons=0x44)), "nvidia_smi").plain)
        for prefix in ("nvidia_smi_clocks_event_reasons_", "nvidia_smi_clocks_throttle_reasons_"):
            held = {name.removeprefix(prefix) for (name, _), value in series.items() if prefix in name and value == 1}
            assert held - {"supported"} == {"sw_power_cap", "hw_thermal_slowdown"}

    def test_a_process_whose_memory_is_not_told_is_counted_and_named(self) -> None:
        series = heard(spoken(snapshot(full_gpu()), "nvidia_smi").plain)
        assert values(series, "nvidia_smi_compute_apps") == [2]
        assert values(series, "nvidia_smi_compute_app_info", process_name='odd "name"\n') == [1]
        assert values(series, "nvidia_smi_compute_app_used_memory_bytes") == [100 * MIB]

    def test_details_that_cannot_be_true_are_not_told_and_the_others_are(self) -> None:
        power = PowerDetails(instant_watts=float("nan"), average_watts=-1.0, requested_limit_watts=650.0)
        rows = RowDetails(banks_max=2**64 - 1, banks_none=0)
        told = heard(spoken(snapshot(gpu(details=DetailReading(power=power, rows=rows))), "nvidia_smi").plain)
        assert values(told, "nvidia_smi_power_draw_instant_watts") == []
        assert values(told, "nvidia_smi_power_draw_average_watts") == []
        assert values(told, "nvidia_smi_power_limit_watts") == [650]
        assert values(told, "nvidia_smi_remapped_rows_histogram_max") == []
        assert values(told, "nvidia_smi_remapped_rows_histogram_none") == [0]

    @pytest.mark.parametrize(
        ("model", "number"),
        [("NVIDIA H200", [200]), ("NVIDIA L40S", [40]), ("Tesla T4", [4]), ("NVIDIA H100 80GB HBM3", []), ("GPU", [])],
    )
    def test_the_number_in_a_models_name_is_a_value_where_there_is_one(self, model: str, number: list[float]) -> None:
        told = heard(spoken(snapshot(gpu(name=model)), "nvidia_smi").plain)
        assert values(told, "nvidia_smi_name") == number

    def test_that_the_driver_does_not_answer_is_told(self) -> None:
        down = snapshot(driver=SourceState(up=False, reason="library_not_found"), driver_failures=3)
        series = heard(spoken(down, "nvidia_smi").plain)
        assert values(series, "nvidia_smi_last_collect_success") == [0]
        assert values(series, "nvidia_smi_failed_scrapes_total") == [3]
        assert values(series, "nvidia_smi_last_collect_success_timestamp_seconds") == []


class TestCce:
    def test_units_are_bytes_milliwatts_and_millijoules_and_all_are_gauges(self) -> None:
        text = spoken(snapshot(full_gpu(), allocations=(holds("p", "GPU-full"),)), "cce").plain
        series = heard(text)
        assert values(series, "cce_gpu_memory_total", namespace="ml", pod="p", container="main") == [80000 * MIB]
        assert values(series, "cce_gpu_power_usage") == [350500]
        assert values(series, "cce_gpu_total_energy_consumption") == [1234567]
        assert "counter" not in text

    def test_memory_in_percent_is_of_used_and_free(self) -> None:
        of = gpu(memory_used_bytes=30 * MIB, memory_free_bytes=10 * MIB, memory_total_bytes=50 * MIB)
        assert values(heard(spoken(snapshot(of), "cce").plain), "cce_gpu_memory_utilization") == [75]

    def test_a_pods_slice_is_told_apart_from_the_card(self) -> None:
        held = snapshot(gpu("GPU-a"), allocations=(holds("p", "GPU-a"),))
        series = heard(spoken(held, "cce").plain)
        assert values(series, "gpu_pod_memory_used", pod="p", gpu_index="0") == [20000 * MIB]
        assert values(series, "gpu_pod_core_percentage_total") == [100]
        assert values(series, "gpu_pod_core_percentage_used") == [55]


@each_dialect
def test_the_part_of_a_page_that_is_one_gpus_has_no_series_of_another(dialect: Dialect) -> None:
    node = snapshot(full_gpu("GPU-a", index=0), full_gpu("GPU-b", index=1))
    part = select(finish(spoken(node, dialect.name)), (), ("GPU-b",), node.gpus)
    whole, one = heard(spoken(node, dialect.name).plain), heard(part.plain.decode())
    of_one = {(name, labels) for name, labels in whole if not {"GPU-a", "a"} & {value for _, value in labels}}
    of_one = {(name, labels) for name, labels in of_one if ("gpu_index", "0") not in labels}
    assert one.keys() == of_one
    assert 0 < len(one) < len(whole)
