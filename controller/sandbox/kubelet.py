"""What a node does with the pods that are bound to it: GPUs are handed out, models load, deleted pods end.

Why it exists: a pod that holds a GPU but still loads its model is what autoscalers get wrong, so here, too, a pod is
Running for some seconds before it is Ready, and one that is deleted keeps its GPU until it has ended.
"""

import itertools
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.sandbox.conditions import condition, conditions, with_conditions
from controller.sandbox.kinds import NODES, PODS
from controller.sandbox.scheduler import GPU, requests
from controller.sandbox.store import Store
from controller.sandbox.strategy import timestamp

Object = dict[str, Any]

LOAD_SECONDS = "sandbox.gpuscale.dev/load-seconds"
"""Annotation on a pod: how long it loads its model before it is Ready."""
BUILT_IN_GPUS = "sandbox.gpuscale.dev/gpus"
"""Annotation on a node: how many GPUs are in it. Its allocatable says how many of them pods may have."""
MANAGED = "sandbox.gpuscale.dev/managed"
"""Label on a pod that the sandbox runs as a real process: the simulated kubelet leaves it alone."""
DEFAULT_LOAD_SECONDS = 3.0
STOP_SECONDS = 1.0
"""How long a deleted pod takes to end what it does, unless its grace period is shorter."""


@dataclass
class Life:
    """One pod on a node: since when it runs, is ready, is ending (seconds as float), and which GPUs it holds."""

    namespace: str
    pod: str
    container: str
    node: str
    gpus: tuple[str, ...]
    pid: int
    started_at: float
    load_seconds: float
    ready_at: float | None = None
    ending_at: float | None = None

    @property
    def serving(self) -> bool:
        """Whether the pod takes work: ready, and not on its way out."""
        return self.ready_at is not None and self.ending_at is None

    def loaded(self, now: float) -> float:
        """Share of its model that the pod has in memory, 0 to 1."""
        return min(1.0, (now - self.started_at) / self.load_seconds) if self.load_seconds > 0 else 1.0


@dataclass
class Kubelet:
    """All nodes' kubelets over a store. ``lives``: pod uid -> its life, for every pod that has been started."""

    store: Store
    lives: dict[str, Life] = field(default_factory=dict)
    ready_since: dict[str, float] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(2))

    def step(self, now: float) -> None:
        """Start, make ready and end pods."""
        nodes = {node["metadata"]["name"]: node for node in self.store.list(NODES)}
        pods = [pod for pod in self.store.list(PODS) if pod["spec"].get("nodeName") and not _is_managed(pod)]
        self._forget({pod["metadata"]["uid"] for pod in pods})
        for pod in pods:
            node = nodes.get(pod["spec"]["nodeName"])
            if node is None:
                self._remove(pod)
            else:
                self._tend(pod, node, now)

    def _tend(self, pod: Object, node: Object, now: float) -> None:
        life = self.lives.get(pod["metadata"]["uid"])
        if "deletionTimestamp" in pod["metadata"]:
            self._end(pod, life, now)
        elif life is None:
            self._start(pod, node, now)
        elif life.ready_at is None and life.loaded(now) >= 1.0:
            life.ready_at = self.ready_since[pod["metadata"]["uid"]] = now
            self._write(pod, life, now)

    def _start(self, pod: Object, node: Object, now: float) -> None:
        asked = requests(pod).get(GPU, 0) // 1000
        free = [gpu for gpu in devices(node) if gpu not in self._held()]
        if len(free) < asked:
            return
        meta = pod["metadata"]
        life = Life(
            namespace=meta["namespace"],
            pod=meta["name"],
            container=pod["spec"]["containers"][0]["name"],
            node=node["metadata"]["name"],
            gpus=tuple(free[:asked]),
            pid=1000 + next(self._numbers),
            started_at=now,
            load_seconds=_load_seconds(pod),
        )
        self.lives[meta["uid"]] = life
        self._write(pod, life, now)

    def _held(self) -> set[str]:
        return {gpu for life in self.lives.values() for gpu in life.gpus}

    def _end(self, pod: Object, life: Life | None, now: float) -> None:
        if life is None:
            self._remove(pod)
            return
        if life.ending_at is None:
            life.ending_at = now
            self.ready_since.pop(pod["metadata"]["uid"], None)
            self._write(pod, life, now)
        if now - life.ending_at >= min(STOP_SECONDS, pod["metadata"].get("deletionGracePeriodSeconds", 0)):
            self._remove(pod)

    def _remove(self, pod: Object) -> None:
        meta = pod["metadata"]
        self._forget(set(self.lives) - {meta["uid"]})
        self.store.delete(PODS, meta["namespace"], meta["name"])

    def _forget(self, there: set[str]) -> None:
        for held in (self.lives, self.ready_since):
            for uid in set(held) - there:
                del held[uid]

    def _write(self, pod: Object, life: Life, now: float) -> None:
        meta = pod["metadata"]
        self.store.patch(PODS, meta["namespace"], meta["name"], {"status": _running(pod, life, now)}, "status")


def _is_managed(pod: Object) -> bool:
    return MANAGED in (pod["metadata"].get("labels") or {})


def _load_seconds(pod: Object) -> float:
    text = (pod["metadata"].get("annotations") or {}).get(LOAD_SECONDS)
    try:
        return DEFAULT_LOAD_SECONDS if text is None else max(0.0, float(text))
    except ValueError:
        return DEFAULT_LOAD_SECONDS


def _running(pod: Object, life: Life, now: float) -> Object:
    ready = life.serving
    reason = {} if ready else {"reason": "ContainersNotReady"}
    wanted = [
        condition("PodScheduled", status=True),
        condition("Initialized", status=True),
        condition("ContainersReady", status=ready, **reason),
        condition("Ready", status=ready, **reason),
    ]
    address = f"10.244.{life.pid >> 8 & 255}.{life.pid & 255}"
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": "127.0.0.1",
        "startTime": timestamp(life.started_at),
        "conditions": with_conditions(conditions(pod), now, *wanted),
        "containerStatuses": [_container(container, life) for container in pod["spec"]["containers"]],
    }


def _container(container: Mapping[str, Any], life: Life) -> Object:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": life.serving,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": timestamp(life.started_at)}},
    }


def devices(node: Object) -> list[str]:
    """Give the uuids of the GPUs that are built into a node, whether the cluster may use them yet or not."""
    count = (node["metadata"].get("annotations") or {}).get(BUILT_IN_GPUS, "0")
    return gpu_uuids(node["metadata"]["name"], int(count))


def gpu_uuids(node: str, count: int) -> list[str]:
    """Make stable GPU uuids for a node's name, in NVML's form."""
    return [f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{index}')}" for index in range(count)]
