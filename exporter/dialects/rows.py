"""What a dialect is made of: rows that say which reading a foreign name is, in which unit.

Why it exists: the tables of the dialects are data. The rendering, the documentation and ``explain`` read the same rows.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from exporter.believable import within
from exporter.exposition import Families, Labels
from exporter.holdings import Holder, Slot
from exporter.metric import Kind, Level, Metric
from exporter.readings import GpuReading, Snapshot

MEBIBYTE = 2**20
BANKS = {
    "max": "all their spare rows",
    "high": "most of their spare rows",
    "partial": "some of their spare rows",
    "low": "few spare rows",
    "none": "no spare row",
}
"""Mark of the histogram of spare rows -> what the banks counted there have left."""

NOBODY: Holder = ("", "", "")
Samples = defaultdict[Metric, dict[Labels, float]]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One foreign family. ``native``: our family of the same fact, "" = none; ``differs``: how it is not the same."""

    metric: Metric
    value: Callable[[Any], float | None]
    """What the row is of (a GPU, a MIG instance, a number) -> the value in the row's unit, None = not known."""
    native: str = ""
    differs: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """All that a dialect may say something of: the readable GPUs with only believable values, and who holds them."""

    snapshot: Snapshot
    node: str
    gpus: tuple[GpuReading, ...]
    holders: Mapping[tuple[str, Slot], tuple[Holder, ...]]
    """(uuid of a GPU, GPU instance or None) -> the containers that hold it"""
    native: Families
    """The samples of the native families, from which container series are taken."""
    labels: Mapping[str, str]
    """Labels that only the settings know, such as clusterId."""

    def holder(self, uuid: str, instance: Slot = None) -> Holder:
        """Return the container that alone holds a GPU, or an instance of it, else NOBODY."""
        holders = self.holders.get((uuid, instance), ())
        return holders[0] if len(holders) == 1 else NOBODY


def metric(
    name: str, level: Level, unit: str, kind: Kind, labels: tuple[str, ...], help_text: str, source: str
) -> Metric:
    """Make the family of a dialect's row."""
    return Metric(name, level, unit, kind, labels, help_text, source, omit_empty=True)


def reads(path: str, times: float = 1, *, whole: bool = False) -> Callable[[Any], float | None]:
    """Read one field, ``a.b`` for a part's; the value is multiplied and, if ``whole``, rounded down.

    A part's value that cannot be true is not known; the reading's own are believed before a dialect sees them.
    """
    names = path.split(".")
    unchecked = len(names) == 1

    def value(reading: Any) -> float | None:
        for name in names:
            reading = None if reading is None else getattr(reading, name)
        if reading is None or not (unchecked or within(names[-1], reading)):
            return None
        scaled: float = reading * times
        return math.floor(scaled) if whole else scaled

    return value


def fact(name: str, times: float = 1) -> Callable[[GpuReading], float | None]:
    """Read a number out of one of the GPU's facts: decimal, or hexadecimal after 0x. Other text is not known."""

    def value(gpu: GpuReading) -> float | None:
        number = numeral(gpu.facts.get(name, ""))
        return None if number is None or not within(name, abs(number)) else number * times

    return value


def numeral(text: str) -> float | None:
    """Return the number that a text is, else None."""
    try:
        return float(int(text, 16)) if text.startswith(("0x", "0X")) else float(text)
    except ValueError:
        return None


def fill(samples: Samples, rows: Iterable[Row], labels: Labels, subject: object) -> None:
    """Add what is known of a subject, one sample a row."""
    for row in rows:
        value = row.value(subject)
        if value is not None:
            samples[row.metric][labels] = value
