"""Watches: what has happened since a version, then what happens, until the caller or the time limit ends it."""

import asyncio
from collections.abc import Iterable

from aiohttp import web

from controller.sandbox import errors
from controller.sandbox.calls import Call
from controller.sandbox.history import Change, Entry, Object, Subscription, encode
from controller.sandbox.reading import event_object, too_large
from controller.sandbox.selection import Match, fields_match, labels_match
from controller.sandbox.store import Store

Entries = list[Entry]
Changes = list[Change]

_LONGEST_SECONDS = 1800
_BOOKMARK_SECONDS = 10.0
_SLOW_READER = 20_000  # changes left waiting before a watch is ended
_INITIAL_END = {"k8s.io/initial-events-end": "true"}


class Watch:
    """One watch: which changes it shows, in which form."""

    def __init__(self, store: Store, call: Call) -> None:
        place = call.place
        self._store = store
        self._call = call
        self._resource = place.resource
        self.limit_seconds = call.number("timeoutSeconds") or _LONGEST_SECONDS
        self._plain = call.view() == ""
        self._prefix = f"{place.namespace}/" if place.namespace else ""
        self._labels = labels_match(call.query.get("labelSelector", ""))
        self._fields = fields_match(place.resource, call.query.get("fieldSelector", ""))
        self._selective = bool(call.query.get("labelSelector") or call.query.get("fieldSelector"))

    def begin(self) -> tuple[Subscription, list[bytes]]:
        """Subscribe, and give the lines that come first. Raises 410 when the version asked for is no longer kept."""
        call, history = self._call, self._store.history(self._resource)
        version = call.number("resourceVersion")
        streaming = call.flag("sendInitialEvents")
        _check_streaming(call, streaming=streaming)
        if version > self._store.version:
            raise too_large(version, self._store.version)
        if version and not streaming:
            lines = [line for change in history.since(version) for line in self.lines(change)]
        else:
            lines = self._current()
        if streaming:
            lines.append(self.bookmark(_INITIAL_END))
        return history.subscribe(_SLOW_READER), lines

    def lines(self, change: Change) -> Iterable[bytes]:
        """Give the line of a change; none when the watch does not show it."""
        if not change.entry.key.startswith(self._prefix):
            return
        type_, entry = self._seen(change)
        if type_:
            body = entry.body if self._plain else encode(event_object(self._store, self._call, entry.obj))
            yield b'{"type":"' + type_.encode() + b'","object":' + body + b"}\n"

    def bookmark(self, annotations: dict[str, str] | None = None) -> bytes:
        """Give the line that tells how far the watch has come."""
        meta: Object = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        obj = {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": meta}
        if not self._plain:
            obj = event_object(self._store, self._call, obj)
            obj["rows"] = []
        return encode({"type": "BOOKMARK", "object": obj}) + b"\n"

    def _current(self) -> list[bytes]:
        entries = self._store.entries(self._resource)
        changes = (Change("ADDED", entry, None, entry.version) for entry in entries)
        return [line for change in changes for line in self.lines(change)]

    def _seen(self, change: Change) -> tuple[str, Entry]:
        """Tell what the change is to one who sees only what the selectors allow."""
        if not self._selective:
            return change.type, change.entry
        now = change.type != "DELETED" and self._matches(change.entry)
        before = change.previous is not None and self._matches(change.previous)
        if now:
            return ("MODIFIED" if before else "ADDED"), change.entry
        if not before or change.previous is None:
            return "", change.entry
        return "DELETED", _at_version(change.previous, change)

    def _matches(self, entry: Entry) -> bool:
        checks: tuple[Match, ...] = (self._labels, self._fields)
        return all(check(entry.obj) for check in checks)


def _at_version(previous: Entry, change: Change) -> Entry:
    meta = {**previous.obj["metadata"], "resourceVersion": str(change.version)}
    return Entry(previous.key, {**previous.obj, "metadata": meta}, change.version)


def _check_streaming(call: Call, *, streaming: bool) -> None:
    if streaming and call.query.get("resourceVersionMatch") != "NotOlderThan":
        told = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        cause = errors.Cause("FieldValueForbidden", told, "sendInitialEvents")
        raise errors.invalid("meta.k8s.io", "ListOptions", "", [cause])


async def watch(store: Store, call: Call, streams: set[Subscription]) -> web.StreamResponse:
    """Answer with the stream of a watch; it stands in ``streams`` for as long as it lasts."""
    seen = Watch(store, call)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    try:
        subscription, lines = seen.begin()
    except errors.StatusError as exc:
        if exc.code != 410:
            raise
        await response.prepare(call.request)
        await response.write(encode({"type": "ERROR", "object": exc.document()}) + b"\n")
        return response
    streams.add(subscription)
    try:
        await response.prepare(call.request)
        await response.write(b"".join(lines))
        await _follow(seen, call, subscription, response)
    except ConnectionError:
        pass  # the caller has gone: that is how most watches end
    finally:
        streams.discard(subscription)
        subscription.close()
    return response


async def _follow(seen: Watch, call: Call, subscription: Subscription, response: web.StreamResponse) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seen.limit_seconds
    bookmarks = call.flag("allowWatchBookmarks")
    while (left := end - loop.time()) > 0:
        try:
            async with asyncio.timeout(min(left, _BOOKMARK_SECONDS)):
                changes = await subscription.take()
        except TimeoutError:
            if bookmarks:
                await response.write(seen.bookmark())
            continue
        if not changes:
            return
        lines = [line for change in changes for line in seen.lines(change)]
        if lines:
            await response.write(b"".join(lines))
