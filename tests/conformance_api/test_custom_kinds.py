"""Schemas: refusing, pruning, defaulting; and definitions themselves."""

import copy
import secrets

import pytest

from tests.conformance_api.client import Api, eventually
from tests.conformance_api.conftest import established
from tests.conformance_api.objects import CRDS, widget, widget_definition


def causes(body: dict) -> list[tuple[str, str]]:
    """The fields and reasons; the path of the scale, which begins with a dot, is checked on its own by the server."""
    found = [(cause["field"], cause["reason"]) for cause in body["details"]["causes"]]
    return [cause for cause in found if not cause[0].startswith(".")]


@pytest.mark.parametrize(
    ("spec", "field", "reason", "message"),
    [
        ({"size": "three"}, "spec.size", "FieldValueTypeInvalid",
         'Invalid value: "string": spec.size in body must be of type integer: "string"'),
        ({"size": -1}, "spec.size", "FieldValueInvalid",
         "Invalid value: -1: spec.size in body should be greater than or equal to 0"),
        ({"size": 101}, "spec.size", "FieldValueInvalid",
         "Invalid value: 101: spec.size in body should be less than or equal to 100"),
        ({"color": "green"}, "spec.color", "FieldValueNotSupported",
         'Unsupported value: "green": supported values: "red", "blue"'),
        ({"word": "ABC"}, "spec.word", "FieldValueInvalid",
         'Invalid value: "ABC": spec.word in body should match \'^[a-z]+$\''),
        ({"word": "a"}, "spec.word", "FieldValueInvalid",
         'Invalid value: "a": spec.word in body should be at least 2 chars long'),
        ({"word": "abcdefghi"}, "spec.word", "FieldValueTooLong", "Too long: may not be more than 8 bytes"),
        ({"ratio": "much"}, "spec.ratio", "FieldValueTypeInvalid",
         'Invalid value: "string": spec.ratio in body must be of type number: "string"'),
        ({"order": "abc"}, "spec.order", "FieldValueTypeInvalid",
         'Invalid value: "string": spec.order in body must be of type array: "string"'),
        ({"parts": [{"id": "a"}, {"weight": 2}]}, "spec.parts[1].id", "FieldValueRequired", "Required value"),
        ({"parts": [{"id": "a", "weight": "b"}]}, "spec.parts[0].weight", "FieldValueTypeInvalid",
         'Invalid value: "string": spec.parts[0].weight in body must be of type integer: "string"'),
        ({"parts": [{"id": n} for n in "abcd"]}, "spec.parts", "FieldValueTooMany",
         "Too many: 4: must have at most 3 items"),
        ({"parts": [{"id": "a"}, {"id": "a"}]}, "spec.parts[1]", "FieldValueDuplicate",
         'Duplicate value: {"id":"a"}'),
        ({"tags": ["x", "x"]}, "spec.tags[1]", "FieldValueDuplicate", 'Duplicate value: "x"'),
        ({"limits": {"a": "b"}}, "spec.limits.a", "FieldValueTypeInvalid",
         'Invalid value: "string": spec.limits.a in body must be of type integer: "string"'),
        ({"parts": [{"id": "a", "percent": True}]}, "spec.parts[0].percent", "FieldValueTypeInvalid",
         'Invalid value: "boolean": spec.parts[0].percent in body must be of type integer,string: "boolean"'),
    ],
)  # fmt: skip
async def test_what_the_schema_forbids_is_refused_with_its_field(
    api: Api, widgets: str, group: str, spec: dict, field: str, reason: str, message: str
) -> None:
    body = (await api.post(widgets, widget(group, **spec))).refused(422, "Invalid")
    assert causes(body) == [(field, reason)]
    assert body["details"]["causes"][0]["message"] == message
    assert f"{field}: {message}" in body["message"]
    assert body["message"].startswith(f'Widget.{group} "one" is invalid: ')


async def test_a_missing_field_is_named(api: Api, widgets: str, group: str) -> None:
    sent = widget(group)
    del sent["spec"]["size"]
    body = (await api.post(widgets, sent)).refused(422, "Invalid")
    assert causes(body) == [("spec.size", "FieldValueRequired")]


async def test_every_fault_is_told_at_once(api: Api, widgets: str, group: str) -> None:
    body = (await api.post(widgets, widget(group, size=-1, color="green", word="A1"))).refused(422, "Invalid")
    assert {field for field, _ in causes(body)} == {"spec.size", "spec.color", "spec.word"}


async def test_a_change_is_checked_like_a_new_object(api: Api, widgets: str, group: str) -> None:
    (await api.post(widgets, widget(group))).object()
    body = (await api.patch(f"{widgets}/one", {"spec": {"size": 1000}})).refused(422, "Invalid")
    assert causes(body) == [("spec.size", "FieldValueInvalid")]


async def test_unknown_fields_are_dropped_and_told(api: Api, widgets: str, group: str) -> None:
    answer = await api.post(widgets, widget(group, colour="red", parts=[{"id": "a", "wait": 1}]))
    stored = answer.object()
    assert "colour" not in stored["spec"]
    assert stored["spec"]["parts"] == [{"id": "a", "weight": 1}]
    warned = answer.headers.getall("Warning")
    assert any("spec.colour" in line and line.startswith("299 ") for line in warned)
    assert any("spec.parts[0].wait" in line for line in warned)


async def test_unknown_fields_are_dropped_without_a_word_on_demand(api: Api, widgets: str, group: str) -> None:
    answer = await api.post(widgets, widget(group, colour="red"), fieldValidation="Ignore")
    assert "colour" not in answer.object()["spec"]
    assert "Warning" not in answer.headers


async def test_unknown_fields_are_refused_on_demand(api: Api, widgets: str, group: str) -> None:
    sent = widget(group, colour="red")
    body = (await api.post(widgets, sent, fieldValidation="Strict")).refused(400, "BadRequest")
    assert body["message"].endswith('strict decoding error: unknown field "spec.colour"')
    (await api.post(widgets, widget(group), fieldValidation="Strict")).object()
    patched = await api.patch(f"{widgets}/one", {"spec": {"colour": "red"}}, fieldValidation="Strict")
    assert 'unknown field "spec.colour"' in patched.refused(422, "Invalid")["message"]


async def test_defaults_are_filled_in_and_stored(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, widget(group, parts=[{"id": "a"}]))).object()
    assert created["spec"]["color"] == "red"
    assert created["spec"]["parts"] == [{"id": "a", "weight": 1}]
    without = (await api.patch(f"{widgets}/one", {"spec": {"color": None}})).object()
    assert without["spec"]["color"] == "red"


async def test_a_null_is_kept_only_where_it_is_allowed(api: Api, widgets: str, group: str) -> None:
    created = (await api.post(widgets, widget(group, note=None, color=None, ratio=None))).object()
    assert created["spec"] == {"size": 3, "note": None, "color": "red"}


async def test_free_fields_are_kept_as_they_are(api: Api, widgets: str, group: str) -> None:
    free = {"any": {"thing": [1, "two", {"three": None}]}}
    created = (await api.post(widgets, widget(group, free=free, parts=[{"id": "a", "percent": "5%"}]))).object()
    assert created["spec"]["free"] == free
    assert created["spec"]["parts"][0]["percent"] == "5%"


async def test_kind_and_version_have_to_be_those_of_the_path(api: Api, widgets: str, group: str) -> None:
    other = (await api.post(widgets, {**widget(group), "kind": "Gadget"})).refused(422, "Invalid")
    assert causes(other) == [("kind", "FieldValueInvalid")]
    (await api.post(widgets, {**widget(group), "apiVersion": f"{group}/v2"})).refused(400, "BadRequest")


# definitions


def fresh() -> dict:
    return widget_definition(f"r{secrets.token_hex(4)}.conformance.gpuscale.dev", "gadgets", "Gadget")


async def test_a_definition_is_filled_in_and_established(api: Api) -> None:
    definition = fresh()
    try:
        (await api.post(CRDS, definition)).object()
        await established(api, definition)
        body = (await api.get(f"{CRDS}/{definition['metadata']['name']}")).object()
        assert body["spec"]["names"]["singular"] == "gadget"
        assert body["spec"]["names"]["listKind"] == "GadgetList"
        assert body["spec"]["conversion"] == {"strategy": "None"}
        assert body["status"]["storedVersions"] == ["v1"]
        assert body["status"]["acceptedNames"]["plural"] == "gadgets"
    finally:
        await api.delete(f"{CRDS}/{definition['metadata']['name']}")


async def test_a_deleted_definition_takes_its_objects_along(api: Api, space: str) -> None:
    definition = fresh()
    group = definition["spec"]["group"]
    path = f"/apis/{group}/v1/namespaces/{space}/gadgets"
    (await api.post(CRDS, definition)).object()
    await established(api, definition)
    (await api.post(path, {**widget(group), "kind": "Gadget"})).object()
    (await api.delete(f"{CRDS}/{definition['metadata']['name']}")).object()
    await api.until(f"{CRDS}/{definition['metadata']['name']}", lambda a: a.status == 404, "the definition gone")
    await eventually(lambda: api.get(path), lambda answer: answer.status == 404, "the path gone")


async def test_a_changed_definition_changes_what_is_allowed(api: Api, space: str) -> None:
    definition = fresh()
    group, name = definition["spec"]["group"], definition["metadata"]["name"]
    path = f"/apis/{group}/v1/namespaces/{space}/gadgets"
    try:
        (await api.post(CRDS, definition)).object()
        await established(api, definition)
        (await api.post(path, {**widget(group, size=101), "kind": "Gadget"})).refused(422, "Invalid")
        place = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum"
        change = [{"op": "replace", "path": place, "value": 1000}]
        (await api.patch(f"{CRDS}/{name}", change, "application/json-patch+json")).object()

        async def create() -> object:
            return await api.post(path, {**widget(group, size=101), "kind": "Gadget"})

        await eventually(create, lambda answer: answer.status == 201, "the new maximum in force")
    finally:
        await api.delete(f"{CRDS}/{name}")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("metadata", "name"), "wrong.name.example.com", "metadata.name"),
        (("spec", "scope"), "", "spec.scope"),
        (("spec", "names", "plural"), "", "spec.names.plural"),
        (("spec", "names", "kind"), "", "spec.names.kind"),
        (("spec", "versions", 0, "storage"), False, "spec.versions"),
    ],
)
async def test_a_definition_that_makes_no_sense_is_refused(api: Api, path: tuple, value: object, field: str) -> None:
    definition = copy.deepcopy(fresh())
    node = definition
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    body = (await api.post(CRDS, definition)).refused(422, "Invalid")
    assert field in {cause["field"] for cause in body["details"]["causes"]}
