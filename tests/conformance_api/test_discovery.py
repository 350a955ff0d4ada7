from tests.conformance_api.client import Api


def by_name(body: dict) -> dict[str, dict]:
    return {resource["name"]: resource for resource in body["resources"]}


async def test_the_server_tells_its_version(api: Api) -> None:
    body = (await api.get("/version")).object()
    assert body["major"] == "1"
    assert body["gitVersion"].startswith("v1.")


async def test_readiness_is_a_plain_ok(api: Api) -> None:
    answer = await api.get("/readyz")
    assert (answer.status, answer.body) == (200, "ok")


async def test_the_core_group_is_version_v1(api: Api) -> None:
    body = (await api.get("/api")).object()
    assert body["kind"] == "APIVersions"
    assert "v1" in body["versions"]


async def test_core_kinds_are_listed_with_scope_short_names_and_subresources(api: Api) -> None:
    body = (await api.get("/api/v1")).object()
    assert (body["kind"], body["groupVersion"]) == ("APIResourceList", "v1")
    found = by_name(body)
    assert found["pods"]["namespaced"] is True
    assert found["nodes"]["namespaced"] is False
    assert "po" in found["pods"]["shortNames"]
    assert found["pods"]["singularName"] == "pod"
    assert {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} <= set(
        found["pods"]["verbs"]
    )
    eviction = found["pods/eviction"]
    assert (eviction["kind"], eviction["group"], eviction["version"]) == ("Eviction", "policy", "v1")


async def test_the_groups_that_the_product_uses_are_listed(api: Api) -> None:
    body = (await api.get("/apis")).object()
    found = {group["name"]: group["preferredVersion"]["groupVersion"] for group in body["groups"]}
    assert found["apps"] == "apps/v1"
    assert found["policy"] == "policy/v1"
    assert found["coordination.k8s.io"] == "coordination.k8s.io/v1"
    assert found["apiextensions.k8s.io"] == "apiextensions.k8s.io/v1"
    assert found["autoscaling"] == "autoscaling/v2"


async def test_workloads_have_a_scale_of_the_autoscaling_group(api: Api) -> None:
    found = by_name((await api.get("/apis/apps/v1")).object())
    for plural in ("deployments", "replicasets", "statefulsets"):
        scale = found[f"{plural}/scale"]
        assert (scale["kind"], scale["group"], scale["version"]) == ("Scale", "autoscaling", "v1")
        assert {"get", "patch", "update"} <= set(scale["verbs"])


async def test_a_custom_kind_is_discovered_with_its_names(api: Api, group: str) -> None:
    body = (await api.get(f"/apis/{group}/v1")).object()
    found = by_name(body)
    widgets = found["widgets"]
    assert widgets["kind"] == "Widget"
    assert widgets["singularName"] == "widget"
    assert widgets["namespaced"] is True
    assert widgets["shortNames"] == ["xwid"]
    assert widgets["categories"] == ["toys"]
    assert {"widgets/status", "widgets/scale"} <= set(found)
    assert found["widgets/scale"]["kind"] == "Scale"


async def test_a_custom_group_is_among_the_groups(api: Api, group: str) -> None:
    body = (await api.get("/apis")).object()
    found = next(entry for entry in body["groups"] if entry["name"] == group)
    assert [version["groupVersion"] for version in found["versions"]] == [f"{group}/v1"]
    one = (await api.get(f"/apis/{group}")).object()
    assert (one["kind"], one["name"]) == ("APIGroup", group)


async def test_open_api_v3_says_that_the_server_validates_fields(api: Api, group: str) -> None:
    def listed(answer: object) -> bool:
        return f"apis/{group}/v1" in answer.body["paths"]

    index = await api.until("/openapi/v3", listed, "the document of the custom group")
    path = index.body["paths"][f"apis/{group}/v1"]["serverRelativeURL"]
    document = (await api.get(path)).object()
    patch = document["paths"][f"/apis/{group}/v1/namespaces/{{namespace}}/widgets/{{name}}"]["patch"]
    assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}
    assert patch["x-kubernetes-group-version-kind"] == {"group": group, "kind": "Widget", "version": "v1"}


async def test_an_unknown_path_is_not_found(api: Api, space: str) -> None:
    for path in (
        "/apis/none.gpuscale.dev/v1",
        f"/apis/none.gpuscale.dev/v1/namespaces/{space}/things",
        "/api/v1/things",
    ):
        assert (await api.get(path)).status == 404, path
