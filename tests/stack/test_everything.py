"""The product as a cluster runs it: load rises and falls, and everything that reads or is read agrees about it."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from controller.cluster import NODE, POD, Cluster
from controller.view import POOLS, WORKLOADS
from tests.cluster.operators import Operators
from tests.cluster.scenery import deployment, made, node_pool, pool_scaler, until
from tests.realparts import cloud
from tests.realparts.machines import Machines
from tests.stack import scenery, truth
from tests.stack.prometheus import Prometheus

DASHBOARDS = Path(__file__).resolve().parents[2] / "charts" / "gpuscale" / "dashboards"


@pytest.mark.timeout(400)
async def test_load_rises_and_falls_and_all_parts_agree(
    cluster: Cluster, space: str, machines: Machines, operators: Operators, prometheus: Prometheus
) -> None:
    async def nodes() -> set[str]:
        return {node["metadata"]["name"] for node in (await cluster.list(NODE, label_selector="pool=gpu")).items}

    async def empty_nodes() -> set[str]:
        pods = (await cluster.list(POD, space, label_selector="app in (direct, asked)")).items
        return await nodes() - {pod["spec"].get("nodeName", "") for pod in pods}

    async def agreement() -> None:
        await until(lambda: truth.differences(cluster, space, prometheus), lambda found: not found)

    async with contextlib.AsyncExitStack() as stack:
        await _build(stack, cluster, space, machines)
        await scenery.settled(cluster, space, direct=2, asked=2, quiet=1)
        await scenery.start_operator(operators, prometheus)
        await scenery.deciding(cluster, space, "direct", "asked")
        await agreement()
        assert len(await nodes()) == 1

        machines.work |= {(space, "direct"): 390.0, (space, "asked"): 310.0}
        await scenery.settled(cluster, space, direct=5, asked=4)
        assert len(await nodes()) == 3
        await agreement()

        machines.lost.add("GPU-spare-1-1")
        lost = await until(lambda: prometheus.firing("GPUUnhealthy"), bool)
        assert [alert["labels"]["uuid"] for alert in lost] == ["GPU-spare-1-1"]
        assert "reason: lost." in " ".join(lost[0]["annotations"]["description"].split())
        await agreement()
        await until(lambda: _panels_without_data(prometheus), lambda silent: not silent)
        await _labels_are_kept(prometheus, space)
        machines.lost.clear()
        await until(lambda: prometheus.firing("GPUUnhealthy"), lambda alerts: not alerts)

        machines.silence("spare-1")
        missing = await until(lambda: prometheus.firing("GPUMetricsMissing"), bool)
        assert [alert["labels"]["node"] for alert in missing] == ["spare-1"]
        machines.wake("spare-1")
        await until(lambda: prometheus.firing("GPUMetricsMissing"), lambda alerts: not alerts)
        assert await scenery.sizes(cluster, space, "direct", "asked") == {"direct": (5, 5), "asked": (4, 4)}

        machines.work |= {(space, "direct"): 60.0, (space, "asked"): 60.0}
        await scenery.settled(cluster, space, direct=1, asked=1)
        await until(empty_nodes, lambda names: not names)
        assert len(await nodes()) < 3
        await agreement()


async def _build(stack: contextlib.AsyncExitStack, cluster: Cluster, space: str, machines: Machines) -> None:
    """Two workloads on a pool that may grow, one on a pool of other GPUs that may not, and a scaler of nothing."""
    machines.models["spare"] = "NVIDIA A100-SXM4-80GB"
    machines.work |= {(space, "direct"): 150.0, (space, "asked"): 150.0, (space, "quiet"): 40.0}
    gpu, spare = node_pool("gpu", size=1, gpusPerNode=4), node_pool("spare", size=1, gpusPerNode=2)
    for pool in (gpu, spare):
        await stack.enter_async_context(made(cluster, cloud.POOL, pool))
    await stack.enter_async_context(made(cluster, POOLS, pool_scaler(gpu)))
    await stack.enter_async_context(made(cluster, POOLS, pool_scaler(spare, bounds={"min": 1, "max": 1})))
    for app, pool, replicas in (("direct", "gpu", 2), ("asked", "gpu", 2), ("quiet", "spare", 1)):
        await cluster.create(cloud.DEPLOYMENT, deployment(space, app, replicas=replicas, pool=pool), space)
    nowhere = deployment(space, "nowhere", replicas=1)
    for scaler in (
        scenery.by_scrape(deployment(space, "direct", replicas=2)),
        scenery.by_query(deployment(space, "asked", replicas=2)),
        scenery.by_scrape(nowhere),
    ):
        await cluster.create(WORKLOADS, scaler, space)


async def _labels_are_kept(prometheus: Prometheus, space: str) -> None:
    """What a target is called by must not replace what its series are about, and must be there for all others."""
    told = await prometheus.query('aom_container_gpu_usage{pod=~"quiet-.*"}')
    assert [(one.labels["namespace"], one.labels["container"]) for one in told] == [(space, "server")]
    own = await prometheus.query('aom_node_gpu_usage{uuid="GPU-spare-1-0"}')
    assert [one.labels["container"] for one in own] == ["exporter"]
    decided = await prometheus.query("gpuscale_desired_replicas")
    found = {(one.labels["kind"], one.labels.get("namespace"), one.labels["name"]) for one in decided}
    assert ("GPUWorkloadScaler", space, "direct") in found
    assert ("GPUNodePoolScaler", None, "gpu") in found


async def _panels_without_data(prometheus: Prometheus) -> list[str]:
    """Ask what every panel of every dashboard asks; the titles and queries that give no number."""
    silent = []
    for file in sorted(DASHBOARDS.glob("*.json")):
        dashboard = json.loads(file.read_text(encoding="utf-8"))
        nodes = "|".join(await prometheus.label_values("gpuscale_gpus_expected", "node"))
        for title, expression in _queries(dashboard):
            asked = expression.replace("$node", nodes).replace("$__rate_interval", "30s")
            assert "$" not in asked, f"{title}: {asked}"
            if not await prometheus.query(asked):
                silent.append(f"{title}: {asked}")
    return silent


def _queries(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    found = [(panel["title"], row["expr"]) for panel in dashboard["panels"] for row in panel.get("targets", [])]
    assert found
    return found
