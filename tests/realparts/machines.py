"""The GPUs of the fake nodes: a real exporter for each exporter pod, fed with what the pods of its node do.

Why it exists: kwok runs no container. Wherever Kubernetes has put a running pod of the exporter's DaemonSet, the
exporter's command is started on that node's address, with a simulation file of the node's GPUs, of who holds them and
of how busy each is. A test only says how much work each workload has.
"""

import asyncio
import json
import signal
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.cluster import NODE, POD, ApiError, Cluster
from tests.realparts.processes import Process

EXPORTER_LABELS = {"app.kubernetes.io/name": "gpuscale-exporter"}
PORT = 9836
GPU = "nvidia.com/gpu"
LOOK_SECONDS = 0.2
MEMORY = 80 * 2**30
RESERVED = 2**29
MODEL = "NVIDIA H100 80GB HBM3"
Object = dict[str, Any]


def daemon_set(namespace: str) -> Object:
    """Give the exporters' DaemonSet: a pod on every node."""
    container = {
        "name": "exporter",
        "image": "none.invalid/gpuscale",
        "ports": [{"name": "metrics", "containerPort": PORT}],
    }
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0}
    template = {"metadata": {"labels": EXPORTER_LABELS}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "gpuscale-exporter", "namespace": namespace},
        "spec": {"selector": {"matchLabels": EXPORTER_LABELS}, "template": template},
    }


async def pages(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Read the page of each node's exporter; one that does not answer yet tells nothing."""
    labels = ",".join(f"{key}={value}" for key, value in EXPORTER_LABELS.items())
    pods = (await cluster.list(POD, namespace, label_selector=labels)).items
    addresses = {pod["spec"].get("nodeName"): pod["status"].get("podIP") for pod in pods}
    return {
        node: await asyncio.to_thread(_page, f"http://{address}:{PORT}/metrics")
        for node, address in addresses.items()
        if node and address
    }


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 loopback
            return str(answer.read().decode())
    except OSError:
        return ""


@dataclass
class Machines:
    """Runs exporters while ``run`` runs. ``work``: (namespace, app label) -> GPU-percent in all, 100 = one busy GPU."""

    cluster: Cluster
    folder: Path
    work: dict[tuple[str, str], float] = field(default_factory=dict)
    shown: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """The work that the GPUs show, and since when (Unix seconds)."""
    lost: set[str] = field(default_factory=set)
    """UUIDs of the GPUs that have fallen off the bus."""
    models: dict[str, str] = field(default_factory=dict)
    """Pool -> the model of its GPUs, where it is not the usual one."""
    _exporters: dict[str, Process] = field(default_factory=dict)
    _held: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def silence(self, node: str) -> None:
        """Let the machine hang: its exporter answers no more."""
        self._exporters[node].send(signal.SIGSTOP)

    def wake(self, node: str) -> None:
        """Let it run again."""
        self._exporters[node].send(signal.SIGCONT)

    def restart(self, node: str) -> None:
        """End the node's exporter; the next look starts it anew."""
        self._exporters.pop(node).end()

    async def run(self) -> None:
        """Look again and again until cancelled, then end every exporter."""
        try:
            while True:
                try:
                    await self.step()
                except ApiError as error:
                    print(f"machines: {error}")
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for exporter in self._exporters.values():
                exporter.end(signal.SIGKILL)

    async def step(self) -> None:
        """Write what each GPU does, start and end exporters. Raises ApiError."""
        known = (await self.cluster.list(POD)).items
        nodes = {node["metadata"]["name"]: _gpus(node) for node in (await self.cluster.list(NODE)).items}
        # a machine that is gone runs nothing; Kubernetes forgets its pods up to a minute later
        pods = [pod for pod in known if _runs(pod) and pod["spec"]["nodeName"] in nodes]
        workers = [pod for pod in pods if _asked(pod)]
        self._allocate(workers, nodes)
        busy, now = self._busy(workers), time.time()
        for name, gpus in nodes.items():
            here = [pod for pod in workers if pod["spec"]["nodeName"] == name]
            self._write(name, self._devices(name, gpus, here, busy))
        self._note(now)
        self._attend({pod["spec"]["nodeName"]: pod for pod in pods if _is_exporter(pod)})

    def _allocate(self, workers: Iterable[Object], nodes: Mapping[str, int]) -> None:
        """Give each pod GPUs of its node, for as long as it is there."""
        here = {pod["metadata"]["uid"]: pod for pod in workers}
        self._held = {uid: held for uid, held in self._held.items() if uid in here}
        for uid, pod in here.items():
            node = pod["spec"]["nodeName"]
            taken = {gpu for at, gpus in self._held.values() if at == node for gpu in gpus}
            free = [gpu for gpu in _uuids(node, nodes.get(node, 0)) if gpu not in taken]
            self._held.setdefault(uid, (node, tuple(free[: _asked(pod)])))

    def _busy(self, workers: Iterable[Object]) -> dict[str, float]:
        """Share each workload's work among the GPUs of its ready pods; percent per pod."""
        serving: dict[tuple[str, str], list[Object]] = {}
        for pod in workers:
            if _ready(pod):
                serving.setdefault(_workload(pod), []).append(pod)
        return {
            pod["metadata"]["uid"]: min(100.0, self.work.get(key, 0.0) / sum(map(_asked, pods)))
            for key, pods in serving.items()
            for pod in pods
        }

    def _note(self, now: float) -> None:
        """Remember when each workload's work changed."""
        for key, work in self.work.items():
            if self.shown.get(key, (None, 0.0))[0] != work:
                self.shown[key] = (work, now)

    def _devices(self, node: str, gpus: int, here: Iterable[Object], busy: Mapping[str, float]) -> Object:
        holders = {gpu: pod for pod in here for gpu in self._held[pod["metadata"]["uid"]][1]}
        percent = {gpu: round(busy.get(pod["metadata"]["uid"], 0.0), 2) for gpu, pod in holders.items()}
        pids = {gpu: 1000 + index for index, gpu in enumerate(_uuids(node, gpus)) if gpu in holders}
        return {
            "driver": "550.54.15",
            "devices": [
                {
                    "uuid": gpu,
                    "index": index,
                    "name": self.models.get(node.rpartition("-")[0], MODEL),
                    "memory_total_bytes": MEMORY,
                    "memory_reserved_bytes": RESERVED,
                    "memory_used_bytes": MEMORY // 2 if gpu in holders else 0,
                    "utilization_percent": percent.get(gpu, 0),
                    "temperature_celsius": 50,
                    "power_watts": 100 + 5 * percent.get(gpu, 0),
                    "fault": "lost" if gpu in self.lost else None,
                }
                for index, gpu in enumerate(_uuids(node, gpus))
            ],
            "processes": [
                {"pid": pid, "gpu_uuid": gpu, "memory_used_bytes": MEMORY // 2, "utilization_percent": percent[gpu]}
                for gpu, pid in pids.items()
            ],
            "allocations": [
                {
                    "namespace": pod["metadata"]["namespace"],
                    "pod": pod["metadata"]["name"],
                    "container": "server",
                    "resource": GPU,
                    "device_ids": list(self._held[pod["metadata"]["uid"]][1]),
                    "pids": [pids[gpu] for gpu in self._held[pod["metadata"]["uid"]][1]],
                }
                for pod in here
            ],
        }

    def _write(self, node: str, document: Object) -> None:
        part = self.folder / f"{node}.part"
        part.write_text(json.dumps(document))
        part.replace(self.folder / f"{node}.json")

    def _attend(self, pods: Mapping[str, Object]) -> None:
        """Start the exporters of new pods, end those of pods that have gone."""
        for node in self._exporters.keys() - pods.keys():
            self._exporters.pop(node).end()
        for node in pods.keys() - self._exporters.keys():
            address = pods[node]["status"]["podIP"]
            command = [sys.executable, "-m", "exporter", "--node", node, "--listen", f"{address}:{PORT}"]
            command += ["--simulate", str(self.folder / f"{node}.json"), "--kubelet-socket", ""]
            self._exporters[node] = Process(command, self.folder / f"{node}.log")


def _uuids(node: str, gpus: int) -> list[str]:
    return [f"GPU-{node}-{index}" for index in range(gpus)]


def _gpus(node: Object) -> int:
    return int(node.get("status", {}).get("allocatable", {}).get(GPU, 0))


def _asked(pod: Object) -> int:
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return sum(int(limit.get(GPU, 0)) for limit in limits)


def _runs(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")


def _ready(pod: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def _workload(pod: Object) -> tuple[str, str]:
    metadata = pod["metadata"]
    return metadata["namespace"], metadata.get("labels", {}).get("app", "")


def _is_exporter(pod: Object) -> bool:
    return EXPORTER_LABELS.items() <= pod["metadata"].get("labels", {}).items()
