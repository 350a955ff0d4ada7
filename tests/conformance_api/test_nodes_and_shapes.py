"""Nodes as the product marks them, HorizontalPodAutoscalers as it reads them, and bodies of the wrong shape."""

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.conformance_api.client import Answer, Api, eventually, names
from tests.conformance_api.objects import deployment, pod, widget

NODES = "/api/v1/nodes"


@pytest.fixture
async def node(api: Api) -> AsyncIterator[str]:
    name = f"conformance-{secrets.token_hex(4)}"
    status = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}
    (await api.post(NODES, {"metadata": {"name": name, "labels": {"run": name}}, "status": status})).object()
    yield name
    await api.delete(f"{NODES}/{name}")


async def test_a_new_node_keeps_the_status_that_it_came_with(api: Api, node: str) -> None:
    body = (await api.get(f"{NODES}/{node}")).object()
    assert body["status"]["allocatable"] == {"nvidia.com/gpu": "8"}


async def test_a_nodes_status_is_written_apart(api: Api, node: str) -> None:
    body = {"status": {"allocatable": {"nvidia.com/gpu": "7"}}}
    after = (await api.patch(f"{NODES}/{node}", body)).object()
    assert after["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    after = (await api.patch(f"{NODES}/{node}/status", body)).object()
    assert after["status"]["allocatable"]["nvidia.com/gpu"] == "7"


async def test_a_node_is_cordoned_marked_and_found_by_it(api: Api, node: str) -> None:
    assert node in names(await api.get(NODES, labelSelector=f"run={node}", fieldSelector="spec.unschedulable=false"))
    body = {"metadata": {"annotations": {"remove": "true"}}, "spec": {"unschedulable": True}}

    async def cordon() -> Answer:
        return await api.patch(f"{NODES}/{node}", body)

    after = (await eventually(cordon, lambda answer: answer.status == 200, "the node cordoned")).object()
    assert after["spec"]["unschedulable"] is True
    assert after["metadata"]["annotations"]["remove"] == "true"
    assert node in names(await api.get(NODES, labelSelector=f"run={node}", fieldSelector="spec.unschedulable=true"))
    back = (await api.patch(f"{NODES}/{node}", {"spec": {"unschedulable": None}})).object()
    assert not back["spec"].get("unschedulable")


async def test_an_autoscaler_gets_the_defaults_of_the_server(api: Api, space: str) -> None:
    path = f"/apis/autoscaling/v2/namespaces/{space}/horizontalpodautoscalers"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "one"}
    sent = {"metadata": {"name": "one"}, "spec": {"scaleTargetRef": target, "maxReplicas": 5}}
    spec = (await api.post(path, sent)).object()["spec"]
    assert spec["minReplicas"] == 1
    metric = spec["metrics"][0]
    assert metric["resource"]["name"] == "cpu"
    assert metric["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}


async def test_a_deployments_selector_has_to_match_and_to_stay(api: Api, deployments: str) -> None:
    sent = deployment()
    sent["spec"]["template"]["metadata"]["labels"] = {"app": "other"}
    body = (await api.post(deployments, sent)).refused(422, "Invalid")
    assert "spec.template.metadata.labels" in {cause["field"] for cause in body["details"]["causes"]}
    (await api.post(deployments, deployment())).object()
    change = {
        "spec": {"selector": {"matchLabels": {"more": "yes"}}, "template": {"metadata": {"labels": {"more": "yes"}}}}
    }
    body = (await api.patch(f"{deployments}/one", change)).refused(422, "Invalid")
    assert "spec.selector" in {cause["field"] for cause in body["details"]["causes"]}


async def test_a_pod_without_containers_is_invalid(api: Api, pods: str) -> None:
    body = (await api.post(pods, {"metadata": {"name": "one"}, "spec": {"containers": []}})).refused(422, "Invalid")
    assert "spec.containers" in {cause["field"] for cause in body["details"]["causes"]}


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": []},
        {"metadata": {"labels": ["a"]}},
        {"metadata": {"labels": {"a": 1}}},
        {"metadata": {"annotations": {"a": {}}}},
        {"metadata": {"finalizers": "one"}},
        {"metadata": {"ownerReferences": ["one"]}},
        {"spec": []},
        {"spec": {"replicas": "two"}},
        {"spec": {"template": []}},
        {"spec": {"template": {"spec": {"containers": {"name": "main"}}}}},
        {"spec": {"template": {"spec": {"containers": ["main"]}}}},
        {"spec": {"selector": {"matchLabels": ["app"]}}},
    ],
)
async def test_a_body_of_the_wrong_shape_is_refused_and_changes_nothing(api: Api, deployments: str, body: dict) -> None:
    sent = {**deployment("two"), **body}
    if isinstance(body.get("metadata"), dict):
        sent["metadata"]["name"] = "two"
    (await api.post(deployments, sent)).refused(400, "BadRequest")
    (await api.post(deployments, deployment())).object()
    assert (await api.patch(f"{deployments}/one", body)).status in {400, 422}


@pytest.mark.parametrize(
    "body",
    [{"metadata": {"labels": ["a"]}}, {"metadata": {"labels": {"a": 1}}}, {"metadata": {"annotations": {"a": {}}}}],
)
async def test_metadata_of_the_wrong_shape_is_refused_for_custom_kinds(
    api: Api, widgets: str, group: str, body: dict
) -> None:
    sent = widget(group, "two")
    sent["metadata"] |= body["metadata"]
    (await api.post(widgets, sent)).refused(400, "BadRequest")
    (await api.post(widgets, widget(group))).object()
    assert (await api.patch(f"{widgets}/one", body)).status in {400, 422}


async def test_a_patch_cannot_take_the_identity_away(api: Api, pods: str) -> None:
    (await api.post(pods, pod(node="no-such-node"))).object()
    assert (await api.patch(f"{pods}/one", {"metadata": None})).status in {400, 409, 422}
    await api.delete(f"{pods}/one", gracePeriodSeconds="0")
