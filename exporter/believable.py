"""PURE: what a number must be before it is believed, added up or divided.

Why it exists: drivers answer 2^64-1, NaN and used > total for what they do not know; one of them in a sum is a lie,
under our names and under another exporter's.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from exporter.readings import GpuReading, MigReading, ProcessReading

PIB = 2.0**50
"""More bytes than any board has."""
_Part = TypeVar("_Part", MigReading, ProcessReading)

# the unit that ends a field's name -> smallest and largest value that can be true
_RANGES: dict[str, tuple[float, float]] = {
    "bytes": (0, PIB),
    "percent": (0, 100),
    "ratio": (0, 1),
    "celsius": (0, 200),
    "watts": (0, 10_000),
    "hertz": (0, 1e11),
}
_COUNT = (0, 2.0**62)
# the driver tells intended fan speeds above what it calls the maximum
_BY_FIELD = {
    "fan_percent": (0, 200),
    # more than the board is made for is allowed on some
    "edpp_multiplier_percent": (0, 1000),
    "temperature_margin_celsius": (-250, 250),
}
_PARTS = ("memory_free_bytes", "memory_used_bytes", "memory_reserved_bytes")


def believed(gpu: GpuReading) -> GpuReading:
    """Return the reading with every number that cannot be true, its parts' included, set to None."""
    changed: dict[str, Any] = _doubted(gpu)
    if any(_doubted(mig) for mig in gpu.mig):
        changed["mig"] = tuple(_without(mig) for mig in gpu.mig)
    if any(_doubted(process) for process in gpu.processes or ()):
        changed["processes"] = tuple(_without(process) for process in gpu.processes or ())
    return dataclasses.replace(gpu, **changed) if changed else gpu


def within(field: str, value: float) -> bool:
    """Whether a field of that name can have this value. NaN never is."""
    smallest, largest = _BY_FIELD.get(field) or _RANGES.get(field.rpartition("_")[2], _COUNT)
    return smallest <= value <= largest


def _without(part: _Part) -> _Part:
    changed: dict[str, Any] = _doubted(part)
    return dataclasses.replace(part, **changed)


def _doubted(reading: GpuReading | MigReading | ProcessReading) -> dict[str, Any]:
    doubted: dict[str, Any] = {}
    for name in _FIELDS[type(reading)]:
        value = getattr(reading, name)
        if value is not None and not within(name, value):
            doubted[name] = None
    return doubted | _too_large_parts(reading)


def _too_large_parts(reading: GpuReading | MigReading | ProcessReading) -> dict[str, Any]:
    total = None if isinstance(reading, ProcessReading) else reading.memory_total_bytes
    if total is None or not within("memory_total_bytes", total):
        return {}
    # a total of 0 cannot be true
    of_zero: dict[str, Any] = {} if total else {"memory_total_bytes": None}
    return of_zero | {name: None for name in _PARTS if (getattr(reading, name) or 0) > total}


def believable(value: float | None, smallest: float, largest: float) -> bool:
    """Whether it is known and in that range."""
    # NaN fails both comparisons, infinity the second
    return value is not None and smallest <= value <= largest


def percent(part: float | None, whole: float | None) -> float | None:
    """Part in percent of the whole; None = one is not known, or there is no whole."""
    return None if part is None or not whole else 100 * part / whole


def sum_known(parts: Iterable[float | None], largest: float) -> float | None:
    """Add up, or None if one part is unknown or cannot be true."""
    total = 0.0
    for part in parts:
        if part is None or not believable(part, 0, largest):
            return None
        total += part
    return total


def at_most(value: float | None, limit: float | None) -> float | None:
    """Cut at a limit, where both are known."""
    return value if value is None or limit is None else min(value, limit)


_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in dataclasses.fields(kind) if field.type in (int | None, float | None))
    for kind in (GpuReading, MigReading, ProcessReading)
}
