"""A stage for the operator as users run it: the embedded API, a scripted exporter, ``gpuscale run`` as a process."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from controller.cluster import EVENT, NODE, POD, ApiError, Cluster, Kind, Object
from controller.crds import definitions
from controller.sandbox.api import FAULTS, build_app, kubeconfig, serve
from controller.sandbox.store import Store
from controller.view import HPA, POOLS, WORKLOADS
from tests.operator.scripted import Scripted, serving

ROOT = Path(__file__).resolve().parents[2]
CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", namespaced=True)
LONG_SECONDS = float(os.environ.get("GPUSCALE_TEST_PATIENCE", "40"))
"""How long a test waits for what must come; only a failure waits that long."""

Usage = dict[str, float | str]


def line(pod: str, value: float | str, namespace: str = "ml", node: str = "n1") -> str:
    labels = f'node="{node}",uuid="GPU-{pod}",model="H100",namespace="{namespace}",pod="{pod}",container="server"'
    return f"aom_container_gpu_usage{{{labels}}} {value}\n"


@dataclass
class Running:
    """One ``gpuscale run``."""

    process: asyncio.subprocess.Process
    log_file: Path
    address_file: Path

    def log(self) -> str:
        return self.log_file.read_text()

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://{self.address_file.read_text()}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LONG_SECONDS):
            return await self.process.wait()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@dataclass
class Stage:
    """The embedded cluster with what tests put into it. ``usage``: pod -> what the exporter says of its GPU."""

    folder: Path
    store: Store = field(default_factory=Store)
    usage: Usage = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    """pod -> the node that its series name, where that isn't n1."""
    operators: list[Running] = field(default_factory=list)
    silent: bool = False
    """The watch of pods is accepted and says nothing."""
    writes: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, path, user agent) of every write that the API got."""

    async def open(self) -> None:
        self._port = 0
        await self.up()
        self._client = await Cluster.connect(server=self.url)
        for definition in definitions():
            await self._client.create(CRD, dict(definition))
        for name in ("ml", "elsewhere"):
            await self._create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def forget_rules(self) -> None:
        """Let any scaler in, as an API server does whose definitions are older than a rule of today."""
        resource = self.store.find(WORKLOADS.api_version, WORKLOADS.kind)
        assert resource is not None
        self.store._admits.pop(resource.qualified)

    async def up(self) -> None:
        app = build_app(self.store)
        self.faults = app[FAULTS]
        app.middlewares.append(self._noting)
        self._runner, self.url = await serve(app, "127.0.0.1", self._port)
        self._port = int(self.url.rpartition(":")[2])
        (self.folder / "kubeconfig").write_text(json.dumps(kubeconfig(self.url)))

    async def down(self) -> None:
        await self._runner.cleanup()

    async def close(self) -> None:
        for operator in self.operators:
            await operator.kill()
        await self._client.close()
        await self.down()

    @property
    def cluster(self) -> Cluster:
        return self._client

    @web.middleware
    async def _noting(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            self.writes.append((request.method, request.path, request.headers.get("User-Agent", "")))
        if self.silent and "watch" in request.query and request.path.endswith("/pods"):
            return await _silence(request)
        return await handler(request)

    def page(self) -> str:
        return "# all\n" + "".join(
            line(pod, value, node=self.nodes.get(pod, "n1")) for pod, value in self.usage.items()
        )

    async def run(self, *flags: str, exporter: str = "", tick: str = "0.3") -> Running:
        """Start an operator; ``exporter`` is an address that replaces the exporters' pods."""
        number = len(self.operators)
        log_file, address_file = self.folder / f"run{number}.log", self.folder / f"run{number}.address"
        words = ["--kubeconfig", str(self.folder / "kubeconfig"), "--listen", "127.0.0.1:0", "--tick", tick]
        words += ["--address-file", str(address_file), "--lease-namespace", "ml", "--identity", f"run{number}"]
        words += ["--exporter-url", exporter] if exporter else []
        with log_file.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "controller",
                "run",
                *words,
                *flags,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdout=log,
                stderr=log,
            )
        running = Running(process, log_file, address_file)
        self.operators.append(running)
        return running

    async def _create(self, kind: Kind, obj: Object) -> Object:
        return await self._client.create(kind, obj, obj["metadata"].get("namespace"))

    async def deployment(self, name: str, replicas: int, *, gpus: int = 1) -> None:
        labels = {"app": name}
        container = {"name": "server", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        meta = {"name": name, "namespace": "ml"}
        await self._create(DEPLOYMENT, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
        status = {"status": {"replicas": replicas, "readyReplicas": replicas}}
        await self._client.patch(DEPLOYMENT, name, status, "ml", subresource="status")

    async def pod(self, app: str, name: str, *, node: str = "n1", ready: bool = True, gpus: int = 1) -> None:
        container = {"name": "server", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        spec: Object = {"containers": [container]}
        if node:
            spec["nodeName"] = self.nodes[name] = node
        meta = {"name": name, "namespace": "ml", "labels": {"app": app}}
        await self._create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        await self._client.patch(POD, name, {"status": _pod_status(node, ready=ready)}, "ml", subresource="status")

    async def exporter_pod(self, name: str, url: str, *, namespace: str = "ml", node: str = "n1") -> None:
        """Make the pod behind which the scripted exporter stands."""
        port = int(url.rpartition(":")[2])
        container = {"name": "exporter", "image": "x", "ports": [{"name": "metrics", "containerPort": port}]}
        labels = {"app.kubernetes.io/name": "gpuscale-exporter"}
        meta = {"name": name, "namespace": namespace, "labels": labels}
        spec = {"containers": [container], "nodeName": node}
        await self._create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        status = {"status": {**_pod_status(node, ready=True), "podIP": "127.0.0.1"}}
        await self._client.patch(POD, name, status, namespace, subresource="status")

    async def fleet(self, app: str, count: int, usage: float | str | None) -> None:
        """Make a deployment with that many ready pods, each with this usage (None = no series)."""
        await self.deployment(app, count)
        for number in range(count):
            await self.pod(app, f"{app}-{number}")
            if usage is not None:
                self.usage[f"{app}-{number}"] = usage

    def load(self, app: str, usage: float | str) -> None:
        for pod in self.usage:
            if pod.startswith(f"{app}-"):
                self.usage[pod] = usage

    async def node(self, name: str, *, gpus: int = 1, pool: str = "a", old: bool = True) -> None:
        meta = {"name": name, "labels": {"pool": pool}}
        await self._create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}})
        status = {
            "allocatable": {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": str(gpus), "pods": "110"},
            "capacity": {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": str(gpus), "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await self._client.patch(NODE, name, {"status": status}, subresource="status")

    async def scaler(self, name: str, spec: Mapping[str, Any]) -> Object:
        meta = {"name": name, "namespace": "ml"}
        obj = {"apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.kind, "metadata": meta, "spec": dict(spec)}
        return await self._create(WORKLOADS, obj)

    async def pool_scaler(self, name: str, spec: Mapping[str, Any]) -> Object:
        obj = {"apiVersion": POOLS.api_version, "kind": POOLS.kind, "metadata": {"name": name}, "spec": dict(spec)}
        return await self._create(POOLS, obj)

    async def hpa(self, name: str, target: str) -> None:
        ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
        meta = {"name": name, "namespace": "ml"}
        spec = {"scaleTargetRef": ref, "maxReplicas": 5}
        await self._create(HPA, {"apiVersion": "autoscaling/v2", "kind": HPA.kind, "metadata": meta, "spec": spec})

    async def replicas(self, name: str) -> int:
        deployment = await self._client.get(DEPLOYMENT, name, "ml")
        return int(deployment["spec"]["replicas"])

    async def status(self, name: str) -> Object:
        scaler = await self._client.get(WORKLOADS, name, "ml")
        return scaler.get("status") or {}

    async def pool_status(self, name: str) -> Object:
        return (await self._client.get(POOLS, name)).get("status") or {}

    async def condition(self, name: str, kind: str) -> tuple[str, str, str]:
        """(status, reason, message); empty where there is none."""
        return condition_of(await self.status(name), kind)

    async def events(self) -> list[tuple[str, str, str]]:
        listing = await self._client.list(EVENT)
        return [(e["involvedObject"]["name"], e["reason"], e["message"]) for e in listing.items]

    def scale_writes(self) -> list[str]:
        return [path for _, path, _ in self.writes if path.endswith("/scale")]

    def status_writes(self, name: str) -> int:
        return sum(path.endswith(f"/{name}/status") for _, path, _ in self.writes)

    async def passes(self, running: Running, number: int = 3) -> None:
        """Return after so many more whole passes of an operator."""
        start = 0

        async def begun() -> bool:
            nonlocal start
            start = await _passes(running)
            return True

        await eventually(begun)

        async def enough() -> bool:
            return await _passes(running) >= start + number

        await eventually(enough)


async def _silence(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


def condition_of(status: Object, kind: str) -> tuple[str, str, str]:
    rows = [row for row in status.get("conditions", []) if row["type"] == kind]
    return (rows[0]["status"], rows[0]["reason"], rows[0].get("message", "")) if rows else ("", "", "")


async def _passes(running: Running) -> int:
    _, text = await running.get("/metrics")
    return sum(
        int(float(row.split()[-1])) for row in text.splitlines() if row.startswith("gpuscale_tick_seconds_count")
    )


async def eventually(
    check: Callable[[], Awaitable[bool]], seconds: float = LONG_SECONDS, every_seconds: float = 0.05
) -> None:
    """Wait until the check holds; errors of the API meanwhile count as not yet."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(ApiError, OSError, aiohttp.ClientError, FileNotFoundError):
                if await check():
                    return
            await asyncio.sleep(every_seconds)


def _pod_status(node: str, *, ready: bool) -> Object:
    born = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    if not node:
        unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        return {"phase": "Pending", "conditions": [unschedulable]}
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": born}
    return {"phase": "Running", "startTime": born, "conditions": [condition]}


def gpu_spec(target: str, **more: object) -> dict[str, Any]:
    """A scaler of a deployment by GPU utilisation at 80 %, without any calm."""
    gpu = {"name": "utilization", "target": {"type": "Utilization", "averageUtilization": 80}}
    calm = {"stabilizationWindowSeconds": 0}
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
        "minReplicas": 1,
        "maxReplicas": 10,
        "metrics": [{"type": "GPU", "gpu": gpu}],
        "behavior": {"scaleUp": calm, "scaleDown": calm},
        **more,
    }


@contextlib.asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[tuple[Stage, Scripted]]:
    stage = Stage(folder)

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=stage.page(), headers={"Age": "0.1"})

    async with serving(answer) as exporter:
        await stage.open()
        try:
            yield stage, exporter
        finally:
            await stage.close()
