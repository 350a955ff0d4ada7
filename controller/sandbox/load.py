"""How much work arrives when: the demo's built-in waves, or a recording pressed into the demo's length.

Demand is counted in GPUs that it keeps fully busy: 2.5 = two and a half replicas of one GPU at 100 %.
Pure: a load is a function of seconds since the start.
"""

import bisect
import itertools
from dataclasses import dataclass

from controller.sandbox.recordings import CostModel, Kind, Recording, read_recording

BIN_SECONDS = 1.0
"""A recording is averaged over bins of this much demo time: finer than this the operator's tick cannot see."""

SHORTEST_WAVE_SECONDS = 45.0
MOST_WAVES = 3
TROUGH_OF_PEAK = 0.1
WAVE = ((0.0, TROUGH_OF_PEAK), (0.05, TROUGH_OF_PEAK), (0.24, 1.0), (0.36, 1.0), (0.46, TROUGH_OF_PEAK))
"""Corners of one wave: share of its length, share of the peak. Its second half is for the way back down."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Demand over time, piecewise linear through ``points`` (seconds, GPUs busy); flat before and after them."""

    points: tuple[tuple[float, float], ...]

    def at(self, seconds: float) -> float:
        """GPUs kept busy at that moment since the start."""
        index = bisect.bisect_right(self.points, seconds, key=lambda point: point[0])
        if index == 0:
            return self.points[0][1]
        if index == len(self.points):
            return self.points[-1][1]
        (t0, d0), (t1, d1) = self.points[index - 1 : index + 1]
        return d0 + (d1 - d0) * (seconds - t0) / (t1 - t0)

    @property
    def peak(self) -> float:
        """The most GPUs busy at once."""
        return max(demand for _, demand in self.points)


@dataclass(frozen=True, slots=True)
class Load:
    """A curve and where it comes from.

    ``time_factor``: recorded seconds per demo second. ``demand_factor``: GPUs busy per recorded unit of demand.
    Both 1 for the built-in load.
    """

    curve: Curve
    source: str
    time_factor: float = 1.0
    demand_factor: float = 1.0

    @property
    def sentence(self) -> str:
        """What people should know about the load before they believe what follows."""
        if self.source == "built-in":
            return f"built-in up-and-down load, peak {self.curve.peak:.1f} GPUs busy"
        pressed = (
            f"pressed {self.time_factor:.3g} x"
            if self.time_factor >= 1
            else f"stretched {1 / self.time_factor:.3g} x"
            if self.time_factor > 0
            else "not pressed"
        )
        return f"{self.source}, {pressed} in time, demand x {self.demand_factor:.3g}: peak {self.curve.peak:.1f} GPUs"


def waves(length_seconds: float, peak: float) -> Load:
    """Make the built-in load: one wave, or up to three when there is time for as many whole ones."""
    count = max(1, min(MOST_WAVES, int(length_seconds // (SHORTEST_WAVE_SECONDS * 4 / 3))))
    each = length_seconds / count
    points = [((n + share) * each, level * peak) for n in range(count) for share, level in WAVE]
    return Load(Curve(tuple(points)), "built-in")


def from_file(path: str, length_seconds: float, peak: float, cost: CostModel | None = None) -> Load:
    """Read a recorded load, pressed into the length and scaled to the peak. Raises LoadError (one line)."""
    recording = read_recording(path, cost)
    return press(recording, length_seconds, peak, source=path)


def press(recording: Recording, length_seconds: float, peak: float, source: str) -> Load:
    """Press a recording into ``length_seconds`` and scale its highest bin to ``peak`` GPUs busy."""
    count = max(2, round(length_seconds / BIN_SECONDS))
    bins = _levels(recording, count) if recording.kind is Kind.DEMAND else _arrivals(recording, count)
    highest = max(bins)
    width = length_seconds / count
    points = tuple(((n + 0.5) * width, level / highest * peak) for n, level in enumerate(bins))
    return Load(Curve(points), source, recording.span_seconds / length_seconds, peak / highest)


def _arrivals(recording: Recording, count: int) -> list[float]:
    """Replicas that the requests of each bin keep busy: their busy seconds over the bin's recorded seconds."""
    width = recording.span_seconds / count
    bins = [0.0] * count
    for second, busy in zip(recording.seconds, recording.amounts, strict=True):
        bins[min(count - 1, int(second / width))] += busy / width
    return bins


def _levels(recording: Recording, count: int) -> list[float]:
    """Average a level over each bin, drawn as straight lines between its rows."""
    width = recording.span_seconds / count
    edges = [n * width for n in range(count)] + [recording.span_seconds]
    whole = _integral(recording, edges)
    return [max(0.0, after - before) / width for before, after in itertools.pairwise(whole)]


def _integral(recording: Recording, edges: list[float]) -> list[float]:
    """Demand-seconds from the start to each edge; edges ascend from 0 to the recording's end."""
    seconds, amounts = recording.seconds, recording.amounts
    found: list[float] = []
    total, row = 0.0, 0
    for edge in edges:
        while row + 1 < len(seconds) and seconds[row + 1] <= edge:
            total += (seconds[row + 1] - seconds[row]) * (amounts[row] + amounts[row + 1]) / 2
            row += 1
        found.append(total + _part(recording, row, edge))
    return found


def _part(recording: Recording, row: int, edge: float) -> float:
    """Demand-seconds from a row to an edge before the next row."""
    if row + 1 >= len(recording.seconds):
        return 0.0
    step = recording.seconds[row + 1] - recording.seconds[row]
    into = edge - recording.seconds[row]
    if step <= 0 or into <= 0:
        return 0.0
    start = recording.amounts[row]
    slope = (recording.amounts[row + 1] - start) / step
    return into * (start + slope * into / 2)
