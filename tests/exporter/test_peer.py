"""nvidia_gpu_exporter as judge: from the same capture, the same names, labels and values as its own exposition."""

from collections import Counter
from pathlib import Path

import pytest

from tests.exporter.build import Series, values
from tests.exporter.foreign import heard, spoken
from tests.exporter.peer import CAPTURES, NOT_OURS, OURS_TOO, exposition, insist_same, matches
from tests.exporter.smi_csv import captured


def both(shared_data: Path, capture: str, moment: str) -> tuple[Series, Series]:
    of = captured(shared_data / "gpu-smi-captures" / f"{capture}.txt", moment)
    return exposition(shared_data, capture, moment), heard(spoken(of, "nvidia_smi").plain)


@pytest.mark.parametrize("moment", ["idle", "load"])
@pytest.mark.parametrize("capture", CAPTURES)
def test_every_series_that_we_both_can_know_is_the_same(capture: str, moment: str, shared_data: Path) -> None:
    theirs, ours = both(shared_data, capture, moment)
    count = insist_same(theirs, ours)
    print(f"{capture} {moment}: {count} of the peer's {len(theirs)} series compared, all equal")
    assert count >= len(theirs) - len(NOT_OURS)


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
