"""How objects end: finalizers, grace periods, namespaces, and owners whose end is the end of their dependents."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from controller.sandbox import errors, strategy
from controller.sandbox.history import Entry, Object
from controller.sandbox.kinds import NAMESPACES, PODS, Resource

Dependent = tuple[Resource, str]  # the kind and the key "namespace/name"

_FOREGROUND = "foregroundDeletion"
_DEFAULT_POD_GRACE_SECONDS = 30


@dataclass(frozen=True)
class Deletion:
    """How an object is deleted.

    ``grace_seconds`` None is what the pod's spec says; other kinds have no grace. ``propagation`` is ``Background``,
    ``Foreground`` or ``Orphan``. ``uid`` and ``version`` are preconditions.
    """

    grace_seconds: int | None = None
    propagation: str = "Background"
    uid: str | None = None
    version: str | None = None
    dry_run: bool = False


class Shelf(Protocol):
    """What the collector needs of the store."""

    clock: Callable[[], float]
    resources: dict[str, Resource]

    def find(self, api_version: str, kind: str) -> Resource | None:
        """Find the kind of a reference."""

    def at(self, resource: Resource, key: str) -> Entry | None:
        """Give one object by its key."""

    def names_in(self, namespace: str) -> list[Dependent]:
        """List everything in a namespace."""

    def write(self, resource: Resource, key: str, obj: Object, before: Entry | None) -> Entry:
        """Store one version."""

    def drop(self, resource: Resource, entry: Entry) -> Entry:
        """Take one object out and give its last version."""

    def update(
        self, resource: Resource, namespace: str | None, name: str, change: Callable[[Object], Object]
    ) -> Object:
        """Change one object."""


def owner_uids(obj: Object) -> set[str]:
    """Give the uids that the object names as its owners."""
    return {owner.get("uid", "") for owner in obj["metadata"].get("ownerReferences") or []}


class Collector:
    """Deletes objects of one store, and what their end brings with it."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._dependents: dict[str, set[Dependent]] = {}
        self._living: set[str] = set()

    def replaced(self, resource: Resource, before: Entry | None, after: Entry | None) -> None:
        """Note that one object has changed, come (``before`` None) or gone (``after`` None)."""
        old = owner_uids(before.obj) if before else set()
        new = owner_uids(after.obj) if after else set()
        if before and not after:
            self._living.discard(before.obj["metadata"]["uid"])
        if after and not before:
            self._living.add(after.obj["metadata"]["uid"])
        key = before.key if before else after.key if after else ""
        for uid in old - new:
            self._dependents.get(uid, set()).discard((resource, key))
        for uid in new - old:
            self._dependents.setdefault(uid, set()).add((resource, key))

    def delete(self, resource: Resource, entry: Entry, how: Deletion) -> tuple[Object, bool]:
        """Delete one object; gives its last version and whether it is gone."""
        _check_preconditions(resource, entry.obj, how)
        grace = _grace_seconds(resource, entry.obj, how)
        holders = self._holders(entry, how)
        if how.dry_run:
            return entry.obj, False
        if how.propagation == "Orphan":
            self._orphan(entry.obj["metadata"]["uid"])
        if not holders and not grace and not self._content(resource, entry):
            return self._shelf.drop(resource, entry).obj, True
        entry = self._mark(resource, entry, holders, grace)
        self._cascade(resource, entry)
        left = self._shelf.at(resource, entry.key)
        return (entry if left is None else left).obj, left is None

    def gone(self, obj: Object) -> None:
        """Follow an object's end: its dependents go, and who waited for it is released."""
        meta = obj["metadata"]
        for resource, key in self._of(meta["uid"]):
            self._lost_owner(resource, key, meta["uid"])
        self._dependents.pop(meta["uid"], None)
        for owner in meta.get("ownerReferences") or []:
            if found := self._shelf.find(owner.get("apiVersion", ""), owner.get("kind", "")):
                prefix = f"{meta['namespace']}/" if found.namespaced and "namespace" in meta else ""
                self.release(found, prefix + owner.get("name", ""))
        if namespace := meta.get("namespace"):
            self.release(NAMESPACES, namespace)

    def release(self, resource: Resource, key: str) -> None:
        """Let a marked owner or namespace go when nothing holds it any more."""
        entry = self._shelf.at(resource, key)
        if entry is None or "deletionTimestamp" not in entry.obj["metadata"]:
            return
        meta = entry.obj["metadata"]
        finalizers = list(meta.get("finalizers") or [])
        if _FOREGROUND in finalizers and not self._of(meta["uid"]):
            self._edit(resource, key, _without_finalizer(_FOREGROUND))
        elif resource is NAMESPACES and not finalizers and not self._content(resource, entry):
            self._shelf.drop(resource, entry)

    def _of(self, uid: str) -> list[Dependent]:
        return sorted(self._dependents.get(uid, ()), key=lambda item: (item[0].qualified, item[1]))

    def _holders(self, entry: Entry, how: Deletion) -> list[str]:
        meta = entry.obj["metadata"]
        holders = list(meta.get("finalizers") or [])
        if how.propagation == "Foreground" and self._of(meta["uid"]) and _FOREGROUND not in holders:
            holders.append(_FOREGROUND)
        return holders

    def _content(self, resource: Resource, entry: Entry) -> list[Dependent]:
        return self._shelf.names_in(entry.key) if resource is NAMESPACES else []

    def _mark(self, resource: Resource, entry: Entry, finalizers: list[str], grace: int) -> Entry:
        if "deletionTimestamp" in entry.obj["metadata"]:
            return entry
        marked = strategy.clone(entry.obj)
        meta = marked["metadata"]
        meta["deletionTimestamp"] = strategy.timestamp(self._shelf.clock() + grace)
        meta["deletionGracePeriodSeconds"] = grace
        if finalizers:
            meta["finalizers"] = finalizers
        if "generation" in meta:
            meta["generation"] += 1
        if resource is NAMESPACES:
            del meta["deletionGracePeriodSeconds"]
            marked["status"] = {**marked.get("status", {}), "phase": "Terminating"}
        return self._shelf.write(resource, entry.key, marked, entry)

    def _cascade(self, resource: Resource, entry: Entry) -> None:
        """Begin what a marked object waits for: its dependents, or everything in the namespace."""
        meta = entry.obj["metadata"]
        waits_for = self._of(meta["uid"]) if _FOREGROUND in (meta.get("finalizers") or []) else []
        for inner, key in waits_for + self._content(resource, entry):
            self._delete_if_there(inner, key)
        self.release(resource, entry.key)

    def _lost_owner(self, resource: Resource, key: str, uid: str) -> None:
        entry = self._shelf.at(resource, key)
        if entry is not None and any(self._others(entry.obj, uid)):
            self._edit(resource, key, _without_owner(uid))
        else:
            self._delete_if_there(resource, key)

    def _others(self, obj: Object, gone: str) -> Iterator[str]:
        return (uid for uid in owner_uids(obj) if uid != gone and uid in self._living)

    def _orphan(self, uid: str) -> None:
        for resource, key in self._of(uid):
            self._edit(resource, key, _without_owner(uid))

    def _edit(self, resource: Resource, key: str, change: Callable[[Object], Object]) -> None:
        namespace, _, name = key.rpartition("/")
        self._shelf.update(resource, namespace, name, change)

    def _delete_if_there(self, resource: Resource, key: str) -> None:
        entry = self._shelf.at(resource, key)
        if entry is not None and "deletionTimestamp" not in entry.obj["metadata"]:
            self.delete(resource, entry, Deletion())


def _without_owner(uid: str) -> Callable[[Object], Object]:
    def change(obj: Object) -> Object:
        kept = [owner for owner in obj["metadata"].get("ownerReferences") or [] if owner.get("uid") != uid]
        return _with_list(obj, "ownerReferences", kept)

    return change


def _without_finalizer(name: str) -> Callable[[Object], Object]:
    def change(obj: Object) -> Object:
        return _with_list(obj, "finalizers", [held for held in obj["metadata"]["finalizers"] if held != name])

    return change


def _with_list(obj: Object, key: str, kept: list[Any]) -> Object:
    obj["metadata"].pop(key, None)
    if kept:
        obj["metadata"][key] = kept
    return obj


def _grace_seconds(resource: Resource, obj: Object, how: Deletion) -> int:
    spec = obj.get("spec") or {}
    finished = (obj.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
    if resource is not PODS or not spec.get("nodeName") or finished:
        return 0
    if how.grace_seconds is not None:
        return max(how.grace_seconds, 0)
    return int(spec.get("terminationGracePeriodSeconds") or _DEFAULT_POD_GRACE_SECONDS)


def _check_preconditions(resource: Resource, obj: Object, how: Deletion) -> None:
    meta = obj["metadata"]
    for word, wanted, got in (("UID", how.uid, meta["uid"]), ("ResourceVersion", how.version, meta["resourceVersion"])):
        if wanted is not None and wanted != got:
            sentence = f"the {word} in the precondition ({wanted}) does not match the {word} in record ({got})"
            raise errors.conflict(resource.group, resource.plural, meta["name"], sentence)
