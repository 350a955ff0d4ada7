"""The fake driver itself: its detectors detect, its scenarios say what is wrong, and a person can run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakenvml.reader import ROOT, environment
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.state import DEVICES, PROCESSES, FakeDriver

TWO_CALLS_AT_ONCE = """
import threading, pynvml
from pathlib import Path
from tests.fakenvml.state import FakeDriver
fake = FakeDriver(Path(__import__("os").environ["FAKENVML_STATE"]), fresh=False)
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
fake.hang(0, "nvmlDeviceGetPowerUsage")
hung = threading.Thread(target=pynvml.nvmlDeviceGetPowerUsage, args=(handle,))
hung.start()
while not fake.calls(0, "nvmlDeviceGetPowerUsage"):
    pass
pynvml.nvmlDeviceGetName(handle)
pynvml.nvmlShutdown()
fake.release()
hung.join()
"""


def test_two_calls_on_a_handle_and_closing_under_a_call_are_detected(
    libraries: dict[str, Path], fake: FakeDriver
) -> None:
    load(fake, gpus(1))
    assert (fake.overlaps, fake.state.shutdowns_while_busy) == (0, 0)
    subprocess.run(
        [sys.executable, "-c", TWO_CALLS_AT_ONCE], env=environment(libraries["current"], fake.path), check=True
    )
    assert (fake.overlaps, fake.state.shutdowns_while_busy) == (1, 1)


@pytest.mark.usefixtures("libraries")
def test_a_person_can_run_the_real_exporter_on_it(tmp_path: Path) -> None:
    scenario = tmp_path / "world.json"
    scenario.write_text(json.dumps(gpus(2, utilization_percent=64) | {"driver": "470.1"}))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fakenvml", "--scenario", str(scenario), "--flavour", "r470", "--"),
            *(sys.executable, "-m", "exporter", "--once", "--node", "n", "--kubelet-socket", ""),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    usage = [line for line in done.stdout.splitlines() if line.startswith("aom_node_gpu_usage{")]
    assert [float(line.rsplit(" ", 1)[1]) for line in usage] == [64, 64]
    assert 'driver_version="470.1"' in done.stdout


def test_a_scenario_that_has_no_room_is_refused(fake: FakeDriver) -> None:
    with pytest.raises(ValueError, match=f"room for {DEVICES} GPUs"):
        load(fake, gpus(DEVICES + 1))
    crowded = gpus(1)
    crowded["processes"] = [{"pid": pid, "gpu_uuid": uuid(0)} for pid in range(1, PROCESSES + 2)]
    with pytest.raises(ValueError, match=f"room for {PROCESSES} processes"):
        load(fake, crowded)
