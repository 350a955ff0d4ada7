"""Real machines, as recorded: what is published is what nvidia-smi printed, and the sums hold."""

import dataclasses
from pathlib import Path

import pytest

from exporter.readings import Snapshot
from tests.exporter.build import Series, holds, published, values
from tests.exporter.foreign import heard, spoken
from tests.exporter.smi_csv import captured, partitioned
from tests.exporter.test_peer import CAPTURES

MIG = "linux-x86_64__nvidia-h200-mig__590.48.01"

# capture -> capacity, used and free MB, watts, degrees, percent; idle and under load, as nvidia-smi printed them
SEEN = {
    ("linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05", "idle"): (16376, 596, 15348, 26.2, 43, [0]),
    ("linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05", "load"): (16376, 1474, 14470, 84.24, 46, [7]),
    (MIG, "idle"): (143771, 55, 143103, 78.28, 28, []),
    (MIG, "load"): (143771, 16959, 126199, 295.01, 36, []),
    ("linux-x86_64__nvidia-h200__590.48.01", "idle"): (143771, 0, 143158, 77.71, 28, [0]),
    ("linux-x86_64__nvidia-h200__590.48.01", "load"): (143771, 32362, 110796, 627.4, 52, [100]),
    ("linux-x86_64__nvidia-l40s__595.80", "idle"): (46068, 0, 45460, 144.97, 63, [100]),
    ("linux-x86_64__nvidia-l40s__595.80", "load"): (46068, 1235, 44225, 110.23, 54, [9]),
    ("windows-x86_64__nvidia-geforce-rtx-2080-super__591.86", "idle"): (8192, 702, 7286, 38.92, 40, [0]),
    ("windows-x86_64__nvidia-geforce-rtx-2080-super__591.86", "load"): (8192, 1296, 6692, 97.43, 45, [7]),
}


def of(shared_data: Path, capture: str, moment: str) -> Snapshot:
    return captured(shared_data / "gpu-smi-captures" / f"{capture}.txt", moment)


@pytest.mark.parametrize(("capture", "moment"), SEEN)
def test_native_values_are_the_numbers_that_were_printed(capture: str, moment: str, shared_data: Path) -> None:
    series = published(of(shared_data, capture, moment))
    capacity, used, free, watts, degrees, percent = SEEN[capture, moment]
    assert values(series, "aom_node_gpu_memory_capacity_megabytes") == [capacity]
    assert values(series, "aom_node_gpu_memory_used_megabytes") == [used]
    assert values(series, "aom_node_gpu_memory_free_megabytes") == [free]
    assert values(series, "aom_node_gpu_power_watts") == [watts]
    assert values(series, "aom_node_gpu_temperature_centigrade") == [degrees]
    assert values(series, "aom_node_gpu_usage") == percent  # unknown under MIG, which is not 0


@pytest.mark.parametrize("moment", ["idle", "load"])
@pytest.mark.parametrize("capture", CAPTURES)
def test_memory_adds_up_to_the_capacity_and_a_sole_holder_has_all_of_the_use(
    capture: str, moment: str, shared_data: Path
) -> None:
    node = of(shared_data, capture, moment)
    series = published(dataclasses.replace(node, allocations=(holds("p", node.gpus[0].uuid),)))
    (capacity,) = values(series, "aom_node_gpu_memory_capacity_megabytes")
    parts = [_one(series, f"aom_node_gpu_memory_{part}_megabytes") for part in ("used", "free", "reserved")]
    # each part was rounded to whole MiB when it was printed
    assert abs(sum(parts) - capacity) <= len(parts)
    assert values(series, "aom_container_gpu_memory_capacity_megabytes") == [capacity]
    assert _one(series, "aom_container_gpu_memory_used_megabytes") <= capacity
    assert values(series, "aom_container_gpu_usage") == values(series, "aom_node_gpu_usage")


@pytest.mark.parametrize("moment", ["idle", "load"])
def test_gpu_instances_are_told_once_each_and_their_use_adds_up_to_the_boards(moment: str, shared_data: Path) -> None:
    node = partitioned(shared_data / "gpu-smi-captures" / f"{MIG}.txt", moment)
    native = published(node)
    for series, used, board in (
        (native, "aom_mig_gpu_memory_used_megabytes", _one(native, "aom_node_gpu_memory_used_megabytes")),
        (heard(spoken(node, "dcgm").plain), "DCGM_FI_DEV_FB_USED", _one(native, "aom_node_gpu_memory_used_megabytes")),
    ):
        shares = values(series, used)
        assert len(shares) == len({mig.gpu_instance for mig in node.gpus[0].mig}) == 4
        # each is rounded to whole MiB, and both were printed at different moments
        assert sum(shares) == pytest.approx(board, abs=len(shares))
    assert sum(values(native, "aom_mig_gpu_memory_capacity_megabytes")) <= _one(
        native, "aom_node_gpu_memory_capacity_megabytes"
    )
    assert len(values(native, "aom_mig_gpu_info")) == 5  # two compute instances share the first


def _one(series: Series, name: str) -> float:
    (value,) = values(series, name)
    return value
