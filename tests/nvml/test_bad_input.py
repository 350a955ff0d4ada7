"""What a driver or a kubelet may answer that no program should believe, through the program to its page."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.exporter.build import Series, read, values
from tests.exporter.host import Host
from tests.exporter.podresources import container, devices, part, pod, serving
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.state import UNKNOWN_BYTES, FakeDriver

MIB = 2**20
POLLS = ("--poll-seconds", "0.1", "--stale-polls", "100")


def memory_families(series: Series) -> set[str]:
    """Every family that tells an amount or a part of the board's memory."""
    told = {name for name, _ in series if "_memory_" in name or "FB_" in name}
    return {
        name for name in told if any(word in name for word in ("megabytes", "usage", "FB_", "bytes", "utilization"))
    }


@pytest.mark.parametrize("attribute", ["memory_total", "memory_used", "memory_free", "memory_reserved"])
@pytest.mark.parametrize("value", [UNKNOWN_BYTES, 2**63])
def test_memory_of_2_to_the_64_is_in_no_dialect(attribute: str, value: int, fake: FakeDriver, exporter: Any) -> None:
    load(fake, gpus(1, bar1_total_bytes=None, bar1_used_bytes=None, details={}))
    setattr(fake.state.devices[0], attribute, value)
    series = read(exporter(*POLLS, "--dialect", "dcgm,nvidia_smi,cce").text())
    assert {name for name in memory_families(series) if "controller" not in name} <= {
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "nvidia_smi_utilization_memory_ratio",
    }
    assert values(series, "gpuscale_gpu_capability", field=f"{attribute}_bytes", reason="out_of_range") == [0]
    assert values(series, "aom_node_gpu_temperature_centigrade") == [30]
    assert max(series.values()) < 2**61


def test_a_memory_total_of_zero_divides_nothing(fake: FakeDriver, exporter: Any) -> None:
    form = gpus(1, memory_total_bytes=0, memory_reserved_bytes=0)
    form["processes"] = [{"pid": 7, "gpu_uuid": uuid(0), "memory_used_bytes": MIB, "utilization_percent": 5}]
    load(fake, form)
    held = pod("ml", "p", container("main", devices("nvidia.com/gpu", uuid(0))))
    path = fake.path.with_name("k.sock")
    with serving(path, lambda *_: held):
        series = read(exporter(*POLLS, "--kubelet-socket", str(path), "--dialect", "dcgm,nvidia_smi,cce").text())
    for family in ("aom_node_gpu_memory_usage", "aom_container_gpu_memory_usage", "cce_gpu_memory_utilization"):
        assert values(series, family) == []
    assert values(series, "aom_container_gpu_memory_used_megabytes", pod="p") == [1]


@pytest.mark.parametrize("text", ["N/A", "[N/A]", "[Not Supported]"])
def test_not_available_in_words_is_an_empty_label_and_no_text(text: str, fake: FakeDriver, exporter: Any) -> None:
    load(fake, gpus(1))
    fake.state.devices[0].serial = fake.state.devices[0].vbios = text.encode()
    page = exporter(*POLLS, "--dialect", "dcgm,cce").text()
    assert text not in page
    assert values(read(page), "aom_node_gpu_board_info", serial="", vbios_version="") == [1]


def test_a_uuid_that_is_no_uuid_is_nobodys_identity(fake: FakeDriver, exporter: Any) -> None:
    load(fake, gpus(3, utilization_percent=40))
    fake.state.devices[0].uuid = fake.state.devices[1].uuid = b"N/A"
    fake.state.devices[2].name = b"[N/A]"
    series = read(exporter(*POLLS).text())
    unknown = [f"unknown-index-{n}" for n in (0, 1)]
    assert {dict(labels)["uuid"] for name, labels in series if name == "gpuscale_gpu_up"} == {*unknown, uuid(2)}
    assert values(series, "gpuscale_gpu_absent", reason="out_of_range") == [1, 1]
    assert values(series, "aom_node_gpu_usage", uuid=uuid(2), model="") == [40]


@pytest.mark.parametrize("name", ['C:\\Windows\\x.exe "quoted"', "two\nlines", "carriage\r\nreturn"])
def test_x27_a_programs_name_of_the_driver_round_trips_whatever_is_in_it(
    name: str, fake: FakeDriver, exporter: Any, tmp_path: Path
) -> None:
    form = gpus(1)
    form["processes"] = [{"pid": 77, "gpu_uuid": uuid(0), "memory_used_bytes": MIB, "name": name}]
    load(fake, form)
    page = exporter(*POLLS, "--dialect", "nvidia_smi", "--process-series", "--proc", str(Host(tmp_path).proc)).text()
    assert "\r" not in page
    kept = name.replace("\r", "")
    assert values(read(page), "nvidia_smi_compute_app_used_memory_bytes", process_name=kept, pid="77") == [MIB]
    assert values(read(page), "aom_process_gpu_memory_used_megabytes", process_name=kept, pid="77") == [1]


def test_an_answer_of_the_kubelet_of_ten_megabytes_is_used(fake: FakeDriver, exporter: Any, tmp_path: Path) -> None:
    load(fake, gpus(1, utilization_percent=40))
    filler = part(9, b"\0" * 1000)
    others = b"".join(
        pod("ml", f"p-{n}", container("c", devices("nvidia.com/gpu", "x"), filler)) for n in range(10_000)
    )
    answer = others + pod("ml", "mine", container("main", devices("nvidia.com/gpu", uuid(0))))
    assert len(answer) > 10_000_000
    with serving(tmp_path / "k.sock", lambda *_: answer):
        slow = ("--poll-seconds", "2", "--stale-polls", "20", "--kubelet-socket", str(tmp_path / "k.sock"))
        series = read(exporter(*slow).text())
    assert values(series, "gpuscale_kubelet_up", reason="") == [1]
    assert values(series, "aom_container_gpu_usage", pod="mine") == [40]


def test_a_kubelet_that_accepts_and_never_answers_costs_its_own_series_only(
    fake: FakeDriver, exporter: Any, tmp_path: Path
) -> None:
    load(fake, gpus(1, utilization_percent=40))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "k.sock"))
        silent.listen()
        series = read(
            exporter(*POLLS, "--deadline-seconds", "0.5", "--kubelet-socket", str(tmp_path / "k.sock")).text()
        )
    assert values(series, "gpuscale_kubelet_up", reason="timeout") == [0]
    assert values(series, "aom_node_gpu_usage") == [40]
    assert not [name for name, _ in series if name.startswith("aom_container")]
