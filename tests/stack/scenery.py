"""The two scalers of the stack tests: one reads the exporters, one asks Prometheus."""

from typing import Any

from controller.cluster import Cluster
from controller.view import WORKLOADS
from tests.cluster.operators import Operators
from tests.cluster.scenery import until, workload_scaler
from tests.realparts import cloud
from tests.realparts.processes import Process
from tests.stack.prometheus import Prometheus

Object = dict[str, Any]
TARGET_PERCENT = 80
DEFAULT_TICK = "2"
_CALM = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 10, "periodSeconds": 1}]}


def by_scrape(target: Object, **spec: Any) -> Object:
    """Give a scaler by the utilisation that the exporters tell the operator, at 80 %."""
    return workload_scaler(target, behavior={"scaleUp": _CALM, "scaleDown": _CALM}, **spec)


def by_query(target: Object, **spec: Any) -> Object:
    """Give a scaler by the same utilisation, summed by a query to Prometheus, at 80 % a pod."""
    metadata = target["metadata"]
    query = f'sum(aom_container_gpu_usage{{namespace="{metadata["namespace"]}",pod=~"{metadata["name"]}-.*"}})'
    external = {
        "metric": {"name": "gpu-usage"},
        "source": {"kind": "Prometheus", "query": query, "maxAgeSeconds": 10},
        "target": {"type": "AverageValue", "averageValue": str(TARGET_PERCENT)},
    }
    return by_scrape(target, metrics=[{"type": "External", "external": external}], **spec)


async def start_operator(operators: Operators, prometheus: Prometheus, name: str = "operator") -> Process:
    """Start an operator with the default tick, let Prometheus scrape it, and wait until it leads and has decided."""
    process = operators.start(name, "--prometheus", f"default={prometheus.url}", tick=DEFAULT_TICK)
    address = (operators.folder / f"{name}.address").read_text().strip()
    prometheus.watch_operator(address)
    await until(lambda: prometheus.query(f'gpuscale_leader{{instance="{address}"}} == 1'), bool)
    await operators.passes(2, name)
    return process


async def sizes(cluster: Cluster, space: str, *names: str) -> dict[str, tuple[int, int]]:
    """Give the size that each Deployment is to have, and how many of its pods are ready."""
    found = [await cluster.get(cloud.DEPLOYMENT, name, space) for name in names]
    return {one["metadata"]["name"]: (one["spec"]["replicas"], one["status"].get("readyReplicas", 0)) for one in found}


async def settled(cluster: Cluster, space: str, **wanted: int) -> None:
    """Wait until each of these Deployments has its size, ready."""
    await until(
        lambda: sizes(cluster, space, *wanted), lambda seen: seen == {name: (n, n) for name, n in wanted.items()}
    )


async def deciding(cluster: Cluster, space: str, *names: str) -> None:
    """Wait until these scalers have the values that they decide on."""

    async def active() -> list[str]:
        rows = [
            row
            for name in names
            for row in ((await cluster.get(WORKLOADS, name, space)).get("status") or {}).get("conditions", [])
        ]
        return [row["status"] for row in rows if row["type"] == "ScalingActive"]

    await until(active, lambda statuses: statuses == ["True"] * len(names))
