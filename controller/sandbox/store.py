"""The objects of the embedded cluster, in this process, with the semantics of the Kubernetes API.

Everything runs on one thread. An object that the store gives out is shared: copy it before changing it.
Writers in this process (the simulated kubelet, scheduler, controllers) and the HTTP side use the same calls.
"""

import time
from collections.abc import Callable, Iterable

from controller.sandbox import built_in, errors, strategy, wellformed
from controller.sandbox.admission import Admit, WriteOptions
from controller.sandbox.definitions import Definitions
from controller.sandbox.disruption import DisruptionBudgets
from controller.sandbox.garbage import Collector, Deletion, Dependent
from controller.sandbox.history import Change, ChangeType, Entry, History, Object, Subscription
from controller.sandbox.kinds import BUILT_IN, NAMESPACES, SERVICE_ACCOUNTS, Resource
from controller.sandbox.patches import merged
from controller.sandbox.selection import fields_match, labels_match

__all__ = ["Admit", "Deletion", "Resource", "Store", "WriteOptions"]

Objects = list[Object]
Entries = list[Entry]
Keys = list[str]
Dependents = list[Dependent]


class Store:
    """Every object of every kind, one counter of versions, and a bounded history of each kind."""

    def __init__(self, clock: Callable[[], float] = time.time, history_size: int = 4096) -> None:
        self.clock = clock
        self.version = 1
        self.resources: dict[str, Resource] = {}
        self._history_size = history_size
        self._tables: dict[str, dict[str, Entry]] = {}
        self._sorted: dict[str, Keys] = {}
        self._histories: dict[str, History] = {}
        self._admits: dict[str, Admit] = {}
        self._collector = Collector(self)
        for resource in BUILT_IN:
            self.register(resource, built_in.ADMIT.get(resource.qualified))
        self.definitions = Definitions(self)
        DisruptionBudgets(self)
        for name in ("default", "kube-node-lease", "kube-public", "kube-system"):
            self.create(NAMESPACES, {"metadata": {"name": name}})

    # kinds

    def register(self, resource: Resource, admit: Admit | None = None) -> None:
        """Serve a kind from now on, or change how it is served. ``admit`` defaults and checks each write of it."""
        name = resource.qualified
        self.resources[name] = resource
        self._tables.setdefault(name, {})
        self._histories.setdefault(name, History(self._history_size, self.version))
        if admit is not None:
            self._admits[name] = admit

    def unregister(self, resource: Resource) -> None:
        """Delete every object of a kind and serve it no longer; its watches end."""
        for entry in self.entries(resource):
            self.drop(resource, entry)
        for subscription in tuple(self._histories[resource.qualified].subscriptions):
            subscription.close()
        for held in (self.resources, self._tables, self._histories, self._admits, self._sorted):
            held.pop(resource.qualified, None)

    def find(self, api_version: str, kind: str) -> Resource | None:
        """Give the registered resource of an object's ``apiVersion`` and ``kind``."""
        found = (r for r in self.resources.values() if r.kind == kind and r.api_version == api_version)
        return next(found, None)

    # reads

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Give one object. Raises 404."""
        return self.entry(resource, namespace, name).obj

    def entry(self, resource: Resource, namespace: str | None, name: str) -> Entry:
        """Give one object with its version. Raises 404."""
        found = self.at(resource, _key(resource, namespace, name))
        if found is None:
            raise errors.not_found(resource.group, resource.plural, name)
        return found

    def at(self, resource: Resource, key: str) -> Entry | None:
        """Give one object by its key, ``namespace/name``, or ``name`` where there are no namespaces."""
        return self._tables[resource.qualified].get(key)

    def list(
        self, resource: Resource, namespace: str | None = None, label_selector: str = "", field_selector: str = ""
    ) -> Objects:
        """Give what both selectors allow, in the order of the names; of one namespace if it is named."""
        return [entry.obj for entry in self.select(resource, namespace, label_selector, field_selector)]

    def select(
        self, resource: Resource, namespace: str | None = None, label_selector: str = "", field_selector: str = ""
    ) -> Entries:
        """List with the versions; takes what ``list`` takes."""
        found: Iterable[Entry] = self.entries(resource)
        if namespace and resource.namespaced:
            prefix = f"{namespace}/"
            found = [entry for entry in found if entry.key.startswith(prefix)]
        if label_selector:
            match = labels_match(label_selector)
            found = [entry for entry in found if match(entry.obj)]
        if field_selector:
            match = fields_match(resource, field_selector)
            found = [entry for entry in found if match(entry.obj)]
        return list(found)

    def entries(self, resource: Resource) -> Entries:
        """Give every object of a kind in the order of its key."""
        table = self._tables[resource.qualified]
        keys = self._sorted.get(resource.qualified)
        if keys is None:
            keys = self._sorted[resource.qualified] = sorted(table)
        return [table[key] for key in keys]

    def names_in(self, namespace: str) -> Dependents:
        """Give the kind and key of everything in a namespace."""
        return [
            (resource, entry.key)
            for resource in self.resources.values()
            if resource.namespaced
            for entry in self.select(resource, namespace)
        ]

    def history(self, resource: Resource) -> History:
        """Give what happened to a kind, for those who watch it."""
        return self._histories[resource.qualified]

    def subscribe(self, resource: Resource, limit: int = 0) -> Subscription:
        """Stream what happens to a kind from now on: ``type, obj = await stream.get()``."""
        return self.history(resource).subscribe(limit)

    # writes

    def create(
        self, resource: Resource, obj: Object, namespace: str | None = None, options: WriteOptions | None = None
    ) -> Object:
        """Store a new object and give it as stored. Raises 409 when the name is taken, 404 without its namespace."""
        options = options or WriteOptions()
        table = self._tables[resource.qualified]
        wellformed.check(resource, obj)
        new = strategy.named(
            resource, strategy.clone(obj), namespace, lambda place, name: _key(resource, place, name) in table
        )
        meta = new["metadata"]
        self._check_namespace(resource, meta)
        strategy.for_create(resource, new, self.clock())
        self._admit(resource, new, None, "", options)
        key = _key(resource, meta.get("namespace"), meta["name"])
        if key in table:
            raise errors.already_exists(resource.group, resource.plural, meta["name"])
        if options.dry_run:
            return new
        created = self.write(resource, key, new, None).obj
        if resource is NAMESPACES:
            self.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": meta["name"]}})
        return created

    def patch(
        self, resource: Resource, namespace: str | None, name: str, merge_patch: Object, subresource: str = ""
    ) -> Object:
        """Apply a JSON merge patch; ``subresource`` is "" or "status". Gives the object as stored."""
        return self.update(resource, namespace, name, lambda obj: merged(obj, merge_patch), subresource)

    def replace(
        self, resource: Resource, namespace: str | None, name: str, obj: Object, subresource: str = ""
    ) -> Object:
        """Put another whole object in the place of one. Raises 409 when its resourceVersion is not the newest."""
        return self.update(resource, namespace, name, lambda _: strategy.clone(obj), subresource)

    def update(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        change: Callable[[Object], Object],
        subresource: str = "",
        options: WriteOptions | None = None,
    ) -> Object:
        """Change one object: ``change`` gets a copy to alter and gives the new whole object.

        A write that changes nothing is not a write: the version stays and no watch sees it.
        """
        options = options or WriteOptions()
        entry = self.entry(resource, namespace, name)
        old = entry.obj
        new = change(strategy.clone(old))
        wellformed.check(resource, new)
        strategy.check_identity(resource, new, old)
        new = strategy.for_update(resource, new, old, subresource)
        self._admit(resource, new, old, subresource, options)
        strategy.check_finalizers(resource, new, old)
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new == old:
            return old
        strategy.count_generation(resource, new, old, subresource)
        if options.dry_run:
            return new
        if _released(new["metadata"]):
            return self.drop(resource, entry, new).obj
        return self.write(resource, entry.key, new, entry).obj

    def delete(
        self, resource: Resource, namespace: str | None, name: str, how: Deletion | None = None
    ) -> tuple[Object, bool]:
        """Delete one object; gives its last version and whether it is gone.

        Without ``how`` it goes at once unless finalizers hold it. With ``how=Deletion()``, which is what a DELETE over
        HTTP means, a scheduled pod is only marked: to end it is the kubelet's part, a second delete without grace.
        """
        entry = self.entry(resource, namespace, name)
        return self._collector.delete(resource, entry, how or Deletion(grace_seconds=0))

    def compact(self, resource: Resource | None = None) -> None:
        """Forget the history of one kind, or of all: watches from an older version get 410."""
        for name, history in self._histories.items():
            if resource is None or name == resource.qualified:
                history.compact(self.version)

    # how a write ends

    def write(self, resource: Resource, key: str, obj: Object, before: Entry | None) -> Entry:
        """Store one version without further checks, and tell those who watch."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        entry = Entry(key, obj, self.version)
        self._tables[resource.qualified][key] = entry
        if before is None:
            self._sorted.pop(resource.qualified, None)
        self._collector.replaced(resource, before, entry)
        self._tell(resource, "MODIFIED" if before else "ADDED", entry, before)
        return entry

    def drop(self, resource: Resource, entry: Entry, last: Object | None = None) -> Entry:
        """Take one object out without further checks, and follow its end; gives its last version."""
        if self._tables[resource.qualified].pop(entry.key, None) is None:
            return entry
        self._sorted.pop(resource.qualified, None)
        self.version += 1
        last = strategy.clone(entry.obj) if last is None else last
        last["metadata"]["resourceVersion"] = str(self.version)
        gone = Entry(entry.key, last, self.version)
        self._collector.replaced(resource, entry, None)
        self._tell(resource, "DELETED", gone, entry)
        self._collector.gone(last)
        return gone

    def _tell(self, resource: Resource, type_: ChangeType, entry: Entry, before: Entry | None) -> None:
        self._histories[resource.qualified].append(Change(type_, entry, before, entry.version))

    def _admit(
        self, resource: Resource, new: Object, old: Object | None, subresource: str, options: WriteOptions
    ) -> None:
        admit = self._admits.get(resource.qualified)
        if admit is not None:
            admit(new, old, subresource, options)

    def _check_namespace(self, resource: Resource, meta: Object) -> None:
        if not resource.namespaced:
            return
        place = meta["namespace"]
        if "deletionTimestamp" in self.get(NAMESPACES, None, place)["metadata"]:
            sentence = f"unable to create new content in namespace {place} because it is being terminated"
            cause = errors.Cause("NamespaceTerminating", f"namespace {place} is being terminated", "metadata.namespace")
            raise errors.forbidden(resource.group, resource.plural, meta["name"], sentence, [cause])


def _key(resource: Resource, namespace: str | None, name: str) -> str:
    return f"{namespace or 'default'}/{name}" if resource.namespaced else name


def _released(meta: Object) -> bool:
    marked = "deletionTimestamp" in meta
    return marked and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")
