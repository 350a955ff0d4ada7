"""What stands in the cluster while a test runs: pools, workloads; and how to wait for what a cluster does."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from controller.cluster import Cluster, Kind, NotFound
from tests.realparts import cloud, fakenodes
from tests.realparts.machines import pages

PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.1
T = TypeVar("T")
Object = dict[str, Any]


async def until(look: Callable[[], Awaitable[T]], right: Callable[[T], object], seconds: float = PATIENCE_SECONDS) -> T:
    """Look again and again until what is seen is right; give it."""
    end = time.monotonic() + seconds
    while True:
        seen = await look()
        if right(seen):
            return seen
        assert time.monotonic() < end, f"after {seconds:.0f} s there still was {seen!r:.3000}"
        await asyncio.sleep(LOOK_SECONDS)


async def usage(cluster: Cluster, namespace: str) -> dict[str, float]:
    """Read of each pod how busy its exporter says that it is, in percent.

    A pod that has just become ready does nothing yet; an operator that starts then may rightly make it one fewer.
    """
    told = (await pages(cluster, namespace)).values()
    families = (family for page in told for family in text_string_to_metric_families(page))
    samples = (sample for family in families for sample in family.samples if sample.name == "aom_container_gpu_usage")
    return {sample.labels["pod"]: sample.value for sample in samples}


@contextlib.asynccontextmanager
async def made(cluster: Cluster, kind: Kind, obj: Object) -> AsyncIterator[Object]:
    """Keep an object for the length of a block."""
    metadata = obj["metadata"]
    try:
        yield await cluster.create(kind, obj, metadata.get("namespace"))
    finally:
        with contextlib.suppress(NotFound):
            await cluster.delete(kind, metadata["name"], metadata.get("namespace"))


def node_pool(name: str, size: int, **spec: Any) -> Object:
    """Give a pool of the test cloud. Its nodes bear the label pool=NAME."""
    return {
        "apiVersion": f"{cloud.POOL.group}/{cloud.POOL.version}",
        "kind": cloud.POOL.kind,
        "metadata": {"name": name},
        "spec": {"size": size, "bootSeconds": 0.5, "gpuSeconds": 0, "labels": {"pool": name}} | spec,
    }


def pod_template(
    app: str, *, gpus: int, load_seconds: float = 0, labels: Mapping[str, str] | None = None, pool: str = ""
) -> Object:
    """Give the template of pods with one container ``server``."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    spec: Object = {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "server", "image": "none.invalid/server", "resources": resources}],
    }
    if pool:
        spec["nodeSelector"] = {"pool": pool}
    annotations = {fakenodes.LOAD_SECONDS: str(load_seconds)}
    return {"metadata": {"labels": {"app": app} | dict(labels or {}), "annotations": annotations}, "spec": spec}


def deployment(namespace: str, app: str, *, replicas: int, gpus: int = 1, **pods: Any) -> Object:
    """Give a Deployment of GPU pods."""
    return _workload("Deployment", namespace, app, replicas, pod_template(app, gpus=gpus, **pods))


def stateful_set(namespace: str, app: str, *, replicas: int, gpus: int = 1, **pods: Any) -> Object:
    """Give a StatefulSet of GPU pods that start in parallel."""
    obj = _workload("StatefulSet", namespace, app, replicas, pod_template(app, gpus=gpus, **pods))
    obj["spec"] |= {"serviceName": app, "podManagementPolicy": "Parallel"}
    return obj


def _workload(kind: str, namespace: str, app: str, replicas: int, template: Object) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": app, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": template},
    }


def fleet(namespace: str, app: str, *, replicas: int, gpus: int = 1, **pods: Any) -> Object:
    """Give a TestFleet: a workload of a kind that Kubernetes does not know."""
    return {
        "apiVersion": f"{cloud.FLEET.group}/{cloud.FLEET.version}",
        "kind": cloud.FLEET.kind,
        "metadata": {"name": app, "namespace": namespace},
        "spec": {"replicas": replicas, "template": pod_template(app, gpus=gpus, **pods)},
    }


def workload_scaler(target: Object, **spec: Any) -> Object:
    """Give a scaler by GPU utilisation at 80 %, without any calm."""
    calm = {"stabilizationWindowSeconds": 0}
    gpu = {"name": "utilization", "target": {"type": "Utilization", "averageUtilization": 80}}
    metadata = target["metadata"]
    reference = {"apiVersion": target["apiVersion"], "kind": target["kind"], "name": metadata["name"]}
    return {
        "apiVersion": "gpuscale.dev/v1alpha1",
        "kind": "GPUWorkloadScaler",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": {
            "scaleTargetRef": reference,
            "minReplicas": 1,
            "maxReplicas": 6,
            "metrics": [{"type": "GPU", "gpu": gpu}],
            "behavior": {"scaleUp": calm, "scaleDown": calm},
        }
        | spec,
    }


def pool_scaler(pool: Object, **spec: Any) -> Object:
    """Give a scaler of a pool of the test cloud, which names its victims and waits for hardly anything."""
    name = pool["metadata"]["name"]
    reference = {"apiVersion": pool["apiVersion"], "kind": pool["kind"], "name": name}
    return {
        "apiVersion": "gpuscale.dev/v1alpha1",
        "kind": "GPUNodePoolScaler",
        "metadata": {"name": name},
        "spec": {
            "pool": {"ref": reference, "nodeSelector": {"pool": name}, "victimMark": {"annotation": cloud.REMOVE_MARK}},
            "bounds": {"min": 1, "max": 4},
            "scaleDown": {"quietSeconds": 2, "minNodeAgeSeconds": 0},
        }
        | spec,
    }
