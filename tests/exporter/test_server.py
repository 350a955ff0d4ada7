"""The pages over real HTTP."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from exporter.pace import HEADER, LEAD_SECONDS, Pace
from exporter.poller import Poller, Publication
from exporter.readings import GpuReading, SourceState
from exporter.server import Pages, negotiate
from exporter.simulated import SimulatedSource
from tests.exporter.build import names, read, read_openmetrics, values

PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}
PLAIN = {"Accept": "*/*", "Accept-Encoding": "identity"}


class Board:
    """What the server looks at: the last publication, and a clock that the test moves."""

    def __init__(self) -> None:
        self.latest: Publication | None = None
        self.now = 0.0

    async def publish(self, spec: str = "2xT4") -> Publication:
        source = SimulatedSource(spec)
        self.latest = await Poller(source, source, "node-1", 1, monotonic=lambda: self.now).poll()
        return self.latest


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
async def http(board: Board) -> AsyncIterator[aiohttp.ClientSession]:
    pages = Pages(lambda: board.latest, "node-1", 3.0, monotonic=lambda: board.now)
    async with (
        TestServer(pages.app()) as server,
        aiohttp.ClientSession(server.make_url("/"), auto_decompress=False) as session,
    ):
        yield session


async def fetch(
    http: aiohttp.ClientSession, path: str = "/metrics", headers: dict[str, str] = PLAIN
) -> tuple[int, bytes, dict[str, str]]:
    async with http.get(path, headers=headers) as answer:
        return answer.status, await answer.read(), dict(answer.headers)


async def test_before_the_first_poll_it_lives_but_is_not_ready(http: aiohttp.ClientSession) -> None:
    assert (await fetch(http, "/healthz"))[0] == 200
    assert (await fetch(http, "/readyz"))[0] == 503
    assert (await fetch(http, "/metrics"))[0] == 503
    assert b"first poll is not finished" in (await fetch(http, "/"))[1]


async def test_after_the_first_poll_it_is_ready_whatever_was_found(http: aiohttp.ClientSession, board: Board) -> None:
    await board.publish("/nowhere/world.json")
    assert (await fetch(http, "/readyz"))[0] == 200
    status, body, _ = await fetch(http)
    assert status == 200
    assert values(read(body.decode()), "gpuscale_driver_up", reason="no_file") == [0]


async def test_a_client_without_wishes_gets_plain_text(http: aiohttp.ClientSession, board: Board) -> None:
    publication = await board.publish()
    _, body, headers = await fetch(http)
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "Content-Encoding" not in headers
    assert body == publication.fresh.plain


async def test_prometheus_gets_compressed_openmetrics(http: aiohttp.ClientSession, board: Board) -> None:
    publication = await board.publish()
    _, body, headers = await fetch(http, headers=PROMETHEUS)
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in headers["Vary"]
    assert gzip.decompress(body) == publication.fresh.openmetrics
    plain = (await fetch(http))[1]
    assert read_openmetrics(gzip.decompress(body).decode()) == read(plain.decode())


@pytest.mark.parametrize("headers", [PLAIN, PROMETHEUS])
async def test_native_serves_the_same_bytes(http: aiohttp.ClientSession, board: Board, headers: dict[str, str]) -> None:
    await board.publish()
    assert (await fetch(http, "/metrics/native", headers))[1] == (await fetch(http, "/metrics", headers))[1]


async def test_scrapes_between_two_polls_get_the_same_bytes(http: aiohttp.ClientSession, board: Board) -> None:
    await board.publish()
    answers = await asyncio.gather(*(fetch(http) for _ in range(20)))
    assert len({body for _, body, _ in answers}) == 1


async def test_the_age_header_is_the_time_since_the_reading_began(http: aiohttp.ClientSession, board: Board) -> None:
    await board.publish()
    board.now = 1.25
    assert (await fetch(http))[2]["Age"] == "1.250"


@pytest.mark.parametrize("headers", [PLAIN, PROMETHEUS])
async def test_past_three_polls_values_are_withdrawn_and_health_stays(
    http: aiohttp.ClientSession, board: Board, headers: dict[str, str]
) -> None:
    publication = await board.publish()
    board.now = 3.0
    assert (await fetch(http))[1] == publication.fresh.plain
    board.now = 3.001
    status, body, answered = await fetch(http, headers=headers)
    text = gzip.decompress(body) if answered.get("Content-Encoding") else body
    series = read_openmetrics(text.decode()) if b"# EOF" in text else read(text.decode())
    assert (status, answered["Age"]) == (200, "3.001")
    assert not [name for name in names(series) if name.startswith("aom_")]
    assert values(series, "gpuscale_driver_up", reason="stale") == [0]
    assert values(series, "gpuscale_gpu_absent", reason="stale") == [1, 1]


@pytest.mark.parametrize("headers", [PLAIN, PROMETHEUS])
async def test_a_scrape_of_one_kind_of_families_or_one_gpu_is_a_part_of_the_page(
    http: aiohttp.ClientSession, board: Board, headers: dict[str, str]
) -> None:
    publication = await board.publish()
    uuid = publication.snapshot.gpus[1].uuid

    async def part(query: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        status, body, answered = await fetch(http, f"/metrics?{query}", headers)
        assert status == 200
        text = (gzip.decompress(body) if "Content-Encoding" in answered else body).decode()
        return read_openmetrics(text) if "# EOF" in text else read(text)

    whole = read(publication.fresh.plain.decode())
    health = await part("collect[]=health")
    assert health.items() < whole.items()
    assert {name.split("_")[0] for name in names(health)} == {"gpuscale"}
    both = await part("collect[]=health&collect[]=node")
    assert health.items() < both.items()
    assert "aom_node_gpu_usage" in names(both)
    for query in (f"gpu={uuid}", "gpu=1"):
        one = await part(query)
        assert one.items() < whole.items()
        assert {dict(labels).get("uuid") for _, labels in one} == {uuid, None}
    assert (await part(f"gpu=0&gpu={uuid}")).keys() == whole.keys()
    alone = await part("gpu=1&collect[]=node")
    assert {dict(labels).get("uuid") for _, labels in alone} == {uuid}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("collect[]=nodes", b"no collector nodes: known are node, "),
        ("gpu=7", b"no GPU 7: known are GPU-"),
        ("gpu=GPU-nothing&gpu=0", b"no GPU GPU-nothing: known are"),
    ],
)
async def test_a_query_for_what_is_not_there_names_what_is(
    http: aiohttp.ClientSession, board: Board, query: str, words: bytes
) -> None:
    await board.publish()
    status, body, _ = await fetch(http, f"/metrics?{query}")
    assert (status, words in body) == (400, True)


async def test_a_part_of_a_stale_page_has_no_values_either(http: aiohttp.ClientSession, board: Board) -> None:
    await board.publish()
    board.now = 60
    status, body, _ = await fetch(http, "/metrics?collect[]=node&collect[]=health")
    assert status == 200
    assert not [name for name in names(read(body.decode())) if name.startswith("aom_")]


async def test_values_leave_although_the_poller_itself_never_returns(http: aiohttp.ClientSession, board: Board) -> None:
    class Frozen(SimulatedSource):
        frozen = False

        async def read(self, now: float) -> tuple[tuple[GpuReading, ...], SourceState]:
            if self.frozen:
                await asyncio.Event().wait()
            return await super().read(now)

    source = Frozen("2xT4")
    poller = Poller(source, source, "node-1", 1, monotonic=lambda: board.now)
    board.latest = await poller.poll()
    source.frozen = True
    waiting = asyncio.create_task(poller.poll())
    await asyncio.sleep(0)
    board.now = 2.9
    assert "aom_node_gpu_usage" in names(read((await fetch(http))[1].decode()))
    board.now = 3.1
    stale = read((await fetch(http))[1].decode())
    assert not [name for name in names(stale) if name.startswith("aom_")]
    assert values(stale, "gpuscale_snapshot_timestamp_seconds") == [board.latest.snapshot.taken_at]
    assert not waiting.done()
    waiting.cancel()


async def test_values_come_back_with_the_next_poll(http: aiohttp.ClientSession, board: Board) -> None:
    await board.publish()
    board.now = 100.0
    await board.publish()
    assert "aom_node_gpu_usage" in names(read((await fetch(http))[1].decode()))


async def test_the_landing_page_tells_state_and_ways(http: aiohttp.ClientSession, board: Board) -> None:
    await board.publish()
    status, body, headers = await fetch(http, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    for words in (b"node-1", b"2 of 2 readable", b"any number allowed", b'href="/metrics"', b'href="/readyz"'):
        assert words in body
    board.now = 60
    assert b"values are withdrawn" in (await fetch(http, "/"))[1]


async def test_the_landing_page_says_why_the_driver_is_absent_and_escapes_it(
    http: aiohttp.ClientSession, board: Board
) -> None:
    await board.publish("/nowhere/<b>.json")
    page = (await fetch(http, "/"))[1]
    assert b"/nowhere/&lt;b&gt;.json" in page
    assert b"<b>.json" not in page


async def test_names_of_bytes_that_are_no_text_are_told_as_a_scrape_tells_them(
    http: aiohttp.ClientSession, board: Board, tmp_path: Path
) -> None:
    file = tmp_path / "world.json"
    file.write_text('{"driver": "5\\ud800", "devices": [{"uuid": "GPU-\\udcff"}]}')
    await board.publish(str(file))
    status, body, headers = await fetch(http, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"5?" in body
    status, body, headers = await fetch(http, "/metrics?gpu=9")
    assert (status, body) == (400, b"no GPU 9: known are GPU-?\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


async def test_an_unknown_path_is_not_found_and_a_post_is_refused(http: aiohttp.ClientSession) -> None:
    assert (await fetch(http, "/nothing"))[0] == 404
    async with http.post("/metrics") as answer:
        assert answer.status == 405


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ('application/openmetrics-text;version="1.0.0"', True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;version=0.0.1", False),
        (PROMETHEUS["Accept"], True),
        ("application/openmetrics-text;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.5", False),
        ("application/openmetrics-text;version=1.0.0;q=0", False),
        ("APPLICATION/OpenMetrics-Text;Version=1.0.0;Q=0.5, text/plain;q=0.4", True),
        ("application/openmetrics-text;q=high", False),
        ("application/vnd.google.protobuf;q=0.7,application/openmetrics-text;version=1.0.0;q=0.6,*/*;q=0.1", True),
        (";;;,,,q=", False),
    ],
)
def test_the_format_follows_the_accept_header(accept: str, *, openmetrics: bool) -> None:
    assert negotiate(accept, "")[0] is openmetrics


@pytest.mark.parametrize(
    ("encoding", "compressed"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("gzip;q=0.3, identity;q=0.7", False),
        ("gzip;q=0.7, identity;q=0.3", True),
        ("*", True),
        ("*;q=0", False),
        ("br", False),
        ("GZIP", True),
    ],
)
def test_compression_follows_the_accept_encoding_header(encoding: str, *, compressed: bool) -> None:
    assert negotiate("", encoding)[1] is compressed


@pytest.mark.parametrize("path", ["/metrics", "/metrics/native", "/metrics?collect[]=health"])
async def test_who_says_when_it_reads_again_moves_the_next_poll(board: Board, path: str) -> None:
    pace = Pace(1.0)
    pages = Pages(lambda: board.latest, "node-1", 3.0, monotonic=lambda: board.now, pace=pace)
    async with TestServer(pages.app()) as server, aiohttp.ClientSession(server.make_url("/")) as session:
        await fetch(session, path, PLAIN)
        assert pace.after(0.0, 0.01) == 1.0
        await fetch(session, path, PLAIN | {HEADER: "1.5"})
        assert pace.after(0.0, 0.01) == pytest.approx(1.5 - LEAD_SECONDS - 0.01)
