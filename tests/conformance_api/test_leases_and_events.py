from tests.conformance_api.client import Api, names
from tests.conformance_api.objects import config_map, lease, widget


async def test_a_lease_is_taken_by_the_first_and_renewed_by_its_version(api: Api, space: str) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
    first = (await api.post(leases, lease(holder="a"))).object()
    (await api.post(leases, lease(holder="b"))).refused(409, "AlreadyExists")
    first["spec"]["renewTime"] = "2026-01-01T00:00:05.000001Z"
    renewed = (await api.put(f"{leases}/one", first)).object()
    assert renewed["spec"]["renewTime"] == "2026-01-01T00:00:05.000001Z"
    assert renewed["spec"]["acquireTime"] == "2026-01-01T00:00:00.000000Z"
    first["spec"]["holderIdentity"] = "b"
    (await api.put(f"{leases}/one", first)).refused(409, "Conflict")
    assert (await api.get(f"{leases}/one")).object()["spec"]["holderIdentity"] == "a"


async def test_a_lease_is_not_replaced_unread(api: Api, space: str) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
    (await api.post(leases, lease())).object()
    (await api.put(f"{leases}/one", lease(holder="b"))).refused(422, "Invalid")


async def test_a_lease_is_patched_from_the_version_read(api: Api, space: str) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
    old = (await api.post(leases, lease())).object()["metadata"]["resourceVersion"]
    released = {"metadata": {"resourceVersion": old}, "spec": {"holderIdentity": ""}}
    after = (await api.patch(f"{leases}/one", released)).object()
    assert after["spec"].get("holderIdentity", "") == ""
    (await api.patch(f"{leases}/one", released)).refused(409, "Conflict")


async def test_a_lease_lasts_longer_than_nothing(api: Api, space: str) -> None:
    sent = lease()
    sent["spec"]["leaseDurationSeconds"] = 0
    body = (await api.post(f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases", sent)).refused(422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "spec.leaseDurationSeconds"


def event(about: dict, name: str = "", **fields: object) -> dict:
    meta = {"name": name} if name else {"generateName": "told-"}
    reference = {"apiVersion": about["apiVersion"], "kind": about["kind"], **about["metadata"]}
    wanted = ("apiVersion", "kind", "name", "namespace", "uid", "resourceVersion")
    return {
        "metadata": meta,
        "involvedObject": {key: reference[key] for key in wanted if key in reference},
        "type": "Normal",
        "reason": "Scaled",
        "message": "3 to 5",
        "source": {"component": "conformance"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
        **fields,
    }


async def test_events_are_found_by_what_they_are_about(
    api: Api, config_maps: str, space: str, widgets: str, group: str
) -> None:
    events = f"/api/v1/namespaces/{space}/events"
    about = (await api.post(config_maps, config_map())).object()
    other = (await api.post(widgets, widget(group))).object()
    told = (await api.post(events, event(about))).object()
    (await api.post(events, event(other))).object()
    assert told["metadata"]["name"].startswith("told-")
    for selector in (
        f"involvedObject.uid={about['metadata']['uid']}",
        "involvedObject.kind=ConfigMap,involvedObject.name=one",
        "involvedObject.kind=ConfigMap,reason=Scaled,type=Normal",
    ):
        assert names(await api.get(events, fieldSelector=selector)) == [told["metadata"]["name"]]
    assert names(await api.get(events, fieldSelector="source=conformance,involvedObject.kind=Gadget")) == []


async def test_an_event_is_counted_up(api: Api, config_maps: str, space: str) -> None:
    events = f"/api/v1/namespaces/{space}/events"
    about = (await api.post(config_maps, config_map())).object()
    (await api.post(events, event(about, "told"))).object()
    again = {"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z", "message": "5 to 7"}
    after = (await api.patch(f"{events}/told", again)).object()
    assert (after["count"], after["message"], after["reason"]) == (2, "5 to 7", "Scaled")


async def test_an_event_lives_in_the_namespace_of_its_object(api: Api, space: str) -> None:
    events = f"/api/v1/namespaces/{space}/events"
    elsewhere = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": "default"}}
    body = (await api.post(events, event(elsewhere))).refused(422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "involvedObject.namespace"
    nowhere = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"}}
    (await api.post(events, event(nowhere))).refused(422, "Invalid")
    told = (await api.post("/api/v1/namespaces/default/events", event(nowhere))).object()
    await api.delete(f"/api/v1/namespaces/default/events/{told['metadata']['name']}")


async def test_an_event_of_the_new_form_says_who_reports(api: Api, config_maps: str, space: str) -> None:
    events = f"/api/v1/namespaces/{space}/events"
    about = (await api.post(config_maps, config_map())).object()
    new = event(about, eventTime="2026-01-01T00:00:00.000000Z")
    body = (await api.post(events, new)).refused(422, "Invalid")
    assert "reportingComponent" in str(body["details"]["causes"])
    full = {**new, "reportingComponent": "gpuscale.dev/test", "reportingInstance": "one", "action": "Scale"}
    (await api.post(events, full)).object()
