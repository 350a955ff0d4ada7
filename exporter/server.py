"""Serves the bytes of the last poll, and looks at their age at each scrape.

Why it exists: a scrape must cost next to nothing, and a poller that starves must not freeze the values that
Prometheus sees. Past the age limit only health is served.
"""

import functools
import html
import logging
import time
from collections.abc import Callable

from aiohttp import http_exceptions, web

from exporter.exposition import OPENMETRICS_CONTENT_TYPE, TEXT_CONTENT_TYPE
from exporter.filters import QueryError, select
from exporter.guard import Guard
from exporter.pace import HEADER, Pace
from exporter.poller import Publication

_OPENMETRICS_VERSIONS = {"1.0.0", ""}


class Pages:
    """The HTTP answers. ``latest`` gives the last publication; ``monotonic`` is the clock it was made by.

    ``pace`` is told of each read, where the polls are to follow them.
    """

    def __init__(
        self,
        latest: Callable[[], Publication | None],
        node: str,
        stale_after_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
    ) -> None:
        self._latest = latest
        self._node = node
        self._stale_after = stale_after_seconds
        self._monotonic = monotonic
        self._pace = pace

    def app(self, guard: Guard | None = None) -> web.Application:
        """Build the application with all its routes, behind a guard if there is one."""
        app = web.Application(middlewares=[guard.middleware()] if guard else [])
        app.router.add_get("/", self.landing)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/metrics/native", self.native)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        return app

    async def metrics(self, request: web.Request) -> web.Response:
        """Serve the exposition in the form the client prefers. ``Age``: seconds since its values began to be read."""
        return self._exposition(request, native=False)

    async def native(self, request: web.Request) -> web.Response:
        """Serve the same in native names only, whatever dialects are spoken."""
        return self._exposition(request, native=True)

    def _exposition(self, request: web.Request, *, native: bool) -> web.Response:
        now = self._monotonic()
        if self._pace:
            self._pace.read(now, request.headers.get(HEADER))
        publication = self._latest()
        if publication is None:
            return web.Response(status=503, text="the first poll is not finished\n", headers={"Retry-After": "1"})
        age = max(0.0, now - publication.began)
        fresh = publication.native if native else publication.fresh
        body = fresh if age <= self._stale_after else publication.stale
        collectors, gpus = request.query.getall("collect[]", ()), request.query.getall("gpu", ())
        if collectors or gpus:
            try:
                body = select(body, collectors, gpus, publication.snapshot.gpus)
            except QueryError as bad:
                return _answer(f"{bad}\n", status=400)
        openmetrics, gzip = negotiate(request.headers.get("Accept", ""), request.headers.get("Accept-Encoding", ""))
        headers = _HEADERS[openmetrics, gzip] | {"Age": f"{age:.3f}"}
        return web.Response(body=body.form(openmetrics=openmetrics, gzip=gzip), headers=headers)

    async def healthz(self, _request: web.Request) -> web.Response:
        """Say that the process serves: all that a restart could mend."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """Say whether the first poll has finished, whatever it found."""
        if self._latest() is None:
            return web.Response(status=503, text="the first poll is not finished\n")
        return web.Response(text="ok\n")

    async def landing(self, _request: web.Request) -> web.Response:
        """Show what this is, how it is, and where to go."""
        text = _PAGE.format(node=html.escape(self._node), state=self._state())
        return _answer(text, content_type="text/html")

    def _state(self) -> str:
        publication = self._latest()
        if publication is None:
            return "<p>The first poll is not finished.</p>"
        snapshot = publication.snapshot
        age = self._monotonic() - publication.began
        seen = sum(gpu.fault is None for gpu in snapshot.gpus)
        rows = {
            "GPUs": f"{seen} of {len(snapshot.gpus)} readable",
            "driver": snapshot.driver_version if snapshot.driver.up else snapshot.driver.message,
            "kubelet": "answers" if snapshot.kubelet.up else snapshot.kubelet.message,
            "series": f"{publication.series} ({publication.most_series or 'any number'} allowed)",
            "last poll": f"{age:.1f} s ago" + (": too old, values are withdrawn" if age > self._stale_after else ""),
        }
        cells = (f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in rows.items())
        return "<table>" + "".join(cells) + "</table>"


def _answer(text: str, status: int = 200, content_type: str = "text/plain") -> web.Response:
    """Answer with words that are not ours: a name of bytes that are no text is told as a scrape tells it."""
    body = text.encode("utf-8", "replace")
    return web.Response(body=body, status=status, content_type=content_type, charset="utf-8")


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Tell a fault of ours from a request that is no HTTP: a port scan must not fill the log with tracebacks."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, http_exceptions.HttpProcessingError)


@functools.lru_cache(maxsize=64)
def negotiate(accept: str, accept_encoding: str) -> tuple[bool, bool]:
    """Read the headers Accept and Accept-Encoding as: the client prefers OpenMetrics, and whether gzip."""
    return _prefers_openmetrics(accept), _prefers_gzip(accept_encoding)


def _prefers_openmetrics(accept: str) -> bool:
    openmetrics = text = 0.0
    for media, parameters in _weighted(accept):
        if media == "application/openmetrics-text" and parameters.get("version", "") in _OPENMETRICS_VERSIONS:
            openmetrics = max(openmetrics, _quality(parameters))
        elif media in {"text/plain", "text/*", "*/*"}:
            text = max(text, _quality(parameters))
    return openmetrics > 0 and openmetrics >= text


def _prefers_gzip(accept_encoding: str) -> bool:
    quality = {coding: _quality(parameters) for coding, parameters in _weighted(accept_encoding)}
    gzip = quality.get("gzip", quality.get("*", 0.0))
    # identity that is not named is acceptable, but never preferred
    return gzip > 0 and gzip >= quality.get("identity", 0.0)


def _weighted(header: str) -> list[tuple[str, dict[str, str]]]:
    """``a;x=1;q=0.5, b`` -> [(a, {x: 1, q: 0.5}), (b, {})], in lower case."""
    found = []
    for item in header.lower().split(","):
        name, *parts = (part.strip() for part in item.split(";"))
        pairs = (part.partition("=") for part in parts)
        found.append((name, {key.strip(): value.strip().strip('"') for key, _, value in pairs}))
    return found


def _quality(parameters: dict[str, str]) -> float:
    try:
        quality = float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0


def _answer_headers(*, openmetrics: bool, gzip: bool) -> dict[str, str]:
    headers = {
        "Content-Type": OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE,
        "Vary": "Accept, Accept-Encoding",
    }
    return headers | ({"Content-Encoding": "gzip"} if gzip else {})


_HEADERS = {
    (openmetrics, gzip): _answer_headers(openmetrics=openmetrics, gzip=gzip)
    for openmetrics in (False, True)
    for gzip in (False, True)
}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>gpuscale-exporter</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; margin: 3em auto; max-width: 40em }}
th {{ text-align: left; padding-right: 1em; vertical-align: top }}</style></head>
<body><h1>gpuscale-exporter</h1>
<p>Publishes what is true about the GPUs of node <b>{node}</b>.</p>
{state}
<ul><li><a href="/metrics">/metrics</a> for Prometheus (text or OpenMetrics, gzip)</li>
<li><a href="/metrics?collect[]=health">/metrics?collect[]=health</a> one kind of families; <code>?gpu=</code> and a
UUID or an index: one GPU</li>
<li><a href="/metrics/native">/metrics/native</a> always in the native names</li>
<li><a href="/healthz">/healthz</a> the process serves</li>
<li><a href="/readyz">/readyz</a> the first poll has finished</li></ul>
</body></html>
"""
