"""Who may ask, and how many at once: in front of every page.

Why it exists: checking a password by bcrypt costs a hundred times what a scrape costs, and a scraper that opens
connections without end must not cost the node its memory.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from exporter.webconfig import WebConfig

log = logging.getLogger("exporter.guard")

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""The kubelet asks these, and has no password; they tell nothing but that the process runs."""
MOST_REMEMBERED = 64
# any hash: a user who is not known must take as long as one who is; the cost is that of htpasswd -C 10
_NOBODY = b"$2b$10$abcdefghijklmnopqrstuuHzmqLjBkwJqcx8gjZ1rzd3CpWSSLsZi"
_BCRYPT_READS = 72

Check = Callable[[bytes, bytes], bool]


def bcrypt_check(password: bytes, hashed: bytes) -> bool:
    """Whether the password is the one that was hashed; takes 50 ms and more, on purpose."""
    import bcrypt  # an extra: only who sets users has it

    return bcrypt.checkpw(password[:_BCRYPT_READS], hashed)


class Credentials:
    """Checks Authorization headers against users. Right ones are remembered by a keyed hash, never as text."""

    def __init__(self, users: Mapping[str, bytes], check: Check = bcrypt_check) -> None:
        self.users = users
        self._check = check
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        # one at a time: who guesses passwords must not take the node's cores
        self._turn = asyncio.Semaphore(1)

    async def admit(self, authorization: str) -> bool:
        """Whether the header names a user and his password. Without users, anybody is admitted."""
        if not self.users:
            return True
        mark = hmac.digest(self._key, authorization.encode("utf-8", "replace"), hashlib.sha256)
        if mark in self._right:
            self._right.move_to_end(mark)
            return True
        name, password = _basic(authorization)
        if name is None or not await self._is_right(name, password):
            return False
        self._right[mark] = None
        while len(self._right) > MOST_REMEMBERED:
            self._right.popitem(last=False)
        return True

    async def _is_right(self, name: str, password: bytes) -> bool:
        hashed = self.users.get(name)
        async with self._turn:
            matches = await asyncio.to_thread(self._check, password, hashed or _NOBODY)
        return matches and hashed is not None


class Guard:
    """A middleware: at most ``most_requests`` at once (0 = no limit), users, and headers for every answer."""

    def __init__(self, config: WebConfig, most_requests: int = 0, check: Check = bcrypt_check) -> None:
        self._most = most_requests
        self._check = check
        self._under_way = 0
        self.heard: set[object] = set()
        """The connections that have asked something; who closes connections forgets those that are gone."""
        self.take(config)

    def take(self, config: WebConfig) -> None:
        """Use a new configuration from the next request on. Who was admitted is asked again."""
        self._headers = config.headers
        self._credentials = Credentials(config.users, self._check)

    def middleware(self) -> Middleware:
        """Return what aiohttp puts around each handler."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            self.heard.add(request.protocol)
            if request.path in OPEN_PATHS:
                return await handler(request)
            if self._most and self._under_way >= self._most:
                return web.Response(
                    status=503,
                    text=f"{self._most} requests are under way (--max-requests)\n",
                    headers={"Retry-After": "1"},
                )
            self._under_way += 1
            try:
                answer = await self._answer(request, handler)
                answer.headers.update(self._headers)
                # a request ends when its answer is handed over, so that slow readers count
                await answer.prepare(request)
                await answer.write_eof()
                return answer
            finally:
                self._under_way -= 1

        return guarded

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if await self._credentials.admit(request.headers.get("Authorization", "")):
            try:
                return await handler(request)
            except web.HTTPException as refused:
                return web.Response(status=refused.status, text=f"{refused.reason}\n", headers=_kept(refused))
        return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Basic"})


def _kept(refused: web.HTTPException) -> dict[str, str]:
    return {"Allow": refused.headers["Allow"]} if "Allow" in refused.headers else {}


def _basic(authorization: str) -> tuple[str | None, bytes]:
    """Return the user and password of a header; no user where it is none of the scheme Basic."""
    scheme, _, coded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None, b""
    try:
        name, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
        return (name.decode() if colon else None), password
    except (binascii.Error, UnicodeDecodeError):
        return None, b""
