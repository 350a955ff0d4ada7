import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.sandbox.load import Curve, from_file, press, waves
from controller.sandbox.recordings import Kind, Recording


def recording(kind: Kind, *rows: tuple[float, float]) -> Recording:
    return Recording(kind, tuple(t for t, _ in rows), tuple(a for _, a in rows))


def test_a_curve_is_straight_between_its_points_and_flat_outside() -> None:
    curve = Curve(((1.0, 2.0), (3.0, 4.0), (3.0, 1.0)))
    assert [curve.at(t) for t in (0, 1, 2, 3, 9)] == [2.0, 2.0, 3.0, 1.0, 1.0]


@given(st.floats(1, 4000), st.floats(0.5, 50))
def test_the_built_in_load_goes_up_to_the_peak_and_leaves_time_for_the_way_back(length: float, peak: float) -> None:
    curve = waves(length, peak).curve
    levels = [curve.at(length * n / 200) for n in range(201)]
    assert max(levels) == pytest.approx(peak)
    assert levels[0] == levels[-1] == pytest.approx(peak * 0.1)
    assert curve.at(length * 0.84) == pytest.approx(peak * 0.1)


def test_two_minutes_hold_two_whole_waves_and_one_minute_holds_one() -> None:
    def ups(length: float) -> int:
        curve = waves(length, 1.0).curve
        above = [curve.at(s) > 0.5 for s in range(int(length) + 1)]
        return sum(after and not before for before, after in itertools.pairwise(above))

    assert [ups(length) for length in (30, 60, 120, 3600)] == [1, 1, 2, 3]


def test_a_demand_is_pressed_into_the_length_by_the_mean_of_each_bin() -> None:
    load = press(recording(Kind.DEMAND, (0, 0), (100, 10)), length_seconds=10, peak=9.5, source="x.csv")
    assert load.time_factor == pytest.approx(10)
    assert load.demand_factor == pytest.approx(1.0)
    assert [round(d, 6) for _, d in load.curve.points] == [n + 0.5 for n in range(10)]
    assert [t for t, _ in load.curve.points] == [n + 0.5 for n in range(10)]


def test_a_step_in_the_recording_stays_a_step() -> None:
    load = press(recording(Kind.DEMAND, (0, 1), (50, 1), (50, 4), (100, 4)), 10, 4, "x.csv")
    assert [d for _, d in load.curve.points] == pytest.approx([1] * 5 + [4] * 5)


def test_requests_become_the_replicas_that_they_keep_busy() -> None:
    rows = [(float(t), 2.0) for t in range(10)] + [(10.0, 0.0)]
    load = press(recording(Kind.REQUESTS, *rows), length_seconds=10, peak=6, source="x.csv")
    assert load.demand_factor == pytest.approx(3.0)
    assert [d for _, d in load.curve.points] == pytest.approx([6.0] * 10)


def test_a_short_recording_is_stretched_and_the_sentence_says_so() -> None:
    load = press(recording(Kind.DEMAND, (0, 1), (5, 2)), 10, 4, "x.csv")
    assert load.time_factor == pytest.approx(0.5)
    assert "stretched 2 x" in load.sentence
    assert "demand x" in load.sentence


@given(
    st.sampled_from(list(Kind)),
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=2, max_size=50),
    st.floats(1, 600),
)
def test_whatever_was_recorded_the_peak_is_the_asked_one_and_nothing_is_negative(
    kind: Kind, rows: list[tuple[float, float]], length: float
) -> None:
    rows.sort()
    rows = [(t - rows[0][0], a + 1.0) for t, a in rows]
    if rows[-1][0] < 1.0:
        rows.append((1.0, 1.0))
    curve = press(recording(kind, *rows), length, 3.5, "x.csv").curve
    assert curve.peak == pytest.approx(3.5)
    assert all(demand >= 0 for _, demand in curve.points)


@given(st.lists(st.tuples(st.floats(0.001, 1e4), st.floats(0, 1e4)), min_size=2, max_size=30), st.integers(2, 60))
def test_pressing_a_demand_keeps_its_mean(rows: list[tuple[float, float]], length: int) -> None:
    seconds, points = 0.0, []
    for gap, amount in rows:
        points.append((seconds, amount + 0.5))
        seconds += gap
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))
    load = press(recording(Kind.DEMAND, *points), length, 1.0, "x.csv")
    mean = sum(d for _, d in load.curve.points) / len(load.curve.points) / load.demand_factor
    assert mean == pytest.approx(area / points[-1][0], rel=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "trace-azure-llm-2023/AzureLLMInferenceTrace_conv.csv",
        "trace-azure-llm-2023/AzureLLMInferenceTrace_code.csv",
        "trace-mooncake/conversation_arrivals.csv",
        "trace-crane/input0.csv",
        "trace-crane/input15.csv",
    ],
)
def test_a_public_trace_becomes_a_load(shared_data: Path, name: str) -> None:
    load = from_file(str(shared_data / name), length_seconds=120, peak=3.5)
    assert len(load.curve.points) == 120
    assert load.curve.peak == pytest.approx(3.5)
    assert load.time_factor > 20
