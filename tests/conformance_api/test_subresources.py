"""Generation, ``/status`` and ``/scale``."""

import pytest

from tests.conformance_api.client import JSON_PATCH, MERGE, STRATEGIC, Answer, Api, eventually
from tests.conformance_api.objects import deployment, pod, widget


async def test_the_generation_counts_what_is_asked_for_and_nothing_else(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, widget(group))).object()
    assert created["metadata"]["generation"] == 1
    labelled = (await api.patch(f"{widgets}/one", {"metadata": {"labels": {"a": "b"}}})).object()
    assert labelled["metadata"]["generation"] == 1
    resized = (await api.patch(f"{widgets}/one", {"spec": {"size": 4}})).object()
    assert resized["metadata"]["generation"] == 2
    told = (await api.patch(f"{widgets}/one/status", {"status": {"phase": "Fine"}})).object()
    assert told["metadata"]["generation"] == 2


async def test_a_new_object_has_no_status_yet(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, {**widget(group), "status": {"phase": "Mine"}})).object()
    assert "status" not in created


async def test_a_write_of_the_object_leaves_status_alone(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group))).object()
    told = (await api.patch(f"{widgets}/one/status", {"status": {"phase": "Fine"}})).object()
    after = (await api.patch(f"{widgets}/one", {"spec": {"size": 5}, "status": {"phase": "Mine"}})).object()
    assert (after["spec"]["size"], after["status"]["phase"]) == (5, "Fine")
    (await api.put(f"{widgets}/one", {**after, "status": {"phase": "Mine"}})).object()
    assert (await api.get(f"{widgets}/one")).object()["status"] == told["status"]


async def test_a_write_of_status_leaves_the_object_alone(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, widget(group))).object()
    body = {"metadata": {"labels": {"a": "b"}}, "spec": {"size": 9}, "status": {"phase": "Fine"}}
    after = (await api.patch(f"{widgets}/one/status", body)).object()
    assert after["status"] == {"phase": "Fine"}
    assert after["spec"] == created["spec"]
    assert "labels" not in after["metadata"]
    replaced = (await api.put(f"{widgets}/one/status", {**after, "spec": {"size": 8}, "status": {"size": 1}})).object()
    assert replaced["status"] == {"size": 1}
    assert replaced["spec"] == created["spec"]


async def test_a_status_from_an_old_read_is_a_conflict(api: Api, widgets: str, group: str) -> None:
    old = (await api.post(widgets, widget(group))).object()["metadata"]["resourceVersion"]
    (await api.patch(f"{widgets}/one", {"spec": {"size": 4}})).object()
    body = {"metadata": {"resourceVersion": old}, "status": {"phase": "Late"}}
    (await api.patch(f"{widgets}/one/status", body)).refused(409, "Conflict")


async def test_a_status_is_checked_by_the_schema(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group))).object()
    body = (await api.patch(f"{widgets}/one/status", {"status": {"size": "big"}})).refused(422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "status.size"


async def test_a_deployment_counts_its_spec_and_keeps_its_status_apart(api: Api, deployments: str) -> None:
    created = (await api.post(deployments, deployment())).object()
    assert created["metadata"]["generation"] == 1
    body = {"spec": {"replicas": 7}, "status": {"observedGeneration": 0, "conditions": []}}
    after = (await api.patch(f"{deployments}/one/status", body)).object()
    assert after["spec"]["replicas"] == 0
    again = (await api.patch(f"{deployments}/one", {"spec": {"paused": True}})).object()
    assert again["metadata"]["generation"] == 2


async def test_a_pods_status_is_written_through_its_own_path(api: Api, pods: str) -> None:
    (await api.post(pods, pod(node="no-such-node"))).object()
    body = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    assert (await api.patch(f"{pods}/one", body)).object()["status"]["phase"] == "Pending"
    after = (await api.patch(f"{pods}/one/status", body)).object()
    assert after["status"]["phase"] == "Running"
    more = {"status": {"conditions": [{"type": "ContainersReady", "status": "True"}]}}
    merged = (await api.patch(f"{pods}/one/status", more, STRATEGIC)).object()["status"]["conditions"]
    assert {"Ready", "ContainersReady"} <= {condition["type"] for condition in merged}
    (await api.delete(f"{pods}/one", gracePeriodSeconds="0")).object()


async def test_a_deployments_scale_shows_size_and_selector(api: Api, deployments: str, space: str) -> None:
    created = (await api.post(deployments, deployment())).object()
    scale = (await api.get(f"{deployments}/one/scale")).object()
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"].get("replicas", 0) == 0
    assert scale["status"]["selector"] == "app=one"
    assert scale["metadata"]["name"] == "one"
    assert scale["metadata"]["namespace"] == space
    assert scale["metadata"]["uid"] == created["metadata"]["uid"]


@pytest.mark.parametrize("content", [MERGE, STRATEGIC, JSON_PATCH])
async def test_a_deployment_is_resized_through_its_scale(api: Api, deployments: str, content: str) -> None:
    (await api.post(deployments, {**deployment(), "spec": {**deployment()["spec"], "paused": True}})).object()
    body = (
        [{"op": "replace", "path": "/spec/replicas", "value": 2}]
        if content == JSON_PATCH
        else {"spec": {"replicas": 2}}
    )
    if content == JSON_PATCH:  # 0 is left out of a Scale, and an absent field cannot be replaced
        (await api.patch(f"{deployments}/one/scale", {"spec": {"replicas": 1}})).object()
    assert (await api.patch(f"{deployments}/one/scale", body, content)).object()["spec"]["replicas"] == 2
    assert (await api.get(f"{deployments}/one")).object()["spec"]["replicas"] == 2


async def test_a_custom_resource_is_resized_through_its_scale(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, widget(group))).object()
    (await api.patch(f"{widgets}/one/status", {"status": {"size": 2, "selector": "a=b"}})).object()
    scale = (await api.get(f"{widgets}/one/scale")).object()
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "a=b"}
    scale["spec"]["replicas"] = 4
    assert (await api.put(f"{widgets}/one/scale", scale)).object()["spec"]["replicas"] == 4
    after = (await api.get(f"{widgets}/one")).object()
    assert after["spec"]["size"] == 4
    assert after["metadata"]["generation"] == created["metadata"]["generation"] + 1


async def test_a_resize_from_an_old_read_is_a_conflict(api: Api, widgets: str, group: str, deployments: str) -> None:
    (await api.post(widgets, widget(group))).object()
    (await api.post(deployments, deployment())).object()
    for path in (f"{widgets}/one", f"{deployments}/one"):
        read = (await api.get(f"{path}/scale")).object()
        (await api.patch(path, {"metadata": {"annotations": {"touched": "yes"}}})).object()
        old = {"metadata": {"resourceVersion": read["metadata"]["resourceVersion"]}, "spec": {"replicas": 5}}
        (await api.patch(f"{path}/scale", old)).refused(409, "Conflict")
        (await api.put(f"{path}/scale", {**read, "spec": {"replicas": 5}})).refused(409, "Conflict")

        async def from_a_fresh_read(path: str = path) -> Answer:
            new = (await api.get(f"{path}/scale")).object()["metadata"]["resourceVersion"]
            return await api.patch(f"{path}/scale", {"metadata": {"resourceVersion": new}, "spec": {"replicas": 5}})

        # a cluster's controllers write to the object, too
        done = await eventually(from_a_fresh_read, lambda answer: answer.status == 200, "a resize without a conflict")
        assert done.object()["spec"]["replicas"] == 5


async def test_a_negative_size_is_refused(api: Api, widgets: str, group: str, deployments: str) -> None:
    (await api.post(widgets, widget(group))).object()
    (await api.post(deployments, deployment())).object()
    for path in (f"{widgets}/one", f"{deployments}/one"):
        body = (await api.patch(f"{path}/scale", {"spec": {"replicas": -1}})).refused(422, "Invalid")
        assert body["details"]["causes"], body


async def test_a_size_outside_the_schema_is_refused_by_the_scale_too(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group))).object()
    body = (await api.patch(f"{widgets}/one/scale", {"spec": {"replicas": 101}})).refused(422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "spec.size"
    assert (await api.get(f"{widgets}/one/scale")).object()["spec"]["replicas"] == 3


async def test_a_subresource_that_the_kind_does_not_have_is_not_found(api: Api, space: str) -> None:
    assert (await api.get(f"/api/v1/namespaces/{space}/serviceaccounts/default/scale")).status == 404
