from tests.conformance_api.client import Api
from tests.conformance_api.objects import config_map, widget

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def version_of(api: Api, path: str) -> str:
    version: str = (await api.get(path)).object()["metadata"]["resourceVersion"]
    return version


async def test_a_watch_tells_each_change_in_order(api: Api, widgets: str, group: str) -> None:
    async with api.watch(widgets, resourceVersion=await version_of(api, widgets)) as stream:
        created = (await api.post(widgets, widget(group))).object()
        changed = (await api.patch(f"{widgets}/one", {"spec": {"size": 4}})).object()
        (await api.delete(f"{widgets}/one")).object()
        assert await stream.next() == ("ADDED", created)
        assert await stream.next() == ("MODIFIED", changed)
        type_, last = await stream.next()
        assert type_ == "DELETED"
        assert last["spec"] == changed["spec"]
        assert int(last["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


async def test_a_watch_from_a_version_replays_what_came_after(api: Api, widgets: str, group: str) -> None:
    first = (await api.post(widgets, widget(group))).object()
    (await api.post(widgets, widget(group, "two"))).object()
    (await api.delete(f"{widgets}/one")).object()
    async with api.watch(widgets, resourceVersion=first["metadata"]["resourceVersion"]) as stream:
        seen = [await stream.next(), await stream.next()]
    assert [(type_, obj["metadata"]["name"]) for type_, obj in seen] == [("ADDED", "two"), ("DELETED", "one")]


async def test_a_watch_without_a_version_begins_with_what_is_there(api: Api, widgets: str, group: str) -> None:
    for name in ("a", "b"):
        (await api.post(widgets, widget(group, name))).object()
    for query in ({}, {"resourceVersion": "0"}):
        async with api.watch(widgets, **query) as stream:
            seen = [await stream.next(), await stream.next()]
            assert sorted((type_, obj["metadata"]["name"]) for type_, obj in seen) == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_watch_that_asks_for_initial_events_is_told_where_they_end(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group))).object()
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with api.watch(widgets, **query) as stream:
        type_, obj = await stream.next()
        assert (type_, obj["metadata"]["name"]) == ("ADDED", "one")
        type_, mark = await stream.next()
        assert type_ == "BOOKMARK"
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert int(mark["metadata"]["resourceVersion"]) >= int(obj["metadata"]["resourceVersion"])
        assert mark["kind"] == "Widget"
        later = (await api.post(widgets, widget(group, "two"))).object()
        assert await stream.next() == ("ADDED", later)


async def test_initial_events_need_a_version_match(api: Api, widgets: str) -> None:
    (await api.get(widgets, watch="true", sendInitialEvents="true")).refused(422, "Invalid")


async def test_to_one_who_selects_by_label_objects_come_and_go_as_they_match(api: Api, config_maps: str) -> None:
    version = await version_of(api, config_maps)
    async with api.watch(config_maps, resourceVersion=version, labelSelector="tier=gold") as stream:
        (await api.post(config_maps, config_map("tin", tier="tin"))).object()
        created = (await api.post(config_maps, config_map("one", tier="gold"))).object()
        assert await stream.next() == ("ADDED", created)
        changed = (await api.patch(f"{config_maps}/one", {"metadata": {"labels": {"tier": "tin"}}})).object()
        type_, gone = await stream.next()
        assert type_ == "DELETED"
        assert gone["metadata"]["labels"] == {"tier": "gold"}
        assert gone["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
        (await api.patch(f"{config_maps}/one", {"data": {"key": "unseen"}})).object()
        back = (await api.patch(f"{config_maps}/one", {"metadata": {"labels": {"tier": "gold"}}})).object()
        assert await stream.next() == ("ADDED", back)
        changed = (await api.patch(f"{config_maps}/one", {"data": {"key": "seen"}})).object()
        assert await stream.next() == ("MODIFIED", changed)


async def test_a_watch_of_one_name_shows_only_that(api: Api, config_maps: str) -> None:
    version = await version_of(api, config_maps)
    async with api.watch(config_maps, resourceVersion=version, fieldSelector="metadata.name=two") as stream:
        (await api.post(config_maps, config_map("one"))).object()
        second = (await api.post(config_maps, config_map("two"))).object()
        assert await stream.next() == ("ADDED", second)


async def test_a_watch_of_all_namespaces_shows_each(api: Api, widgets: str, group: str, space: str) -> None:
    path = f"/apis/{group}/v1/widgets"
    async with api.watch(path, resourceVersion=await version_of(api, path)) as stream:
        created = (await api.post(widgets, widget(group))).object()
        while (event := await stream.next())[1]["metadata"]["namespace"] != space:
            pass
        assert event == ("ADDED", created)


async def test_a_watch_ends_at_its_time_limit(api: Api, widgets: str) -> None:
    async with api.watch(widgets, resourceVersion=await version_of(api, widgets), timeoutSeconds="1") as stream:
        assert await stream.ended()


async def test_a_watch_from_a_version_that_is_no_longer_kept_is_told_so(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group))).object()
    async with api.watch(widgets, resourceVersion="1") as stream:
        type_, status = await stream.next()
        assert type_ == "ERROR"
        assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")


async def test_a_status_write_is_seen_by_watches(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, widget(group))).object()
    async with api.watch(widgets, resourceVersion=created["metadata"]["resourceVersion"]) as stream:
        changed = (await api.patch(f"{widgets}/one/status", {"status": {"phase": "Fine"}})).object()
        assert await stream.next() == ("MODIFIED", changed)


async def test_a_write_that_changes_nothing_is_not_seen(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, widget(group))).object()
    async with api.watch(widgets, resourceVersion=created["metadata"]["resourceVersion"]) as stream:
        (await api.patch(f"{widgets}/one", {"spec": {"size": 3}})).object()
        changed = (await api.patch(f"{widgets}/one", {"spec": {"size": 4}})).object()
        assert await stream.next() == ("MODIFIED", changed)


async def test_the_versions_of_watch_and_list_are_one_line(api: Api, widgets: str, group: str) -> None:
    """A list and a watch from its version miss nothing and see nothing twice, while writes go on."""
    for number in range(3):
        (await api.post(widgets, widget(group, f"w{number}"))).object()
    listed = (await api.get(widgets)).object()
    known = {item["metadata"]["name"] for item in listed["items"]}
    for number in range(3, 6):
        (await api.post(widgets, widget(group, f"w{number}"))).object()
    async with api.watch(widgets, resourceVersion=listed["metadata"]["resourceVersion"]) as stream:
        seen = [(await stream.next())[1]["metadata"]["name"] for _ in range(3)]
    assert known == {"w0", "w1", "w2"}
    assert seen == ["w3", "w4", "w5"]
