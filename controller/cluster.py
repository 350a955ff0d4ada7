"""The one client of the Kubernetes API: verbs on any kind, watch, scale, eviction, discovery.

Why it exists: the hot verbs need full control over content type, resourceVersion, timeouts and retries, for any kind,
without a generated class per kind. From the ``kubernetes`` package come only configuration and authentication.
"""

import contextlib
import json
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from controller.access import connection_from
from controller.api_errors import (
    ApiError,
    ConfigError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    NotLeading,
    Rejected,
    TooMany,
    Unauthorized,
    Unreachable,
    from_status,
    unreachable,
)
from controller.discovery import Discovery, Kind
from controller.transport import Call, Connection, Transport

__all__ = [
    "EVENT",
    "LEASE",
    "NODE",
    "POD",
    "ApiError",
    "Cluster",
    "ConfigError",
    "Conflict",
    "Connection",
    "Forbidden",
    "Gone",
    "Kind",
    "Listing",
    "NotFound",
    "NotLeading",
    "Object",
    "Rejected",
    "Scale",
    "TooMany",
    "Unauthorized",
    "Unreachable",
]

POD = Kind("", "v1", "pods", "Pod", namespaced=True)
NODE = Kind("", "v1", "nodes", "Node", namespaced=False)
EVENT = Kind("", "v1", "events", "Event", namespaced=True)
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)

FIELD_MANAGER = "gpuscale"
PAGE_SIZE = 500
LIST_RESTARTS = 3
SILENCE_SECONDS = 70.0
"""An API server sends a bookmark every minute; a watch that is silent for longer is dead, whatever TCP says."""

Content = Literal["merge", "json", "strategic", "apply"]
Object = dict[str, Any]

_CONTENT_TYPES: Mapping[Content, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a list and the resourceVersion from which to watch."""

    items: list[Object]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A ``/scale`` subresource. ``selector`` is a label selector as text, "" where the kind gives none."""

    spec_replicas: int
    status_replicas: int
    selector: str
    resource_version: str


class Cluster:
    """A cluster, through its API server. Every method raises ApiError or one of its subclasses."""

    def __init__(self, connection: Connection, *, concurrency: int = 32, request_seconds: float = 30.0) -> None:
        """Must run in the event loop in which the methods are then called."""
        self.connection = connection
        self._transport = Transport(connection, concurrency=concurrency, request_seconds=request_seconds)
        self._discovery = Discovery(self._fetch)

    @classmethod
    async def connect(
        cls,
        server: str | None = None,
        kubeconfig: str | None = None,
        context: str | None = None,
        token: str | None = None,
    ) -> Self:
        """Make a client for a plain server URL, a kubeconfig, or the cluster this pod runs in; nothing is sent yet.

        Without ``server`` and ``kubeconfig``: the service account of the pod, then the user's own kubeconfig.
        ``token`` is a bearer token. Raises ConfigError where the configuration cannot be read.
        """
        return cls(await connection_from(server, kubeconfig, context, token))

    def guard_writes(self, allowed_seconds: Callable[[], float]) -> None:
        """Let every write but the Lease's be sent only while ``allowed_seconds()`` > 0, and last no longer than that.

        Asked right before each try is sent, so also after the waiting for a free place or after a 429. A write that
        is held back raises NotLeading.
        """
        self._transport.write_guard = allowed_seconds

    async def close(self) -> None:
        """End all connections."""
        await self._transport.close()

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """One object."""
        return await self._send(Call("GET", kind.path(namespace, name), urgent=kind == LEASE))

    async def list(
        self, kind: Kind, namespace: str | None = None, label_selector: str = "", field_selector: str = ""
    ) -> Listing:
        """All objects, read in pages; begins again, a few times, when the page token has become too old."""
        restarts = 0
        while True:
            try:
                return await self._pages(kind.path(namespace), _selectors(label_selector, field_selector))
            except Gone:
                restarts += 1
                if restarts > LIST_RESTARTS:
                    raise

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        resource_version: str = "",
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float = 300.0,
        silence_seconds: float = SILENCE_SECONDS,
        opened: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Events ``(ADDED | MODIFIED | DELETED | BOOKMARK, object)`` after ``resource_version``.

        Ends when the server ends it, after ``timeout_seconds`` give or take a fifth. Raises Gone for a version that is
        too old, Unreachable for a dead connection. A consumer that leaves early closes it (``contextlib.aclosing``).
        """
        seconds = max(1, round(timeout_seconds * random.uniform(0.8, 1.2)))  # noqa: S311 - jitter, not a secret
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        } | _selectors(label_selector, field_selector)
        call = Call("GET", kind.path(namespace), query)
        lines = self._transport.lines(call, silence_seconds=silence_seconds, opened=opened)
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield _event(line, f"WATCH {call.path}")

    async def create(self, kind: Kind, obj: Mapping[str, Any], namespace: str | None = None) -> Object:
        """Create; Conflict if it exists."""
        call = Call("POST", kind.path(namespace), {"fieldManager": FIELD_MANAGER}, body=obj, urgent=kind == LEASE)
        return await self._send(call)

    async def replace(self, kind: Kind, obj: Mapping[str, Any], namespace: str | None = None) -> Object:
        """Write the whole object; Conflict if ``metadata.resourceVersion`` is no longer the present one."""
        path = kind.path(namespace, obj["metadata"]["name"])
        return await self._send(Call("PUT", path, {"fieldManager": FIELD_MANAGER}, body=obj, urgent=kind == LEASE))

    async def patch(
        self,
        kind: Kind,
        name: str,
        body: object,
        namespace: str | None = None,
        subresource: str = "",
        content: Content = "merge",
    ) -> Object:
        """Change an object or its ``subresource`` (``status``, ``scale``); the result. ``apply`` takes fields over."""
        query = {"fieldManager": FIELD_MANAGER} | ({"force": "true"} if content == "apply" else {})
        path = kind.path(namespace, name, subresource)
        return await self._send(Call("PATCH", path, query, body=body, content_type=_CONTENT_TYPES[content]))

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, uid: str = "") -> None:
        """Delete; with ``uid`` only that very object (Conflict for a successor of the same name)."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}} if uid else None
        await self._send(Call("DELETE", kind.path(namespace, name), body=body))

    async def get_scale(self, kind: Kind, name: str, namespace: str | None = None) -> Scale:
        """Read the size of any kind that has ``/scale``; NotFound for a kind that has none."""
        return _scale(await self._send(Call("GET", kind.path(namespace, name, "scale"))))

    async def patch_scale(
        self, kind: Kind, name: str, namespace: str | None, replicas: int, resource_version: str
    ) -> Scale:
        """Set the size, if nobody has changed the object since ``resource_version`` was read; else Conflict."""
        body = {"metadata": {"resourceVersion": resource_version}, "spec": {"replicas": replicas}}
        return _scale(await self.patch(kind, name, body, namespace, "scale"))

    async def evict(self, name: str, namespace: str, grace_seconds: int | None = None) -> None:
        """Ask a pod to go. TooMany, at once, while a disruption budget forbids it; NotFound if it has gone."""
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        if grace_seconds is not None:
            body["deleteOptions"] = {"gracePeriodSeconds": grace_seconds}
        await self._send(Call("POST", POD.path(namespace, name, "eviction"), body=body, patient=False))

    async def resolve(self, api_version: str, kind: str) -> Kind:
        """Find the kind as this cluster serves it, from a cache; NotFound names what is missing."""
        return await self._discovery.resolve(api_version, kind)

    async def _send(self, call: Call) -> Object:
        return await self._transport.request(call)

    async def _fetch(self, path: str) -> Object:
        return await self._send(Call("GET", path))

    async def _pages(self, path: str, query: dict[str, str]) -> Listing:
        items: list[Object] = []
        page_token = ""
        while True:
            step = {"limit": str(PAGE_SIZE)} | query | ({"continue": page_token} if page_token else {})
            page = await self._send(Call("GET", path, step))
            items += _items(page, path)
            metadata = page.get("metadata") or {}
            page_token = metadata.get("continue") or ""
            if not page_token:
                return Listing(items, str(metadata.get("resourceVersion", "")))


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    return ({"labelSelector": label_selector} if label_selector else {}) | (
        {"fieldSelector": field_selector} if field_selector else {}
    )


def _items(page: Object, path: str) -> list[Object]:
    """Take a list's items; ``null``, which some servers write, is an empty list, a page without the key is none."""
    if "items" not in page:
        raise unreachable(f"GET {path} answered no list")
    return page["items"] or []


def _event(line: bytes, what: str) -> tuple[str, Object]:
    try:
        event = json.loads(line)
        kind, obj = event["type"], event["object"]
        metadata_is_there = kind == "ERROR" or isinstance(obj["metadata"], dict)
    except (ValueError, KeyError, TypeError) as problem:
        raise unreachable(f"{what} sent something that is not a watch event") from problem
    if kind == "ERROR" or not metadata_is_there:
        raise from_status(obj, what)
    return kind, obj


def _scale(obj: Object) -> Scale:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    selector = status.get("selector")
    return Scale(
        int(spec.get("replicas") or 0),
        int(status.get("replicas") or 0),
        selector if isinstance(selector, str) else "",
        str((obj.get("metadata") or {}).get("resourceVersion", "")),
    )
