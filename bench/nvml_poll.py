"""What one poll of 8 GPUs costs on the fake driver: CPU time, and calls to NVML per GPU.

Isolates our side: the binding, the threads and the reading of 8 GPUs with 4 processes each, on a driver whose calls
take no time. It says nothing about how long a real driver takes.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from exporter.nvml.activity import METRICS  # noqa: E402 - the path has to be set first
from exporter.nvml.device import NvmlSource  # noqa: E402 - the path has to be set first
from tests.fakenvml.build import build, compiler  # noqa: E402 - as above
from tests.fakenvml.reader import environment  # noqa: E402 - as above
from tests.fakenvml.scenario import gpus, load, uuid  # noqa: E402 - as above
from tests.fakenvml.state import FakeDriver  # noqa: E402 - as above

GPUS, PROCESSES, POLLS = 8, 4, 400
NOT_ON_OLD_DRIVERS = {"memory_reserved_bytes", "temperature_margin_celsius"} | set(METRICS)
RUNS = (("current", ""), ("r470", ""), ("current", "detailed"))
"""Flavour of the driver, and whether dialects are spoken that ask for details."""
MOST_CPU_MS = 10.0
"""1 % of a core at one poll a second."""
MOST_CALLS = 25
"""19 at each poll, one more than a peer was measured to make, and the slow ones, details too, over their period."""


async def poll(polls: int, *, detailed: bool) -> dict[str, float]:
    # at one poll a second each would sample what the SMs do, and one in fifteen would read the slow facts
    source = NvmlSource(5.0, activity_seconds=0, slow_seconds=0.045, detailed=detailed)
    await source.read(time.time())
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(polls):
        readings, state = await source.read(time.time())
    cost = {
        "cpu_ms": (time.process_time() - cpu) * 1000 / polls,
        "wall_ms": (time.perf_counter() - wall) * 1000 / polls,
    }
    assert state.up
    assert [len(reading.processes or ()) for reading in readings] == [PROCESSES] * GPUS
    assert all(reading.fault is None and set(reading.absent) <= NOT_ON_OLD_DRIVERS for reading in readings)
    await source.close()
    return cost


def pid_of(gpu: int, number: int) -> int:
    return 1001 + 100 * gpu + number


def world() -> dict[str, Any]:
    processes = [
        {"pid": pid_of(gpu, k), "gpu_uuid": uuid(gpu), "memory_used_bytes": 2**30, "utilization_percent": 20}
        for gpu in range(GPUS)
        for k in range(PROCESSES)
    ]
    return gpus(GPUS, utilization_percent=80, memory_used_bytes=4 * 2**30) | {"processes": processes}


def measure(flavour: str, detailed: str) -> tuple[dict[str, float], dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder, FakeDriver(Path(folder) / "nvml.state") as fake:
        library = build(Path(folder) / "library", flavour)
        load(fake, world())
        done = subprocess.run(
            [sys.executable, __file__, "poll", detailed],
            env=environment(library, fake.path),
            check=True,
            stdout=subprocess.PIPE,
        )
        calls = {name: count / (POLLS + 1) for name, count in fake.all_calls(0).items()}
        assert fake.overlaps == 0
    return json.loads(done.stdout), calls


def main() -> int:
    if compiler() is None:
        print("skipped: no C compiler, so there is no fake driver to poll")
        return 0
    print(f"{GPUS} GPUs, {PROCESSES} processes each, {POLLS} polls")
    print(f"{'driver':<18}{'CPU ms/poll':>13}{'wall ms/poll':>14}{'calls/GPU/poll':>16}{'% of a core at 1 s':>20}")
    for flavour, detailed in RUNS:
        cost, calls = measure(flavour, detailed)
        total = sum(calls.values())
        share = cost["cpu_ms"] / 10
        driver = f"{flavour} {detailed}"
        print(f"{driver:<18}{cost['cpu_ms']:>13.2f}{cost['wall_ms']:>14.2f}{total:>16.1f}{share:>20.2f}")
        assert cost["cpu_ms"] <= MOST_CPU_MS, f"a poll costs {cost['cpu_ms']:.1f} ms of CPU, at most {MOST_CPU_MS}"
        assert total <= MOST_CALLS, f"a poll makes {total:.1f} calls to a GPU, at most {MOST_CALLS}: {calls}"
    for name, count in sorted(calls.items(), key=lambda item: -item[1]):
        print(f"  {name:<45}{count:>6.2f}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["poll"]:
        print(json.dumps(asyncio.run(poll(POLLS, detailed=sys.argv[2] == "detailed"))))
        sys.exit(0)
    sys.exit(main())
