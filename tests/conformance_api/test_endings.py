"""Finalizers, owners and namespaces: how objects end."""

import pytest

from tests.conformance_api.client import Api
from tests.conformance_api.objects import config_map, deployment, pod, widget

HOLD = "conformance.gpuscale.dev/hold"


async def test_a_finalizer_holds_a_deleted_object(api: Api, config_maps: str) -> None:
    held = config_map()
    held["metadata"]["finalizers"] = [HOLD]
    (await api.post(config_maps, held)).object()
    marked = (await api.delete(f"{config_maps}/one")).object()["metadata"]
    assert marked["deletionTimestamp"]
    assert marked["finalizers"] == [HOLD]
    again = (await api.delete(f"{config_maps}/one")).object()["metadata"]
    assert again["deletionTimestamp"] == marked["deletionTimestamp"]
    (await api.patch(f"{config_maps}/one", {"metadata": {"finalizers": None}})).object()
    (await api.get(f"{config_maps}/one")).refused(404, "NotFound")


async def test_a_mark_cannot_be_taken_back(api: Api, config_maps: str) -> None:
    held = config_map()
    held["metadata"]["finalizers"] = [HOLD]
    (await api.post(config_maps, held)).object()
    marked = (await api.delete(f"{config_maps}/one")).object()["metadata"]
    after = (await api.patch(f"{config_maps}/one", {"metadata": {"deletionTimestamp": None}})).object()["metadata"]
    assert after["deletionTimestamp"] == marked["deletionTimestamp"]
    await api.patch(f"{config_maps}/one", {"metadata": {"finalizers": None}})


async def test_no_finalizer_comes_after_the_deletion_has_begun(api: Api, config_maps: str) -> None:
    held = config_map()
    held["metadata"]["finalizers"] = [HOLD]
    (await api.post(config_maps, held)).object()
    (await api.delete(f"{config_maps}/one")).object()
    more = {"metadata": {"finalizers": [HOLD, "conformance.gpuscale.dev/more"]}}
    body = (await api.patch(f"{config_maps}/one", more)).refused(422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "metadata.finalizers"
    await api.patch(f"{config_maps}/one", {"metadata": {"finalizers": None}})


async def test_a_deletion_counts_as_a_change_of_what_is_wanted(api: Api, widgets: str, group: str) -> None:
    held = widget(group)
    held["metadata"]["finalizers"] = [HOLD]
    created = (await api.post(widgets, held)).object()["metadata"]
    marked = (await api.delete(f"{widgets}/one")).object()["metadata"]
    assert marked["generation"] == created["generation"] + 1
    (await api.patch(f"{widgets}/one", {"metadata": {"finalizers": []}})).object()
    (await api.get(f"{widgets}/one")).refused(404, "NotFound")


async def test_a_watch_sees_the_mark_and_the_end(api: Api, config_maps: str) -> None:
    held = config_map()
    held["metadata"]["finalizers"] = [HOLD]
    created = (await api.post(config_maps, held)).object()["metadata"]
    query = {"resourceVersion": created["resourceVersion"], "fieldSelector": "metadata.name=one"}
    async with api.watch(config_maps, **query) as stream:
        (await api.delete(f"{config_maps}/one")).object()
        type_, obj = await stream.next()
        assert type_ == "MODIFIED"
        assert obj["metadata"]["deletionTimestamp"]
        (await api.patch(f"{config_maps}/one", {"metadata": {"finalizers": None}})).object()
        assert (await stream.next())[0] == "DELETED"


def owned(name: str, owner: dict, *others: dict) -> dict:
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": one["metadata"]["name"],
            "uid": one["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for one in (owner, *others)
    ]
    sent = config_map(name)
    sent["metadata"]["ownerReferences"] = references
    return sent


@pytest.mark.usefixtures("with_controllers")
async def test_dependents_follow_their_owner(api: Api, config_maps: str) -> None:
    owner = (await api.post(config_maps, config_map("owner"))).object()
    child = (await api.post(config_maps, owned("child", owner))).object()
    (await api.post(config_maps, owned("grandchild", child))).object()
    (await api.delete(f"{config_maps}/owner")).object()
    for name in ("child", "grandchild"):
        await api.until(f"{config_maps}/{name}", lambda answer: answer.status == 404, f"{name} gone")


@pytest.mark.usefixtures("with_controllers")
async def test_a_dependent_stays_while_another_owner_does(api: Api, config_maps: str) -> None:
    first = (await api.post(config_maps, config_map("first"))).object()
    second = (await api.post(config_maps, config_map("second"))).object()
    (await api.post(config_maps, owned("child", first, second))).object()
    (await api.delete(f"{config_maps}/first")).object()
    body = await api.until(
        f"{config_maps}/child", lambda a: len(a.object()["metadata"]["ownerReferences"]) == 1, "one owner left"
    )
    assert body.object()["metadata"]["ownerReferences"][0]["name"] == "second"
    (await api.delete(f"{config_maps}/second")).object()
    await api.until(f"{config_maps}/child", lambda answer: answer.status == 404, "the child gone")


@pytest.mark.usefixtures("with_controllers")
async def test_orphans_stay(api: Api, config_maps: str) -> None:
    owner = (await api.post(config_maps, config_map("owner"))).object()
    (await api.post(config_maps, owned("child", owner))).object()
    (await api.delete(f"{config_maps}/owner", {"propagationPolicy": "Orphan"})).object()
    await api.until(f"{config_maps}/owner", lambda answer: answer.status == 404, "the owner gone")
    body = (await api.get(f"{config_maps}/child")).object()
    assert not body["metadata"].get("ownerReferences")


@pytest.mark.usefixtures("with_controllers")
async def test_in_the_foreground_the_owner_goes_last(api: Api, config_maps: str) -> None:
    owner = (await api.post(config_maps, config_map("owner"))).object()
    held = owned("child", owner)
    held["metadata"]["finalizers"] = [HOLD]
    (await api.post(config_maps, held)).object()
    (await api.delete(f"{config_maps}/owner", {"propagationPolicy": "Foreground"})).object()
    marked = (await api.get(f"{config_maps}/owner")).object()["metadata"]
    assert marked["finalizers"] == ["foregroundDeletion"]
    await api.until(f"{config_maps}/child", lambda a: "deletionTimestamp" in a.object()["metadata"], "the child marked")
    (await api.patch(f"{config_maps}/child", {"metadata": {"finalizers": None}})).object()
    await api.until(f"{config_maps}/owner", lambda answer: answer.status == 404, "the owner gone")


@pytest.mark.usefixtures("with_controllers")
async def test_a_namespace_ends_with_everything_in_it(api: Api, widgets: str, group: str, space: str) -> None:
    (await api.post(widgets, widget(group))).object()
    (await api.post(f"/api/v1/namespaces/{space}/configmaps", config_map())).object()
    marked = (await api.delete(f"/api/v1/namespaces/{space}")).object()
    assert marked["status"]["phase"] == "Terminating"
    await api.until(f"/api/v1/namespaces/{space}", lambda answer: answer.status == 404, "the namespace gone")
    assert (await api.get(widgets)).object()["items"] == []


async def test_a_namespace_that_ends_takes_nothing_new(api: Api, config_maps: str, space: str) -> None:
    held = config_map()
    held["metadata"]["finalizers"] = [HOLD]
    (await api.post(config_maps, held)).object()
    (await api.delete(f"/api/v1/namespaces/{space}")).object()
    body = (await api.post(config_maps, config_map("late"))).refused(403, "Forbidden")
    assert body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    (await api.patch(f"{config_maps}/one", {"metadata": {"finalizers": None}})).object()


async def test_a_deployments_end_reaches_an_owned_object_without_controllers_of_its_own(
    api: Api, deployments: str, pods: str
) -> None:
    sent = deployment()
    sent["spec"]["paused"] = True
    owner = (await api.post(deployments, sent)).object()
    child = pod(node="no-such-node")
    child["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "one", "uid": owner["metadata"]["uid"]}
    ]
    created = (await api.post(pods, child)).object()
    assert created["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
    await api.delete(f"{pods}/one", gracePeriodSeconds="0")
