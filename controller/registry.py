"""The custom resources as the loop sees them: one slim manifest per object, and whether all of them are known.

Why it exists: events say what changed, but not what vanished while nobody was listening. So events and a full list,
taken now and then, meet here, and the list has the last word on what exists.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.cluster import ApiError, Cluster, Kind, NotFound, Object
from controller.stores import Backoff, Key, key_of

RECONCILE_SECONDS = 300.0
GATHER_SECONDS = 0.5
"""Wishes for a list that come close together are served by one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One custom resource: ``manifest`` has apiVersion, kind, spec, status and the few metadata that are used."""

    uid: str
    generation: int
    resource_version: str
    deleting: bool
    """It has a deletionTimestamp: scale it no more."""
    manifest: Object


def entry_of(obj: Mapping[str, Any]) -> Entry:
    """Take what is needed out of a manifest. Raises KeyError for one without a name."""
    metadata = obj["metadata"]
    generation = metadata.get("generation")
    kept = ("name", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp")
    slim = {key: metadata[key] for key in (*kept, "labels") if key in metadata}
    return Entry(
        uid=str(metadata.get("uid") or ""),
        generation=generation if isinstance(generation, int) else 0,
        resource_version=str(metadata.get("resourceVersion") or ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        manifest={
            "apiVersion": obj.get("apiVersion", ""),
            "kind": obj.get("kind", ""),
            "metadata": {"name": metadata["name"]} | slim,
            "spec": obj.get("spec") or {},
            "status": obj.get("status") or {},
        },
    )


class Scalers:
    """All objects of one custom kind: ``entries[(namespace, name)]``. Lives in the loop's thread."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.entries: dict[Key, Entry] = {}
        self.synced = False
        """Whether a full list has been in: before that, nothing may be decided."""
        self.ghosts_removed = 0
        self._callbacks: list[Callable[[Key, Entry | None], None]] = []
        self._touched: set[Key] | None = None

    def on_spec_change(self, callback: Callable[[Key, Entry | None], None]) -> None:
        """Call ``callback(key, entry)`` when an object appears, its spec changes, it begins to go, or is gone (None).

        A change of the status alone, which is mostly our own writing, does not call.
        """
        self._callbacks.append(callback)

    def take(self, event: str | None, obj: Mapping[str, Any]) -> None:
        """Take one event; ``event`` None is an object of an initial list."""
        entry, key = entry_of(obj), key_of(obj)
        if self._touched is not None:
            self._touched.add(key)
        if event == "DELETED":
            held = self.entries.get(key)
            if held is not None and held.uid == entry.uid:
                self._remove(key)
        else:
            self._put(key, entry)

    def begin_list(self) -> None:
        """Note that a list is being read: objects with events from now on are newer than it."""
        self._touched = set()

    def end_list(self, items: Iterable[Mapping[str, Any]] | None) -> None:
        """Take the list, None if it failed: add what was missed, remove the ghosts; touched objects stay."""
        touched, self._touched = self._touched or set(), None
        if items is None:
            return
        listed = {key_of(obj): entry_of(obj) for obj in items}
        for key, entry in listed.items():
            if key not in touched:
                self._put(key, entry)
        for key in [key for key in self.entries if key not in listed and key not in touched]:
            self.ghosts_removed += 1
            self._remove(key)
        self.synced = True

    def _put(self, key: Key, entry: Entry) -> None:
        held = self.entries.get(key)
        if held is not None and held.uid == entry.uid:
            if held.resource_version == entry.resource_version or _older(entry, held):
                return
            same = held.generation == entry.generation and held.deleting == entry.deleting
            if same and held.manifest["spec"] == entry.manifest["spec"]:
                self.entries[key] = entry
                return
        self.entries[key] = entry
        self._tell(key, entry)

    def _remove(self, key: Key) -> None:
        del self.entries[key]
        self._tell(key, None)

    def _tell(self, key: Key, entry: Entry | None) -> None:
        for callback in self._callbacks:
            try:
                callback(key, entry)
            except Exception:  # a listener's fault must not end the registry that all others read
                log.exception("a listener of %s failed at %s", self.kind.resource, key)


def _older(entry: Entry, held: Entry) -> bool:
    """Whether the entry is an older version of the same object: events that were queued can be behind a list."""
    new, old = entry.resource_version, held.resource_version
    return new.isdecimal() and old.isdecimal() and int(new) < int(old)


class Registry:
    """The scalers of all our kinds, and the task that lists them every five minutes and on demand."""

    def __init__(
        self,
        cluster: Cluster,
        kinds: Sequence[Kind],
        *,
        reconcile_seconds: float = RECONCILE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scalers = {kind.kind: Scalers(kind) for kind in kinds}
        """By kind name, e.g. ``GPUWorkloadScaler``."""
        self.last_error = ""
        self._cluster = cluster
        self._reconcile_seconds = reconcile_seconds
        self._clock = clock
        self._listed_at = clock()
        self._wanted = asyncio.Event()
        self._turn = asyncio.Lock()
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def synced(self) -> bool:
        """Whether the full list of every kind has been in."""
        return all(scalers.synced for scalers in self.scalers.values())

    def age_seconds(self, now: float | None = None) -> float:
        """Seconds since all kinds were last listed with success (since the start, before that)."""
        return max(0.0, (self._clock() if now is None else now) - self._listed_at)

    async def wait_synced(self) -> None:
        """Return once every kind has been listed."""
        await self._synced.wait()

    def take(self, kind: str, event: str | None, obj: Mapping[str, Any]) -> None:
        """Take one event of a kind; call it in the loop's thread."""
        try:
            self.scalers[kind].take(event, obj)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            log.warning("an event of %s is not understood: %s: %s", kind, type(problem).__name__, problem)

    def reconcile_soon(self) -> None:
        """Ask for a full list at the next opportunity."""
        self._wanted.set()

    async def reconcile(self) -> None:
        """List every kind now and make the registry equal to it. Raises ApiError; what was known then stays."""
        async with self._turn:
            for scalers in self.scalers.values():
                await self._list(scalers)
            self._listed_at = self._clock()
            self._synced.set()

    async def _list(self, scalers: Scalers) -> None:
        items = None
        scalers.begin_list()
        try:
            items = (await self._cluster.list(scalers.kind)).items
        except NotFound:
            # the definition is gone, and who knows what of its objects: none of them may be acted on
            scalers.synced = False
            raise
        finally:
            scalers.end_list(items)

    def start(self) -> None:
        """Begin to list in a task of its own."""
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name="registry")

    async def stop(self) -> None:
        """End the task."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def run(self) -> None:
        """List at once, every five minutes and on demand, until cancelled."""
        backoff = Backoff()
        while True:
            self._wanted.clear()
            try:
                await self.reconcile()
            except ApiError as error:
                self.last_error = str(error)
                wait = backoff.next()
                log.warning("the custom resources cannot be listed, again in %.1f s: %s", wait, error)
                await asyncio.sleep(wait)
                continue
            self.last_error = ""
            backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._reconcile_seconds * random.uniform(0.9, 1.1)):  # noqa: S311 - jitter
                    await self._wanted.wait()
                    await asyncio.sleep(GATHER_SECONDS)
