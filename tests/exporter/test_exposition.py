"""The bytes: against golden files, and against Prometheus' own parsers. UPDATE_GOLDEN=1 rewrites the files."""

import gzip
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from exporter import catalogue
from exporter.exposition import (
    OPENMETRICS_END,
    Demand,
    Families,
    Labels,
    Renderer,
    Texts,
    escape_label,
    finish,
)
from exporter.holdings import held_at
from exporter.process_metrics import ProcessMetrics
from exporter.readings import AbsentReason, GpuReading, Snapshot, SourceState
from exporter.samples import collect, withdrawn
from tests.exporter.build import gpu, holds, process, read, read_openmetrics, snapshot

GOLDEN = Path(__file__).parent / "golden"


def rich() -> Snapshot:
    """One GPU of each kind: held alone, shared with and without pids, without a field, idle, lost."""
    gpus = (
        gpu("GPU-alone", index=0),
        gpu("GPU-split", index=1, processes=(process(1, "GPU-split", 100, 70.5), process(2, "GPU-split", 300, 20))),
        gpu("GPU-shared", index=2, utilization_percent=90),
        gpu("GPU-poor", index=3, name="Tesla T4", power_watts=None, temperature_celsius=-5),
        gpu("GPU-idle", index=4, utilization_percent=0, memory_used_bytes=0, memory_free_bytes=79000 * 2**20),
        GpuReading("GPU-lost", 5, "NVIDIA H100 80GB HBM3", fault=AbsentReason.LOST),
    )
    allocations = (
        holds("alone-0", "GPU-alone"),
        holds("split-0", "GPU-split::0", pids=(1,)),
        holds("split-1", "GPU-split::1", pids=(2,)),
        holds("shared-0", "GPU-shared::0"),
        holds("shared-1", "GPU-shared::1"),
        holds("lost-0", "GPU-lost"),
        holds("mig-0", "MIG-1"),
    )
    return snapshot(*gpus, allocations=allocations, driver_failures=2)


def rendered(of: Snapshot) -> Texts:
    health, values = collect(of, held_at(of), "node-1")
    return Renderer().render({**values, **health})


BROKEN = snapshot(
    driver=SourceState(up=False, reason="library_not_found"), kubelet=SourceState(up=False, reason="no_socket")
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("node.prom", rendered(rich()).plain),
        ("node.openmetrics", finish(rendered(rich())).openmetrics.decode()),
        ("stale.prom", rendered(withdrawn(rich())).plain),
        ("no-driver.prom", rendered(BROKEN).plain),
    ],
)
def test_the_exposition_is_the_golden_one(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_both_parsers_read_the_same_values_from_both_formats() -> None:
    texts = rendered(rich()) + ProcessMetrics().render()
    body = finish(texts)
    assert read(body.plain.decode()) == read_openmetrics(body.openmetrics.decode())
    assert len(read(body.plain.decode())) > 60


def test_our_own_metrics_are_what_prometheus_client_would_write_in_either_format() -> None:
    class Still:
        """A process that does not change between two looks."""

        found = tuple(ProcessMetrics()._registry.collect())

        def collect(self) -> Iterable[Metric]:
            return self.found

    ours = ProcessMetrics()
    ours._registry = Still()  # type: ignore[assignment]
    texts = ours.render()
    assert numbered(texts.plain) == numbered(generate_latest(Still()).decode())
    stock: bytes = generate_openmetrics(Still())  # type: ignore[no-untyped-call]
    assert numbered(texts.openmetrics + OPENMETRICS_END) == numbered(stock.decode())


def numbered(text: str) -> list[str | tuple[str, float]]:
    """Split a page into its heads, as they are, and its series with their numbers, however these are written."""
    lines = (line if line.startswith("#") else line.rpartition(" ") for line in text.splitlines())
    return [line if isinstance(line, str) else (line[0], float(line[2])) for line in lines]


def test_the_compressed_forms_hold_the_same_bytes() -> None:
    body = finish(rendered(rich()))
    assert gzip.decompress(body.form(openmetrics=False, gzip=True)) == body.plain
    assert gzip.decompress(body.form(openmetrics=True, gzip=True)) == body.openmetrics


def ahead(demand: Demand, pages: int) -> list[bool]:
    """Whether each of the next pages is compressed ahead, as OpenMetrics."""
    return [True in demand.next_page() for _ in range(pages)]


@pytest.mark.parametrize("period", [0, 1, 2, 15, 600])
def test_the_page_of_a_regular_scrape_is_compressed_ahead_and_few_others_are(period: int) -> None:
    demand = Demand()
    for _ in range(2):
        ahead(demand, period)
        demand.asked(openmetrics=True)
    due = max(period - 1, 1)
    assert ahead(demand, 2 * period + 9) == [due <= page <= 2 * period + 1 for page in range(1, 2 * period + 10)]


def test_two_servers_that_take_turns_are_both_met() -> None:
    demand = Demand()
    last = []
    for gap in (4, 11) * 4:
        last = ahead(demand, gap)
        demand.asked(openmetrics=True)
    assert last[-1] is True
    assert ahead(demand, 4)[-1] is True


def test_a_format_is_compressed_ahead_for_as_long_as_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed: list[bytes] = []
    compress = zlib.compress
    monkeypatch.setattr(zlib, "compress", lambda data, *how: compressed.append(data) or compress(data, *how))
    texts, demand = rendered(BROKEN), Demand()
    body = finish(texts, demand)
    assert not compressed, "nobody has asked yet"
    assert body.form(openmetrics=True, gzip=True) is body.form(openmetrics=True, gzip=True)
    assert compressed == [body.openmetrics]
    body.form(openmetrics=True, gzip=True)
    finish(texts, demand)
    assert compressed == [body.openmetrics] * 2, "it is asked for more than once a page"
    for _ in range(3):
        finish(texts, demand)
    assert len(compressed) == 2, "nobody has come for long"


def test_openmetrics_ends_once_and_names_counters_without_total() -> None:
    text = finish(rendered(rich()) + ProcessMetrics().render()).openmetrics.decode()
    assert text.count("# EOF") == 1
    assert "# TYPE gpuscale_polls counter\ngpuscale_polls_total{" in text


def test_no_family_is_split_in_two() -> None:
    lines = (rendered(rich()) + ProcessMetrics().render()).plain.splitlines()
    order = [line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")]
    runs = [name for position, name in enumerate(order) if position == 0 or order[position - 1] != name]
    assert len(runs) == len(set(runs))


def test_families_without_samples_print_nothing() -> None:
    assert Renderer().render({catalogue.NODE_USAGE: {}}).plain == ""


def test_a_second_rendering_follows_the_new_values_and_label_sets() -> None:
    renderer = Renderer()
    first = renderer.render({catalogue.NODE_USAGE: {("n", "GPU-a", "T4"): 1, ("n", "GPU-b", "T4"): 2}})
    second = renderer.render({catalogue.NODE_USAGE: {("n", "GPU-b", "T4"): 3, ("n", "GPU-c", "T4"): 4}})
    assert sorted(read(first.plain).values()) == [1, 2]
    assert {dict(labels)["uuid"]: value for (_, labels), value in read(second.plain).items()} == {
        "GPU-b": 3,
        "GPU-c": 4,
    }


def test_what_is_kept_between_polls_does_not_grow_with_pods_that_come_and_go() -> None:
    renderer = Renderer()
    for n in range(500):
        renderer.render({catalogue.CONTAINER_USAGE: {("n", "GPU-a", "T4", "ml", f"pod-{n}", "main"): 1}})
    assert [(len(kept.prefixes), len(kept.labels)) for kept in renderer._written.values()] == [(1, 1)]


shape = st.dictionaries(st.tuples(st.sampled_from("ab")), st.sampled_from([0, 1, 1.5, float("nan"), 2**60]), max_size=2)


@settings(deadline=None)
@given(st.lists(st.tuples(shape, shape), max_size=6))
def test_what_was_written_before_never_shows(polls: list[tuple[dict[Labels, float], dict[Labels, float]]]) -> None:
    renderer = Renderer()
    for gauges, counters in polls:
        families: Families = {catalogue.GPUS_SEEN: gauges, catalogue.POLLS: counters}
        assert numbered_text(renderer.render(families)) == numbered_text(Renderer().render(families))


def numbered_text(texts: Texts) -> list[str]:
    return [repr(line) for line in (*numbered(texts.plain), *numbered(texts.openmetrics))]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain-1", "plain-1"),
        ("C:\\Windows\\x.exe", "C:\\\\Windows\\\\x.exe"),
        ('say "hi"', 'say \\"hi\\"'),
        ("two\nlines", "two\\nlines"),
        ("carriage\r\nreturn\r", "carriage\\nreturn"),
        ("\\n", "\\\\n"),
        ("", ""),
    ],
)
def test_a_label_value_is_escaped(value: str, written: str) -> None:
    assert escape_label(value) == written


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(st.dictionaries(st.tuples(words, words, words), finite, max_size=5), st.dictionaries(st.tuples(words), finite))
def test_every_value_and_label_comes_back_from_both_parsers(
    gauges: dict[tuple[str, ...], float], counters: dict[tuple[str, ...], float]
) -> None:
    families: Families = {
        catalogue.NODE_USAGE: gauges,
        catalogue.POLLS: {labels: abs(value) for labels, value in counters.items()},
    }
    body = finish(Renderer().render(families))
    expected = {
        (metric.name, frozenset(zip(metric.labels, labels, strict=True))): value
        for metric, rows in families.items()
        for labels, value in rows.items()
    }
    assert read(body.plain.decode()) == expected
    assert read_openmetrics(body.openmetrics.decode()) == expected


def test_bytes_that_are_no_text_do_not_stop_the_exposition() -> None:
    families = {catalogue.NODE_USAGE: {("n", "GPU-a", b"\xff".decode("utf-8", "surrogateescape")): 1.0}}
    assert len(read(finish(Renderer().render(families)).plain.decode())) == 1
