import pytest

from tests.conformance_api.client import Api, names
from tests.conformance_api.objects import config_map, pod, widget

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


@pytest.fixture
async def tiers(api: Api, config_maps: str) -> str:
    for name, labels in (
        ("a", {"tier": "gold", "size": "3"}),
        ("b", {"tier": "tin", "size": "10"}),
        ("c", {"tier": "gold"}),
        ("d", {}),
    ):
        (await api.post(config_maps, config_map(name, **labels))).object()
    return config_maps


async def test_a_list_has_a_kind_and_a_version(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, widget(group))).object()
    body = (await api.get(widgets)).object()
    assert (body["kind"], body["apiVersion"]) == ("WidgetList", f"{group}/v1")
    assert int(body["metadata"]["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
    assert body["items"] == [created]


async def test_an_empty_list_is_a_list(api: Api, widgets: str, space: str) -> None:
    assert (await api.get(widgets)).object()["items"] == []
    assert (await api.get(f"/api/v1/namespaces/{space}-none/pods")).object()["items"] == []


async def test_a_list_of_all_namespaces_has_those_of_each(api: Api, widgets: str, group: str, space: str) -> None:
    (await api.post(widgets, widget(group))).object()
    items = (await api.get(f"/apis/{group}/v1/widgets")).object()["items"]
    assert (space, "one") in {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items}


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("tier=gold", ["a", "c"]),
        ("tier==gold", ["a", "c"]),
        ("tier!=gold", ["b", "d"]),
        ("tier", ["a", "b", "c"]),
        ("!tier", ["d"]),
        ("tier in (gold, tin)", ["a", "b", "c"]),
        ("tier notin (gold)", ["b", "d"]),
        ("tier=gold,size", ["a"]),
        ("size>3", ["b"]),
        ("size<10", ["a"]),
        ("tier=", []),
    ],
)
async def test_labels_select(api: Api, tiers: str, selector: str, found: list[str]) -> None:
    selected = [name for name in names(await api.get(tiers, labelSelector=selector)) if len(name) == 1]
    assert selected == found


@pytest.mark.parametrize("selector", ["tier=gold=tin", "tier in gold", "=gold", "a b"])
async def test_a_label_selector_that_is_none_is_a_bad_request(api: Api, config_maps: str, selector: str) -> None:
    (await api.get(config_maps, labelSelector=selector)).refused(400, "BadRequest")


async def test_names_select(api: Api, tiers: str, space: str) -> None:
    assert names(await api.get(tiers, fieldSelector="metadata.name=b")) == ["b"]
    others = names(await api.get(tiers, fieldSelector="metadata.name!=b"))
    assert "b" not in others
    assert "a" in others
    both = await api.get("/api/v1/configmaps", fieldSelector=f"metadata.namespace={space},metadata.name=a")
    assert names(both) == ["a"]


async def test_pods_are_selected_by_node_and_phase(api: Api, pods: str) -> None:
    (await api.post(pods, pod("one", node="no-such-node"))).object()
    waiting = pod("two")
    waiting["spec"]["schedulerName"] = "nobody"
    (await api.post(pods, waiting)).object()
    (await api.patch(f"{pods}/one/status", {"status": {"phase": "Running"}})).object()
    assert names(await api.get(pods, fieldSelector="spec.nodeName=no-such-node")) == ["one"]
    assert names(await api.get(pods, fieldSelector="spec.nodeName=")) == ["two"]
    assert names(await api.get(pods, fieldSelector="status.phase=Running,spec.nodeName=no-such-node")) == ["one"]
    assert names(await api.get(pods, fieldSelector="status.phase!=Running")) == ["two"]


async def test_a_field_that_cannot_select_is_a_bad_request(api: Api, config_maps: str, widgets: str) -> None:
    for path in (config_maps, widgets):
        body = (await api.get(path, fieldSelector="data.key=value")).refused(400, "BadRequest")
        assert "data.key" in body["message"]


async def test_pages_make_up_the_whole_list_in_the_order_of_names(api: Api, widgets: str, group: str) -> None:
    for number in range(5):
        (await api.post(widgets, widget(group, f"w{number}"))).object()
    first = (await api.get(widgets, limit="2")).object()
    assert first["metadata"]["remainingItemCount"] == 3
    second = (await api.get(widgets, **{"limit": "2", "continue": first["metadata"]["continue"]})).object()
    third = (await api.get(widgets, **{"limit": "2", "continue": second["metadata"]["continue"]})).object()
    assert not third["metadata"].get("continue")
    found = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert found == ["w0", "w1", "w2", "w3", "w4"]


async def test_pages_show_the_list_as_it_was_at_the_first(api: Api, widgets: str, group: str) -> None:
    for number in range(4):
        (await api.post(widgets, widget(group, f"w{number}"))).object()
    first = (await api.get(widgets, limit="2")).object()
    (await api.delete(f"{widgets}/w2")).object()
    (await api.post(widgets, widget(group, "w9"))).object()
    rest = (await api.get(widgets, **{"continue": first["metadata"]["continue"]})).object()
    assert [item["metadata"]["name"] for item in rest["items"]] == ["w2", "w3"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert names(await api.get(widgets)) == ["w0", "w1", "w3", "w9"]


async def test_a_page_of_a_selection_does_not_guess_what_remains(api: Api, tiers: str) -> None:
    body = (await api.get(tiers, limit="1", labelSelector="tier")).object()
    assert body["metadata"]["continue"]
    assert "remainingItemCount" not in body["metadata"]


async def test_a_made_up_page_token_is_a_bad_request(api: Api, config_maps: str) -> None:
    (await api.get(config_maps, **{"continue": "bm9uc2Vuc2U", "limit": "1"})).refused(400, "BadRequest")


async def test_a_list_from_any_version_is_as_new_as_the_newest_write(api: Api, config_maps: str) -> None:
    written = (await api.post(config_maps, config_map())).object()["metadata"]["resourceVersion"]
    listed = await api.get(config_maps, resourceVersion=written, resourceVersionMatch="NotOlderThan")
    assert "one" in names(listed)


async def test_a_match_without_a_version_is_invalid(api: Api, config_maps: str) -> None:
    (await api.get(config_maps, resourceVersionMatch="Exact")).refused(422, "Invalid")


async def test_a_version_from_the_future_times_out(api: Api, config_maps: str) -> None:
    (await api.get(config_maps, resourceVersion="9000000000000", resourceVersionMatch="NotOlderThan")).refused(
        504, "Timeout"
    )


async def test_a_list_of_metadata_has_no_spec(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, widget(group))).object()
    body = (await api.request("GET", widgets, accept=METADATA)).object()
    assert body["kind"] == "PartialObjectMetadataList"
    item = body["items"][0]
    assert item["metadata"]["uid"] == created["metadata"]["uid"]
    assert "spec" not in item


async def test_a_table_has_the_columns_of_the_definition(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group))).object()
    status = {
        "phase": "Fine",
        "conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}],
    }
    (await api.patch(f"{widgets}/one/status", {"status": status})).object()
    body = (await api.request("GET", widgets, accept=f"{TABLE},application/json")).object()
    assert body["kind"] == "Table"
    columns = [(column["name"], column["type"], column["priority"]) for column in body["columnDefinitions"]]
    assert columns == [
        ("Name", "string", 0),
        ("Size", "integer", 0),
        ("Phase", "string", 0),
        ("Ready", "string", 0),
        ("Born", "date", 0),
        ("Color", "string", 1),
    ]
    cells = body["rows"][0]["cells"]
    assert cells[:4] == ["one", 3, "Fine", "True"]
    assert cells[4].endswith("s")
    assert cells[5] == "red"
    assert body["rows"][0]["object"]["metadata"]["name"] == "one"


async def test_pods_and_deployments_are_tabled_as_kubectl_shows_them(api: Api, pods: str, deployments: str) -> None:
    (await api.post(pods, pod(node="no-such-node"))).object()
    for path, heads in (
        (pods, ["Name", "Ready", "Status", "Restarts", "Age"]),
        (deployments, ["Name", "Ready", "Up-to-date", "Available", "Age"]),
        ("/api/v1/nodes", ["Name", "Status", "Roles", "Age", "Version"]),
    ):
        body = (await api.request("GET", path, accept=TABLE)).object()
        shown = [column["name"] for column in body["columnDefinitions"] if column["priority"] == 0]
        assert shown == heads
    cells = (await api.request("GET", f"{pods}/one", accept=TABLE)).object()["rows"][0]["cells"]
    assert cells[:4] == ["one", "0/1", "Pending", "0"]
    (await api.delete(f"{pods}/one", gracePeriodSeconds="0")).object()
