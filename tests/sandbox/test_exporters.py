import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from controller.sandbox.children import end_process, start
from controller.sandbox.devices import simulation, write
from controller.sandbox.exporters import ExporterProcess, start_process
from controller.sandbox.kubelet import Life, gpu_uuids

WAIT_SECONDS = 60.0


@pytest.fixture
def life() -> Life:
    gpus = tuple(gpu_uuids("h100-1", 2)[:1])
    return Life("ml", "llm-1", "server", "h100-1", gpus, 1001, started_at=0.0, load_seconds=10.0, ready_at=10.0)


def test_the_same_node_has_the_same_gpus_and_another_has_others() -> None:
    assert gpu_uuids("h100-1", 2) == gpu_uuids("h100-1", 2)
    assert not set(gpu_uuids("h100-1", 2)) & set(gpu_uuids("h100-2", 2))


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    write(path, {"driver": "1"})
    write(path, {"driver": "2"})
    assert path.read_text() == '{"driver": "2"}'
    assert list(tmp_path.iterdir()) == [path]


def test_memory_grows_while_the_model_loads_and_power_follows_the_work(life: Life) -> None:
    uuids = gpu_uuids("h100-1", 2)
    half = simulation(uuids, "H100", [life], {}, now=5.0)["devices"]
    busy = simulation(uuids, "H100", [life], {"llm-1": 80.0}, now=20.0)["devices"]
    assert 0 == half[1]["memory_used_bytes"] < half[0]["memory_used_bytes"] < busy[0]["memory_used_bytes"]
    assert half[0]["power_watts"] < busy[0]["power_watts"]
    assert [device["utilization_percent"] for device in busy] == [80.0, 0.0]


def test_a_real_exporter_publishes_what_the_file_says_and_ends_when_told(tmp_path: Path, life: Life) -> None:
    path = tmp_path / "h100-1.json"
    write(path, simulation(gpu_uuids("h100-1", 2), "NVIDIA H100", [life], {"llm-1": 72.5}, now=20.0))
    exporter = start_process("h100-1", path)
    try:
        body = scraped(exporter)
    finally:
        exporter.begin_stop()
        exporter.finish_stop()
    line = next(line for line in body.splitlines() if line.startswith("aom_container_gpu_usage{"))
    assert 'namespace="ml"' in line
    assert 'pod="llm-1"' in line
    assert float(line.rpartition(" ")[2]) == 72.5
    assert (exporter.died() or "").startswith("the exporter of node h100-1 ended with code 0")


def scraped(exporter: object) -> str:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        assert exporter.died() is None  # type: ignore[attr-defined]
        port = exporter.port()  # type: ignore[attr-defined]
        body = "" if port is None else fetched(port)
        if "aom_container_gpu_usage{" in body:
            return body
        time.sleep(0.1)
    raise AssertionError("the exporter never published")


def fetched(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError:
        return ""  # 503 before the first poll


def test_an_exporter_that_ends_by_itself_says_what_it_said_last(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = start([sys.executable, "-c", "print('first'); print('no port left'); exit(3)"], sink.fileno())
    exporter = ExporterProcess("h100-1", process, tmp_path / "address", log)
    exporter.finish_stop()
    assert exporter.port() is None
    assert exporter.died() == "the exporter of node h100-1 ended with code 3: no port left"


def test_a_child_that_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = start([sys.executable, "-c", deaf], sink.fileno())
    deadline = time.monotonic() + WAIT_SECONDS
    while "deaf" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.terminate()
    end_process(process, within_seconds=0.1)
    assert process.returncode == -signal.SIGKILL
