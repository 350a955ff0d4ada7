"""The rhythm of the polls, in virtual time: one who reads says when it comes again, and finds a fresh poll."""

import itertools
import random

import pytest

from exporter.pace import LEAD_SECONDS, LONGEST_SECONDS, SHORTEST_GAP, Pace
from exporter.parts import poller_of, wire
from exporter.settings import parse

TOOK = 0.02


class Reader:
    """Reads every ``tick`` seconds, says so or what is ``told``, and notes how old the newest values are."""

    def __init__(self, pace: Pace, tick: float, phase: float, told: str = "") -> None:
        self._pace, self._tick, self._next = pace, tick, phase
        self._told = told or f"{tick:g}"
        self.ages: list[float] = []

    def reads_until(self, moment: float, newest: float | None) -> None:
        """All reads before ``moment``; the poll that began at ``newest`` is the last that has ended."""
        while self._next < moment:
            if newest is not None:
                self.ages.append(self._next - newest)
            self._pace.read(self._next, self._told)
            self._next += self._tick


def lives(*, tick: float, phase: float, until: float = 60.0, told: str = "") -> tuple[list[float], list[float]]:
    """Begins of the polls of a period of 1 s, and how old the newest values were at each read."""
    pace = Pace(1.0)
    reader = Reader(pace, tick, phase, told)
    before, began, begins = None, 0.0, []
    while began < until:
        begins.append(began)
        reader.reads_until(began + TOOK, before)
        due = pace.after(began, began + TOOK)
        reader.reads_until(due, began)
        before, began = began, due
    return begins, reader.ages


def gaps(begins: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(begins)]


@pytest.mark.parametrize("tick", [0.8, 1.0, 1.2, 1.45, 1.5, 1.7, 1.8, 1.9, 2.0, 2.5, 3.3, 15.0])
@pytest.mark.parametrize("phase", [0.03, 0.4, 0.77, 0.999])
def test_who_reads_in_a_rhythm_finds_values_that_were_just_read(tick: float, phase: float) -> None:
    _, ages = lives(tick=tick, phase=phase)
    assert len(ages) >= 60 // tick - 1
    assert max(ages[3:] or ages[-1:]) < TOOK + 2 * LEAD_SECONDS


def test_of_reads_that_are_denser_than_polls_each_poll_has_one_right_after_it() -> None:
    _, ages = lives(tick=0.5, phase=0.77)
    assert max(min(pair) for pair in itertools.pairwise(ages[6:])) < TOOK + 2 * LEAD_SECONDS


@pytest.mark.parametrize("tick", [0.3, 0.81, 1.0, 1.5, 1.7, 1.8, 2.0, 2.5])
def test_polls_keep_their_distance_and_whole_periods_cost_no_poll_more(tick: float) -> None:
    random.seed(tick)
    for phase in (random.uniform(0, 2) for _ in range(20)):  # noqa: S311 - a phase
        between = gaps(lives(tick=tick, phase=phase, until=200.0)[0])
        assert min(between) >= SHORTEST_GAP - 1e-9
        assert max(between) <= 1.5 + 1e-9
        if tick % 1 == 0:
            assert sum(between) / len(between) >= 0.98


def test_an_operator_that_is_woken_all_the_time_does_not_put_the_polls_off() -> None:
    begins, ages = lives(tick=0.25, phase=0.1, told="2")
    assert max(gaps(begins)[3:]) <= 1.0
    assert sum(ages) / len(ages) < 0.6


@pytest.mark.parametrize(
    "header", [None, "", "0", "-1", "nan", "inf", "1e999", "soon", "1,5", f"{LONGEST_SECONDS + 1}"]
)
def test_without_a_time_to_come_polls_keep_their_period(header: str | None) -> None:
    pace = Pace(1.0)
    pace.read(0.4, header)
    assert pace.after(0.0, TOOK) == 1.0


def test_a_reader_that_stays_away_is_waited_for_no_longer() -> None:
    pace = Pace(1.0)
    pace.read(0.4, "2")
    assert pace.after(0.0, TOOK) != 1.0
    assert pace.after(5.0, 5.0 + TOOK) == 6.0


def test_a_missed_period_is_left_out_and_a_poll_that_fills_the_period_is_not_moved() -> None:
    pace = Pace(1.0)
    assert pace.after(0.0, 2.5) == 2.5
    pace.read(0.4, "2")
    assert pace.after(0.0, 0.6) == 1.0


def test_a_poll_comes_no_later_than_lets_a_gpu_hang_before_values_are_stale() -> None:
    pace = Pace(1.0, longest_gap_seconds=1.25)
    pace.read(0.0, "1.6")
    assert pace.after(0.0, TOOK) == 1.25
    tight = Pace(1.0, longest_gap_seconds=0.9)
    tight.read(0.0, "1.6")
    assert tight.after(0.0, TOOK) == 1.0


@pytest.mark.parametrize(
    ("words", "longest"),
    [((), 1.4), (("--stale-polls", "2"), 1.0), (("--deadline-seconds", "1.8"), 1.1)],
)
def test_settings_leave_room_for_a_gpu_that_hangs_or_a_poll_that_fails(words: tuple[str, ...], longest: float) -> None:
    settings = parse(["--simulate", "1xT4", *words], {})
    pace = poller_of(settings, wire(settings)).pace
    pace.read(0.0, "1.59")
    assert pace.after(0.0, TOOK) == pytest.approx(longest)


def test_a_poll_never_begins_in_the_past() -> None:
    random.seed(1)
    pace = Pace(1.0)
    for _ in range(2000):
        began = random.uniform(0, 100)  # noqa: S311
        now = began + random.uniform(0, 2)  # noqa: S311
        pace.read(random.uniform(began - 5, now), f"{random.uniform(0.01, 5):g}")  # noqa: S311
        assert now <= pace.after(began, now) <= max(began + 1.5, now) + 1e-9
