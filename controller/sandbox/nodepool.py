"""The sandbox's node pools: a size becomes Node objects after a while, and a smaller size takes some away.

Why it exists: a pool whose provider can be told which node to remove (an annotation), and that takes the newest when it
is not told, so that a shrink by count alone is seen to hit the wrong node. GPUs come later than the node, as with a
device plugin that starts on it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.sandbox.conditions import condition, with_conditions
from controller.sandbox.kinds import NODES, Resource
from controller.sandbox.kubelet import BUILT_IN_GPUS
from controller.sandbox.scheduler import GPU
from controller.sandbox.store import Store

Object = dict[str, Any]
Removed = Callable[[Object, float], None]
"""(the node that goes, now)"""

GROUP = "sandbox.gpuscale.dev"
POOL_LABEL = f"{GROUP}/pool"
WARM_SECONDS = 3600.0
"""How old the nodes of a warm pool are."""
REMOVE_MARK = f"{GROUP}/remove"
NODE_POOLS = Resource(
    GROUP,
    "v1",
    "sandboxnodepools",
    "SandboxNodePool",
    short_names=("snp",),
    namespaced=False,
    subresources=("status", "scale"),
    custom=True,
)


def definition() -> Object:
    """Give the CustomResourceDefinition of SandboxNodePool."""
    whole = {"type": "integer", "minimum": 0}
    seconds = {"type": "number", "minimum": 0}
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": whole,
            "gpusPerNode": whole | {"default": 2},
            "gpuModel": {"type": "string", "default": "NVIDIA H100 80GB HBM3"},
            "bootSeconds": seconds | {"default": 4},
            "gpuReadySeconds": seconds | {"default": 2},
            "taints": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["key", "effect"],
                    "properties": {key: {"type": "string"} for key in ("key", "value", "effect")},
                },
            },
        },
    }
    status = {
        "type": "object",
        "properties": {"size": whole, "gpuReady": whole, "selector": {"type": "string"}, "booting": whole},
    }
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": spec, "status": status}}
    version = {
        "name": NODE_POOLS.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.size",
                "statusReplicasPath": ".status.size",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Nodes", "type": "integer", "jsonPath": ".status.size"},
            {"name": "Ready", "type": "integer", "jsonPath": ".status.gpuReady"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
    }
    names = {
        "plural": NODE_POOLS.plural,
        "singular": "sandboxnodepool",
        "kind": NODE_POOLS.kind,
        "shortNames": list(NODE_POOLS.short_names),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{NODE_POOLS.plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }


def _ignore(_node: Object, _now: float) -> None:
    return


@dataclass
class NodePools:
    """The provider of every SandboxNodePool in a store. ``removed`` is told of each node that goes."""

    store: Store
    removed: Removed = _ignore
    _booting: dict[str, list[float]] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    def step(self, now: float) -> None:
        """Order, boot, complete and remove nodes."""
        for pool in self.store.list(NODE_POOLS):
            self._settle(pool, now)

    def skip_boot(self, now: float) -> None:
        """Make every node that is ordered or waits for its GPUs complete: how a demo starts with a warm pool."""
        self.step(now)
        for booting in self._booting.values():
            booting[:] = [now for _ in booting]
        self.step(now)
        for age, node in enumerate(reversed(list(self._since))):
            self._since[node] = now - WARM_SECONDS - age
        self.step(now)

    def _settle(self, pool: Object, now: float) -> None:
        spec = {"gpusPerNode": 2, "bootSeconds": 4, "gpuReadySeconds": 2} | pool["spec"]
        name = pool["metadata"]["name"]
        nodes = self.nodes(name)
        booting = self._booting.setdefault(name, [])
        surplus = len(nodes) + len(booting) - spec["size"]
        while surplus > 0 and booting:
            booting.pop()
            surplus -= 1
        if surplus > 0:
            for node in removal_order(nodes, self._since)[:surplus]:
                self._remove(node, now)
        booting.extend([now + spec["bootSeconds"]] * -surplus)
        for _ in [due for due in booting if due <= now]:
            self._boot(pool, spec, now)
        booting[:] = [due for due in booting if due > now]
        self._complete(name, spec, now)
        self._report(pool, len(booting))

    def nodes(self, pool: str) -> list[Object]:
        """Give the nodes that a pool has now."""
        return self.store.list(NODES, label_selector=f"{POOL_LABEL}={pool}")

    def _boot(self, pool: Object, spec: Mapping[str, Any], now: float) -> None:
        name = pool["metadata"]["name"]
        self._numbers[name] = self._numbers.get(name, 0) + 1
        node = f"{name}-{self._numbers[name]}"
        self._since[node] = now
        self.store.create(NODES, node_for(pool, spec, node, now))

    def _complete(self, pool: str, spec: Mapping[str, Any], now: float) -> None:
        for node in self.nodes(pool):
            name = node["metadata"]["name"]
            due = self._since.setdefault(name, now) + spec["gpuReadySeconds"]
            if now >= due and GPU not in allocatable(node):
                gpus = {GPU: str(spec["gpusPerNode"])}
                status = {"capacity": gpus, "allocatable": gpus}
                self.store.patch(NODES, None, name, {"status": status}, "status")

    def _remove(self, node: Object, now: float) -> None:
        name = node["metadata"]["name"]
        self._since.pop(name, None)
        self.removed(node, now)
        self.store.delete(NODES, None, name)

    def _report(self, pool: Object, booting: int) -> None:
        name = pool["metadata"]["name"]
        nodes = self.nodes(name)
        ready = sum(GPU in allocatable(node) for node in nodes)
        selector = f"{POOL_LABEL}={name}"
        status = {"size": len(nodes), "gpuReady": ready, "booting": booting, "selector": selector}
        self.store.patch(NODE_POOLS, None, name, {"status": status}, "status")


def allocatable(node: Object) -> Mapping[str, str]:
    """Give what a node offers to pods."""
    return dict((node.get("status") or {}).get("allocatable") or {})


def is_marked(node: Object) -> bool:
    """Whether the node bears the annotation by which a shrink is told to take it."""
    return bool((node["metadata"].get("annotations") or {}).get(REMOVE_MARK) == "true")


def removal_order(nodes: Sequence[Object], since: Mapping[str, float]) -> list[Object]:
    """Sort nodes by who goes first: the marked, then the newest."""

    def key(node: Object) -> tuple[bool, float, str]:
        name = node["metadata"]["name"]
        return not is_marked(node), -since.get(name, 0.0), name

    return sorted(nodes, key=key)


def node_for(pool: Object, spec: Mapping[str, Any], name: str, now: float) -> Object:
    """Make the Node object of a machine that has just registered: Ready, its GPUs not yet offered."""
    gpus = str(spec["gpusPerNode"])
    model = str(spec.get("gpuModel", ""))
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                POOL_LABEL: pool["metadata"]["name"],
                "nvidia.com/gpu.product": model.replace(" ", "-"),
            },
            "annotations": {BUILT_IN_GPUS: gpus},
        },
        "spec": {"providerID": f"sandbox://{name}", **({"taints": spec["taints"]} if spec.get("taints") else {})},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "conditions": with_conditions([], now, condition("Ready", status=True, reason="KubeletReady")),
            "nodeInfo": {
                "kubeletVersion": "v1.34.0-sandbox",
                "osImage": "gpuscale sandbox",
                "kernelVersion": "",
                "containerRuntimeVersion": "sandbox://1",
                "architecture": "amd64",
                "operatingSystem": "linux",
            },
        },
    }
