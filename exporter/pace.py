"""When the next poll begins: so that who reads in a steady rhythm reads values that were just read.

Why it exists: a reading waits in the exporter until it is read. With phases as they fall that is half a period on
average and a whole one at worst, at each scale-up. A reader that says when it comes again finds a poll that has just
ended; the driver is asked as often as before, and by readers that don't keep their word a third more at worst.
"""

import math

HEADER = "X-Gpuscale-Next-Read-Seconds"
"""With it a reader says in how many seconds it reads again."""
LEAD_SECONDS = 0.1
"""How long before the read a poll is to have ended: what a busy machine adds to a poll, or takes from the way."""
LONGEST_SECONDS = 60.0
"""Beyond it nobody waits for a fresh value."""
_EARLIER = 0.25
"""The part of a step that a poll may come earlier; the rest of the step it may come later."""


class Pace:
    """The rhythm of polls of ``period_seconds``. Times are seconds of one monotonic clock.

    ``longest_gap_seconds``: the most that may lie between the begins of two polls for a reader's sake.
    """

    def __init__(self, period_seconds: float, longest_gap_seconds: float = math.inf) -> None:
        self._period = period_seconds
        self._latest_shift = max(0.0, longest_gap_seconds - period_seconds)
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

        A period later, or as much before (1/4) or after (3/4) as has one of the coming polls end right before a read.
        A missed period is left out, not caught up.
        """
        due = max(began + self._period, now)
        took = now - began
        awaited = self._every > 0 and now <= self._next_read + self._every
        if not awaited or took > self._period / 2:
            return due
        step = min(self._period, self._every)
        shift = (self._next_read - LEAD_SECONDS - took - due) % step
        if shift > (1 - _EARLIER) * step:
            shift -= step
        return max(due + min(shift, self._latest_shift), now)
