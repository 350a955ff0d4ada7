"""What the operator says of its next read is what the exporter listens for: neither imports the other."""

import asyncio
from collections.abc import Iterable

from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.facts import ExporterFacts
from controller.sources.exporters import NEXT_READ_HEADER, Exporters
from exporter.pace import HEADER, Pace
from exporter.poller import Poller
from exporter.server import Pages
from exporter.simulated import SimulatedSource


def test_both_call_the_header_the_same() -> None:
    assert NEXT_READ_HEADER == HEADER


async def test_the_operators_read_moves_the_exporters_next_poll() -> None:
    source = SimulatedSource("1xT4")
    poller = Poller(source, source, "n1", 1.0, monotonic=lambda: 0.0)
    publication = await poller.poll()
    pages = Pages(lambda: publication, "n1", 3.0, monotonic=lambda: 0.5, pace=poller.pace)
    async with TestServer(pages.app()) as server:
        await _read([ExporterFacts(str(server.make_url("/metrics/native")))], every_seconds=2.0)
    told = Pace(1.0)
    told.read(0.5, "2")
    assert poller.pace.after(0.0, 0.01) == told.after(0.0, 0.01) != 1.0


async def test_an_exporter_that_is_not_ours_gets_the_header_and_nothing_breaks() -> None:
    asked: list[str | None] = []

    async def page(request: web.Request) -> web.Response:
        asked.append(request.headers.get(NEXT_READ_HEADER))
        return web.Response(text="# no family of ours\n")

    app = web.Application()
    app.router.add_get("/metrics", page)
    async with TestServer(app) as server:
        facts = [ExporterFacts(str(server.make_url("/metrics")))]
        await asyncio.gather(_read(facts, every_seconds=2.0), _read(facts, every_seconds=None))
    assert sorted(asked, key=str) == ["2", None]


async def _read(facts: Iterable[ExporterFacts], *, every_seconds: float | None) -> None:
    exporters = Exporters(lambda: facts, deadline_seconds=5.0, every_seconds=every_seconds)
    try:
        assert not (await exporters.read()).failures
    finally:
        await exporters.close()
