"""What the load does to the replicas: a step function from (state, who serves, demand, now) to how busy each one is.

Why it exists apart from the world: pure, so that its properties are tested without a cluster. Work is a fluid,
counted in GPU-seconds. A router gives it to the ready pods in an order of its own, as one does that looks for cached
prefixes: first to those that have work already, among them by a hash of their names, each up to COMFORTABLE before the
next gets any, and beyond that to all alike. So a fleet that is too large has idle pods and busy pods, and neither are
the newest ones: removing the wrong one shows. What cannot be served waits, and what waits too long is given up.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COMFORTABLE = 0.85
PATIENCE_SECONDS = 4.0
"""Work that would wait longer than this behind what arrives is given up by its user."""


@dataclass(frozen=True, slots=True)
class PlantState:
    """Where the plant stands: what waits, and the totals so far. GPU-seconds except ``at`` and ``overload_seconds``.

    ``utilization`` is percent 0-100 of each pod that served in the step that ended at ``at``.
    """

    at: float
    backlog: float = 0.0
    offered: float = 0.0
    served: float = 0.0
    given_up: float = 0.0
    overload_seconds: float = 0.0
    utilization: Mapping[str, float] = field(default_factory=dict)


def step(state: PlantState, serving: Sequence[str], demand: float, now: float) -> PlantState:
    """Move the plant to ``now``: ``demand`` GPU-seconds a second arrived since ``state.at`` for the serving pods.

    A clock that stands still or goes back changes nothing but the time.
    """
    elapsed = now - state.at
    if elapsed <= 0:
        return PlantState(
            now, state.backlog, state.offered, state.served, state.given_up, state.overload_seconds, state.utilization
        )
    arrived = demand * elapsed
    waiting = state.backlog + arrived
    served = min(waiting, len(serving) * elapsed)
    left = waiting - served
    backlog = min(left, demand * PATIENCE_SECONDS)
    return PlantState(
        at=now,
        backlog=backlog,
        offered=state.offered + arrived,
        served=state.served + served,
        given_up=state.given_up + left - backlog,
        overload_seconds=state.overload_seconds + (elapsed if left > 1e-9 else 0.0),
        utilization=shares(serving, served / elapsed, state.utilization),
    )


def shares(serving: Sequence[str], work: float, before: Mapping[str, float]) -> dict[str, float]:
    """How busy each pod is, percent, when together they do ``work`` GPU-seconds a second (at most one each).

    ``before``: how busy they were. Work stays where it is: a pod that has just become ready takes none from another.
    """
    count = len(serving)
    level = COMFORTABLE if work <= COMFORTABLE * count else work / count
    found: dict[str, float] = {}
    rest = work
    for pod in sorted(serving, key=lambda pod: (not before.get(pod), preference(pod))):
        share = min(level, rest)
        rest -= share
        found[pod] = min(100.0, max(0.0, share * 100.0))
    return found


def preference(pod: str) -> str:
    """Give the router's order: the same for a name every time, and unrelated to age."""
    return hashlib.sha256(pod.encode()).hexdigest()
