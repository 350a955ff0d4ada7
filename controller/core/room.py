"""What is free on a node, as numbers by position, and how many pods of a kind fit into it.

Why it exists: packing asks this some ten thousand times a tick, so it works on tuples; and shares of a device are
counted device by device here, in one place.
"""

from dataclasses import dataclass

DEVICE = 1000
"""One whole GPU in milli-units; a request below is a share of one."""
UNLIMITED = 1 << 80

Free = tuple[int, ...]
Parts = tuple[int, ...]
"""What is left of devices in part use, ascending; shares go where they fit most tightly."""


@dataclass(frozen=True, slots=True)
class Need:
    """One pod's request by position: ``whole`` amounts, and at most one ``share`` of a device."""

    whole: tuple[tuple[int, int], ...]
    share: int = 0
    device: int = 0

    def fits(self, free: Free, parts: Parts) -> int:
        """How many such pods fit."""
        count = min((free[at] // amount for at, amount in self.whole), default=UNLIMITED)
        if self.share and count:
            per_device = DEVICE // self.share
            count = min(count, sum(p // self.share for p in parts) + free[self.device] // DEVICE * per_device)
        return count

    def put(self, free: Free, parts: Parts, count: int) -> tuple[Free, Parts]:
        """Return what is left after ``count`` such pods, which must fit."""
        left = list(free)
        for at, amount in self.whole:
            left[at] -= amount * count
        if self.share:
            rest, kept = _fill(parts, self.share, count)
            opened, parts = _open(rest, self.share, kept)
            left[self.device] -= opened * DEVICE
        return tuple(left), parts


def _fill(parts: Parts, share: int, count: int) -> tuple[int, list[int]]:
    """Put shares onto devices in part use; returns how many found no room, and what is left of the devices."""
    kept = []
    for part in parts:
        taken = min(part // share, count)
        count -= taken
        kept.append(part - taken * share)
    return count, kept


def _open(count: int, share: int, kept: list[int]) -> tuple[int, Parts]:
    """Put shares onto untouched devices; returns how many were opened, and all devices in part use."""
    per_device = DEVICE // share
    full, rest = divmod(count, per_device)
    kept += [DEVICE - per_device * share] * full
    if rest:
        kept.append(DEVICE - rest * share)
    return full + bool(rest), tuple(sorted(part for part in kept if part))
