"""Which kinds the API server serves, and their paths: from ``apps/v1, Deployment`` to ``/apis/apps/v1/...``.

Why it exists: any scalable kind must work without code of its own, so names are learned from the server, once, and
learned again when one is missing, but not at each try.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from controller.api_errors import ApiError, NotFound

REFRESH_SECONDS = 10.0
"""A kind that is missing is looked for again after this time."""
EXPIRY_SECONDS = 600.0
"""A kind that is known is looked up again after this time; if that fails, it stays known."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind as the API serves it, e.g. ``Kind("apps", "v1", "deployments", "Deployment", namespaced=True)``."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """``apps/v1``, or ``v1`` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """``deployments.apps``, ``pods``: how kubectl and error messages name the kind."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """Give the URL path of the collection, an object, or a subresource; ``namespace`` None = all namespaces."""
        parts = [api_path(self.api_version)]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def api_path(api_version: str) -> str:
    """``/apis/apps/v1``, ``/api/v1``."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


class Discovery:
    """Resolves kinds, cached per API version. ``fetch`` gives the ``APIResourceList`` at a path."""

    def __init__(
        self, fetch: Callable[[str], Awaitable[Mapping[str, Any]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._kinds: dict[str, dict[str, Kind]] = {}
        self._asked_at: dict[str, float] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def resolve(self, api_version: str, kind: str) -> Kind:
        """Find the kind. Raises NotFound, which names what is missing, and the ApiErrors of asking."""
        if self._is_due(api_version, kind):
            async with self._locks.setdefault(api_version, asyncio.Lock()):
                if self._is_due(api_version, kind):
                    await self._learn_or_keep(api_version, kind)
        found = self._kinds.get(api_version, {}).get(kind)
        if found is None:
            raise self._missing(api_version, kind)
        return found

    def _is_due(self, api_version: str, kind: str) -> bool:
        known = kind in self._kinds.get(api_version, {})
        age = self._clock() - self._asked_at.get(api_version, float("-inf"))
        return age >= (EXPIRY_SECONDS if known else REFRESH_SECONDS)

    async def _learn_or_keep(self, api_version: str, kind: str) -> None:
        try:
            await self._learn(api_version)
        except ApiError:
            if kind not in self._kinds.get(api_version, {}):
                raise
            self._asked_at[api_version] = self._clock() - EXPIRY_SECONDS + REFRESH_SECONDS

    async def _learn(self, api_version: str) -> None:
        try:
            document = await self._fetch(api_path(api_version))
        except NotFound:
            self._kinds.pop(api_version, None)
        else:
            self._kinds[api_version] = _kinds(api_version, document)
        self._asked_at[api_version] = self._clock()

    def _missing(self, api_version: str, kind: str) -> NotFound:
        if api_version in self._kinds:
            return NotFound(404, "NotFound", f"the API {api_version} has no kind {kind}")
        return NotFound(404, "NotFound", f"the API {api_version} of kind {kind} is not served by this cluster")


def _kinds(api_version: str, document: Mapping[str, Any]) -> dict[str, Kind]:
    group, _, version = api_version.rpartition("/")
    rows = document.get("resources")
    return {
        row["kind"]: Kind(group, version, row["name"], row["kind"], namespaced=bool(row.get("namespaced")))
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and isinstance(row.get("kind"), str) and "/" not in str(row.get("name", "/"))
    }
