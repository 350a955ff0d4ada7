"""HTTP towards the API server: one session, credentials that renew themselves, bounded patience, typed errors.

Why it exists: everything that is true for each request, whatever it is about, stands here. What the requests mean is
in ``cluster``.
"""

import asyncio
import contextlib
import json
import logging
import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp

from controller.api_errors import (
    ApiError,
    ConfigError,
    Forbidden,
    NotLeading,
    TooMany,
    Unauthorized,
    from_answer,
    unreachable,
)

USER_AGENT = "gpuscale"
FORBIDDEN_RETRIES = 3
TOO_MANY_RETRIES = 3
LONGEST_OBEYED_SECONDS = 10.0
"""A longer Retry-After is handed to the caller instead of being slept through here."""

log = logging.getLogger(__name__)


@dataclass
class Credentials:
    """The ``Authorization`` header and how to get a newer one. ``header`` is "" where none is needed.

    ``load(force)`` gives the header; with ``force`` a cached token must not be reused. It is asked once a period, and
    at once when the server said 401. ``header`` may be read from another thread.
    """

    header: str = ""
    load: Callable[[bool], Awaitable[str]] | None = None
    period_seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic
    _loaded_at: float = field(init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self._loaded_at = self.clock()

    async def fresh(self) -> str:
        """Give the header, reloaded if a period has passed. A failure keeps the old one: it may still be good."""
        if self.load is not None and self.clock() - self._loaded_at >= self.period_seconds:
            await self._reload(force=False)
        return self.header

    async def renew(self, refused: str) -> bool:
        """After a 401 for ``refused``: whether there is now another header to try."""
        if self.load is not None and self.header == refused:
            await self._reload(force=True)
        return self.header != refused

    async def _reload(self, *, force: bool) -> None:
        asked_at = self.clock()
        async with self._lock:
            if self.load is None or self._loaded_at >= asked_at:
                return
            self._loaded_at = self.clock()
            try:
                self.header = await self.load(force)
            except (ConfigError, OSError) as problem:
                log.warning("credentials could not be renewed, the old ones stay: %s", problem)


@dataclass(frozen=True)
class Connection:
    """Where the API server is and how to speak to it: enough to build a session in any event loop."""

    server: str
    credentials: Credentials = field(default_factory=Credentials)
    tls: ssl.SSLContext | None = None
    proxy: str | None = None

    def session(
        self, *traces: aiohttp.TraceConfig, middlewares: Sequence[aiohttp.ClientMiddlewareType] = ()
    ) -> aiohttp.ClientSession:
        """Open a session for the running loop; each request carries the credentials of its moment."""
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._authorize)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls if self.tls is not None else True),
            headers={"User-Agent": USER_AGENT},
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=self.proxy,
            trace_configs=[trace, *traces],
            middlewares=middlewares,
        )

    async def _authorize(
        self, _session: aiohttp.ClientSession, _context: SimpleNamespace, start: aiohttp.TraceRequestStartParams
    ) -> None:
        if self.credentials.header:
            start.headers["Authorization"] = self.credentials.header


@dataclass(frozen=True)
class Call:
    """One request. ``urgent`` skips the queue for a free place, ``patient`` False hands a 429 over at once."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    content_type: str = "application/json"
    urgent: bool = False
    patient: bool = True

    @property
    def what(self) -> str:
        """How errors name this request."""
        return f"{self.method} {self.path}"

    @property
    def area(self) -> tuple[str, ...]:
        """Method, namespace, kind and subresource, without the object's name: what a right is given for."""
        parts = self.path.strip("/").split("/")
        start = 2 if parts[0] == "api" else 3
        if parts[start : start + 1] == ["namespaces"] and len(parts) > start + 2:
            start += 2
        return self.method, *parts[: start + 1], *parts[start + 2 :]

    @property
    def retries_forbidden(self) -> bool:
        """Reads, and the Lease: nothing is lost by asking again."""
        return self.method == "GET" or self.urgent


class Transport:
    """Sends Calls, each with ``request_seconds`` to be answered in.

    At most ``concurrency`` are under way at once, watches and urgent calls not counted.
    """

    def __init__(self, connection: Connection, *, concurrency: int = 32, request_seconds: float = 30.0) -> None:
        self.connection = connection
        self.write_guard: Callable[[], float] | None = None
        self._seconds = request_seconds
        self._session = connection.session()
        self._places = asyncio.Semaphore(concurrency)
        self._refused_areas: set[tuple[str, ...]] = set()

    async def close(self) -> None:
        """Close the session; requests under way end as Unreachable."""
        await self._session.close()

    async def request(self, call: Call) -> dict[str, Any]:
        """Send, and return the answer's JSON object; wait out a few 429 and, for reads, a short spell of 403."""
        renewed, forbidden, too_many = False, 0, 0
        while True:
            header = await self.connection.credentials.fresh()
            try:
                answer = await self._once(call)
            except Unauthorized:
                if renewed or not await self.connection.credentials.renew(header):
                    raise
                renewed = True
            except Forbidden as refusal:
                forbidden += 1
                await self._wait_out_forbidden(call, refusal, forbidden)
            except TooMany as refusal:
                too_many += 1
                await self._wait_out_too_many(call, refusal, too_many)
            else:
                self._refused_areas.discard(call.area)
                return answer

    async def _wait_out_forbidden(self, call: Call, refusal: Forbidden, count: int) -> None:
        """Sleep, or raise the refusal. A right that is really missing costs the waiting only the first time."""
        if not call.retries_forbidden or call.area in self._refused_areas or count > FORBIDDEN_RETRIES:
            self._refused_areas.add(call.area)
            raise refusal
        await asyncio.sleep(0.2 * 2**count * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret

    async def _wait_out_too_many(self, call: Call, refusal: TooMany, count: int) -> None:
        wait = 1.0 if refusal.retry_after is None else refusal.retry_after
        if not call.patient or count > TOO_MANY_RETRIES or wait > LONGEST_OBEYED_SECONDS:
            raise refusal
        await asyncio.sleep(wait + random.uniform(0.0, 0.25))  # noqa: S311 - jitter, not a secret

    async def _once(self, call: Call) -> dict[str, Any]:
        place = contextlib.nullcontext() if call.urgent else self._places
        async with place, self._answer(call, self._allowed_seconds(call)) as response:
            return _json_object(call, response.status, response.headers, await response.read())

    def _allowed_seconds(self, call: Call) -> float:
        """How long the call may last; asked at each try, after all waiting, as the last thing before it is sent."""
        if call.method == "GET" or call.urgent or self.write_guard is None:
            return self._seconds
        allowed = min(self._seconds, self.write_guard())
        if allowed <= 0:
            raise NotLeading(0, "NotLeading", f"{call.what} was not sent: we no longer lead")
        return allowed

    @contextlib.asynccontextmanager
    async def _answer(self, call: Call, seconds: float | None) -> AsyncIterator[aiohttp.ClientResponse]:
        """Hold the response while it is open, for ``seconds`` at most; whatever goes wrong is Unreachable."""
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(5.0, seconds or self._seconds))
        data = None if call.body is None else json.dumps(call.body).encode()
        headers = {"Accept": "application/json"} | ({} if data is None else {"Content-Type": call.content_type})
        try:
            async with self._session.request(
                call.method,
                self.connection.server + call.path,
                params=dict(call.query),
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                yield response
        except TimeoutError as problem:
            raise unreachable(f"{call.what}: no answer within {seconds or self._seconds:.3g} s") from problem
        except (aiohttp.ClientError, OSError, RuntimeError) as problem:
            if isinstance(problem, RuntimeError) and not self._session.closed:
                raise
            raise unreachable(f"{call.what}: {problem or type(problem).__name__}") from problem

    async def lines(
        self, call: Call, *, silence_seconds: float, opened: Callable[[], None] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an endless answer, of any length, as they come.

        Ends when the server ends it. Raises Unreachable when nothing comes for ``silence_seconds``, and ApiErrors for
        answers that are not a success. ``opened`` is called once the server has accepted the request.
        """
        rest = b""
        async with self._opened(call) as response:
            if opened is not None:
                opened()
            while True:
                try:
                    async with asyncio.timeout(silence_seconds):
                        chunk = await response.content.readany()
                except TimeoutError as problem:
                    raise unreachable(f"{call.what}: silent for {silence_seconds:g} s") from problem
                if not chunk:
                    return
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    if line.strip():
                        yield line

    @contextlib.asynccontextmanager
    async def _opened(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        """Hold an endless answer whose head has come in time and says success."""
        header = await self.connection.credentials.fresh()
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._seconds):
                    response = await stack.enter_async_context(self._answer(call, None))
            except TimeoutError as problem:
                raise unreachable(f"{call.what}: no answer within {self._seconds:g} s") from problem
            if not 200 <= response.status < 300:
                refusal = from_answer(response.status, response.headers, await response.read(), call.what)
                if isinstance(refusal, Unauthorized):
                    await self.connection.credentials.renew(header)
                raise refusal
            yield response


def _json_object(call: Call, status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Read the body of a success. A redirect or HTML means that something else than the API server has answered."""
    if 300 <= status < 400:
        raise unreachable(f"{call.what} is redirected: this is not the address of an API server")
    if status >= 400:
        raise from_answer(status, headers, body, call.what)
    try:
        document = json.loads(body)
    except ValueError as problem:
        kind = headers.get("Content-Type", "something else")
        raise unreachable(f"{call.what} answered {kind} instead of JSON: is a proxy in between?") from problem
    if not isinstance(document, dict):
        raise unreachable(f"{call.what} answered JSON that is not an object")
    return document


__all__ = ["ApiError", "Call", "Connection", "Credentials", "Transport"]
