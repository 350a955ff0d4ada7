"""What the API server itself puts into, keeps out of and refuses in an object at each kind of write."""

import copy
import random
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from controller.sandbox import errors
from controller.sandbox.kinds import Resource

Object = dict[str, Any]

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_EMPTY_IS_ABSENT = ("labels", "annotations", "finalizers", "ownerReferences", "managedFields", "generateName")
_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)


def clone(value: Any) -> Any:
    """Copy a JSON document so that nothing is shared."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else copy.deepcopy(value)


def timestamp(seconds: float) -> str:
    """Write Unix seconds as RFC 3339 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def named(resource: Resource, obj: Object, namespace: str | None, taken: Callable[[str | None, str], bool]) -> Object:
    """Settle kind, namespace and name of a new object, in place; a generated name avoids those that are taken."""
    obj["metadata"] = meta = obj.get("metadata") or {}
    _settle_kind(resource, obj)
    _settle_namespace(resource, meta, namespace)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = _generated(meta["generateName"], lambda name: taken(meta.get("namespace"), name))
    if not meta.get("name"):
        cause = errors.Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")
        raise errors.invalid(resource.group, resource.kind, "", [cause])
    _check_name(resource, meta["name"])
    return obj


def _settle_kind(resource: Resource, obj: Object) -> None:
    got = (obj.setdefault("apiVersion", resource.api_version), obj.setdefault("kind", resource.kind))
    if resource.custom and got[0] == resource.api_version and got[1] != resource.kind:
        cause = errors.Cause("FieldValueInvalid", f'Invalid value: "{got[1]}": must be {resource.kind}', "kind")
        raise errors.invalid(resource.group, str(got[1]), obj["metadata"].get("name", ""), [cause])
    if got != (resource.api_version, resource.kind):
        raise errors.bad_request(
            f"{got[1]} in version {got[0]!r} cannot be handled as a {resource.kind}: "
            f"the resource is {resource.qualified} in version {resource.api_version}"
        )


def _settle_namespace(resource: Resource, meta: Object, namespace: str | None) -> None:
    if not resource.namespaced:
        meta.pop("namespace", None)
        return
    wanted = namespace or meta.get("namespace") or "default"
    if meta.setdefault("namespace", wanted) != wanted:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _generated(prefix: str, taken: Callable[[str], bool]) -> str:
    while True:
        name = prefix + "".join(random.choices(_SUFFIX_LETTERS, k=5))  # noqa: S311 - a name, not a secret
        if not taken(name):
            return name


def _check_name(resource: Resource, name: Any) -> None:
    if isinstance(name, str) and len(name) <= 253 and _NAME.fullmatch(name):
        return
    sentence = (
        f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '
        "'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for "
        r"validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    )
    cause = errors.Cause("FieldValueInvalid", sentence, "metadata.name")
    raise errors.invalid(resource.group, resource.kind, str(name), [cause])


def for_create(resource: Resource, obj: Object, now: float) -> Object:
    """Fill what only the server may say about a new object, in place."""
    meta = obj["metadata"]
    for key in (*_SERVER_OWNED, "resourceVersion"):
        meta.pop(key, None)
    meta["uid"] = str(uuid.uuid4())
    meta["creationTimestamp"] = timestamp(now)
    if resource.counts_generation or resource.custom:
        meta["generation"] = 1
    if resource.has_status and not resource.keeps_status:
        obj.pop("status", None)
    return tidied(obj)


def for_update(resource: Resource, new: Object, old: Object, subresource: str) -> Object:
    """Keep what this path may not change, in place where it can."""
    if subresource == "status":
        new = _status_only(resource, new, old)
    elif resource.has_status and subresource != "binding":
        _carry(new, old, "status")
    for key in _SERVER_OWNED:
        _carry(new["metadata"], old["metadata"], key)
    return tidied(new)


def tidied(obj: Object) -> Object:
    """Drop, in place, metadata that is empty: the API does not keep it."""
    for key in _EMPTY_IS_ABSENT:
        if key in obj["metadata"] and not obj["metadata"][key]:
            del obj["metadata"][key]
    return obj


def count_generation(resource: Resource, new: Object, old: Object, subresource: str) -> None:
    """Count a change of what the user asks for, in place."""
    meta = new["metadata"]
    if "generation" in meta and subresource not in {"status", "binding"} and _counts(resource, new, old):
        meta["generation"] += 1


def _status_only(resource: Resource, new: Object, old: Object) -> Object:
    if resource.custom:
        kept = clone(old)
        _carry(kept, new, "status")
        _carry(kept["metadata"], new["metadata"], "managedFields")
        return dict(kept)
    _carry(new, old, "spec")
    if resource.group == "apps":
        _carry(new["metadata"], old["metadata"], "labels")
    return new


def _carry(to: Object, source: Mapping[str, Any], key: str) -> None:
    to.pop(key, None)
    if key in source:
        to[key] = source[key]


def _counts(resource: Resource, new: Object, old: Object) -> bool:
    if resource.custom:
        aside = {"metadata", "status"} if resource.has_status else {"metadata"}
        return {k: v for k, v in new.items() if k not in aside} != {k: v for k, v in old.items() if k not in aside}
    annotated = resource.plural == "deployments" and (new["metadata"].get("annotations") or {}) != (
        old["metadata"].get("annotations") or {}
    )
    return annotated or new.get("spec") != old.get("spec")


def check_identity(resource: Resource, new: Object, old: Object) -> None:
    """Refuse a write that would turn one object into another, or that was computed from an older version."""
    meta, before = new.get("metadata") or {}, old["metadata"]
    name = before["name"]
    if meta.get("name") != name:
        raise errors.bad_request(
            f"the name of the object ({meta.get('name')}) does not match the name on the URL ({name})"
        )
    if (meta.get("namespace") or "") != before.get("namespace", ""):
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if meta.get("uid") and meta["uid"] != before["uid"]:
        sentence = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {before['uid']}"
        raise errors.conflict(resource.group, resource.plural, name, sentence)
    _check_version(resource, meta, before)


def _check_version(resource: Resource, meta: Object, before: Object) -> None:
    sent = meta.get("resourceVersion")
    if not sent:
        if resource.unconditional_update and not resource.custom:
            return
        message = "Invalid value: 0: must be specified for an update"
        cause = errors.Cause("FieldValueInvalid", message, "metadata.resourceVersion")
        raise errors.invalid(resource.group, resource.kind, before["name"], [cause])
    if sent != before["resourceVersion"]:
        raise errors.stale(resource.group, resource.plural, before["name"])


def check_finalizers(resource: Resource, new: Object, old: Object) -> None:
    """Refuse a finalizer that comes after the deletion has begun."""
    if "deletionTimestamp" not in old["metadata"]:
        return
    known = set(old["metadata"].get("finalizers") or [])
    added = [name for name in new["metadata"].get("finalizers") or [] if name not in known]
    if added:
        told = ", ".join(f'"{name}"' for name in added)
        message = (
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{told}}}"
        )
        cause = errors.Cause("FieldValueForbidden", message, "metadata.finalizers")
        raise errors.invalid(resource.group, resource.kind, new["metadata"]["name"], [cause])


def at_path(obj: Mapping[str, Any], path: str) -> Any:
    """Give the value at a dotted path, or None."""
    value: Any = obj
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def put_at_path(obj: Object, path: str, value: Any) -> None:
    """Set the value at a dotted path, in place, making the objects on the way."""
    *way, last = path.split(".")
    node = obj
    for key in way:
        node = node.setdefault(key, {})
    node[last] = value
