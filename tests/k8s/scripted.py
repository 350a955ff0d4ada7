"""A tiny API server whose answers a test can script: for the faults that no well-behaved server shows.

It keeps objects, lists in pages and watches from a resourceVersion; ``once`` puts a scripted answer before all that.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PATH = re.compile(
    r"^(?P<api>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?$"
)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return once the condition holds; fail after many seconds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what it waits for happens in other threads and processes too
            await asyncio.sleep(0.01)


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any

    @property
    def watch(self) -> bool:
        return "watch" in self.query


@dataclass
class _Script:
    method: str
    path: str
    watch: bool
    answers: list[Answer]


def status(code: int, reason: str = "", message: str = "", **headers: str) -> Answer:
    """Answer with a Kubernetes Status."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(status_object(code, reason, message), status=code, headers=headers)

    return answer


def status_object(code: int, reason: str = "", message: str = "") -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message or f"status {code}",
    }


def reply(document: object, code: int = 200) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(document, status=code)

    return answer


def text(code: int, body: str, content_type: str = "text/html", **headers: str) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=body, content_type=content_type, headers=headers)

    return answer


def events(*rows: dict[str, Any], then_silent: bool = False, cut: bool = False) -> Answer:
    """Answer a watch with these events, then end it, stay silent, or cut the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for row in rows:
            await response.write(json.dumps(row).encode() + b"\n")
        if then_silent:
            await asyncio.Event().wait()
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return answer


def silent() -> Answer:
    """Accept the request and never answer."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    return answer


@dataclass
class ScriptedApi:
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    down: Answer | None = None
    """While set, it answers every request."""
    version: int = 10
    objects: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    kinds: dict[str, list[tuple[str, str, bool]]] = field(default_factory=dict)
    """``/apis/apps/v1`` -> (plural, kind, namespaced) of what discovery tells."""
    _scripts: list[_Script] = field(default_factory=list)
    _history: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    _first: int = 0
    _watches: int = 0
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def once(self, method: str, path: str, *answers: Answer, watch: bool = False) -> None:
        """Give these answers, one a request, before the normal ones."""
        self._scripts.append(_Script(method, path, watch, list(answers)))

    def count(self, method: str, path: str, *, watch: bool = False) -> int:
        return sum(1 for s in self.seen if (s.method, s.path, s.watch) == (method, path, watch))

    async def put(self, collection: str, obj: dict[str, Any]) -> dict[str, Any]:
        """Create or change an object of ``/api/v1/pods`` and tell the watchers."""
        key = (collection, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        event = "MODIFIED" if key in self.objects else "ADDED"
        self.version += 1
        uid = self.objects.get(key, {}).get("metadata", {}).get("uid", f"uid-{self.version}")
        metadata = {"uid": uid} | obj["metadata"] | {"resourceVersion": str(self.version)}
        self.objects[key] = obj | {"metadata": metadata}
        await self._emit(event, key)
        return self.objects[key]

    async def remove(self, collection: str, name: str, namespace: str = "", *, tell: bool = True) -> None:
        """Delete an object; with ``tell`` False no watcher ever hears of it."""
        self.version += 1
        key = (collection, namespace, name)
        obj = self.objects[key]
        obj = obj | {"metadata": obj["metadata"] | {"resourceVersion": str(self.version)}}
        self.objects[key] = obj
        if tell:
            await self._emit("DELETED", key)
        del self.objects[key]

    async def end_watches(self) -> None:
        """End every open watch, as a server does when its time is over."""
        self._watches += 1
        async with self._news:
            self._news.notify_all()

    def compact(self) -> None:
        """Forget the history: a watch from an older version gets ERROR 410."""
        self._first = self.version
        self._history.clear()

    async def _emit(self, event: str, key: tuple[str, str, str]) -> None:
        self._history.append((self.version, event, {"collection": key[0]} | self.objects[key]))
        async with self._news:
            self._news.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        seen = Seen(request.method, request.path, dict(request.query), dict(request.headers), body)
        self.seen.append(seen)
        for script in self._scripts:
            if (script.method, script.path, script.watch) == (seen.method, seen.path, seen.watch) and script.answers:
                return await script.answers.pop(0)(request)
        if self.down is not None:
            return await self.down(request)
        return await self._normal(request, seen)

    async def _normal(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        if seen.path == "/api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if seen.path == "/apis":
            return web.json_response({"kind": "APIGroupList", "groups": self._groups()})
        if seen.path in self.kinds or seen.path == "/api/v1":
            return web.json_response({"kind": "APIResourceList", "resources": self._resources(seen.path)})
        match = PATH.match(seen.path)
        if match is None:
            return await status(404, "NotFound")(request)
        collection = f"{match['api']}/{match['plural']}"
        if match["name"]:
            return await self._one(request, seen, (collection, match["namespace"] or "", match["name"]))
        if seen.method == "POST":
            return await self._create(request, seen, collection, match["namespace"] or "")
        return await (self._watch if seen.watch else self._list)(request, seen, collection)

    def _groups(self) -> list[dict[str, Any]]:
        pairs = [path.split("/")[2:] for path in self.kinds if path.startswith("/apis/")]
        return [
            {
                "name": group,
                "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
            }
            for group, version in pairs
        ]

    def _resources(self, path: str) -> list[dict[str, Any]]:
        return [
            {
                "name": plural,
                "singularName": kind.lower(),
                "kind": kind,
                "namespaced": namespaced,
                "verbs": ["list", "watch"],
            }
            for plural, kind, namespaced in self.kinds.get(path, [])
        ]

    async def _one(self, request: web.Request, seen: Seen, key: tuple[str, str, str]) -> web.StreamResponse:
        held = self.objects.get(key)
        if held is None:
            return await status(404, "NotFound", f"{key[2]} not found")(request)
        if seen.method == "GET":
            return web.json_response(held)
        if seen.method == "DELETE":
            await self.remove(key[0], key[2], key[1])
            return web.json_response(held)
        if seen.body["metadata"].get("resourceVersion") not in {None, held["metadata"]["resourceVersion"]}:
            return await status(409, "Conflict", "the object has been modified")(request)
        return web.json_response(await self.put(key[0], seen.body))

    async def _create(self, request: web.Request, seen: Seen, collection: str, namespace: str) -> web.StreamResponse:
        key = (collection, namespace, seen.body["metadata"]["name"])
        if key in self.objects:
            return await status(409, "AlreadyExists")(request)
        return web.json_response(await self.put(collection, seen.body), status=201)

    async def _list(self, _request: web.Request, seen: Seen, collection: str) -> web.StreamResponse:
        rows = [obj for key, obj in sorted(self.objects.items()) if key[0] == collection]
        start, limit = int(seen.query.get("continue", "0")), int(seen.query.get("limit", "1000000"))
        page = rows[start : start + limit]
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(rows):
            metadata["continue"] = str(start + limit)
        return web.json_response({"kind": "List", "metadata": metadata, "items": page})

    async def _watch(self, request: web.Request, seen: Seen, collection: str) -> web.StreamResponse:
        since = int(seen.query.get("resourceVersion") or self.version)
        if since < self._first:
            return await events({"type": "ERROR", "object": status_object(410, "Expired", "too old")})(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        try:
            async with asyncio.timeout(float(seen.query.get("timeoutSeconds", "300"))):
                generation = self._watches
                while generation == self._watches:
                    latest = self.version
                    for version, event, obj in list(self._history):
                        if version > since and obj["collection"] == collection:
                            since = version
                            await response.write(json.dumps({"type": event, "object": obj}).encode() + b"\n")
                    await self._changed(latest, generation)
        except TimeoutError:
            pass
        return response

    async def _changed(self, version: int, generation: int) -> None:
        """Return when there is something newer, or the watches are to end."""
        async with self._news:
            await self._news.wait_for(lambda: self.version > version or self._watches > generation)


@asynccontextmanager
async def scripted_api() -> AsyncIterator[ScriptedApi]:
    """Run one on a free port of the loopback interface."""
    api = ScriptedApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()
