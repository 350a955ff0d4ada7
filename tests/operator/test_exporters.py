import asyncio
import gzip
import logging
from collections.abc import AsyncIterator, Callable, Iterable

import pytest
from aiohttp import web

from controller.facts import ExporterFacts
from controller.sources.exporters import Exporters, GpuReadings
from controller.sources.series import Fact
from tests.operator.scripted import Answering, Scripted, fifty_megabytes, half_a_body, hanging, serving, text

LINE = 'aom_container_gpu_usage{{node="n",uuid="GPU-{pod}",namespace="ml",pod="{pod}",container="c"}} {value}\n'


def usage(pod: str, value: float) -> str:
    return LINE.format(pod=pod, value=value)


@pytest.fixture
async def good() -> AsyncIterator[Scripted]:
    async with serving(text(usage("good", 50))) as script:
        yield script


async def read_once(*urls: str, deadline: float = 5.0, clock: Callable[[], float] = lambda: 1000.0) -> GpuReadings:
    return await read_found(*found(urls), deadline=deadline, clock=clock)


def found(urls: Iterable[str]) -> list[ExporterFacts]:
    return [ExporterFacts(url) for url in urls]


async def read_found(
    *addresses: ExporterFacts, deadline: float = 5.0, clock: Callable[[], float] = lambda: 1000.0
) -> GpuReadings:
    exporters = Exporters(lambda: addresses, deadline_seconds=deadline, clock=clock)
    try:
        return await exporters.read()
    finally:
        await exporters.close()


def values(readings: GpuReadings, pod: str) -> dict[Fact, int]:
    (held,) = readings.pods["ml", pod]
    return held.values.values


BAD: dict[str, tuple[Answering, str]] = {
    "html": (text("<html>login</html>\n", content_type="text/html"), "answered text/html"),
    "html-as-text": (text("<html>login</html>\n"), "HTML or JSON"),
    "status-500": (text("boom", status=500), "HTTP 500: boom"),
    "status-404": (text("404 page not found", status=404), "HTTP 404"),
    "redirect": (text("", status=302, Location="http://127.0.0.1:1/"), "HTTP 302"),
    "half-a-body": (half_a_body, "ontent"),
    "cut-line": (text("aom_container_gpu_usage{uuid="), "middle of a line"),
    "fifty-megabytes": (fifty_megabytes, "larger than 16 MiB"),
    "bad-gzip": (text(b"not gzip\n", **{"Content-Encoding": "gzip"}), "decode"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_answer_fails_that_exporter_with_a_reason_and_the_others_go_on(name: str, good: Scripted) -> None:
    answer, why = BAD[name]
    async with serving(answer) as bad:
        readings = await read_once(bad.url + "/metrics", good.url + "/metrics")
    assert values(readings, "good") == {Fact.UTILIZATION: 50000}
    assert readings.exporters == 2
    assert list(readings.failures) == [bad.url + "/metrics"]
    assert why in readings.failures[bad.url + "/metrics"]


async def test_a_dead_address_and_an_unusable_one_are_failures(good: Scripted) -> None:
    readings = await read_once("http://127.0.0.1:1/metrics", "http://[bad/metrics", good.url + "/metrics")
    assert set(readings.failures) == {"http://127.0.0.1:1/metrics", "http://[bad/metrics"}
    assert values(readings, "good") == {Fact.UTILIZATION: 50000}


async def test_a_hanging_exporter_costs_the_deadline_once_and_is_then_asked_less_often(good: Scripted) -> None:
    now = 0.0
    async with serving(text("")) as stuck:
        stuck.answer = hanging(lambda: stuck)
        exporters = Exporters(
            lambda: found([stuck.url, good.url]), deadline_seconds=0.2, clock=lambda: 1.0, monotonic=lambda: now
        )
        for _ in range(3):
            readings = await exporters.read()
            assert values(readings, "good") == {Fact.UTILIZATION: 50000}
            assert "no whole answer within 0.2 s" in readings.failures[stuck.url]
        assert len(stuck.requests) == 1
        now = 2.1
        stuck.answer = text(usage("late", 7))
        readings = await exporters.read()
        assert readings.failures == {}
        assert values(readings, "late") == {Fact.UTILIZATION: 7000}
        await exporters.close()


async def test_the_age_header_dates_the_values_without_the_exporters_clock() -> None:
    async with serving(text(usage("p", 1), Age="2.5")) as script:
        readings = await read_once(script.url, clock=lambda: 100.0)
    (held,) = readings.pods["ml", "p"]
    assert held.values.at == 97.5


@pytest.mark.parametrize("age", ["NaN", "-5", "soon", "inf"])
async def test_an_unreadable_age_header_counts_as_fresh(age: str) -> None:
    async with serving(text(usage("p", 1), Age=age)) as script:
        readings = await read_once(script.url, clock=lambda: 100.0)
    (held,) = readings.pods["ml", "p"]
    assert held.values.at == 100.0


async def test_gzip_is_asked_for_and_read() -> None:
    async with serving(text(gzip.compress(usage("p", 3).encode()), **{"Content-Encoding": "gzip"})) as script:
        readings = await read_once(script.url)
    assert values(readings, "p") == {Fact.UTILIZATION: 3000}
    assert script.headers[0]["Accept-Encoding"] == "gzip"


async def test_of_two_exporters_that_tell_of_one_container_the_fresher_counts() -> None:
    async with serving(text(usage("p", 10), Age="9")) as old, serving(text(usage("p", 20), Age="1")) as fresh:
        readings = await read_once(old.url, fresh.url)
    assert values(readings, "p") == {Fact.UTILIZATION: 20000}


async def test_an_exporter_that_is_gone_from_the_list_leaves_neither_values_nor_a_failure() -> None:
    urls = ["http://127.0.0.1:1/metrics"]
    exporters = Exporters(lambda: found(urls), deadline_seconds=5.0)
    assert (await exporters.read()).failures
    urls.clear()
    readings = await exporters.read()
    await exporters.close()
    assert (readings.failures, readings.exporters) == ({}, 0)
    assert readings.why_empty() == "no GPU exporter was found"


async def test_three_hundred_exporters_are_read_with_bounded_connections() -> None:
    running = 0
    most = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return web.Response(text=usage(request.query["pod"], 1))

    async with serving(answer) as script:
        exporters = Exporters(
            lambda: found(f"{script.url}/?pod=p{i}" for i in range(300)), deadline_seconds=60.0, concurrency=8
        )
        readings = await exporters.read()
        await exporters.close()
    assert len(readings.pods) == 300
    assert most <= 8


def on(node: str, pod: str, value: float) -> str:
    return usage(pod, value).replace('node="n"', f'node="{node}"')


async def test_an_exporter_is_believed_about_the_node_that_it_runs_on_and_about_no_other() -> None:
    async with serving(text(on("n1", "own", 50) + on("n2", "theirs", 0))) as script:
        readings = await read_found(ExporterFacts(script.url, "n1"))
    assert set(readings.pods) == {("ml", "own")}
    assert readings.failures == {}
    assert list(readings.foreign) == [("ml", "theirs")]
    assert "on node n1 tells of theirs as on node n2" in readings.foreign["ml", "theirs"]


async def test_a_forged_page_does_not_replace_the_true_one_however_fresh_it_is() -> None:
    async with serving(text(on("n2", "p", 90), Age="5")) as true, serving(text(on("n2", "p", 0), Age="0")) as forged:
        readings = await read_found(ExporterFacts(true.url, "n2"), ExporterFacts(forged.url, "n1"))
    assert values(readings, "p") == {Fact.UTILIZATION: 90000}
    assert ("ml", "p") in readings.foreign


async def test_series_without_a_node_are_of_the_node_that_their_exporter_runs_on() -> None:
    async with serving(text(usage("p", 5).replace('node="n",', ""))) as script:
        readings = await read_found(ExporterFacts(script.url, "n1"))
    (held,) = readings.pods["ml", "p"]
    assert held.values.node == "n1"


async def test_an_address_of_which_nobody_knows_the_node_may_speak_of_any() -> None:
    async with serving(text(on("n1", "a", 1) + on("n2", "b", 2))) as script:
        readings = await read_once(script.url)
    assert set(readings.pods) == {("ml", "a"), ("ml", "b")}
    assert readings.foreign == {}


async def test_an_exporter_that_begins_to_tell_of_another_node_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(text(on("n2", "p", 1))) as script:
        exporters = Exporters(lambda: [ExporterFacts(script.url, "n1")], deadline_seconds=5.0)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await exporters.read()
        await exporters.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"exporter {script.url} runs on node n1 and tells of node n2: not believed; is its --node right?"
    ]
