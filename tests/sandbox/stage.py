"""A small simulated cluster on a clock that tests move, with exporters that do not run."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.sandbox.kinds import DEPLOYMENTS, NAMESPACES, NODES, PODS
from controller.sandbox.kubelet import LOAD_SECONDS
from controller.sandbox.nodepool import NODE_POOLS
from controller.sandbox.scheduler import GPU
from controller.sandbox.store import Store
from controller.sandbox.world import Served, World

Object = dict[str, Any]
STEP = 0.5


@dataclass
class FakeExporter:
    """Listens from the start, and ends when it is told."""

    node: str
    number: int
    stopped: bool = False
    failure: str | None = None

    def port(self) -> int | None:
        return 9000 + self.number

    def died(self) -> str | None:
        return self.failure

    def begin_stop(self) -> None:
        self.stopped = True

    def finish_stop(self) -> None:
        assert self.stopped


@dataclass
class Stage:
    """The world, its clock and its exporters."""

    folder: Path
    demand: float = 0.0
    now: float = 1_700_000_000.0
    exporters: list[FakeExporter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Store(clock=lambda: self.now)
        self.store.register(NODE_POOLS)
        self.store.create(NAMESPACES, {"metadata": {"name": "ml"}})
        self.world = World(
            self.store, Served("ml", "llm", "h100"), lambda now: self.demand, self.folder, starter=self.start_exporter
        )
        self.world.watch_sizes()

    def start_exporter(self, node: str, simulation: Path) -> FakeExporter:
        assert simulation.exists()
        self.exporters.append(FakeExporter(node, len(self.exporters)))
        return self.exporters[-1]

    def pool(self, size: int, **spec: Any) -> None:
        self.store.create(NODE_POOLS, {"metadata": {"name": "h100"}, "spec": {"size": size, **spec}})

    def deployment(self, replicas: int, load_seconds: float = 3.0, **pod_spec: Any) -> None:
        container = {"name": "server", "image": "llm", "resources": {"limits": {GPU: "1"}, "requests": {"cpu": "4"}}}
        self.store.create(
            DEPLOYMENTS,
            {
                "metadata": {"name": "llm", "namespace": "ml"},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": {"app": "llm"}},
                    "template": {
                        "metadata": {"labels": {"app": "llm"}, "annotations": {LOAD_SECONDS: str(load_seconds)}},
                        "spec": {"terminationGracePeriodSeconds": 5, "containers": [container], **pod_spec},
                    },
                },
            },
        )

    def resize(self, replicas: int) -> None:
        self.store.patch(DEPLOYMENTS, "ml", "llm", {"spec": {"replicas": replicas}})

    def resize_pool(self, size: int) -> None:
        self.store.patch(NODE_POOLS, None, "h100", {"spec": {"size": size}})

    def steps(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            self.world.step(self.now)

    def warm(self) -> None:
        self.world.warm_up(self.now)

    @property
    def pods(self) -> list[Object]:
        return self.store.list(PODS, "ml")

    @property
    def nodes(self) -> list[Object]:
        return self.store.list(NODES)

    def node_names(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.nodes]

    def status(self) -> Object:
        return dict(self.store.get(DEPLOYMENTS, "ml", "llm")["status"])

    def simulation(self, node: str) -> Object:
        return dict(json.loads((self.folder / f"{node}.json").read_text()))


def condition(obj: Object, kind: str) -> Object:
    """One condition of an object; empty when it is not there."""
    return next((c for c in (obj.get("status") or {}).get("conditions") or [] if c["type"] == kind), {})


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"
