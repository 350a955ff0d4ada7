"""Whatever is sent, the embedded API answers in words of its own: a success or a Status, never a crash."""

import copy
import json
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from controller import crds
from controller.sandbox.api import build_app, serve
from controller.sandbox.kinds import DEFINITIONS
from controller.sandbox.store import Store

NAMESPACE = "/namespaces/default"
LABELS = {"app": "one"}
TEMPLATE = {
    "metadata": {"labels": LABELS},
    "spec": {"containers": [{"name": "a", "image": "b:1", "ports": [{"containerPort": 1}], "env": [{"name": "A"}]}]},
}
SCALER = {
    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "one"},
    "maxReplicas": 3,
    "metrics": [{"type": "GPU", "gpu": {"name": "power", "target": {"type": "AverageValue", "averageValue": "3"}}}],
}
EXPRESSION = {"key": "a", "operator": "In", "values": ["b"]}
READY = {"type": "Ready", "status": "True"}
SEEDS: dict[str, dict[str, Any]] = {
    f"/api/v1{NAMESPACE}/pods": TEMPLATE,
    f"/apis/apps/v1{NAMESPACE}/deployments": {
        "metadata": {"labels": LABELS, "annotations": {"a": "b"}, "finalizers": ["a/b"]},
        "spec": {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": TEMPLATE},
    },
    f"/apis/coordination.k8s.io/v1{NAMESPACE}/leases": {"spec": {"holderIdentity": "a", "leaseDurationSeconds": 1}},
    f"/apis/policy/v1{NAMESPACE}/poddisruptionbudgets": {
        "spec": {
            "minAvailable": "50%",
            "selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
        }
    },
    f"/apis/autoscaling/v2{NAMESPACE}/horizontalpodautoscalers": {"spec": SCALER},
    f"/api/v1{NAMESPACE}/events": {
        "involvedObject": {"kind": "Pod", "name": "one", "namespace": "default"},
        "count": 1,
    },
    "/api/v1/nodes": {
        "spec": {"taints": [{"key": "a"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    },
    f"/apis/gpuscale.dev/v1alpha1{NAMESPACE}/gpuworkloadscalers": {"spec": SCALER},
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": crds.definitions()[0],
}
WRONG = [None, True, 0, -1, 1.5, "", "x", [], {}, [1], ["a"], [{}], {"a": 1}, {"a": None}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def spoiled(seed: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """A copy of an object with one thing in it replaced by something else."""
    body = copy.deepcopy(seed)
    path = dice.choice(list(places(body)))
    node: Any = body
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = copy.deepcopy(dice.choice(WRONG))
    return body


@pytest.fixture
async def url() -> AsyncIterator[str]:
    store = Store()
    store.create(DEFINITIONS, crds.definitions()[0])
    runner, address = await serve(build_app(store), "127.0.0.1", 0)
    yield address
    await runner.cleanup()


@pytest.mark.parametrize("path", SEEDS)
async def test_a_spoiled_object_never_crashes_the_server(url: str, path: str) -> None:
    dice = random.Random(path)  # noqa: S311 - which faults are tried, the same in each run
    crashes = []
    async with aiohttp.ClientSession() as session:
        for number in range(150):
            name = f"n{number}"
            body = {"metadata": {}, **spoiled(SEEDS[path], dice)}
            if isinstance(body["metadata"], dict) and "customresource" not in path:
                body["metadata"]["name"] = name
            good = {**SEEDS[path], "metadata": {**SEEDS[path].get("metadata", {}), "name": name}}
            for method, place, sent, content in (
                ("POST", path, body, "application/json"),
                ("POST", path, good, "application/json"),
                ("PATCH", f"{path}/{name}", body, "application/merge-patch+json"),
                ("PATCH", f"{path}/{name}", body, "application/strategic-merge-patch+json"),
                ("PATCH", f"{path}/{name}/status", body, "application/merge-patch+json"),
                ("PATCH", f"{path}/{name}?fieldManager=a&force=true", body, "application/apply-patch+yaml"),
                ("PUT", f"{path}/{name}", body, "application/json"),
                ("GET", path, None, ""),
                ("DELETE", f"{path}/{name}?gracePeriodSeconds=0", None, ""),
            ):
                data = None if sent is None else json.dumps(sent).encode()
                headers = {"Content-Type": content} if content else {}
                async with session.request(method, url + place, data=data, headers=headers) as response:
                    text = await response.text()
                    if response.status >= 500 or (response.status >= 400 and json.loads(text)["kind"] != "Status"):
                        crashes.append((method, place, content, sent))
    assert crashes == []


PATHS = """
/ /api /apis /api/v1/ /apis/apps /apis/apps/v1 /apis/apps/v9/deployments /api/v1/namespaces /api/v1/namespaces/default
/api/v1/namespaces/default/pods/a/b/c /openapi/v3 /openapi/v3/api/v1 /openapi/v3/apis/none/v1 /openapi/v2
/api/v1/pods?limit=-1 /api/v1/pods?limit=x /api/v1/pods?continue=x /api/v1/pods?labelSelector=%21%21
/api/v1/pods?fieldSelector=a /api/v1/pods?resourceVersion=x /api/v1/pods?watch=true&resourceVersion=x
/api/v1/pods?watch=true&timeoutSeconds=x /%00 /api/v1/%2e%2e/pods
"""


@pytest.mark.parametrize("path", PATHS.split())
async def test_any_path_has_an_answer(url: str, path: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(url + path) as response:
        assert response.status < 500
