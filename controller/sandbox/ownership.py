"""Server-side apply: which manager owns which field, and what an apply changes, removes or is refused.

A path is a tuple of elements in the notation of ``fieldsV1``: ``f:name`` for a field, ``k:{...}`` for an item of a
keyed list, ``v:...`` for an item of a set.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controller.sandbox import errors
from controller.sandbox.patches import MERGE_KEYS

Object = dict[str, Any]
Path = tuple[str, ...]
Paths = frozenset[Path]
# how a list is merged, from the names of the fields that lead to it: by keys, as a set (empty tuple), whole (None)
Lists = Callable[[Path], tuple[str, ...] | None]

_BEFORE = "before-first-apply"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NOT_OWNED = {("f:apiVersion",), ("f:kind",), ("f:metadata", "f:name"), ("f:metadata", "f:namespace")}
_SERVER_OWNED = {
    "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "deletionTimestamp",
    "deletionGracePeriodSeconds", "selfLink", "generateName",
}  # fmt: skip


@dataclass(frozen=True)
class Applied:
    """One apply: who, with which lists, what; ``force`` takes fields from others. ``moment`` is RFC 3339."""

    manager: str
    document: Object
    lists: Lists
    force: bool
    moment: str
    subresource: str = ""


def built_in_lists(path: Path) -> tuple[str, ...] | None:
    """Tell how lists of the built-in kinds are merged."""
    name = path[-1]
    if name == "ports":
        return ("containerPort", "protocol") if "containers" in path else ("port", "protocol")
    if name == "finalizers":
        return ()
    return (MERGE_KEYS[name],) if name in MERGE_KEYS else None


def applied(live: Object | None, request: Applied) -> Object:
    """Give the object after an apply. Raises 409 naming each field that another manager holds at another value."""
    wanted = frozenset(_paths(request.document, request.lists))
    before = live or {}
    owners = _owners(before, request)
    me = (request.manager, "Apply", request.subresource)
    previous = owners.pop(me, frozenset())
    if not request.force:
        _check_conflicts(before, request, owners, wanted)
    others = frozenset().union(*owners.values()) if owners else frozenset()
    kept = _without(before, previous - wanted - others)
    result: Object = _laid_over(kept, request.document, request.lists, ())
    changed = frozenset(p for p in wanted if _value(before, p) != _value(request.document, p))
    owners = {owner: held - changed for owner, held in owners.items()}
    owners[me] = wanted
    _write_owners(result, owners, request.moment)
    return result


def tracked(obj: Object) -> bool:
    """Tell whether owners are kept for an object: they cost time, so only where kubectl or an apply relies on them."""
    meta = obj.get("metadata") or {}
    return bool(meta.get("managedFields")) or _LAST_APPLIED in (meta.get("annotations") or {})


def created(obj: Object, manager: str, lists: Lists, moment: str) -> None:
    """Note in a new object that the fields in it are those of ``manager``; what the server adds is nobody's."""
    _write_owners(obj, {(manager, "Update", ""): frozenset(_paths(obj, lists))}, moment)


def updated(old: Object, new: Object, manager: str, lists: Lists, moment: str, subresource: str = "") -> None:
    """Note in ``new`` that a plain write by ``manager`` took the fields that it changed."""
    before, after = frozenset(_paths(old, lists)), frozenset(_paths(new, lists))
    changed = (after - before) | frozenset(p for p in after & before if _value(old, p) != _value(new, p))
    if not changed and before == after:
        return
    known = _read_owners(new) or {(_BEFORE, "Update", ""): before}
    owners = {owner: (held - changed) & after for owner, held in known.items()}
    me = (manager, "Update", subresource)
    owners[me] = owners.get(me, frozenset()) | changed
    _write_owners(new, owners, moment)


# -- owners


_Owner = tuple[str, str, str]  # manager, operation, subresource
_Owners = dict[_Owner, Paths]


def _owners(before: Object, request: Applied) -> _Owners:
    found = _read_owners(before)
    if before and not found:
        found = {(_BEFORE, "Update", ""): frozenset(_paths(before, request.lists))}
    return found


def _read_owners(obj: Object) -> _Owners:
    entries = (obj.get("metadata") or {}).get("managedFields") or []
    return {
        (entry["manager"], entry["operation"], entry.get("subresource", "")): frozenset(_unfolded(entry["fieldsV1"]))
        for entry in entries
    }


def _write_owners(obj: Object, owners: _Owners, moment: str) -> None:
    times = {
        (entry["manager"], entry["operation"], entry.get("subresource", "")): (entry["fieldsV1"], entry["time"])
        for entry in obj["metadata"].get("managedFields") or []
    }
    entries = []
    for owner, held in owners.items():
        if not held:
            continue
        folded = _folded(held)
        known = times.get(owner)
        entry = {
            "manager": owner[0],
            "operation": owner[1],
            "apiVersion": obj["apiVersion"],
            "time": known[1] if known and known[0] == folded else moment,
            "fieldsType": "FieldsV1",
            "fieldsV1": folded,
        }
        entries.append({**entry, "subresource": owner[2]} if owner[2] else entry)
    obj["metadata"]["managedFields"] = entries


def _check_conflicts(before: Object, request: Applied, owners: _Owners, wanted: Paths) -> None:
    causes = []
    for (manager, operation, _), held in owners.items():
        for path in sorted(held & wanted):
            if _value(before, path) != _value(request.document, path):
                using = f" using {before.get('apiVersion', '')}" if operation == "Update" else ""
                told = f'conflict with "{manager}"{using}'
                causes.append(errors.Cause("FieldManagerConflict", told, _dotted(path)))
    if causes:
        told = "; ".join(f"{cause.message}: {cause.field}" for cause in causes)
        message = f"Apply failed with {len(causes)} conflict{'s' if len(causes) > 1 else ''}: {told}"
        details = {"causes": [cause.document() for cause in causes]}
        raise errors.StatusError(409, "Conflict", message, details=details)


def _dotted(path: Path) -> str:
    return "".join(f"[{e[2:]}]" if e[0] in "kv" else f".{e[2:]}" for e in path)


# -- paths


def _paths(document: Object, lists: Lists) -> Iterator[Path]:
    """Every leaf of a document, and every item of a keyed list, without what nobody owns."""
    for path in _walk(document, (), (), lists):
        in_meta = len(path) > 1 and path[0] == "f:metadata" and path[1][2:] in _SERVER_OWNED
        if path and path not in _NOT_OWNED and not in_meta:
            yield path


def _walk(value: Any, path: Path, names: Path, lists: Lists) -> Iterator[Path]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _walk(item, (*path, f"f:{key}"), (*names, key), lists)
        return
    keys = _keys(value, names, lists)
    if keys is None or not value:
        yield path
        return
    for item in value:
        element = _element(item, keys)
        yield (*path, element)
        if keys:
            yield from _walk(item, (*path, element), names, lists)


def _keys(value: Any, names: Path, lists: Lists) -> tuple[str, ...] | None:
    """Tell how a value is merged, if it is a list that is not merged whole."""
    keys = lists(names) if isinstance(value, list) and names else None
    return None if keys and not all(isinstance(item, Mapping) for item in value) else keys


def _element(item: Any, keys: tuple[str, ...]) -> str:
    if not keys:
        return f"v:{json.dumps(item)}"
    defaults = {"protocol": "TCP"}
    named = {key: item.get(key, defaults.get(key)) for key in keys}
    return f"k:{json.dumps(named, separators=(',', ':'))}"


def _value(document: Any, path: Path) -> Any:
    """Give the value at a path; an item of a keyed list counts as there or not."""
    value = document
    for element in path:
        value = _step(value, element)
        if value is None:
            return None
    return True if path and path[-1][0] in "kv" else value


def _step(value: Any, element: str) -> Any:
    if element[0] == "f":
        return value.get(element[2:]) if isinstance(value, Mapping) else None
    if not isinstance(value, list):
        return None
    if element[0] == "v":
        return element if json.loads(element[2:]) in value else None
    wanted = json.loads(element[2:])
    items = (item for item in value if isinstance(item, Mapping))
    return next((item for item in items if _element(item, tuple(wanted)) == element), None)


def _folded(paths: Paths) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        if path[-1][0] == "k":
            node["."] = {}
    return tree


def _unfolded(tree: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    for element, inner in tree.items():
        if element == ".":
            yield path
        elif inner:
            yield from _unfolded(inner, (*path, element))
        else:
            yield (*path, element)


# -- values


def _laid_over(base: Any, document: Any, lists: Lists, names: Path) -> Any:
    if isinstance(document, Mapping):
        result = dict(base) if isinstance(base, Mapping) else {}
        for key, item in document.items():
            result[key] = _laid_over(result.get(key), item, lists, (*names, key))
        return result
    keys = _keys(document, names, lists)
    if keys is None or _keys(base, names, lists) is None:
        return document
    if not keys:
        return base + [item for item in document if item not in base]
    result_list = list(base)
    places = {_element(item, keys): place for place, item in enumerate(result_list)}
    for item in document:
        place = places.get(_element(item, keys))
        if place is None:
            result_list.append(item)
        else:
            result_list[place] = _laid_over(result_list[place], item, lists, names)
    return result_list


def _without(document: Object, paths: Paths) -> Object:
    result: Object = json.loads(json.dumps(document))
    for path in sorted(paths, key=len):  # an item goes whole, before its key does
        _drop(result, path)
    return result


def _drop(document: Object, path: Path) -> None:
    parent: Any = document
    for element in path[:-1]:
        parent = _step(parent, element)
        if parent is None:
            return
    last = path[-1]
    if last[0] == "f" and isinstance(parent, dict):
        parent.pop(last[2:], None)
    elif last[0] == "v" and isinstance(parent, list):
        parent[:] = [item for item in parent if item != json.loads(last[2:])]
    elif isinstance(parent, list):
        keys = tuple(json.loads(last[2:]))
        parent[:] = [item for item in parent if _element(item, keys) != last]
