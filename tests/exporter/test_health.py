from typing import Any

import pytest

from exporter.health import HealthPolicy, Level, judge
from exporter.readings import AbsentReason, EccReading, GpuReading, RepairReading, XidReading
from tests.exporter.build import gpu, published, snapshot, values

NOW = 1700000000.5


def judged(of: GpuReading, policy: HealthPolicy | None = None) -> tuple[Level, set[str]]:
    verdict = judge(of, NOW, policy or HealthPolicy())
    assert verdict is not None
    return verdict.level, {finding.reason for finding in verdict.findings}


def xid(number: int, ago: float = 10, count: int = 1) -> XidReading:
    return XidReading(number, count, NOW - ago)


def test_a_gpu_of_which_nothing_bad_is_known_is_ok() -> None:
    assert judged(gpu()) == (Level.OK, set())


@pytest.mark.parametrize(
    ("changed", "level", "reason"),
    [
        ({"xids": (xid(79),)}, Level.FATAL, "xid_79"),
        ({"xids": (xid(74),)}, Level.FATAL, "xid_74"),
        ({"xids": (xid(48),)}, Level.WARNING, "xid_48"),
        ({"ecc": EccReading(aggregate_sram_uncorrected=5)}, Level.FATAL, "sram_errors"),
        ({"ecc": EccReading(volatile_uncorrected=1)}, Level.WARNING, "ecc_uncorrected"),
        (
            {"repair": RepairReading(retired_pages_corrected=60, retired_pages_uncorrected=1)},
            Level.FATAL,
            "retired_pages",
        ),
        ({"repair": RepairReading(remapped_rows_failed=True)}, Level.FATAL, "row_remap_failed"),
        ({"repair": RepairReading(remapped_rows_pending=True)}, Level.WARNING, "row_remap_pending"),
        ({"repair": RepairReading(retired_pages_pending=True)}, Level.WARNING, "retired_pages_pending"),
        ({"recovery_action": 1}, Level.WARNING, "recovery_action"),
        ({"recovery_action": 7}, Level.WARNING, "recovery_action"),
        ({"clocks_event_reasons": 0x40}, Level.WARNING, "hw_thermal_slowdown"),
        ({"clocks_event_reasons": 0x80}, Level.WARNING, "hw_power_brake_slowdown"),
        ({"pcie_width": 8, "pcie_width_max": 16}, Level.WARNING, "pcie_width"),
        (
            {"pcie_generation": 3, "pcie_generation_max": 5, "performance_state": 0, "utilization_percent": 90},
            Level.WARNING,
            "pcie_generation",
        ),
    ],
)
def test_each_finding_has_its_level_and_reason(changed: dict[str, Any], level: Level, reason: str) -> None:
    assert judged(gpu(**changed)) == (level, {reason})


@pytest.mark.parametrize(
    "changed",
    [
        *({"xids": (xid(number),)} for number in (13, 31, 43, 45, 68, 109)),
        {"ecc": EccReading(aggregate_sram_uncorrected=4, aggregate_uncorrected=9)},
        {"repair": RepairReading(retired_pages_corrected=30, retired_pages_uncorrected=30)},
        {"repair": RepairReading(remapped_rows_uncorrected=3, remapped_rows_failed=False)},
        {"clocks_event_reasons": 0x4 | 0x1 | 0x2},
        {"pcie_generation": 1, "pcie_generation_max": 5, "performance_state": 8, "utilization_percent": 0},
        {"pcie_width": 0, "pcie_width_max": 16},
    ],
)
def test_what_a_healthy_gpu_may_show_is_no_finding(changed: dict[str, Any]) -> None:
    assert judged(gpu(**changed)) == (Level.OK, set())


def test_an_xid_counts_for_its_window_and_is_not_latched() -> None:
    assert judged(gpu(xids=(xid(79, ago=3599),)))[0] == Level.FATAL
    assert judged(gpu(xids=(xid(79, ago=3600),)))[0] == Level.OK


def test_the_worst_finding_is_the_verdict_and_all_are_named() -> None:
    bad = gpu(xids=(xid(79), xid(48), xid(13)), clocks_event_reasons=0x20)
    assert judged(bad) == (Level.FATAL, {"xid_79", "xid_48", "sw_thermal_slowdown"})


def test_the_classes_can_be_set_and_fatal_wins_over_ignored() -> None:
    policy = HealthPolicy(fatal_xids=frozenset({48, 13}), ignored_xids=frozenset({13, 79}))
    assert judged(gpu(xids=(xid(48),)), policy)[0] == Level.FATAL
    assert judged(gpu(xids=(xid(13),)), policy)[0] == Level.FATAL
    assert judged(gpu(xids=(xid(79),)), policy)[0] == Level.OK


@pytest.mark.parametrize(
    ("fault", "level"),
    [
        (AbsentReason.LOST, Level.FATAL),
        (AbsentReason.RESET_REQUIRED, Level.FATAL),
        (AbsentReason.TIMEOUT, Level.WARNING),
        (AbsentReason.DRIVER_ERROR, Level.WARNING),
    ],
)
def test_a_gpu_that_cannot_be_read_is_judged_by_why(fault: AbsentReason, level: Level) -> None:
    assert judged(GpuReading("GPU-a", 0, "H100", fault=fault)) == (level, {fault.value})


@pytest.mark.parametrize("fault", [AbsentReason.STALE, AbsentReason.NO_PERMISSION])
def test_where_the_exporter_itself_is_blind_there_is_no_verdict(fault: AbsentReason) -> None:
    assert judge(GpuReading("GPU-a", 0, "H100", fault=fault), NOW, HealthPolicy()) is None


def test_verdict_and_reasons_are_series_of_their_own() -> None:
    series = published(snapshot(gpu(xids=(xid(79),)), gpu("GPU-b")))
    assert values(series, "gpuscale_gpu_health", uuid="GPU-a") == [2]
    assert values(series, "gpuscale_gpu_health", uuid="GPU-b") == [0]
    assert values(series, "gpuscale_gpu_health_reason", uuid="GPU-a", reason="xid_79") == [2]
    assert values(series, "gpuscale_gpu_health_reason", uuid="GPU-b") == []


def test_x26_an_ignored_xid_leaves_no_mark_and_a_fatal_one_ends_with_its_window() -> None:
    event = (XidReading(31, 1, NOW), XidReading(79, 1, NOW))
    found = [
        values(published(snapshot(gpu(xids=event), taken_at=NOW + later)), "gpuscale_gpu_health")
        for later in (0, 300, 3600)
    ]
    assert found == [[2], [2], [0]]
    assert values(published(snapshot(gpu(xids=()))), "gpuscale_gpu_health") == [0]
