"""nvidia_gpu_exporter as judge of the whole way: capture -> fake driver -> binding -> exporter -> the same series."""

from pathlib import Path
from typing import Any

import pytest

from tests.exporter.foreign import heard
from tests.exporter.host import Host
from tests.exporter.peer import CAPTURES, NOT_OURS, exposition, insist_same
from tests.exporter.smi_csv import captured
from tests.fakenvml.program import Exporter
from tests.fakenvml.scenario import gpus, load, of_snapshot, uuid
from tests.fakenvml.state import FakeDriver


def said(program: Exporter) -> Any:
    """Return what the program says in this dialect."""
    page = "\n".join(line for line in program.text().splitlines() if "nvidia_smi_" in line)
    return heard(page + "\n")


@pytest.mark.parametrize("moment", ["idle", "load"])
@pytest.mark.parametrize("capture", CAPTURES)
def test_every_series_that_nvml_can_know_comes_out_of_the_driver_as_the_peer_printed_it(
    capture: str, moment: str, shared_data: Path, fake: FakeDriver, exporter: Any, tmp_path: Path
) -> None:
    load(fake, of_snapshot(captured(shared_data / "gpu-smi-captures" / f"{capture}.txt", moment)))
    theirs = exposition(shared_data, capture, moment)
    proc = str(Host(tmp_path).proc)
    count = insist_same(theirs, said(exporter("--dialect", "nvidia_smi", "--poll-seconds", "3600", "--proc", proc)))
    print(f"{capture} {moment}: {count} of the peer's {len(theirs)} series came through the driver, all equal")
    assert count >= len(theirs) - len(NOT_OURS)


def test_without_a_dialect_that_has_them_no_details_are_asked_of_the_driver(fake: FakeDriver, exporter: Any) -> None:
    load(fake, gpus(1))
    program: Exporter = exporter("--dialect", "aom,cce", "--poll-seconds", "3600")
    assert "cce_gpu_utilization" in program.text()
    asked = fake.all_calls(0).keys() | fake.all_calls(None).keys()
    details = {"nvmlDeviceGetEncoderStats", "nvmlDeviceGetGpuFabricInfoV", "nvmlSystemGetProcessName"}
    assert not asked & details


def test_a_process_that_only_draws_is_no_compute_app_and_one_without_a_name_is_counted(
    fake: FakeDriver, exporter: Any, tmp_path: Path
) -> None:
    form = gpus(1)
    form["processes"] = [
        {"pid": 11, "gpu_uuid": uuid(0), "memory_used_bytes": 5, "name": "/usr/bin/python"},
        {"pid": 12, "gpu_uuid": uuid(0), "memory_used_bytes": 7},
        {"pid": 13, "gpu_uuid": uuid(0), "memory_used_bytes": 9, "name": "Xorg", "computes": False},
    ]
    load(fake, form)
    program: Exporter = exporter(
        *("--dialect", "nvidia_smi", "--poll-seconds", "0.1", "--stale-polls", "100"),
        *("--proc", str(Host(tmp_path).proc)),
    )
    fake.reset_calls()
    series = said(program)
    infos = [dict(labels) for name, labels in series if name == "nvidia_smi_compute_app_info"]
    apps = {labels["pid"]: labels.get("process_name") for labels in infos}
    assert apps == {"11": "/usr/bin/python", "12": None}
    assert [value for (name, _), value in series.items() if name == "nvidia_smi_compute_apps"] == [2]
    polls = fake.calls(0, "nvmlDeviceGetPowerUsage")
    program.wait_for(lambda: fake.calls(0, "nvmlDeviceGetPowerUsage") > polls + 2)
    assert fake.calls(None, "nvmlSystemGetProcessName") == 0  # each was asked for when it was first seen
