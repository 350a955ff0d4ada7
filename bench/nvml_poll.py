"""What one poll of 8 GPUs costs on the fake driver: CPU time, and calls to NVML per GPU.

Isolates our side: the binding, the threads and the reading of 8 GPUs with 4 processes each, on a driver whose calls
take no time. It says nothing about how long a real driver takes. --smoke judges the calls, not the time.
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


SLOW_ONE_IN = 15
"""At one poll a second and 15 s between two readings of the slow facts."""
NEVER_SECONDS = 1e9


async def poll(polls: int, slow_seconds: float, *, detailed: bool) -> dict[str, float]:
    # at one poll a second each would sample what the SMs do
    source = NvmlSource(5.0, activity_seconds=0, slow_seconds=slow_seconds, detailed=detailed)
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


Measured = tuple[dict[str, float], dict[str, float]]


def measure(flavour: str, detailed: str) -> Measured:
    """Return cost and calls of a poll; slow readings come by number of polls: a busy machine counts the same."""
    quick, slow = (run(flavour, detailed, slow_seconds) for slow_seconds in (NEVER_SECONDS, 0.0))
    cost, calls = (
        {name: (a.get(name, 0) * (SLOW_ONE_IN - 1) + b.get(name, 0)) / SLOW_ONE_IN for name in a | b}
        for a, b in zip(quick, slow, strict=True)
    )
    return cost, calls


def run(flavour: str, detailed: str, slow_seconds: float) -> Measured:
    with tempfile.TemporaryDirectory() as folder, FakeDriver(Path(folder) / "nvml.state") as fake:
        library = build(Path(folder) / "library", flavour)
        load(fake, world())
        done = subprocess.run(
            [sys.executable, __file__, "poll", detailed, str(slow_seconds)],
            env=environment(library, fake.path),
            check=True,
            stdout=subprocess.PIPE,
        )
        calls = {name: count / (POLLS + 1) for name, count in fake.all_calls(0).items()}
        assert fake.overlaps == 0
    return json.loads(done.stdout), calls


def main(*, smoke: bool) -> int:
    if compiler() is None:
        print("skipped: no C compiler, so there is no fake driver to poll")
        return 0
    print(f"{GPUS} GPUs, {PROCESSES} processes each, {POLLS} polls")
    print(f"{'driver':<18}{'CPU ms/poll':>13}{'wall ms/poll':>14}{'calls/GPU/poll':>16}{'% of a core at 1 s':>20}")
    missed = False
    for flavour, detailed in RUNS:
        cost, calls = measure(flavour, detailed)
        total = sum(calls.values())
        share = cost["cpu_ms"] / 10
        missed |= cost["cpu_ms"] > MOST_CPU_MS
        driver = f"{flavour} {detailed}"
        print(f"{driver:<18}{cost['cpu_ms']:>13.2f}{cost['wall_ms']:>14.2f}{total:>16.1f}{share:>20.2f}")
        assert total <= MOST_CALLS, f"a poll makes {total:.1f} calls to a GPU, at most {MOST_CALLS}: {calls}"
    for name, count in sorted(calls.items(), key=lambda item: -item[1]):
        print(f"  {name:<45}{count:>6.2f}")
    print(f"bar {MOST_CPU_MS:g} ms of CPU a poll: {'MISSED' if missed else 'met'}; at most {MOST_CALLS} calls")
    return int(missed and not smoke)


if __name__ == "__main__":
    if sys.argv[1:2] == ["poll"]:
        print(json.dumps(asyncio.run(poll(POLLS, float(sys.argv[3]), detailed=sys.argv[2] == "detailed"))))
        sys.exit(0)
    sys.exit(main(smoke="--smoke" in sys.argv[1:]))
