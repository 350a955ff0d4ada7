"""When the next poll begins: so that who reads in a steady rhythm reads values that were just read.

Why it exists: a reading waits in the exporter until it is read. With phases as they fall that is half a period on
average and a whole one at worst, at each scale-up. A reader that says when it comes again finds a poll that has just
ended.
"""

import math

HEADER = "X-Gpuscale-Next-Read-Seconds"
"""With it a reader says in how many seconds it reads again."""
LEAD_SECONDS = 0.1
"""How long before the read a poll is to have ended: what a busy machine adds to a poll, or takes from the way."""
LONGEST_SECONDS = 60.0
"""Beyond it nobody waits for a fresh value."""
SHORTEST_GAP = 0.7
"""The part of a period that lies between the begins of two polls at least.

From 1.5 periods on two polls are made, of 0.75 each: what is planned as 0.75 may come a little sooner.
"""


class Pace:
    """The rhythm of polls of ``period_seconds``. Times are seconds of one monotonic clock.

    ``longest_gap_seconds``: the most that may lie between the begins of two polls for a reader's sake.
    """

    def __init__(self, period_seconds: float, longest_gap_seconds: float = math.inf) -> None:
        self._period = period_seconds
        self._longest_gap = max(period_seconds, longest_gap_seconds)
        self._every = 0.0
        self._next_read = 0.0

    def read(self, now: float, header: str | None) -> None:
        """Note a read and what it said in ``HEADER``; None or what is no time to come says nothing."""
        try:
            seconds = float(header or 0)
        except ValueError:
            return
        if 0 < seconds <= LONGEST_SECONDS:
            self._every, self._next_read = seconds, now + seconds

    def after(self, began: float, now: float) -> float:
        """Return when the poll begins that follows the one that ``began`` and has just ended.

        A period later, or moved so that polls at even distances lead to one that ends right before a read. A missed
        period is left out, not caught up.
        """
        took = now - began
        awaited = self._every > 0 and now <= self._next_read + self._every
        if not awaited or took > self._period / 2:
            return max(began + self._period, now)
        until_read = self._until_read(began + LEAD_SECONDS + took)
        gap = until_read / max(1, round(until_read / self._period))
        return max(began + min(gap, self._longest_gap), now)

    def _until_read(self, moment: float) -> float:
        """Return how long after ``moment`` the first read comes that the next poll can be for."""
        soonest = moment + SHORTEST_GAP * self._period
        missed = max(0, math.ceil((soonest - self._next_read) / self._every))
        return self._next_read + missed * self._every - moment
