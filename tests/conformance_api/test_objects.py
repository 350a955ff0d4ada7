import re

from tests.conformance_api.client import Api, names
from tests.conformance_api.objects import config_map, lease, pod, widget


async def test_the_server_fills_in_what_only_it_may_say(api: Api, config_maps: str, space: str) -> None:
    sent = config_map()
    sent["metadata"] |= {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}
    answer = await api.post(config_maps, sent)
    assert answer.status == 201
    meta = answer.object()["metadata"]
    assert meta["namespace"] == space
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", meta["uid"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", meta["creationTimestamp"])
    assert meta["creationTimestamp"] > "2002"
    assert int(meta["resourceVersion"]) > 0
    assert answer.body["kind"] == "ConfigMap"
    assert answer.body["apiVersion"] == "v1"


async def test_a_read_gives_what_was_stored(api: Api, config_maps: str) -> None:
    created = (await api.post(config_maps, config_map())).object()
    assert (await api.get(f"{config_maps}/one")).object() == created


async def test_a_taken_name_is_a_conflict(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, config_map())).object()
    body = (await api.post(config_maps, config_map())).refused(409, "AlreadyExists")
    assert body["message"] == 'configmaps "one" already exists'
    assert body["details"] == {"name": "one", "kind": "configmaps"}


async def test_what_is_not_there_is_named(api: Api, widgets: str, group: str) -> None:
    body = (await api.get(f"{widgets}/none")).refused(404, "NotFound")
    assert body["message"] == f'widgets.{group} "none" not found'
    assert body["details"] == {"name": "none", "group": group, "kind": "widgets"}
    for answer in (
        await api.delete(f"{widgets}/none"),
        await api.patch(f"{widgets}/none", {}),
        await api.get(f"{widgets}/none/scale"),
    ):
        answer.refused(404, "NotFound")


async def test_a_namespace_that_is_not_there_takes_nothing(api: Api, space: str) -> None:
    body = (await api.post(f"/api/v1/namespaces/{space}-none/configmaps", config_map())).refused(404, "NotFound")
    assert body["message"] == f'namespaces "{space}-none" not found'


async def test_a_generated_name_starts_with_the_prefix(api: Api, config_maps: str) -> None:
    sent = {"metadata": {"generateName": "made-"}}
    first = (await api.post(config_maps, sent)).object()["metadata"]
    second = (await api.post(config_maps, sent)).object()["metadata"]
    assert first["name"].startswith("made-")
    assert len(first["name"]) == len("made-") + 5
    assert first["generateName"] == "made-"
    assert first["name"] != second["name"]


async def test_a_bad_name_is_invalid_with_its_field(api: Api, config_maps: str) -> None:
    body = (await api.post(config_maps, config_map("Not_A_Name"))).refused(422, "Invalid")
    assert [cause["field"] for cause in body["details"]["causes"]] == ["metadata.name"]


async def test_a_nameless_object_is_invalid(api: Api, config_maps: str) -> None:
    body = (await api.post(config_maps, {"metadata": {}})).refused(422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "metadata.name"
    assert body["details"]["causes"][0]["reason"] == "FieldValueRequired"


async def test_another_kind_or_namespace_than_the_path_says_is_refused(api: Api, config_maps: str) -> None:
    other_kind = {**config_map(), "apiVersion": "v1", "kind": "Secret"}
    (await api.post(config_maps, other_kind)).refused(400, "BadRequest")
    elsewhere = config_map()
    elsewhere["metadata"]["namespace"] = "default"
    (await api.post(config_maps, elsewhere)).refused(400, "BadRequest")


async def test_a_body_that_is_no_object_is_a_bad_request(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, b"{")).refused(400, "BadRequest")


async def test_a_replace_from_an_old_read_is_a_conflict(api: Api, config_maps: str) -> None:
    read = (await api.post(config_maps, config_map())).object()
    (await api.patch(f"{config_maps}/one", {"data": {"key": "newer"}})).object()
    body = (await api.put(f"{config_maps}/one", {**read, "data": {"key": "mine"}})).refused(409, "Conflict")
    assert body["message"] == (
        'Operation cannot be fulfilled on configmaps "one": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert (await api.get(f"{config_maps}/one")).object()["data"] == {"key": "newer"}


async def test_a_replace_from_the_newest_read_is_taken(api: Api, config_maps: str) -> None:
    read = (await api.post(config_maps, config_map())).object()
    replaced = (await api.put(f"{config_maps}/one", {**read, "data": {"other": "1"}})).object()
    assert replaced["data"] == {"other": "1"}
    assert int(replaced["metadata"]["resourceVersion"]) > int(read["metadata"]["resourceVersion"])
    assert replaced["metadata"]["uid"] == read["metadata"]["uid"]
    assert replaced["metadata"]["creationTimestamp"] == read["metadata"]["creationTimestamp"]


async def test_a_config_map_may_be_replaced_without_a_version_and_a_custom_resource_may_not(
    api: Api, config_maps: str, widgets: str, group: str
) -> None:
    (await api.post(config_maps, config_map())).object()
    assert (await api.put(f"{config_maps}/one", config_map(data={"a": "b"}))).object()["data"] == {"a": "b"}
    (await api.post(widgets, widget(group))).object()
    body = (await api.put(f"{widgets}/one", widget(group, size=4))).refused(422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "metadata.resourceVersion"


async def test_a_replace_creates_only_where_the_kind_allows_it(api: Api, space: str, config_maps: str) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
    assert (await api.put(f"{leases}/one", lease())).status == 201
    (await api.put(f"{config_maps}/one", config_map())).refused(404, "NotFound")


async def test_a_name_other_than_the_path_says_is_refused(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, config_map())).object()
    (await api.put(f"{config_maps}/one", config_map("two"))).refused(400, "BadRequest")


async def test_a_uid_of_another_object_is_a_conflict(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, config_map())).object()
    other = config_map()
    other["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    (await api.put(f"{config_maps}/one", other)).refused(409, "Conflict")


async def test_a_write_that_changes_nothing_is_no_write(api: Api, config_maps: str, widgets: str, group: str) -> None:
    for path, sent in ((config_maps, config_map()), (widgets, widget(group))):
        created = (await api.post(path, sent)).object()
        same = (await api.put(f"{path}/one", created)).object()
        assert same["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
        patched = (await api.patch(f"{path}/one", {"metadata": {"labels": {}}})).object()
        assert patched["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_what_the_server_owns_cannot_be_changed(api: Api, config_maps: str) -> None:
    created = (await api.post(config_maps, config_map())).object()["metadata"]
    meta = (
        await api.patch(
            f"{config_maps}/one", {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z", "labels": {"a": "b"}}}
        )
    ).object()["metadata"]
    assert meta["creationTimestamp"] == created["creationTimestamp"]
    assert meta["labels"] == {"a": "b"}


async def test_a_delete_says_what_it_deleted(api: Api, config_maps: str) -> None:
    created = (await api.post(config_maps, config_map())).object()
    body = (await api.delete(f"{config_maps}/one")).object()
    assert (body["kind"], body["status"]) == ("Status", "Success")
    assert body["details"] == {"name": "one", "kind": "configmaps", "uid": created["metadata"]["uid"]}
    (await api.get(f"{config_maps}/one")).refused(404, "NotFound")


async def test_a_delete_with_preconditions_takes_only_that_object(api: Api, config_maps: str) -> None:
    created = (await api.post(config_maps, config_map())).object()["metadata"]
    wrong = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    (await api.delete(f"{config_maps}/one", wrong)).refused(409, "Conflict")
    (await api.delete(f"{config_maps}/one", {"preconditions": {"resourceVersion": "1"}})).refused(409, "Conflict")
    right = {"preconditions": {"uid": created["uid"], "resourceVersion": created["resourceVersion"]}}
    (await api.delete(f"{config_maps}/one", right)).object()


async def test_a_dry_run_tells_and_keeps_nothing(api: Api, config_maps: str) -> None:
    told = (await api.post(config_maps, config_map(), dryRun="All")).object()
    assert told["metadata"]["uid"]
    (await api.get(f"{config_maps}/one")).refused(404, "NotFound")
    created = (await api.post(config_maps, config_map())).object()
    told = (await api.patch(f"{config_maps}/one", {"data": {"key": "dry"}}, dryRun="All")).object()
    assert told["data"] == {"key": "dry"}
    (await api.delete(f"{config_maps}/one", dryRun="All")).object()
    assert (await api.get(f"{config_maps}/one")).object() == created


async def test_an_unknown_dry_run_is_invalid(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, config_map(), dryRun="Some")).refused(422, "Invalid")


async def test_a_collection_is_deleted_by_selector(api: Api, config_maps: str) -> None:
    for name, tier in (("one", "gold"), ("two", "gold"), ("three", "tin")):
        (await api.post(config_maps, config_map(name, tier=tier))).object()
    (await api.delete(config_maps, labelSelector="tier=gold")).object()
    assert names(await api.get(config_maps, labelSelector="tier")) == ["three"]


async def test_a_new_pod_waits_with_the_defaults_of_a_pod(api: Api, pods: str) -> None:
    created = (await api.post(pods, pod(node="no-such-node"))).object()
    assert created["status"]["phase"] == "Pending"
    assert created["status"]["qosClass"] == "BestEffort"
    spec = created["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert spec["schedulerName"] == "default-scheduler"


async def test_a_pod_on_a_node_is_deleted_in_its_grace_and_at_once_without(api: Api, pods: str) -> None:
    created = (await api.post(pods, pod(node="no-such-node"))).object()["metadata"]
    marked = (await api.delete(f"{pods}/one")).object()["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 30
    assert marked["deletionTimestamp"] >= created["creationTimestamp"]
    (await api.delete(f"{pods}/one", gracePeriodSeconds="0")).object()
    (await api.get(f"{pods}/one")).refused(404, "NotFound")


async def test_a_pod_is_bound_once(api: Api, pods: str) -> None:
    waiting = pod()
    waiting["spec"]["schedulerName"] = "nobody"
    (await api.post(pods, waiting)).object()
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "one"},
        "target": {"kind": "Node", "name": "a"},
    }
    assert (await api.post(f"{pods}/one/binding", binding)).status == 201
    assert (await api.get(f"{pods}/one")).object()["spec"]["nodeName"] == "a"
    (await api.post(f"{pods}/one/binding", binding)).refused(409, "Conflict")
    (await api.delete(f"{pods}/one", gracePeriodSeconds="0")).object()
