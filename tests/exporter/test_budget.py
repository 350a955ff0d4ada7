"""--max-series: what is left out, and how that is told."""

import logging

import pytest

from exporter.budget import Budget
from exporter.poller import Poller
from exporter.simulated import SimulatedSource
from tests.exporter.build import names, read, values


async def page(most: int, spec: str = "4xT4") -> str:
    source = SimulatedSource(spec)
    return (await Poller(source, source, "node-1", 1, most_series=most).poll()).fresh.plain.decode()


def gpu_series(text: str) -> int:
    return sum(line.startswith(("aom_", "gpuscale_")) for line in text.splitlines()) - 3  # 2 of the budget, 1 version


async def test_without_a_budget_nothing_is_dropped() -> None:
    text = await page(0)
    assert values(read(text), "gpuscale_exporter_series") == [gpu_series(text)]
    assert values(read(text), "gpuscale_exporter_series_dropped_total") == [0]


async def test_beyond_the_budget_whole_families_are_left_out_and_counted() -> None:
    whole = await page(0)
    most = gpu_series(whole) - 6
    text = await page(most)
    assert gpu_series(text) <= most
    dropped = gpu_series(whole) - gpu_series(text)
    assert values(read(text), "gpuscale_exporter_series_dropped_total") == [dropped]
    assert values(read(text), "gpuscale_exporter_series") == [gpu_series(text)]
    for name in names(read(text)):
        if name.startswith("aom_"):
            assert len(values(read(text), name)) == len(values(read(whole), name)), "a family is whole or not there"


async def test_health_stays_however_small_the_budget_is() -> None:
    series = names(read(await page(1)))
    assert "gpuscale_gpu_up" in series
    assert not [name for name in series if name.startswith("aom_")]


async def test_what_is_dropped_is_told_once_and_counted_at_each_poll(caplog: pytest.LogCaptureFixture) -> None:
    source = SimulatedSource("2xT4")
    poller = Poller(source, source, "node-1", 1, most_series=1)
    with caplog.at_level(logging.WARNING, logger="exporter.budget"):
        first = values(read((await poller.poll()).fresh.plain.decode()), "gpuscale_exporter_series_dropped_total")
        second = values(read((await poller.poll()).fresh.plain.decode()), "gpuscale_exporter_series_dropped_total")
    assert len(caplog.records) == 1
    assert "aom_node_gpu_usage" in caplog.text
    assert second == [2 * first[0]]


def test_the_budget_says_when_all_fits_again(caplog: pytest.LogCaptureFixture) -> None:
    from exporter.catalogue import NODE_USAGE

    budget = Budget(1)
    with caplog.at_level(logging.INFO, logger="exporter.budget"):
        assert budget.fit({}, {NODE_USAGE: {("n", "a", "m"): 1.0, ("n", "b", "m"): 1.0}}) == ({},)
        assert budget.fit({}, {NODE_USAGE: {("n", "a", "m"): 1.0}}) == ({NODE_USAGE: {("n", "a", "m"): 1.0}},)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
