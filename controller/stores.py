"""A local copy of one kind: listed once, watched from there on, relisted when the watch can no longer be trusted.

Why it exists: pods, nodes and scale targets are read at every tick, in numbers for which a request each would be too
much. A copy must say how old it is and whether it ever was whole, because nothing may be decided from a part.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from controller.cluster import ApiError, Cluster, Gone, Kind, Object, TooMany, Unreachable

T = TypeVar("T")
Key = tuple[str, str]
"""(namespace, name); the namespace is "" for cluster-scoped kinds."""

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 5.0
"""Nothing is decided while a copy is stale, so an outage must not be followed by a long pause of our own."""
LONGEST_RETRY_AFTER_SECONDS = 30.0
RELIST_SECONDS = 600.0
SHORT_WATCH_SECONDS = 1.0
"""A watch that the server ends sooner is followed by a pause, so that a broken server is not asked without end."""

log = logging.getLogger(__name__)


def key_of(obj: Mapping[str, Any]) -> Key:
    """Name an object by its namespace and name. Raises KeyError for one without a name."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


class Backoff:
    """Growing, jittered pauses between tries: 0.5 s doubling to 5 s, each shortened by up to a half."""

    def __init__(self, first: float = FIRST_BACKOFF_SECONDS, longest: float = LONGEST_BACKOFF_SECONDS) -> None:
        self._first = first
        self._longest = longest
        self._tries = 0

    def reset(self) -> None:
        """Begin small again."""
        self._tries = 0

    def next(self) -> float:
        """Give the next pause in seconds."""
        pause = min(self._longest, self._first * 2.0 ** min(self._tries, 16))
        self._tries += 1
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


class Store(Generic[T]):
    """The objects of one kind as ``keep`` makes them: ``objects[(namespace, name)]``.

    ``keep`` takes what is needed out of a manifest; None = do not hold this object. All in one event loop.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        keep: Callable[[Object], T | None],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        relist_seconds: float = RELIST_SECONDS,
        watch_seconds: float = 300.0,
        silence_seconds: float = 70.0,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind = kind
        self.objects: dict[Key, T] = {}
        self.synced = False
        """Whether a full list has been in: before that ``objects`` says nothing."""
        self.relists = 0
        self.last_error = ""
        """Why the last try failed, "" while all is well."""
        self._cluster = cluster
        self._keep = keep
        self._namespace = namespace
        self._selectors = {"label_selector": label_selector, "field_selector": field_selector}
        self._relist_seconds = relist_seconds
        self._watch_seconds = watch_seconds
        self._silence_seconds = silence_seconds
        self._backoff = backoff if backoff is not None else Backoff()
        self._clock = clock
        self._callbacks: list[Callable[[Key, T | None, T | None], None]] = []
        self._versions: dict[Key, str] = {}
        self._resource_version = ""
        self._listed_at = float("-inf")
        self._heard_at = clock()
        self._live_at = clock()
        self._opened_at = float("-inf")
        self._watching = False
        self._task: asyncio.Task[None] | None = None
        self._synced_event = asyncio.Event()

    def on_change(self, callback: Callable[[Key, T | None, T | None], None]) -> None:
        """Call ``callback(key, old, new)`` after each change; old None = new object, new None = gone."""
        self._callbacks.append(callback)

    def age_seconds(self, now: float | None = None) -> float:
        """Seconds since the server last spoke to us about this kind (list, event, bookmark, watch accepted).

        On a quiet kind the server speaks about once a minute. ``now`` is of the monotonic clock.
        """
        return max(0.0, (self._clock() if now is None else now) - self._heard_at)

    def live_watch_age(self, now: float | None = None) -> float:
        """Seconds since there last was a live watch: 0 while one is open and not silent for too long."""
        return 0.0 if self._watching else max(0.0, (self._clock() if now is None else now) - self._live_at)

    async def wait_synced(self) -> None:
        """Return once the first full list is in."""
        await self._synced_event.wait()

    def start(self) -> None:
        """Begin to list and watch, in a task of its own."""
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name=f"store of {self.kind.resource}")

    async def stop(self) -> None:
        """End the task and its connection; returns when both are gone. The objects stay as they were."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                await self._list_if_due()
                await self._watch()
            except Gone as gone:
                self._resource_version = ""
                await self._pause(gone)
            except ApiError as error:
                await self._pause(error)

    async def _pause(self, error: ApiError) -> None:
        """Wait after an error; the place in the event stream is kept only where the server has not doubted it."""
        self.last_error = str(error)
        if not isinstance(error, (Unreachable, TooMany)):
            self._resource_version = ""
        wait = self._backoff.next()
        if error.retry_after is not None:
            wait = max(wait, min(error.retry_after, LONGEST_RETRY_AFTER_SECONDS))
        level = logging.DEBUG if isinstance(error, Gone) else logging.WARNING
        log.log(level, "%s: trying again in %.1f s: %s", self.kind.resource, wait, error)
        await asyncio.sleep(wait)

    async def _list_if_due(self) -> None:
        due = self._clock() - self._listed_at >= self._relist_seconds
        if not due and self._resource_version:
            return
        started = self._clock()
        listing = await self._cluster.list(self.kind, self._namespace, **self._selectors)
        self._replace_all(listing.items)
        self._resource_version = listing.resource_version
        self._listed_at = started
        self._heard_at = self._clock()
        self.relists += 1
        self.synced = True
        self._synced_event.set()

    async def _watch(self) -> None:
        """Follow one watch to its end."""
        remaining = self._relist_seconds - (self._clock() - self._listed_at)
        events = self._cluster.watch(
            self.kind,
            self._namespace,
            self._resource_version,
            **self._selectors,
            timeout_seconds=min(self._watch_seconds, max(1.0, remaining)),
            silence_seconds=self._silence_seconds,
            opened=self._opened,
        )
        live_before = self._live_at
        try:
            async with contextlib.aclosing(events):
                async for event, obj in events:
                    self._take(event, obj)
        except Gone:
            if self._clock() - self._opened_at < SHORT_WATCH_SECONDS:
                self._live_at, self._watching = (
                    live_before,
                    False,
                )  # accepted only to say so: the copy is as old as ever
            raise
        finally:
            if self._watching:
                self._live_at = self._clock()
            self._watching = False
        if self._clock() - self._opened_at < SHORT_WATCH_SECONDS:
            await asyncio.sleep(self._backoff.next())

    def _opened(self) -> None:
        self._watching = True
        self.last_error = ""
        self._opened_at = self._live_at = self._heard_at = self._clock()

    def _take(self, event: str, obj: Object) -> None:
        """Take one event of the watch into the copy."""
        self._backoff.reset()
        self._heard_at = self._clock()
        self._resource_version = _version(obj) or self._resource_version
        if event == "DELETED":
            self._drop(key_of(obj))
        elif event in {"ADDED", "MODIFIED"}:
            self._put(key_of(obj), self._kept(obj), _version(obj))

    def _replace_all(self, items: Iterable[Object]) -> None:
        """Make the copy equal to a full list; what is not in it has gone while nobody told us."""
        seen = set()
        for obj in items:
            key, version = key_of(obj), _version(obj)
            seen.add(key)
            if not version or self._versions.get(key) != version:
                self._put(key, self._kept(obj), version)
        for key in [key for key in self._versions if key not in seen]:
            self._drop(key)

    def _kept(self, obj: Object) -> T | None:
        try:
            return self._keep(obj)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            log.warning("%s %s is left out: %s: %s", self.kind.kind, key_of(obj), type(problem).__name__, problem)
            return None

    def _put(self, key: Key, new: T | None, version: str) -> None:
        old = self.objects.get(key)
        self._versions[key] = version
        if new is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = new
        if old != new:
            self._tell(key, old, new)

    def _drop(self, key: Key) -> None:
        self._versions.pop(key, None)
        old = self.objects.pop(key, None)
        if old is not None:
            self._tell(key, old, None)

    def _tell(self, key: Key, old: T | None, new: T | None) -> None:
        for callback in self._callbacks:
            try:
                callback(key, old, new)
            except Exception:  # a listener's fault must not end the copy that all others read
                log.exception("a listener of %s failed at %s", self.kind.resource, key)


def _version(obj: Object) -> str:
    return str(obj["metadata"].get("resourceVersion") or "")
