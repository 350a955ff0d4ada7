"""nvidia_gpu_exporter as judge: from the same capture, the same names, labels and values as its own exposition."""

import math
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.exporter.build import Series, values
from tests.exporter.foreign import heard, spoken
from tests.exporter.smi_csv import captured

PEER = "nvidia_gpu_exporter__"
CAPTURES = (
    "linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05",
    "linux-x86_64__nvidia-h200-mig__590.48.01",
    "linux-x86_64__nvidia-h200__590.48.01",
    "linux-x86_64__nvidia-l40s__595.80",
    "windows-x86_64__nvidia-geforce-rtx-2080-super__591.86",
)

NOT_OURS = {
    "command_exit_code": "of the program nvidia-smi, which we do not run",
    "pcie_link_gen_hostmax": "of the slot alone; NVML tells it of the GPU, and of GPU and slot together",
}
"""Families of the peer that we do not have, by pattern, each with the reason."""

OURS_TOO = {
    "kmd_version": "of nvidia-smi 595 and later; before, the same number is driver_version alone",
    "clocks_throttle_reasons_*": "the names of older drivers for the same, which dashboard 14574 asks for",
    "last_collect_success_timestamp_seconds": "left out of the recorded expositions by the peer's own tests",
    "last_collect_duration_seconds": "left out of the recorded expositions by the peer's own tests",
}
"""Families of ours that the recorded expositions lack."""


def matches(name: str, table: dict[str, str]) -> str:
    """Return the pattern of the table that a family's name matches, else ""."""
    return next((pattern for pattern in table if fnmatch(name.removeprefix("nvidia_smi_"), pattern)), "")


def both(shared_data: Path, capture: str, moment: str) -> tuple[Series, Series]:
    peer = (shared_data / "gpu-metrics-expo" / f"{PEER}{capture}__{moment}.metrics").read_text()
    of = captured(shared_data / "gpu-smi-captures" / f"{capture}.txt", moment)
    return heard(peer), heard(spoken(of, "nvidia_smi").plain)


@pytest.mark.parametrize("moment", ["idle", "load"])
@pytest.mark.parametrize("capture", CAPTURES)
def test_every_series_that_we_both_can_know_is_the_same(capture: str, moment: str, shared_data: Path) -> None:
    theirs, ours = both(shared_data, capture, moment)
    wanted = {key: value for key, value in theirs.items() if not matches(key[0], NOT_OURS)}
    mine = {key: value for key, value in ours.items() if key in wanted or not matches(key[0], OURS_TOO)}
    assert wanted.keys() - mine.keys() == set()
    assert mine.keys() - wanted.keys() == set()
    assert [key for key in wanted if not math.isclose(wanted[key], mine[key], rel_tol=1e-9)] == []
    print(f"{capture} {moment}: {len(wanted)} of the peer's {len(theirs)} series compared, all equal")
    assert len(wanted) > 60


def test_no_exception_is_without_use(shared_data: Path) -> None:
    used: Counter[str] = Counter()
    for capture in CAPTURES:
        theirs, ours = both(shared_data, capture, "load")
        used.update(matches(name, NOT_OURS) for name, _ in theirs)
        used.update(matches(name, OURS_TOO) for name, _ in ours)
    assert set(NOT_OURS) | set(OURS_TOO) <= set(used)


@pytest.mark.parametrize("moment", ["idle", "load"])
@pytest.mark.parametrize("capture", CAPTURES)
def test_all_dialects_agree_on_what_a_capture_says(capture: str, moment: str, shared_data: Path) -> None:
    of = captured(shared_data / "gpu-smi-captures" / f"{capture}.txt", moment)
    series = heard(spoken(of).plain)
    (used,) = values(series, "nvidia_smi_memory_used_bytes")
    assert values(series, "DCGM_FI_DEV_FB_USED") == [used / 2**20]
    assert values(series, "cce_gpu_memory_used") == [used]
    assert values(series, "gpuMemUsed") == [used / 2**20]
    (watts,) = values(series, "nvidia_smi_power_draw_watts")
    assert values(series, "DCGM_FI_DEV_POWER_USAGE") == [watts]
    assert values(series, "cce_gpu_power_usage") == [pytest.approx(watts * 1000)]
    percent = [100 * ratio for ratio in values(series, "nvidia_smi_utilization_gpu_ratio")]
    assert values(series, "gpuUtil") == pytest.approx(percent)
    assert values(series, "cce_gpu_utilization") == values(series, "gpuUtil")
