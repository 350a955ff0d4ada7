"""Prometheus' HTTP API: one instant query per distinct text, server and tick.

Why it exists: what a query gives decides sizes, and a server answers many things that are not a number. Each of them
becomes a fault with a sentence; none becomes 0.

What an instant query can tell about age: the timestamp in its answer is the time of the evaluation, so the answer
itself only shows that a cache between us and the server is old. How old the data behind an expression is, it hides
(``last_over_time`` goes on for the whole range after its exporter died). Where ``maxAgeSeconds`` is set, the raw
samples are therefore asked for beside it: ``max(timestamp(SELECTOR))`` for each selector of the query.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp

from controller.sources.credentials import Access, Credentials, CredentialsError
from controller.sources.fetch import Answer, FetchError, fetch
from controller.sources.promql import selectors

_LONGEST_GET = 2000
_CONFIG_PAUSE_SECONDS = 60.0
_QUERY_PAUSE_SECONDS = 10.0
_SLOW_PAUSE_SECONDS = 5.0
_LARGEST = 9e15


@dataclass(frozen=True, slots=True)
class Server:
    """One named Prometheus. Files are read at each use, so that a rotated secret needs no restart."""

    name: str
    url: str
    bearer_token_file: str = ""
    basic_auth_file: str = ""
    """A file with ``user:password``."""
    ca_file: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def access(self) -> Access:
        """What it wants of us."""
        return Access(self.bearer_token_file, self.basic_auth_file, self.ca_file)


@dataclass(frozen=True, slots=True)
class Ask:
    """One query: the server's name, the PromQL text, and how old the data behind it may be (None = not asked)."""

    server: str
    query: str
    max_age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """A usable answer: values in milli-units, and when they were true (Unix seconds of our clock)."""

    values: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Fault:
    """No usable answer. ``word`` is NoData, NaN, Stale, InvalidQuery, ConfigError or Unreachable."""

    word: str
    message: str
    pause_seconds: float = 0.0
    """How long the same question is not asked again."""


QueryResult = Numbers | Fault


class PrometheusServers:
    """All servers of the operator's settings. ``deadline_seconds`` bounds one question."""

    def __init__(
        self,
        servers: Iterable[Server],
        *,
        deadline_seconds: float,
        concurrency: int = 32,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = {server.name: server for server in servers}
        self._credentials = {name: Credentials(server.access) for name, server in self._servers.items()}
        self._deadline_seconds = deadline_seconds
        self._gate = asyncio.Semaphore(concurrency)
        self._clock = clock
        self._monotonic = monotonic
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._paused: dict[tuple[str, str], tuple[float, Fault]] = {}

    async def read(self, asks: Iterable[Ask]) -> dict[Ask, QueryResult]:
        """Answer every ask; each distinct text is sent once. Never raises."""
        distinct = sorted(set(asks), key=lambda ask: (ask.server, ask.query, ask.max_age_seconds or 0.0))
        self._paused = {key: entry for key, entry in self._paused.items() if entry[0] > self._monotonic()}
        texts = sorted({(ask.server, ask.query) for ask in distinct} | set(_age_texts(distinct)))
        results = dict(
            zip(texts, await asyncio.gather(*(self._result(server, text) for server, text in texts)), strict=True)
        )
        now = self._clock()
        return {ask: _gated(ask, results, now) for ask in distinct}

    async def close(self) -> None:
        """Close the connections."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def _result(self, name: str, query: str) -> QueryResult:
        server = self._servers.get(name)
        if server is None:
            known = ", ".join(sorted(self._servers)) or "none"
            return Fault("ConfigError", f"the operator knows no Prometheus server named {name!r}; it knows: {known}")
        paused = self._paused.get((name, query)) or self._paused.get((name, ""))
        if paused is not None:
            return paused[1]
        async with self._gate:
            result = await self._send(server, query)
        if isinstance(result, Fault) and result.pause_seconds:
            # a wrong address is wrong for every query of that server
            key = (name, query if result.word == "InvalidQuery" else "")
            self._paused[key] = (self._monotonic() + result.pause_seconds, result)
        return result

    async def _send(self, server: Server, query: str) -> QueryResult:
        asked_at = self._clock()
        try:
            presented = self._credentials[server.name].present()
            url, form = _request(server.url, query)
            answer = await fetch(
                self._session(server),
                url,
                form=form,
                headers={**server.headers, **presented.headers},
                tls=presented.tls,
                deadline_seconds=self._deadline_seconds,
            )
        except CredentialsError as error:
            return Fault("ConfigError", f"server {server.name}: {error}", _CONFIG_PAUSE_SECONDS)
        except FetchError as error:
            pause = _SLOW_PAUSE_SECONDS if error.slow else 0.0
            return Fault("Unreachable", f"server {server.name}: {error}", pause)
        return read_answer(server.name, answer, asked_at)

    def _session(self, server: Server) -> aiohttp.ClientSession:
        session = self._sessions.get(server.name)
        if session is None:
            session = self._sessions[server.name] = aiohttp.ClientSession()
        return session


def _request(base: str, query: str) -> tuple[str, dict[str, str] | None]:
    """Build a GET, which read-only proxies allow, or a POST where the query is too long for an address."""
    url = base.rstrip("/") + "/api/v1/query"
    if len(query) > _LONGEST_GET:
        return url, {"query": query}
    return f"{url}?{urlencode({'query': query})}", None


def read_answer(server: str, answer: Answer, now: float) -> QueryResult:
    """Judge one answer of ``/api/v1/query``. Never raises."""
    document = _document(answer)
    if answer.status != 200:
        return _status_fault(server, answer, document)
    if document is None:
        kind = answer.content_type or "no media type"
        return Fault("Unreachable", f"server {server} did not answer JSON ({kind}): {answer.excerpt(80)}")
    if document.get("status") != "success":
        return Fault("InvalidQuery", f"server {server}: {document.get('error', 'no success and no error text')}")
    data = document.get("data")
    if not isinstance(data, dict):
        return Fault("Unreachable", f"server {server} answered success without data")
    return _judge(data.get("resultType"), data.get("result"), now - answer.age_seconds())


def _document(answer: Answer) -> dict[str, Any] | None:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _status_fault(server: str, answer: Answer, document: dict[str, Any] | None) -> Fault:
    text = str(document.get("error", "")) if document else ""
    said = f"server {server} answered {answer.status}: {text or answer.excerpt(120) or 'nothing'}"
    if answer.status in (400, 422):
        return Fault("InvalidQuery", said, _QUERY_PAUSE_SECONDS)
    if answer.status == 429 or answer.status >= 500:
        return Fault("Unreachable", said)
    hint = "; is its URL right?" if answer.status in (301, 302, 307, 308, 404, 405) else ""
    return Fault("ConfigError", said + hint, _CONFIG_PAUSE_SECONDS)


def _judge(kind: object, result: object, now: float) -> QueryResult:
    if kind == "scalar":
        return _numbers([result], now)
    if kind != "vector":
        return Fault(
            "InvalidQuery", f"the query gives a {kind}, not numbers at one time: a vector or a scalar is needed"
        )
    if not isinstance(result, list):
        return Fault("Unreachable", "the answer's vector is not a list")
    if not result:
        return Fault("NoData", "the query gives no series")
    return _numbers([series.get("value") if isinstance(series, dict) else None for series in result], now)


def _numbers(pairs: list[object], now: float) -> QueryResult:
    values: list[int] = []
    oldest = now
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            return Fault("InvalidQuery", "a series has no plain number (a native histogram?)")
        try:
            stamp, value = float(pair[0]), float(pair[1])
        except (TypeError, ValueError):
            return Fault("InvalidQuery", f"a series has {pair[1]!r} where a number belongs")
        if not math.isfinite(value) or not math.isfinite(stamp):
            return Fault("NaN", f"the query gives {pair[1]}")
        if abs(value) > _LARGEST:
            return Fault("NaN", f"the query gives {pair[1]}, which is out of range")
        values.append(round(value * 1000))
        oldest = min(oldest, stamp)
    return Numbers(tuple(values), oldest)


def _age_texts(asks: Iterable[Ask]) -> list[tuple[str, str]]:
    return [
        (ask.server, _age_text(selector))
        for ask in asks
        if ask.max_age_seconds is not None
        for selector in selectors(ask.query)
    ]


def _age_text(selector: str) -> str:
    return f"time() - max(timestamp({selector}))"


def _gated(ask: Ask, results: Mapping[tuple[str, str], QueryResult], now: float) -> QueryResult:
    """Give the answer only if no data behind it is older than the ask allows."""
    result = results[ask.server, ask.query]
    if isinstance(result, Fault) or ask.max_age_seconds is None:
        return result
    oldest = now - result.at
    for selector in selectors(ask.query):
        age = results[ask.server, _age_text(selector)]
        if isinstance(age, Fault):
            if age.word == "NoData":
                return Fault(
                    "Stale", f"{selector} has no current sample: its exporter is gone, the query shows the past"
                )
            return age
        oldest = max(oldest, max(age.values) / 1000)
    if oldest > ask.max_age_seconds:
        return Fault("Stale", f"the data is {oldest:.0f} s old, more than maxAgeSeconds {ask.max_age_seconds:g}")
    return Numbers(result.values, now - max(0.0, oldest))
