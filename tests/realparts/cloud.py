"""``python -m tests.realparts.cloud``: a cloud whose node pools are objects with ``/scale``.

Why it exists: a node pool must be a real thing in the tests. A TestNodePool's size becomes Node objects some time
later, as machines boot, and a smaller size takes nodes away: first those that bear the victim mark, then the newest,
so that a shrink by count alone hits the wrong node. A TestFleet is a workload that Kubernetes does not know: the
cloud keeps a Deployment for each.
"""

import argparse
import asyncio
import random
import sys
import time
from typing import Any

from controller.cluster import NODE, ApiError, Cluster, Conflict, Kind, NotFound, Object
from tests.realparts.fakenodes import DOMAIN, GPU_SECONDS, GPUS

POOL = Kind(DOMAIN, "v1", "testnodepools", "TestNodePool", namespaced=False)
FLEET = Kind(DOMAIN, "v1", "testfleets", "TestFleet", namespaced=True)
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", namespaced=True)
POOL_LABEL = f"{DOMAIN}/pool"
REMOVE_MARK = f"{DOMAIN}/remove"
LOOK_SECONDS = 0.25


def definitions() -> tuple[Object, ...]:
    """Give the CustomResourceDefinitions of TestNodePool and TestFleet."""
    return _pool_definition(), _fleet_definition()


def _pool_definition() -> Object:
    whole = {"type": "integer", "minimum": 0}
    seconds = {"type": "number", "minimum": 0}
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    taint = {"type": "object", "required": ["key", "effect"], "properties": {k: {"type": "string"} for k in _TAINT}}
    properties = {
        "size": whole,
        "gpusPerNode": whole | {"default": 8},
        "bootSeconds": seconds | {"default": 1},
        "gpuSeconds": seconds | {"default": 1},
        "labels": texts,
        "taints": {"type": "array", "items": taint},
    }
    spec = {"type": "object", "required": ["size"], "properties": properties}
    return _definition(POOL, "tnp", spec, ".spec.size")


def _fleet_definition() -> Object:
    template = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    properties = {"replicas": {"type": "integer", "minimum": 0}, "template": template}
    return _definition(FLEET, "tfl", {"type": "object", "properties": properties}, ".spec.replicas")


def _definition(kind: Kind, short: str, spec: Object, size_path: str) -> Object:
    whole = {"type": "integer", "minimum": 0}
    status = {"type": "object", "properties": {"size": whole, "selector": {"type": "string"}}}
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {"spec": spec, "status": status}}
        },
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": size_path,
                "statusReplicasPath": ".status.size",
                "labelSelectorPath": ".status.selector",
            },
        },
    }
    names = {"plural": kind.plural, "singular": kind.kind.lower(), "kind": kind.kind, "shortNames": [short]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


_TAINT = ("key", "value", "effect")


class Cloud:
    """Turns sizes into nodes. ``step`` looks once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ordered: dict[str, list[float]] = {}
        self._numbers: dict[str, int] = {}

    async def step(self, now: float) -> None:
        """Look at every pool: order, boot and remove. Raises ApiError."""
        pools = (await self._cluster.list(POOL)).items
        nodes = (await self._cluster.list(NODE, label_selector=POOL_LABEL)).items
        for name in {node["metadata"]["labels"][POOL_LABEL] for node in nodes} - {_name(pool) for pool in pools}:
            await self._remove([node for node in nodes if node["metadata"]["labels"][POOL_LABEL] == name])
        for pool in pools:
            mine = [node for node in nodes if node["metadata"]["labels"][POOL_LABEL] == _name(pool)]
            await self._settle(pool, mine, now)

        for fleet in (await self._cluster.list(FLEET)).items:
            await self._staff(fleet)

    async def _staff(self, fleet: Object) -> None:
        """Keep a Deployment of the fleet's size, and tell its pods' number."""
        name, namespace, replicas = _name(fleet), fleet["metadata"]["namespace"], fleet["spec"].get("replicas", 0)
        try:
            deployment = await self._cluster.get(DEPLOYMENT, _of(name), namespace)
        except NotFound:
            await self._cluster.create(DEPLOYMENT, _deployment(fleet), namespace)
            return
        if deployment["spec"]["replicas"] != replicas:
            body = {"spec": {"replicas": replicas}}
            await self._cluster.patch(DEPLOYMENT, _of(name), body, namespace)
        status = {"size": deployment["status"].get("replicas", 0), "selector": f"app={name}"}
        if fleet.get("status") != status:
            await self._cluster.patch(FLEET, name, {"status": status}, namespace, subresource="status")

    async def _settle(self, pool: Object, nodes: list[Object], now: float) -> None:
        spec, name = pool["spec"], _name(pool)
        booting = self._ordered.setdefault(name, [])
        surplus = len(nodes) + len(booting) - spec["size"]
        while surplus > 0 and booting:
            booting.pop()
            surplus -= 1
        if surplus > 0:
            await self._remove(sorted(nodes, key=_goes_last, reverse=True)[:surplus])
        booting += [now + spec["bootSeconds"]] * -surplus
        while booting and booting[0] <= now:
            booting.pop(0)
            nodes.append(await self._boot(pool))
        await self._tell(pool, len(nodes) - max(0, surplus))

    async def _boot(self, pool: Object) -> Object:
        name = _name(pool)
        self._numbers[name] = self._numbers.get(name, 0) + 1
        return await self._cluster.create(NODE, node(pool, f"{name}-{self._numbers[name]}"))

    async def _remove(self, nodes: list[Object]) -> None:
        for gone in nodes:
            try:
                await self._cluster.delete(NODE, _name(gone))
            except NotFound:
                continue

    async def _tell(self, pool: Object, size: int) -> None:
        status = {"size": size, "selector": f"{POOL_LABEL}={_name(pool)}"}
        if pool.get("status") != status:
            await self._cluster.patch(POOL, _name(pool), {"status": status}, subresource="status")


def node(pool: Object, name: str) -> Object:
    """Give the Node object of a machine that has just booted: no GPUs yet, kwok makes it ready."""
    spec = pool["spec"]
    amounts = {"cpu": "96", "memory": "768Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {POOL_LABEL: _name(pool), "kubernetes.io/hostname": name} | spec.get("labels", {}),
            "annotations": {GPUS: str(spec["gpusPerNode"]), GPU_SECONDS: str(spec["gpuSeconds"])},
        },
        "spec": {"taints": spec.get("taints", [])},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "addresses": [
                {"type": "InternalIP", "address": _address()},
                {"type": "Hostname", "address": name},
            ],
        },
    }


def _of(fleet: str) -> str:
    return f"{fleet}-pods"


def _deployment(fleet: Object) -> Object:
    metadata, spec = fleet["metadata"], fleet["spec"]
    owner = {key: fleet[key] for key in ("apiVersion", "kind")} | {key: metadata[key] for key in ("name", "uid")}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _of(metadata["name"]), "ownerReferences": [owner]},
        "spec": {
            "replicas": spec.get("replicas", 0),
            "selector": {"matchLabels": {"app": metadata["name"]}},
            "template": spec["template"],
        },
    }


def _address() -> str:
    """Give the node an address of its own on loopback, so that every exporter has the same port."""
    return f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.{random.randint(2, 254)}"  # noqa: S311 - no secret


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _goes_last(one: Object) -> tuple[bool, str, int]:
    """Sort so that the last are removed: the marked ones, then the newest."""
    metadata = one["metadata"]
    marked = metadata.get("annotations", {}).get(REMOVE_MARK) == "true"
    return marked, metadata["creationTimestamp"], int(metadata["name"].rpartition("-")[2])


async def serve(kubeconfig: str) -> None:
    """Look again and again; an API server that is away is waited for."""
    cluster = await Cluster.connect(kubeconfig=kubeconfig)
    cloud = Cloud(cluster)
    while True:
        try:
            await cloud.step(time.monotonic())
        except (ApiError, Conflict) as error:
            print(f"cloud: {error}", flush=True)
        await asyncio.sleep(LOOK_SECONDS)


def main() -> int:
    """Run until killed."""
    parser = argparse.ArgumentParser(description="a cloud for the tests")
    parser.add_argument("--kubeconfig", required=True)
    args: Any = parser.parse_args()
    asyncio.run(serve(args.kubeconfig))
    return 0


if __name__ == "__main__":
    sys.exit(main())
