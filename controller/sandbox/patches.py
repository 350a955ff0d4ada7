"""The patch formats: JSON merge patch, JSON patch, strategic merge patch."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch
import jsonpointer

from controller.sandbox import errors

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

# list field -> the key by which strategic merge (and apply) tells its items apart
MERGE_KEYS: Mapping[str, str] = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "resourceClaims": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_PRIMITIVE_MERGE = {"finalizers"}
_DIRECTIVES = ("$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/")


def merged(target: Any, patch: Any) -> Any:
    """Lay ``patch`` over ``target`` as RFC 7386 says; null removes. The target may be altered."""
    if not isinstance(patch, Mapping):
        return patch
    base = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = merged(base.get(key), value)
    return base


def json_patched(target: Object, operations: Any) -> Object:
    """Apply a JSON patch (RFC 6902). Raises 400 for what is no patch, 422 for one that does not fit."""
    if not isinstance(operations, list):
        raise errors.bad_request("error decoding patch: json: cannot unmarshal a non-array into a JSON patch")
    try:
        patched = jsonpatch.JsonPatch(operations).apply(target)
    except (jsonpatch.JsonPatchConflict, jsonpatch.JsonPatchTestFailed, jsonpointer.JsonPointerException) as exc:
        sentence = "the server rejected our request due to an error in our request"
        raise errors.StatusError(422, "Invalid", f"{sentence}: {exc}") from exc
    except (jsonpatch.InvalidJsonPatch, TypeError, KeyError) as exc:
        raise errors.bad_request(f"error decoding patch: {exc}") from exc
    if not isinstance(patched, dict):
        raise errors.bad_request("the patch leaves no object")
    return patched


def strategic_merged(target: Any, patch: Mapping[str, Any]) -> Any:
    """Lay a strategic merge patch over ``target``: as ``merged``, but lists of named things are merged by name."""
    base: Object = target if isinstance(target, dict) else {}
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if not key.startswith(_DIRECTIVES)}
    if directive == "delete":
        return {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            _remove_values(base, key.partition("/")[2], value)
        elif not key.startswith(_DIRECTIVES):
            _strategic_field(base, key, value)
    return _retained(base, patch.get("$retainKeys"))


def _strategic_field(base: Object, key: str, value: Any) -> None:
    if value is None:
        base.pop(key, None)
    elif isinstance(value, Mapping):
        base[key] = strategic_merged(base.get(key), value)
    elif isinstance(value, list) and (merge_key := _merge_key(key, value)):
        base[key] = _merged_list(_objects(key, base.get(key) or []), _objects(key, value), merge_key)
    elif isinstance(value, list) and key in _PRIMITIVE_MERGE:
        held = base.get(key) or []
        base[key] = held + [item for item in value if item not in held]
    else:
        base[key] = value


def _merge_key(field: str, items: Sequence[Any]) -> str | None:
    if field == "ports":
        return "containerPort" if any("containerPort" in item for item in _objects(field, items)) else "port"
    return MERGE_KEYS.get(field)


def _objects(field: str, items: Sequence[Any]) -> list[Object]:
    for item in items:
        if not isinstance(item, dict):
            raise errors.bad_request(f"cannot merge {field}: {errors.shown(item)} is not an object")
    return list(items)


def _merged_list(held: list[Object], items: Sequence[Object], merge_key: str) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in items):
        return [item for item in items if "$patch" not in item]
    result = list(held)
    for item in items:
        if merge_key not in item:
            name = json.dumps(item, separators=(",", ":"))
            raise errors.bad_request(f"map: {name} does not contain declared merge key: {merge_key}")
        place = next((i for i, own in enumerate(result) if own.get(merge_key) == item[merge_key]), None)
        if item.get("$patch") == "delete":
            result = [own for own in result if own.get(merge_key) != item[merge_key]]
        elif place is None:
            result.append(strategic_merged({}, item))
        else:
            result[place] = strategic_merged(result[place], item)
    return result


def _remove_values(base: Object, key: str, values: Sequence[Any]) -> None:
    base[key] = [item for item in base.get(key) or [] if item not in values]


def _retained(base: Object, keys: Sequence[str] | None) -> Object:
    return base if keys is None else {key: value for key, value in base.items() if key in keys}
