"""``gpuscale-exporter explain NAME``: what a metric of ours, or of another exporter, is, and how the two differ.

Why it exists: whoever moves from another exporter asks one question for each of its names, and has it answered from
the very tables that publish them. docs/metrics.md is written from the same tables.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator, Sequence

from exporter.catalogue import BY_NAME, CATALOGUE
from exporter.dialects import DIALECTS, Dialect
from exporter.dialects.rows import Row
from exporter.metric import Metric

UNKNOWN_NAME = 2


def main(argv: Sequence[str]) -> int:
    """Print what is known of the names. Exit code 2 if one is known nowhere; the nearest names are then told."""
    parser = argparse.ArgumentParser(prog="gpuscale-exporter explain", description="What a metric is, and ours for it.")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a metric of this exporter or of any dialect")
    code = 0
    for number, name in enumerate(parser.parse_args(list(argv)).names):
        found = "\n\n".join(explained(name))
        if found:
            print(("\n" if number else "") + found)
        else:
            near = ", ".join(nearest(name)) or "none"
            print(f"gpuscale-exporter: no metric is called {name!r}; the nearest names are: {near}", file=sys.stderr)
            code = UNKNOWN_NAME
    return code


def explained(name: str) -> Iterator[str]:
    """Yield one paragraph for each meaning of a name: ours, and those of dialects."""
    if metric := BY_NAME.get(name):
        yield "\n".join((f"{name}: native", *_facts(metric), *_elsewhere(name)))
    for dialect, row in _rows():
        if row.metric.name == name:
            yield "\n".join((f"{name}: {dialect.title}, --dialect {dialect.name}", *_facts(row.metric), *_ours(row)))


def nearest(name: str) -> list[str]:
    """Return the known names that are most like this one, letters' case aside."""
    known = {known.lower(): known for known in (*BY_NAME, *(row.metric.name for _, row in _rows()))}
    return [known[near] for near in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)]


def _rows() -> Iterator[tuple[Dialect, Row]]:
    return ((dialect, row) for dialect in DIALECTS.values() for row in dialect.rows)


def _facts(metric: Metric) -> Iterator[str]:
    yield f"  {metric.help}"
    yield f"  unit: {metric.unit or 'none'}; type: {metric.kind}; labels: {', '.join(metric.labels) or 'none'}"


def _ours(row: Row) -> Iterator[str]:
    yield f"  ours: {row.native or 'none'}"
    if row.differs:
        yield f"  differs: {row.differs}"


def _elsewhere(native: str) -> Iterator[str]:
    for dialect, row in _rows():
        if row.native == native:
            yield f"  {dialect.name}: {row.metric.name}{' - ' + row.differs if row.differs else ''}"


def page() -> str:
    """Return docs/metrics.md."""
    native = "".join(
        f"| `{m.name}` | {m.level} | {m.unit or '-'} | {m.kind} | {_code(m.labels)} | {m.help} |\n" for m in CATALOGUE
    )
    return _PAGE.format(native=native, dialects="".join(_section(dialect) for dialect in DIALECTS.values()))


def _section(dialect: Dialect) -> str:
    rows = "".join(
        f"| `{row.metric.name}` | {row.metric.unit or '-'} | {row.metric.kind} | {_cell(row.metric.help)} | "
        f"{f'`{row.native}`' if row.native else '-'} | {row.differs or '-'} |\n"
        for row in dialect.rows
    )
    labels = "; ".join(_code(names) for names in dict.fromkeys(row.metric.labels for row in dialect.rows))
    title = f"## {dialect.name}: {dialect.title}"
    return f"\n{title}\n\nLabels: {labels}. A label that is not known is left out.\n\n{_HEAD}{rows}"


def _code(labels: Sequence[str]) -> str:
    return " ".join(f"`{label}`" for label in labels) or "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_HEAD = "| Name | Unit | Type | What it is | Ours | How ours differs |\n|---|---|---|---|---|---|\n"
_PAGE = """# Metrics

Written by `make metrics-docs` from the tables that the exporter publishes by; do not edit it by hand.
`gpuscale-exporter explain NAME` answers for one name.

`--dialect aom,dcgm,nvidia_smi,cce` adds other exporters' names to `/metrics`, from the same poll. `aom` replaces the
native families of the same name there, because they mean something else in AOM; `/metrics/native` always serves native
names only. What is not known is absent, in every dialect. A counter whose name does not end in `_total` is of type
`unknown` in OpenMetrics, which knows no other way to say it.

A row is there where the driver, or the simulation, tells what it is read from. What only `dcgm` and `nvidia_smi` ask
for (limits as asked for, errors by place in the chip, spare rows, sessions of the encoder, the fabric, switches that an
administrator may turn ...) is read only where one of them is spoken, and, but for the power drawn at the instant, in
the period `--slow-poll-seconds`.

## Native

| Name | Level | Unit | Type | Labels | What it is |
|---|---|---|---|---|---|
{native}{dialects}"""


if __name__ == "__main__":
    sys.stdout.write(page())
