"""Start-up and idle cost of the custom-resource side: Kopf's event handlers, the registry and its reconciling list.

Isolated: no loop, no decisions, no other kinds. The embedded API runs as a process of its own on the same cores, so
wall times contain its share; CPU times are of the measured process alone. ``--smoke`` runs a small case quickly.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from controller import crds
from controller.cluster import Cluster, Kind
from controller.handlers import Shell
from controller.registry import Registry

WORKLOADS = Kind("gpuscale.dev", "v1alpha1", "gpuworkloadscalers", "GPUWorkloadScaler", namespaced=True)
POOLS = Kind("gpuscale.dev", "v1alpha1", "gpunodepoolscalers", "GPUNodePoolScaler", namespaced=False)
CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)


def scaler(number: int) -> dict[str, Any]:
    metric = {
        "type": "GPU",
        "gpu": {"name": "utilization", "target": {"type": "Utilization", "averageUtilization": 70}},
    }
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {"name": f"scaler-{number:05}", "namespace": "default", "labels": {"team": f"t{number % 20}"}},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"llm-{number:05}"},
            "minReplicas": 1,
            "maxReplicas": 20,
            "metrics": [metric],
        },
    }


@asynccontextmanager
async def embedded_api(folder: Path) -> AsyncIterator[str]:
    """Start the embedded API as a process; give its kubeconfig."""
    config = folder / "kubeconfig"
    words = (sys.executable, "-m", "controller.sandbox.api", "--listen", "127.0.0.1:0", "--kubeconfig", str(config))
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60):
            while not config.exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
        yield str(config)
    finally:
        process.terminate()
        await process.wait()


async def fill(cluster: Cluster, count: int) -> None:
    """Install the definitions and create the scalers."""
    for document in crds.definitions():
        await cluster.create(CRD, document)
    async with asyncio.timeout(60):
        while True:
            try:
                await cluster.list(WORKLOADS)
            except Exception:  # noqa: BLE001 - whatever it says while the kind is not served yet
                await asyncio.sleep(0.05)
            else:
                break
    for start in range(0, count, 200):
        batch = range(start, min(start + 200, count))
        await asyncio.gather(*(cluster.create(WORKLOADS, scaler(n), "default") for n in batch))


async def measure(config: str, count: int, idle_seconds: float, changes: int) -> dict[str, float]:
    """Run registry and Kopf in this process; give what it cost."""
    wall, cpu = time.perf_counter(), time.process_time()
    cluster = await Cluster.connect(kubeconfig=config)
    registry = Registry(cluster, [WORKLOADS, POOLS])
    seen: dict[str, int] = {}
    changed = asyncio.Event()
    take = registry.take

    def counted(kind: str, event: str | None, obj: dict[str, Any]) -> None:
        seen[obj["metadata"]["name"]] = seen.get(obj["metadata"]["name"], 0) + 1
        take(kind, event, obj)
        changed.set()

    registry.take = counted  # type: ignore[method-assign,assignment]
    shell = Shell(cluster, registry)
    shell.start()
    registry.start()
    await registry.wait_synced()
    result = {"listed_s": time.perf_counter() - wall}
    while len(seen) < count:
        changed.clear()
        await changed.wait()
    result |= {"ready_s": time.perf_counter() - wall, "ready_cpu_s": time.process_time() - cpu}
    await asyncio.sleep(6)  # Kopf's workers of the first list linger for 5 s
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.sleep(idle_seconds)
    result["idle_percent"] = 100 * (time.process_time() - cpu) / (time.perf_counter() - wall)
    result |= await latencies(cluster, registry, changes)
    result["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert len(registry.scalers["GPUWorkloadScaler"].entries) == count
    await registry.stop()
    await shell.stop()
    await cluster.close()
    return result


async def latencies(cluster: Cluster, registry: Registry, changes: int) -> dict[str, float]:
    """Change specs one by one; give the milliseconds from sending the change to being told of it."""
    told = asyncio.Event()
    registry.scalers["GPUWorkloadScaler"].on_spec_change(lambda *_: told.set())
    took = []
    for number in range(changes):
        told.clear()
        sent = time.perf_counter()
        await cluster.patch(WORKLOADS, f"scaler-{number:05}", {"spec": {"maxReplicas": 30}}, "default")
        await told.wait()
        took.append(1000 * (time.perf_counter() - sent))
    took.sort()
    return {"change_p50_ms": took[len(took) // 2], "change_p99_ms": took[int(len(took) * 0.99)]}


async def one_case(count: int, idle_seconds: float, changes: int) -> dict[str, float]:
    """Fill an embedded API and measure in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_api(Path(folder)) as config:
            cluster = await Cluster.connect(kubeconfig=config)
            await fill(cluster, count)
            words = (sys.executable, __file__, "--measure", config, str(count), str(idle_seconds), str(changes))
            process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, env=dict(os.environ))
            out, _ = await process.communicate()
            assert process.returncode == 0
            first = (await cluster.get(WORKLOADS, f"scaler-{count - 1:05}", "default"))["metadata"]
            assert "finalizers" not in first
            assert not first.get("annotations"), "nothing may be written to the objects"
            await cluster.close()
            found: dict[str, float] = json.loads(out)
            return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a small case, for a quick check")
    parser.add_argument("--measure", nargs=4, metavar=("KUBECONFIG", "COUNT", "IDLE", "CHANGES"), help="internal")
    args = parser.parse_args()
    if args.measure:
        config, count, idle, changes = args.measure
        print(json.dumps(asyncio.run(measure(config, int(count), float(idle), int(changes)))))
        return
    cases = [(200, 1.0, 20)] if args.smoke else [(1000, 10.0, 200), (5000, 20.0, 200)]
    columns = (
        ("listed_s", "listed s", 9, 2),
        ("ready_s", "ready s", 8, 2),
        ("ready_cpu_s", "ready CPU s", 12, 2),
        ("idle_percent", "idle CPU %", 11, 2),
        ("change_p50_ms", "change p50 ms", 14, 1),
        ("change_p99_ms", "p99 ms", 8, 1),
        ("rss_mib", "RSS MiB", 8, 0),
    )
    print("scalers" + "".join(f"{title:>{width}}" for _, title, width, _ in columns))
    for count, idle_seconds, changes in cases:
        row = asyncio.run(one_case(count, idle_seconds, changes))
        print(f"{count:7}" + "".join(f"{row[key]:{width}.{digits}f}" for key, _, width, digits in columns), flush=True)


if __name__ == "__main__":
    main()
