"""How long from a metric's crossing to the PATCH of the scale: the operator, an exporter and the API as processes.

Isolates the product's own part of the way: the poll, which ends right before the operator reads (poll 1 s, tick 2 s),
scrape, decision, write. The load is a simulation file that the real exporter re-reads; the API is the embedded one, in
this process. Crossings come at random phases. Checks: p95 <= 3 s.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.operator.stage import DEPLOYMENT, Stage, eventually, gpu_spec  # noqa: E402

BAR_SECONDS = 3.0
PODS = ("llm-0", "llm-1")


def write_load(path: Path, percent: float) -> None:
    device = {"name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 1 << 36, "memory_used_bytes": 1 << 30}
    devices = [
        {"uuid": f"GPU-{pod}", "index": number, "utilization_percent": percent, **device}
        for number, pod in enumerate(PODS)
    ]
    allocations = [
        {
            "namespace": "ml",
            "pod": pod,
            "container": "server",
            "resource": "nvidia.com/gpu",
            "device_ids": [f"GPU-{pod}"],
        }
        for pod in PODS
    ]
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"driver": "550.54.15", "devices": devices, "allocations": allocations}))
    part.replace(path)


async def grown(stage: Stage) -> bool:
    return await stage.replicas("llm") > len(PODS)


async def crossing(stage: Stage, load: Path) -> float:
    """Cross the target once at a random phase; seconds until the size is written."""
    await asyncio.sleep(random.uniform(0, 2))  # noqa: S311 - a phase, not a secret
    write_load(load, 100)
    crossed = time.monotonic()
    await eventually(lambda: grown(stage), every_seconds=0.01)
    seconds = time.monotonic() - crossed
    write_load(load, 70)
    await asyncio.sleep(3.5)  # until the last look at the high load is past
    await stage.cluster.patch(DEPLOYMENT, "llm", {"spec": {"replicas": len(PODS)}}, "ml")
    await asyncio.sleep(1)
    return seconds


async def measure(crossings: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        load, address = Path(folder) / "load.json", Path(folder) / "exporter.address"
        write_load(load, 70)
        words = ["--simulate", str(load), "--listen", "127.0.0.1:0", "--address-file", str(address), "--node", "n1"]
        exporter = await asyncio.create_subprocess_exec(sys.executable, "-m", "exporter", *words, cwd=ROOT)
        stage = Stage(Path(folder))
        await stage.open()
        try:
            await stage.deployment("llm", len(PODS))
            for pod in PODS:
                await stage.pod("llm", pod)

            async def up() -> bool:
                return address.exists()

            await eventually(up)
            calm = {"stabilizationWindowSeconds": 0}
            await stage.scaler("llm", gpu_spec("llm", behavior={"scaleUp": calm, "scaleDown": calm}))
            await stage.run(exporter=f"http://{address.read_text().strip()}/metrics/native", tick="2")

            async def active() -> bool:
                return (await stage.condition("llm", "ScalingActive"))[0] == "True"

            await eventually(active)
            return [await crossing(stage, load) for _ in range(crossings)]
        finally:
            await stage.close()
            exporter.terminate()
            await exporter.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crossings", type=int, default=30)
    parser.add_argument("--smoke", action="store_true", help="few crossings: does it run, is the result right?")
    args = parser.parse_args()
    seconds = sorted(asyncio.run(measure(4 if args.smoke else args.crossings)))
    p95 = seconds[min(len(seconds) - 1, round(0.95 * len(seconds)))]
    print(f"{'crossings':>10} {'mean s':>8} {'p50 s':>8} {'p95 s':>8} {'max s':>8}")
    mean, middle = sum(seconds) / len(seconds), seconds[len(seconds) // 2]
    print(f"{len(seconds):>10} {mean:>8.2f} {middle:>8.2f} {p95:>8.2f} {seconds[-1]:>8.2f}")
    assert args.smoke or p95 <= BAR_SECONDS, f"p95 {p95:.2f} s is above {BAR_SECONDS} s"


if __name__ == "__main__":
    main()
