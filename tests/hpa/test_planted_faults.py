"""The comparison with Kubernetes' own controller finds faults: each one planted here, within the default cases."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.core import behavior, pod_metrics
from tests.realparts import build
from tests.realparts.hpa_cases import Case, make
from tests.realparts.hpa_compare import Step, difference, oracle, ours, theirs

DEFAULT_CASES = 2000
BATCH = 100


class Answers:
    """What Kubernetes says of the default cases, asked for only as far as they are needed."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary
        self._known: list[tuple[Case, list[Step]]] = []

    def __iter__(self) -> Iterator[tuple[Case, list[Step]]]:
        for first in range(0, DEFAULT_CASES, BATCH):
            if first >= len(self._known):
                cases = [make(seed) for seed in range(first + 1, first + 1 + BATCH)]
                self._known += zip(cases, theirs(cases, self._binary), strict=True)
            yield from self._known[first : first + BATCH]


@pytest.fixture(scope="module")
def answers() -> Answers:
    try:
        return Answers(oracle())
    except build.MissingError as missing:
        pytest.skip(f"real parts: {missing}")


def first_difference(answers: Answers) -> str:
    for case, answer in answers:
        if line := difference(case, ours(case), answer):
            return line
    return ""


def window_one_second_short(monkeypatch: pytest.MonkeyPatch) -> None:
    right = behavior.stabilize_both

    def wrong(rules: Any, recommendations: Any, current: int, proposal: int, now: float) -> Any:
        down = rules.scale_down
        shorter = dataclasses.replace(down, stabilization_window_seconds=down.stabilization_window_seconds - 1)
        return right(dataclasses.replace(rules, scale_down=shorter), recommendations, current, proposal, now)

    monkeypatch.setattr(behavior, "stabilize_both", wrong)


def window_without_its_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    right = behavior.stabilize_down
    monkeypatch.setattr(behavior, "stabilize_down", lambda window, *rest: right(window - 0.5, *rest))


def window_with_its_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    right = behavior.stabilize_both

    def wrong(rules: Any, recommendations: Any, current: int, proposal: int, now: float) -> Any:
        up = rules.scale_up
        longer = dataclasses.replace(up, stabilization_window_seconds=up.stabilization_window_seconds + 0.5)
        return right(dataclasses.replace(rules, scale_up=longer), recommendations, current, proposal, now)

    monkeypatch.setattr(behavior, "stabilize_both", wrong)


def silent_pods_filled_with_zero_on_the_way_down(monkeypatch: pytest.MonkeyPatch) -> None:
    right = pod_metrics.measure_of

    def wrong(*args: Any) -> Any:
        measure = right(*args)
        monkeypatch.setattr(type(measure), "assumed", lambda _self, _name: 0)
        return measure

    monkeypatch.setattr(pod_metrics, "measure_of", wrong)


def unready_pods_not_filled_on_the_way_up(monkeypatch: pytest.MonkeyPatch) -> None:
    right = pod_metrics.size_by_fill

    def wrong(measure: Any, values: Any, pods: int, classes: Any, *rest: Any) -> Any:
        return right(measure, values, pods, dataclasses.replace(classes, unready=[]), *rest)

    monkeypatch.setattr(pod_metrics, "size_by_fill", wrong)


def last_policy_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    right = behavior.rate_up

    def wrong(rules: Any, *rest: Any) -> int:
        fewer = rules.policies[:-1] or rules.policies
        return right(dataclasses.replace(rules, policies=fewer), *rest)

    monkeypatch.setattr(behavior, "rate_up", wrong)


def scale_down_policy_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    right = behavior.rate_down

    def wrong(rules: Any, *rest: Any) -> int:
        fewer = rules.policies[:-1] or rules.policies
        return right(dataclasses.replace(rules, policies=fewer), *rest)

    monkeypatch.setattr(behavior, "rate_down", wrong)


def period_one_second_long(monkeypatch: pytest.MonkeyPatch) -> None:
    right = behavior.size_before
    monkeypatch.setattr(
        behavior, "size_before", lambda memory, current, period, now: right(memory, current, period + 1, now)
    )


FAULTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    window_one_second_short,
    window_without_its_edge,
    window_with_its_edge,
    silent_pods_filled_with_zero_on_the_way_down,
    unready_pods_not_filled_on_the_way_up,
    last_policy_dropped,
    scale_down_policy_dropped,
    period_one_second_long,
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__.replace("_", "-"))
def test_a_planted_fault_is_found_within_the_default_cases(
    plant: Callable[[pytest.MonkeyPatch], None], answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    line = first_difference(answers)
    assert line, f"{plant.__name__} was not found"
    print(f"\n{plant.__name__}: {line:.200}")
