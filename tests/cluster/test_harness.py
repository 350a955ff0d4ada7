"""The parts that the other tests stand on: fake nodes, models that load, crashes, silence, the test cloud."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from controller.cluster import NODE, POD, Cluster
from tests.cluster.kubectl import Kubectl
from tests.cluster.scenery import deployment, made, node_pool, until
from tests.realparts import cloud, fakenodes

DEPLOYMENT = "deployments"


async def nodes_of(cluster: Cluster, pool: str) -> list[dict[str, Any]]:
    return (await cluster.list(NODE, label_selector=f"{cloud.POOL_LABEL}={pool}")).items


def gpus(node: dict[str, Any]) -> int:
    return int(node["status"].get("allocatable", {}).get("nvidia.com/gpu", 0))


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((one for one in obj["status"].get("conditions", []) if one["type"] == kind), {})


async def test_a_pool_of_the_test_cloud_grows_into_nodes_whose_gpus_come_later(cluster: Cluster) -> None:
    async with made(cluster, cloud.POOL, node_pool("later", size=2, gpuSeconds=3)):
        nodes = await until(lambda: nodes_of(cluster, "later"), lambda nodes: [ready(n) for n in nodes] == [True, True])
        assert [gpus(node) for node in nodes] == [0, 0]
        nodes = await until(lambda: nodes_of(cluster, "later"), lambda nodes: all(map(gpus, nodes)))
        assert [gpus(node) for node in nodes] == [8, 8]
        scale = await until(lambda: cluster.get_scale(cloud.POOL, "later"), lambda s: s.status_replicas == 2)
        assert scale.selector == f"{cloud.POOL_LABEL}=later"


async def test_a_shrink_takes_the_marked_node_and_without_a_mark_the_newest(cluster: Cluster) -> None:
    async with made(cluster, cloud.POOL, node_pool("shrink", size=3)):
        nodes = await until(lambda: nodes_of(cluster, "shrink"), lambda nodes: len(nodes) == 3)
        names = sorted(node["metadata"]["name"] for node in nodes)
        await cluster.patch(NODE, names[0], {"metadata": {"annotations": {cloud.REMOVE_MARK: "true"}}})
        for size, left in ((2, names[1:]), (1, names[1:2])):
            await cluster.patch(cloud.POOL, "shrink", {"spec": {"replicas": size}}, subresource="scale")
            nodes = await until(lambda: nodes_of(cluster, "shrink"), lambda nodes, size=size: len(nodes) == size)
            assert sorted(node["metadata"]["name"] for node in nodes) == left


async def test_a_pod_is_ready_when_its_model_is_loaded_and_another_crashes(
    cluster: Cluster, kubectl: Kubectl, space: str
) -> None:
    async with made(cluster, cloud.POOL, node_pool("pods", size=1)):
        kubectl.apply(deployment(space, "slow", replicas=2, gpus=1, load_seconds=3))
        kubectl.apply(deployment(space, "broken", replicas=1, gpus=1, labels={fakenodes.CRASH: "true"}))

        async def pods(app: str) -> list[dict[str, Any]]:
            return (await cluster.list(POD, space, label_selector=f"app={app}")).items

        loading = await until(lambda: pods("slow"), lambda found: running(found) == 2)
        assert {condition(pod, "Ready")["status"] for pod in loading} == {"False"}
        crashed = await until(lambda: pods("broken"), lambda found: any(waiting(pod) for pod in found))
        assert [waiting(pod) for pod in crashed] == ["CrashLoopBackOff"]
        loaded = await until(lambda: pods("slow"), lambda found: all(ready(pod) for pod in found))
        assert len(loaded) == 2
        assert not ready((await pods("broken"))[0])


def running(pods: list[dict[str, Any]]) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in pods)


def ready(obj: dict[str, Any]) -> bool:
    return condition(obj, "Ready").get("status") == "True"


def waiting(pod: dict[str, Any]) -> str | None:
    states = [one["state"].get("waiting", {}).get("reason") for one in pod["status"].get("containerStatuses", [])]
    return next(iter(states), None)


async def test_a_node_that_goes_silent_is_tainted_by_kubernetes_and_comes_back(cluster: Cluster) -> None:
    async with made(cluster, cloud.POOL, node_pool("silent", size=1)):
        [node] = await until(lambda: nodes_of(cluster, "silent"), lambda nodes: bool(nodes) and gpus(nodes[0]) == 8)
        name = node["metadata"]["name"]
        await cluster.patch(NODE, name, {"metadata": {"labels": {fakenodes.SILENT: "true"}}})
        lost = await until(lambda: cluster.get(NODE, name), lambda one: condition(one, "Ready")["status"] == "Unknown")
        assert condition(lost, "Ready")["reason"] == "NodeStatusUnknown"
        await until(lambda: cluster.get(NODE, name), lambda one: "node.kubernetes.io/unreachable" in taints(one))
        await cluster.patch(NODE, name, {"metadata": {"labels": {fakenodes.SILENT: None}}})
        await until(lambda: cluster.get(NODE, name), lambda one: condition(one, "Ready")["status"] == "True")


def test_a_killed_test_run_leaves_no_process_and_no_folder() -> None:
    code = """
import sys
from tests.realparts.processes import Folder, Process
folder = Folder("gpuscale-killed-")
child = Process(["sleep", "600"], folder.path / "child.log")
print(folder.path, child.pid, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder, child = run.stdout.readline().split()
        assert Path(folder).is_dir()
        assert alive(int(child))
        run.send_signal(signal.SIGKILL)

    async def left() -> bool:
        return alive(int(child)) or Path(folder).exists()  # noqa: ASYNC240 - nothing else runs in this loop

    asyncio.run(until(left, lambda there: not there))


def taints(node: dict[str, Any]) -> list[str]:
    return [taint["key"] for taint in node["spec"].get("taints", [])]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
