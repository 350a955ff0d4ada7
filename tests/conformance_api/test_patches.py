import pytest

from tests.conformance_api.client import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api
from tests.conformance_api.objects import config_map, deployment, widget


async def test_a_merge_patch_changes_only_what_it_names_and_null_removes(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, config_map(data={"a": "1", "b": "2"}))).object()
    after = (await api.patch(f"{config_maps}/one", {"data": {"a": None, "c": "3"}})).object()
    assert after["data"] == {"b": "2", "c": "3"}


async def test_a_merge_patch_replaces_lists_whole(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group, order=["a", "b"]))).object()
    after = (await api.patch(f"{widgets}/one", {"spec": {"order": ["c"]}})).object()
    assert after["spec"]["order"] == ["c"]


async def test_a_json_patch_tests_and_changes(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, config_map(data={"a": "1"}))).object()
    operations = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "replace", "path": "/data/a", "value": "2"},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/x~1y", "value": "3"},
    ]
    after = (await api.patch(f"{config_maps}/one", operations, JSON_PATCH)).object()
    assert after["data"] == {"a": "2"}
    assert after["metadata"]["annotations"] == {"x/y": "3"}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/data/a", "value": "other"},
        {"op": "remove", "path": "/data/none"},
        {"op": "replace", "path": "/none/deep", "value": 1},
    ],
)
async def test_a_json_patch_that_does_not_fit_is_unprocessable(api: Api, config_maps: str, operation: dict) -> None:
    created = (await api.post(config_maps, config_map(data={"a": "1"}))).object()
    answer = await api.patch(f"{config_maps}/one", [operation], JSON_PATCH)
    answer.refused(422, "Invalid")
    assert (await api.get(f"{config_maps}/one")).object() == created


async def test_what_is_no_patch_is_a_bad_request(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, config_map())).object()
    for content, body in ((JSON_PATCH, {"a": 1}), (JSON_PATCH, b"["), (MERGE, b"{"), (STRATEGIC, b"[1]")):
        (await api.patch(f"{config_maps}/one", body, content)).refused(400, "BadRequest")


async def test_a_patch_with_an_old_version_is_a_conflict(api: Api, config_maps: str, widgets: str, group: str) -> None:
    for path, sent in ((config_maps, config_map()), (widgets, widget(group))):
        old = (await api.post(path, sent)).object()["metadata"]["resourceVersion"]
        new = (await api.patch(f"{path}/one", {"metadata": {"labels": {"a": "b"}}})).object()["metadata"]
        labels = {"labels": {"a": "c"}}
        (await api.patch(f"{path}/one", {"metadata": {"resourceVersion": old, **labels}})).refused(409, "Conflict")
        fresh = {"metadata": {"resourceVersion": new["resourceVersion"], **labels}}
        assert (await api.patch(f"{path}/one", fresh)).object()["metadata"]["labels"] == {"a": "c"}


async def test_a_strategic_patch_merges_named_things_by_name(api: Api, deployments: str) -> None:
    sent = deployment()
    sent["spec"]["paused"] = True
    container = sent["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    (await api.post(deployments, sent)).object()
    env = [{"name": "A", "value": "9"}, {"name": "C", "value": "3"}, {"name": "B", "$patch": "delete"}]
    containers = [{"name": "main", "env": env}, {"name": "side", "image": "registry.invalid/side:1"}]
    body = {"spec": {"template": {"spec": {"containers": containers}}}}
    after = (await api.patch(f"{deployments}/one", body, STRATEGIC)).object()
    found = {c["name"]: c for c in after["spec"]["template"]["spec"]["containers"]}
    assert set(found) == {"main", "side"}
    assert found["main"]["image"] == container["image"]
    assert {e["name"]: e["value"] for e in found["main"]["env"]} == {"A": "9", "C": "3"}


async def test_a_strategic_patch_removes_and_replaces_on_demand(api: Api, deployments: str) -> None:
    sent = deployment()
    sent["metadata"]["annotations"] = {"a": "1", "b": "2"}
    (await api.post(deployments, sent)).object()
    body = {"metadata": {"annotations": {"$patch": "replace", "c": "3"}}, "spec": {"strategy": None}}
    after = (await api.patch(f"{deployments}/one", body, STRATEGIC)).object()
    assert after["metadata"]["annotations"].get("c") == "3"
    assert "a" not in after["metadata"]["annotations"]
    assert after["spec"]["strategy"]["type"] == "RollingUpdate"


async def test_a_strategic_patch_is_not_for_custom_resources(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group))).object()
    (await api.patch(f"{widgets}/one", {"spec": {"size": 4}}, STRATEGIC)).refused(415, "UnsupportedMediaType")


async def test_an_unknown_patch_format_is_refused(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, config_map())).object()
    (await api.patch(f"{config_maps}/one", {}, "application/json")).refused(415, "UnsupportedMediaType")


async def test_the_identity_of_an_object_cannot_be_patched(api: Api, config_maps: str) -> None:
    (await api.post(config_maps, config_map())).object()
    assert (await api.patch(f"{config_maps}/one", {"metadata": {"name": "two"}})).status in {400, 422}
    (await api.get(f"{config_maps}/two")).refused(404, "NotFound")


# server-side apply


def applied(group: str, **spec: object) -> dict:
    body = widget(group)
    return {**body, "spec": spec}


async def test_an_apply_creates_and_says_who_owns_what(api: Api, widgets: str, group: str) -> None:
    answer = await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")
    assert answer.status == 201
    entry = answer.object()["metadata"]["managedFields"][0]
    assert (entry["manager"], entry["operation"], entry["fieldsType"]) == ("a", "Apply", "FieldsV1")
    assert entry["fieldsV1"]["f:spec"]["f:size"] == {}


async def test_an_apply_needs_a_manager(api: Api, widgets: str, group: str) -> None:
    answer = await api.patch(f"{widgets}/one", applied(group, size=3), APPLY)
    assert answer.status in {400, 422}


async def test_an_apply_removes_what_its_manager_no_longer_wants(api: Api, widgets: str, group: str) -> None:
    (await api.patch(f"{widgets}/one", applied(group, size=3, word="abc"), APPLY, fieldManager="a")).object()
    after = (await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")).object()
    assert "word" not in after["spec"]


async def test_an_apply_over_anothers_value_is_a_conflict_until_forced(api: Api, widgets: str, group: str) -> None:
    (await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")).object()
    body = (await api.patch(f"{widgets}/one", applied(group, size=4), APPLY, fieldManager="b")).refused(409, "Conflict")
    cause = body["details"]["causes"][0]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".spec.size")
    assert 'conflict with "a"' in cause["message"]
    forced = await api.patch(f"{widgets}/one", applied(group, size=4), APPLY, fieldManager="b", force="true")
    assert forced.object()["spec"]["size"] == 4
    (await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")).refused(409, "Conflict")


async def test_two_managers_may_own_one_value(api: Api, widgets: str, group: str) -> None:
    (await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")).object()
    after = (await api.patch(f"{widgets}/one", applied(group, size=3, word="abc"), APPLY, fieldManager="b")).object()
    owners = {entry["manager"] for entry in after["metadata"]["managedFields"]}
    assert owners == {"a", "b"}


async def test_a_plain_write_takes_the_field_from_its_applier(api: Api, widgets: str, group: str) -> None:
    (await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")).object()
    (await api.patch(f"{widgets}/one", {"spec": {"size": 5}}, fieldManager="user")).object()
    body = (await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")).refused(409, "Conflict")
    assert 'conflict with "user"' in body["details"]["causes"][0]["message"]


async def test_an_apply_merges_keyed_lists_by_key(api: Api, widgets: str, group: str) -> None:
    first = applied(group, size=3, parts=[{"id": "a", "weight": 2}])
    second = applied(group, size=3, parts=[{"id": "b"}])
    (await api.patch(f"{widgets}/one", first, APPLY, fieldManager="a")).object()
    after = (await api.patch(f"{widgets}/one", second, APPLY, fieldManager="b")).object()
    assert [(part["id"], part["weight"]) for part in after["spec"]["parts"]] == [("a", 2), ("b", 1)]
    left = (await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")).object()
    assert [part["id"] for part in left["spec"]["parts"]] == ["b"]


async def test_the_same_apply_again_changes_nothing(api: Api, widgets: str, group: str) -> None:
    first = (await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")).object()
    again = (await api.patch(f"{widgets}/one", applied(group, size=3), APPLY, fieldManager="a")).object()
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_status_is_applied_apart(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group))).object()
    status = {**widget(group), "status": {"phase": "Fine"}}
    del status["spec"]
    after = (await api.patch(f"{widgets}/one/status", status, APPLY, fieldManager="op")).object()
    assert after["status"] == {"phase": "Fine"}
    assert after["spec"]["size"] == 3
    entry = next(e for e in after["metadata"]["managedFields"] if e["manager"] == "op")
    assert entry["subresource"] == "status"


async def test_an_apply_is_written_in_yaml_too(api: Api, widgets: str, group: str) -> None:
    text = f"apiVersion: {group}/v1\nkind: Widget\nmetadata:\n  name: one\nspec:\n  size: 6\n"
    answer = await api.patch(f"{widgets}/one", text.encode(), APPLY, fieldManager="a")
    assert answer.object()["spec"]["size"] == 6
