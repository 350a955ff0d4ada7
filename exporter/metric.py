"""What a row of the catalogue is, and how rows of the two levels of a GPU are written.

Why it exists: the catalogue is written in several files by subject, and all of them need the type of a row.
"""

from dataclasses import dataclass
from typing import Literal

Level = Literal["node", "container", "mig", "process", "health", "self", "cluster", "nodepool", "model"]
Kind = Literal["gauge", "counter"]

GPU_LABELS = ("node", "uuid", "model")
CONTAINER_LABELS = (*GPU_LABELS, "namespace", "pod", "container")
MIG_LABELS = ("node", "uuid", "gi", "profile")


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One family. ``unit`` "" = a plain number; ``labels`` in the printed order; compared by identity."""

    name: str
    level: Level
    unit: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    source: str
    omit_empty: bool = False
    """Leave labels out where they are empty, as the exporters do whose names a dialect speaks."""


def node_row(name: str, unit: str, help_text: str, source: str, *more_labels: str, kind: Kind = "gauge") -> Metric:
    """Return a row with one series per GPU, or several that differ by more labels."""
    return Metric(name, "node", unit, kind, (*GPU_LABELS, *more_labels), help_text, source)


def container_row(name: str, unit: str, help_text: str, source: str, *, kind: Kind = "gauge") -> Metric:
    """Return a row with one series per container and GPU."""
    return Metric(name, "container", unit, kind, CONTAINER_LABELS, help_text, source)


def mig_row(name: str, unit: str, help_text: str, source: str, *more_labels: str) -> Metric:
    """Return a row with one series per GPU instance, or several that differ by more labels."""
    return Metric(name, "mig", unit, "gauge", (*MIG_LABELS, *more_labels), help_text, source)
