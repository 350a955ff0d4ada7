"""How many series a page may have: families beyond it are left out whole, counted and told.

Why it exists: who pays per series sets a limit once, and a node with hundreds of processes must not break it. A family
is kept or dropped as a whole, because half of one would make every sum over it wrong.
"""

import logging
from collections.abc import Iterable, Mapping

from exporter.exposition import Families
from exporter.metric import Metric

log = logging.getLogger("exporter.budget")


class Budget:
    """``most`` series on a page, 0 = no limit. Health always stays; the figures are those of the last page."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.series = 0
        self.dropped_total = 0
        self._told: frozenset[str] = frozenset()

    def fit(self, health: Families, *others: Families) -> tuple[Families, ...]:
        """Return the other families that still fit, the first ones first."""
        self.series = _count(health)
        dropped: dict[str, int] = {}
        kept = tuple(self._fitting(families, dropped) for families in others)
        self.dropped_total += sum(dropped.values())
        self._tell(dropped)
        return kept

    def _fitting(self, families: Families, dropped: dict[str, int]) -> Families:
        if not self.most or self.series + _count(families) <= self.most:
            self.series += _count(families)
            return families
        kept: dict[Metric, Mapping[tuple[str, ...], float]] = {}
        for metric, rows in families.items():
            if self.series + len(rows) <= self.most:
                kept[metric] = rows
                self.series += len(rows)
            else:
                dropped[metric.name] = len(rows)
        return kept

    def _tell(self, dropped: Mapping[str, int]) -> None:
        """One line when other families are dropped than before, not one a poll."""
        names: Iterable[str] = sorted(dropped)
        if frozenset(dropped) == self._told:
            return
        self._told = frozenset(dropped)
        if dropped:
            log.warning(
                "%d series are beyond the budget of %d (--max-series) and left out: %s",
                sum(dropped.values()),
                self.most,
                ", ".join(names),
            )
        else:
            log.info("all series fit into the budget of %d again", self.most)


def _count(families: Families) -> int:
    return sum(map(len, families.values()))
