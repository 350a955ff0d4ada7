"""From the driver to a pod's series: claims of GPU instances, through the real binding and a real socket."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.exporter.build import read, values
from tests.exporter.podresources import claim, container, pod, serving
from tests.fakenvml.program import Exporter
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.state import NO_PERMISSION, FakeDriver

MIB = 2**20
USED = "aom_container_gpu_memory_used_megabytes"
ATTRIBUTION = "gpuscale_container_attribution"


@pytest.fixture
def kubelet() -> Iterator[Path]:
    answer = pod("ml", "new", container("main", claim(device="gpu-1-mig-1g18gb-19-4")))
    answer += pod("ml", "old", container("main", claim(device="gpu-1-mig-19-0-1")))
    answer += pod("ml", "whole", container("main", claim(device="gpu-0")))
    answer += pod("ml", "gone", container("main", claim(device="gpu-1-mig-2g35gb-14-2")))
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        path = Path(folder) / "kubelet.sock"
        with serving(path, lambda *_: answer):
            yield path


def partly_split(fake: FakeDriver) -> None:
    form = gpus(2, memory_used_bytes=700 * MIB)
    form["devices"][1] |= {"mig_enabled": True, "utilization_percent": None}
    form["devices"][1]["mig"] = [
        {"uuid": f"MIG-{start}", "gpu_instance": 7 + start, "compute_instance": 0, "profile": "1g.18gb"}
        | {
            "profile_id": 19,
            "placement_start": start,
            "memory_total_bytes": 16384 * MIB,
            "memory_used_bytes": used * MIB,
        }
        for start, used in ((0, 100), (4, 400))
    ]
    load(fake, form)


def test_a_claimed_instance_has_its_pods_memory(fake: FakeDriver, exporter: Any, kubelet: Path) -> None:
    partly_split(fake)
    program: Exporter = exporter("--kubelet-socket", str(kubelet), "--proc", "")
    series = read(program.text())
    used = {name: values(series, USED, pod=name, uuid=uuid(at)) for name, at in (("new", 1), ("old", 1), ("whole", 0))}
    assert used == {"new": [400], "old": [100], "whole": [700]}
    assert values(series, ATTRIBUTION, pod="gone", reason="mig_device") == [0]


def test_without_the_right_to_look_only_the_instances_stay_untold(
    fake: FakeDriver, exporter: Any, kubelet: Path
) -> None:
    partly_split(fake)
    fake.fail(1, "nvmlDeviceGetGpuInstanceById", NO_PERMISSION)
    program: Exporter = exporter("--kubelet-socket", str(kubelet), "--proc", "")
    series = read(program.text())
    assert values(series, USED) == [700]
    assert values(series, ATTRIBUTION, reason="mig_place_unknown") == [0, 0, 0]
