"""The exporter as a user runs it, on a fake driver that fails: every scrape answers, nothing stale is served."""

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.fakenvml.program import Exporter
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.state import LOST, MISMATCH, NOT_SUPPORTED, FakeDriver

# a period long beside a poll: the machine that runs the tests may be slow, and a slow poll must not look stale
PERIOD = ("--poll-seconds", "0.5", "--stale-polls", "20", "--deadline-seconds", "2")
USAGE = "aom_node_gpu_usage"


def set_usage(fake: FakeDriver, percent: int) -> None:
    for device in fake.state.devices:
        device.gpu_percent = percent


def usage(program: Exporter) -> dict[str, float]:
    return {uuid: value for (name, uuid), value in program.scrape().items() if name == USAGE}


def test_of_eight_gpus_one_hung_and_one_lost_six_stay_fresh_and_it_ends_when_told(
    fake: FakeDriver, exporter: Any
) -> None:
    load(fake, gpus(8))
    program: Exporter = exporter(*PERIOD)
    fake.state.devices[3].hang = 1
    fake.state.devices[6].error = LOST
    program.wait_for(lambda: program.absent() == {uuid(3): "timeout", uuid(6): "lost"})
    healthy = [uuid(i) for i in range(8) if i not in {3, 6}]
    for percent in (25, 50, 75):
        set_usage(fake, percent)
        program.wait_for(lambda percent=percent: usage(program) == dict.fromkeys(healthy, percent))
    series = program.scrape()
    assert {name for name, gpu in series if gpu in {uuid(3), uuid(6)}} <= {
        "gpuscale_gpu_up",
        "gpuscale_gpu_absent",
        "gpuscale_gpu_read_seconds",
        "gpuscale_gpu_health",
        "gpuscale_gpu_health_reason",
    }
    assert (series["gpuscale_gpu_up", uuid(3)], series["gpuscale_gpu_up", uuid(0)]) == (0, 1)
    program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(timeout=2) == 0


def test_it_ends_within_two_seconds_when_everything_hangs(fake: FakeDriver, exporter: Any) -> None:
    load(fake, gpus(8))
    program: Exporter = exporter(*PERIOD)
    for device in fake.state.devices:
        device.hang = 1
    fake.hang(None, "nvmlDeviceGetCount_v2")
    program.wait_for(lambda: len(program.absent()) == 8)
    program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(timeout=2) == 0


def test_x07_fifty_scrapes_at_once_ask_the_driver_nothing_and_no_two_calls_meet_on_a_handle(
    fake: FakeDriver, exporter: Any
) -> None:
    load(fake, gpus(8, utilization_percent=42))
    for device in fake.state.devices:
        device.latency_us = 2000
    program: Exporter = exporter("--poll-seconds", "0.05", "--stale-polls", "400")
    with ThreadPoolExecutor(50) as pool:
        texts = list(pool.map(lambda _: program.text(), range(200)))
    for text in texts:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        assert [sample.value for sample in samples if sample.name == USAGE] == [42] * 8
    assert fake.overlaps == 0


def test_a_scrape_causes_no_call(fake: FakeDriver, exporter: Any) -> None:
    load(fake, gpus(2))
    program: Exporter = exporter("--poll-seconds", "3600")
    before = fake.all_calls(0)
    for _ in range(20):
        program.text()
    assert fake.all_calls(0) == before
    assert before["nvmlDeviceGetPowerUsage"] == 1


def test_a_driver_that_comes_later_is_picked_up(
    fake: FakeDriver, exporter: Any, libraries: dict[str, Path], tmp_path: Path
) -> None:
    load(fake, gpus(2, utilization_percent=5))
    folder = tmp_path / "driver"
    folder.mkdir()
    program: Exporter = exporter(*PERIOD, library=folder)
    assert program.scrape()["gpuscale_driver_up", "library_not_found"] == 0
    assert usage(program) == {}
    shutil.copy(libraries["current"] / "libnvidia-ml.so.1", folder)
    program.wait_for(lambda: usage(program) == {uuid(0): 5, uuid(1): 5})


def test_x04_a_driver_upgrade_withdraws_all_values_until_it_is_done(fake: FakeDriver, exporter: Any) -> None:
    load(fake, gpus(2, utilization_percent=5))
    program: Exporter = exporter(*PERIOD)
    pid = program.process.pid
    assert usage(program) == {uuid(0): 5, uuid(1): 5}
    fake.state.init_error = fake.state.system_error = MISMATCH
    program.wait_for(lambda: program.scrape().get(("gpuscale_driver_up", "lib_rm_version_mismatch")) == 0)
    assert usage(program) == {}
    set_usage(fake, 60)
    fake.state.init_error = fake.state.system_error = 0
    program.wait_for(lambda: usage(program) == {uuid(0): 60, uuid(1): 60})
    assert program.process.pid == pid
    assert fake.state.shutdowns_while_busy == 0


def test_x04_after_a_new_library_it_is_a_new_program_in_the_same_process(
    fake: FakeDriver, exporter: Any, libraries: dict[str, Path], tmp_path: Path
) -> None:
    load(fake, gpus(1, temperature_celsius=41))
    library = tmp_path / "driver" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    shutil.copy(libraries["r470"] / library.name, library)
    program: Exporter = exporter(*PERIOD, library=library.parent)
    reserved = "aom_node_gpu_memory_reserved_megabytes", uuid(0)
    assert reserved not in program.scrape()
    pid = program.process.pid
    fake.state.init_error = fake.state.system_error = MISMATCH
    program.wait_for(lambda: ("gpuscale_driver_up", "lib_rm_version_mismatch") in program.scrape())
    program.forget_address()
    library.unlink()
    shutil.copy(libraries["current"] / library.name, library)
    program.connect()  # it serves again, and the driver still refuses
    assert usage(program) == {}
    fake.state.init_error = fake.state.system_error = 0
    program.wait_for(lambda: reserved in program.scrape())
    assert program.process.pid == pid


def test_x08_what_a_card_does_not_support_is_absent_and_not_an_error(fake: FakeDriver, exporter: Any) -> None:
    load(fake, gpus(2, power_watts=None, fan_percent=None, ecc=None, details={}))
    program: Exporter = exporter("--poll-seconds", "0.05", "--stale-polls", "400")
    fake.fail(1, "nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)
    program.wait_for(lambda: (USAGE, uuid(1)) not in program.scrape())
    fake.reset_calls()
    program.wait_for(lambda: fake.calls(0, "nvmlDeviceGetUtilizationRates") >= 5)
    text = program.text()
    for family in ("power_watts{", "fan_speed", "ecc_"):
        assert f"aom_node_gpu_{family}" not in text
    assert "nan" not in text.lower()
    assert 'gpuscale_driver_failures_total{node="node-a"} 0' in text
    assert all(f"aom_node_gpu_{family}{{" in text for family in ("temperature_centigrade", "memory_used_megabytes"))
    assert usage(program) == {uuid(0): 0}
    assert fake.calls(0, "nvmlDeviceGetPowerUsage") == 0
    assert fake.calls(1, "nvmlDeviceGetUtilizationRates") == 0
    program.process.send_signal(signal.SIGTERM)
    _, log = program.process.communicate(timeout=10)
    lines = [line for line in log.splitlines() if "is not published" in line]
    for field in ("power_watts", "fan_percent", "ecc"):
        for gpu in (uuid(0), uuid(1)):
            assert len([line for line in lines if f"{gpu}: {field} " in line]) == 1, (gpu, field)
