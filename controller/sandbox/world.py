"""The simulated cluster behind the embedded API: orders its parts, once a step.

Pools make nodes, workloads make pods, the scheduler places them, kubelets run them, the load makes them busy, and the
exporters' files say so. What the operator does about it arrives through the API and is seen in the next step.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.sandbox import devices, plant
from controller.sandbox.exporters import NAMESPACE, Exporters, Starter, start_process
from controller.sandbox.kinds import DEPLOYMENTS, NAMESPACES, NODES, PODS
from controller.sandbox.kubelet import Kubelet, Life
from controller.sandbox.kubelet import devices as built_in
from controller.sandbox.nodepool import NODE_POOLS, NodePools, allocatable, is_marked
from controller.sandbox.record import Moment, NodeRemoval, Record, Removal, Sizes, Target
from controller.sandbox.scheduler import GPU, Scheduler, is_waiting
from controller.sandbox.store import Store
from controller.sandbox.workloads import Workloads, replicas

Object = dict[str, Any]
Demand = Callable[[float], float]
"""now -> GPUs that the work arriving now keeps busy."""


@dataclass(frozen=True, slots=True)
class Served:
    """Which Deployment serves the load, and in which pool it lives: what the record is about."""

    namespace: str
    deployment: str
    pool: str


@dataclass
class World:
    """A simulated cluster over a store. ``folder`` holds the simulation files; the caller removes it."""

    store: Store
    served: Served
    demand: Demand
    folder: Path
    starter: Starter = start_process
    record: Record = field(default_factory=Record)
    reading_age_seconds: float = 3.0
    """How old the operator's newest reading may be: the exporter's poll and the operator's tick."""

    def __post_init__(self) -> None:
        """Wire the parts over the store."""
        self.pools = NodePools(self.store, removed=self._node_goes)
        self.workloads = Workloads(self.store, shrunk=self._pods_go)
        self.scheduler = Scheduler(self.store)
        self.kubelet = Kubelet(self.store)
        self.workloads.ready_since = self.kubelet.ready_since
        self.exporters = Exporters(self.store, self.folder, self.starter)
        self.plant = plant.PlantState(at=self.store.clock())
        self._recent: deque[plant.PlantState] = deque([self.plant])
        if NAMESPACE not in {n["metadata"]["name"] for n in self.store.list(NAMESPACES)}:
            self.store.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})

    def watch_sizes(self) -> None:
        """Note every change of a size from now on."""
        clock = self.store.clock
        for kind, target, size in ((DEPLOYMENTS, Target.WORKLOAD, "replicas"), (NODE_POOLS, Target.POOL, "size")):
            self.store.history(kind).listeners.append(Sizes(self.record, target, size, clock))

    def step(self, now: float) -> None:
        """Move everything to ``now``, the store's clock."""
        self._move(now)
        self.plant = plant.step(self.plant, self.serving(), self.demand(now), now)
        self._remember(now)
        self._write_files(now)
        self.exporters.step(now)
        self.record.moments.append(self._moment(self.store.clock()))

    def warm_up(self, now: float) -> None:
        """Bring up what is asked for without any wait: nodes, GPUs, pods with their models."""
        self._move(now)
        self.pools.skip_boot(now)
        self._move(now)
        for life in self.kubelet.lives.values():
            life.load_seconds = 0.0
        self._move(now)
        self._write_files(now)
        self.exporters.step(now)

    def begin(self, now: float) -> None:
        """Forget what was, so that the record and the totals count from ``now``."""
        self.plant = plant.PlantState(at=now)
        for noted in (self.record.changes, self.record.moments, self.record.removals, self.record.node_removals):
            noted.clear()

    def _move(self, now: float) -> None:
        self.pools.step(now)
        self.workloads.step(now)
        self.scheduler.step(now)
        self.kubelet.step(now)
        self.workloads.report(now)

    async def run(self, every_seconds: float) -> None:
        """Step until cancelled."""
        while True:
            self.step(self.store.clock())
            await asyncio.sleep(every_seconds)

    def serving(self) -> list[str]:
        """Name the pods that take work now."""
        return [life.pod for life in self._served_lives() if life.serving]

    def _served_lives(self) -> list[Life]:
        prefix = f"{self.served.deployment}-"
        return [
            life
            for life in self.kubelet.lives.values()
            if life.namespace == self.served.namespace and life.pod.startswith(prefix)
        ]

    def _write_files(self, now: float) -> None:
        lives = list(self.kubelet.lives.values())
        for node in self.store.list(NODES):
            name = node["metadata"]["name"]
            here = [life for life in lives if life.node == name]
            said = devices.simulation(built_in(node), self._model(node), here, self.plant.utilization, now)
            devices.write(self.exporters.simulation_file(name), said)

    def _model(self, node: Object) -> str:
        return str((node["metadata"].get("labels") or {}).get("nvidia.com/gpu.product", "")).replace("-", " ")

    def _moment(self, now: float) -> Moment:
        nodes = self.store.list(NODES)
        pods = self.store.list(PODS, self.served.namespace)
        serving = self.serving()
        return Moment(
            at=now,
            demand=self.demand(now),
            serving=len(serving),
            utilization=sum(self.plant.utilization.get(pod, 0.0) for pod in serving),
            replicas=self._replicas(),
            waiting=sum(is_waiting(pod) for pod in pods),
            pool_size=self._pool_size(),
            nodes=len(nodes),
            gpus=sum(int(allocatable(node).get(GPU, 0)) for node in nodes),
            gpus_held=sum(len(life.gpus) for life in self.kubelet.lives.values()),
            backlog=self.plant.backlog,
        )

    def _replicas(self) -> int:
        """Give the size that is asked for; a Deployment that somebody deleted asks for none."""
        found = self.store.list(DEPLOYMENTS, self.served.namespace)
        return sum(replicas(d) for d in found if d["metadata"]["name"] == self.served.deployment)

    def _pool_size(self) -> int:
        found = self.store.list(NODE_POOLS)
        return sum(int(p["spec"]["size"]) for p in found if p["metadata"]["name"] == self.served.pool)

    def _pods_go(self, going: Sequence[Object], staying: Sequence[Object], now: float) -> None:
        serving = set(self.serving())
        kept = [pod["metadata"]["name"] for pod in staying]
        for pod in going:
            name = pod["metadata"]["name"]
            if name in serving:
                self._note_removal(now, name, "shrink", serving.intersection(kept))

    def _remember(self, now: float) -> None:
        self._recent.append(self.plant)
        while self._recent[0].at < now - self.reading_age_seconds:
            self._recent.popleft()

    def _lately(self, pod: str) -> list[float]:
        """Give the pod's utilisation in each of the last steps; 0 for one before it was ready."""
        return [state.utilization.get(pod, 0.0) for state in self._recent]

    def _note_removal(self, now: float, pod: str, cause: str, staying: Iterable[str]) -> None:
        idlest = min((max(self._lately(other)) for other in staying), default=None)
        self.record.removals.append(Removal(now, pod, cause, min(self._lately(pod)), idlest))

    def _node_goes(self, node: Object, now: float) -> None:
        name = node["metadata"]["name"]
        on_it = [life.pod for life in self.kubelet.lives.values() if life.node == name]
        serving = set(self.serving())
        self.record.node_removals.append(NodeRemoval(now, name, is_marked(node), len(on_it)))
        for pod in on_it:
            if pod in serving:
                self._note_removal(now, pod, "node", serving.difference(on_it))
