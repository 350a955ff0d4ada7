"""PURE: what a number must be before it is believed, added up or divided.

Why it exists: drivers give sentinels (2^64-1, NaN) for what they do not know; one of them in a sum is a lie.
"""

from collections.abc import Iterable

PIB = 2.0**50
"""More bytes than any board has."""


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
