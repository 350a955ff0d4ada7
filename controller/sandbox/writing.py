"""Answers to POST, PUT, PATCH and DELETE."""

from collections.abc import Callable

from aiohttp import web

from controller.sandbox import errors, ownership, patches, strategy, wellformed
from controller.sandbox.admission import WriteOptions
from controller.sandbox.calls import Call
from controller.sandbox.disruption import bind, deletion, evict
from controller.sandbox.history import Object, encode
from controller.sandbox.kinds import Resource
from controller.sandbox.ownership import Applied, Lists
from controller.sandbox.reading import json_response, object_response
from controller.sandbox.scales import rescaled, scale_of
from controller.sandbox.store import Store

_SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
_CREATED: Object = {**_SUCCESS, "code": 201}


async def create(store: Store, call: Call) -> web.Response:
    """Answer to POST: a new object, an eviction or a binding."""
    place = call.place
    options = call.write_options()
    body = await call.object()
    if place.subresource == "eviction":
        evict(store, place.namespace or "", place.name, body, options)
        return json_response(encode(_CREATED), 201)
    if place.subresource == "binding":
        bind(lambda change: _update(store, call, change, options, "binding"), body, strategy.timestamp(store.clock()))
        return json_response(encode(_CREATED), 201)
    if place.name or (place.resource.namespaced and place.namespace is None):
        raise errors.not_allowed(place.resource.group, place.resource.plural, "create")
    return _created(store, call, body, options)


def _created(store: Store, call: Call, body: Object, options: WriteOptions) -> web.Response:
    place = call.place
    wellformed.check(place.resource, body)
    if ownership.tracked(body):
        body.setdefault("apiVersion", place.resource.api_version)
        ownership.created(body, call.manager, _lists(store, place.resource), strategy.timestamp(store.clock()))
    created = store.create(place.resource, body, place.namespace, options)
    return object_response(store, call, created, status=201)


async def replace(store: Store, call: Call) -> web.Response:
    """Answer to PUT: another whole object, status or scale in the place of one."""
    place = call.place
    options = call.write_options()
    body = await call.object()
    if place.subresource == "scale":
        return _scaled(store, call, lambda _: body, options)
    key_taken = place.resource.create_on_update and not _exists(store, call)
    if key_taken and not place.subresource:
        return _created(store, call, body, options)
    _check_kind(place.resource, body)
    if place.resource.namespaced:
        body["metadata"].setdefault("namespace", place.namespace)
    return object_response(store, call, _update(store, call, lambda _: body, options, place.subresource))


def _exists(store: Store, call: Call) -> bool:
    place = call.place
    key = f"{place.namespace}/{place.name}" if place.resource.namespaced else place.name
    return store.at(place.resource, key) is not None


def _check_kind(resource: Resource, body: Object) -> None:
    body.setdefault("apiVersion", resource.api_version)
    body.setdefault("kind", resource.kind)
    if (body["apiVersion"], body["kind"]) != (resource.api_version, resource.kind):
        raise errors.bad_request(
            f"the API version in the data ({body['apiVersion']}) does not match the expected API version "
            f"({resource.api_version}), or the kind {body['kind']} is not {resource.kind}"
        )
    if not isinstance(body.setdefault("metadata", {}), dict):
        raise errors.bad_request("metadata must be an object")


async def patch(store: Store, call: Call) -> web.Response:
    """Answer to PATCH: a merge, JSON, strategic merge or apply patch of an object, its status or its scale."""
    place = call.place
    options = call.write_options()
    options.patching = True
    kinds = [patches.JSON, patches.MERGE, patches.APPLY, *([] if place.resource.custom else [patches.STRATEGIC])]
    if call.content_type not in kinds or (call.content_type == patches.APPLY and place.subresource == "scale"):
        raise errors.unsupported_media(kinds)
    body = await call.body()
    if call.content_type == patches.APPLY:
        return _apply(store, call, body, options)
    change = _change(call.content_type, body)
    if place.subresource == "scale":
        return _scaled(store, call, change, options)
    return object_response(store, call, _update(store, call, change, options, place.subresource))


def _change(content: str, body: object) -> Callable[[Object], Object]:
    if content == patches.JSON:
        return lambda obj: patches.json_patched(obj, body)
    if not isinstance(body, dict):
        raise errors.bad_request("error decoding patch: json: cannot unmarshal a non-object into an object")
    merge = patches.merged if content == patches.MERGE else patches.strategic_merged

    def change(obj: Object) -> Object:
        result: Object = merge(obj, body)
        return result

    return change


def _update(
    store: Store, call: Call, change: Callable[[Object], Object], options: WriteOptions, subresource: str
) -> Object:
    place, lists = call.place, _lists(store, call.place.resource)
    moment, manager = strategy.timestamp(store.clock()), call.manager

    def owned(obj: Object) -> Object:
        old = strategy.clone(obj) if ownership.tracked(obj) else obj
        new = change(obj)
        if old is not obj:
            _keep_owners(old, new)
            ownership.updated(old, new, manager, lists, moment, place.subresource)
        return new

    return store.update(place.resource, place.namespace, place.name, owned, subresource, options)


def _keep_owners(old: Object, new: Object) -> None:
    """Who sends no owners does not mean to erase them."""
    if "managedFields" in old["metadata"]:
        new["metadata"].setdefault("managedFields", old["metadata"]["managedFields"])


def _lists(store: Store, resource: Resource) -> Lists:
    definition = store.definitions.of(resource)
    return ownership.built_in_lists if definition is None else definition.lists()


def _scaled(store: Store, call: Call, change: Callable[[Object], Object], options: WriteOptions) -> web.Response:
    resource = call.place.resource
    return json_response(encode(scale_of(resource, _update(store, call, rescaled(resource, change), options, ""))))


def _apply(store: Store, call: Call, body: object, options: WriteOptions) -> web.Response:
    place = call.place
    request = _applied(store, call, body)
    if _exists(store, call):
        change = _applying(request)
        done = store.update(place.resource, place.namespace, place.name, change, place.subresource, options)
        return object_response(store, call, done)
    if place.subresource:
        raise errors.not_found(place.resource.group, place.resource.plural, place.name)
    created = store.create(place.resource, ownership.applied(None, request), place.namespace, options)
    return object_response(store, call, created, status=201)


def _applied(store: Store, call: Call, body: object) -> Applied:
    place = call.place
    if not call.query.get("fieldManager"):
        cause = errors.Cause("FieldValueRequired", "Required value: is required for apply patch", "fieldManager")
        raise errors.invalid("meta.k8s.io", "PatchOptions", "", [cause])
    if not isinstance(body, dict):
        raise errors.bad_request("error decoding YAML: it is no object")
    _check_kind(place.resource, body)
    wellformed.check(place.resource, body)
    meta = body["metadata"]
    if meta.get("managedFields"):
        raise errors.bad_request("metadata.managedFields must be nil")
    if meta.setdefault("name", place.name) != place.name:
        raise errors.bad_request(f"name in the applied object ({meta['name']}) is not that on the URL ({place.name})")
    if place.resource.namespaced:
        meta.setdefault("namespace", place.namespace)
    moment = strategy.timestamp(store.clock())
    lists = _lists(store, place.resource)
    return Applied(call.query["fieldManager"], body, lists, call.flag("force"), moment, place.subresource)


def _applying(request: Applied) -> Callable[[Object], Object]:
    def change(obj: Object) -> Object:
        result = ownership.applied(obj, request)
        before = {**obj["metadata"], "managedFields": None}
        after = {**result["metadata"], "managedFields": None}
        same = before == after and {**obj, "metadata": 0} == {**result, "metadata": 0}
        if same and _fields(obj) == _fields(result):
            result["metadata"]["managedFields"] = obj["metadata"]["managedFields"]
        return result

    return change


def _fields(obj: Object) -> list[tuple[object, ...]]:
    entries = obj["metadata"].get("managedFields") or []
    return [(entry["manager"], entry["operation"], entry["fieldsV1"]) for entry in entries]


async def delete(store: Store, call: Call) -> web.Response:
    """Answer to DELETE of one object or of a collection."""
    place = call.place
    options = _delete_options(call, await call.body())
    how = deletion(options, dry_run=call.write_options().dry_run)
    if not place.name:
        return _delete_many(store, call, options)
    obj, gone = store.delete(place.resource, place.namespace, place.name, how)
    if not gone or place.resource.returns_deleted:
        return object_response(store, call, obj)
    resource = place.resource
    details = {"name": place.name, "group": resource.group, "kind": resource.plural, "uid": obj["metadata"]["uid"]}
    told = {key: value for key, value in details.items() if value}
    return json_response(encode({**_SUCCESS, "details": told}))


def _delete_options(call: Call, body: object) -> Object:
    options: Object = dict(body) if isinstance(body, dict) else {}
    if "gracePeriodSeconds" in call.query:
        options["gracePeriodSeconds"] = call.number("gracePeriodSeconds")
    if "propagationPolicy" in call.query:
        options["propagationPolicy"] = call.query["propagationPolicy"]
    return options


def _delete_many(store: Store, call: Call, options: Object) -> web.Response:
    place = call.place
    if place.resource.namespaced and place.namespace is None:
        raise errors.not_allowed(place.resource.group, place.resource.plural, "deletecollection")
    labels, fields = call.query.get("labelSelector", ""), call.query.get("fieldSelector", "")
    deleted = []
    for obj in store.list(place.resource, place.namespace, labels, fields):
        how = deletion(options, dry_run=call.options.dry_run)
        try:
            deleted.append(store.delete(place.resource, place.namespace, obj["metadata"]["name"], how)[0])
        except errors.StatusError as exc:
            if exc.code != 404:  # an owner's end may have taken it along
                raise
    head = {"kind": place.resource.list_kind, "apiVersion": place.resource.api_version}
    return json_response(encode({**head, "metadata": {"resourceVersion": str(store.version)}, "items": deleted}))
