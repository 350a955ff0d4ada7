"""Answers to GET: one object or a list, in pages, as JSON, as a table or as metadata alone."""

import base64
import itertools
import json
from collections import OrderedDict
from typing import Any

from aiohttp import web

from controller.sandbox import errors
from controller.sandbox.calls import Call
from controller.sandbox.history import Entry, Object, encode
from controller.sandbox.kinds import Resource
from controller.sandbox.scales import scale_of
from controller.sandbox.store import Store
from controller.sandbox.tables import columns_of, table

Entries = list[Entry]

_KEPT_LISTS = 64
_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You must start a new list "
    "without the continue parameter."
)


def json_response(body: bytes, status: int = 200) -> web.Response:
    """Answer with bytes of JSON."""
    return web.Response(body=body, status=status, content_type="application/json")


class Pages:
    """Lists that are being read in pages: each stays as it was at its first page."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._numbers = itertools.count(1)
        self._kept: OrderedDict[int, tuple[int, Entries]] = OrderedDict()

    def page(self, found: Entries, version: int, start: int, limit: int, number: int = 0) -> tuple[Entries, str]:
        """Give the items of one page and the token of the next ("" at the end)."""
        end = start + limit
        if not limit or end >= len(found):
            return found[start:], ""
        if not number:
            number = next(self._numbers)
            self._kept[number] = (version, found)
            if len(self._kept) > _KEPT_LISTS:
                self._kept.popitem(last=False)
        token = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "list": number, "start": end})
        return found[start:end], base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")

    def resume(self, resource: Resource, token: str) -> tuple[Entries, int, int, int]:
        """Give the whole list, its version, the next place and its number. Raises 400, and 410 when it is not kept."""
        try:
            read = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
            number, start = int(read["list"]), int(read["start"])
        except (ValueError, KeyError, TypeError) as exc:
            raise errors.bad_request(f"continue key is not valid: {exc}") from exc
        kept = self._kept.get(number)
        if kept is None or kept[0] < self._store.history(resource).floor:
            raise errors.expired(_TOO_OLD)
        version, found = kept
        return found, version, start, number


def read_one(store: Store, call: Call) -> web.Response:
    """Answer with one object, or with its scale."""
    place = call.place
    entry = store.entry(place.resource, place.namespace, place.name)
    if place.subresource == "scale":
        return json_response(encode(scale_of(place.resource, entry.obj)))
    return object_response(store, call, entry.obj, entry)


def object_response(
    store: Store, call: Call, obj: Object, entry: Entry | None = None, status: int = 200
) -> web.Response:
    """Answer with one object in the form that the caller wants."""
    view = call.view()
    if view == "Table":
        return json_response(encode(_as_table(store, call, [obj], obj["metadata"])), status)
    if view == "PartialObjectMetadata":
        return json_response(encode(_metadata_only(obj)), status)
    return json_response(encode(obj) if entry is None else entry.body, status)


def read_list(store: Store, pages: Pages, call: Call) -> web.Response:
    """Answer with a list or one page of it."""
    resource, limit = call.place.resource, call.number("limit")
    if token := call.query.get("continue"):
        found, version, start, number = pages.resume(resource, token)
    else:
        check_version(store, call)
        labels, fields = call.query.get("labelSelector", ""), call.query.get("fieldSelector", "")
        found, version = store.select(resource, call.place.namespace, labels, fields), store.version
        start, number = 0, 0
    items, following = pages.page(found, version, start, limit, number)
    meta: Object = {"resourceVersion": str(version)}
    if following:
        meta["continue"] = following
        if not call.query.get("labelSelector") and not call.query.get("fieldSelector"):
            meta["remainingItemCount"] = len(found) - start - len(items)
    return _list_response(store, call, items, meta)


def check_version(store: Store, call: Call) -> None:
    """Refuse a list at a version that is not there: 504 for the future, 410 for an exact one of the past."""
    text, match = call.query.get("resourceVersion", ""), call.query.get("resourceVersionMatch", "")
    if match and not text:
        told = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
        cause = errors.Cause("FieldValueForbidden", told, "resourceVersionMatch")
        raise errors.invalid("meta.k8s.io", "ListOptions", "", [cause])
    version = call.number("resourceVersion")
    if version > store.version:
        raise too_large(version, store.version)
    if match == "Exact" and version != store.version:
        raise errors.expired("The resourceVersion for the provided list is too old.")


def too_large(version: int, current: int) -> errors.StatusError:
    """Make the refusal of a version that does not exist yet."""
    told = f"Too large resource version: {version}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    details = {"causes": causes, "retryAfterSeconds": 1}
    return errors.StatusError(504, "Timeout", f"Timeout: {told}", details=details)


def _list_response(store: Store, call: Call, items: Entries, meta: Object) -> web.Response:
    resource, view = call.place.resource, call.view()
    if view == "Table":
        return json_response(encode(_as_table(store, call, [entry.obj for entry in items], meta)))
    if view == "PartialObjectMetadata":
        listed = [_metadata_only(entry.obj) for entry in items]
        head: Object = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return json_response(encode({**head, "metadata": meta, "items": listed}))
    listing: Object = {"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": meta}
    return json_response(encode(listing)[:-1] + b',"items":[' + b",".join(entry.body for entry in items) + b"]}")


def _as_table(store: Store, call: Call, objects: list[Object], meta: Object) -> Object:
    columns = columns_of(call.place.resource, store.definitions.of(call.place.resource))
    kept: Object = {key: meta[key] for key in ("resourceVersion", "continue", "remainingItemCount") if key in meta}
    return table(columns, objects, kept, store.clock(), call.query.get("includeObject", "Metadata"))


def _metadata_only(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def event_object(store: Store, call: Call, obj: Any) -> Any:
    """Give the object of a watch event in the form that the caller wants."""
    view = call.view()
    if view == "Table":
        return _as_table(store, call, [obj], obj["metadata"])
    return _metadata_only(obj) if view == "PartialObjectMetadata" else obj
