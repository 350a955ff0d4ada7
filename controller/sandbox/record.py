"""What happened in the simulated world, as plain values: the facts that the demo's summary is computed from.

Times are seconds of the world's clock. Nothing here judges: see report.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from controller.sandbox.history import Change as Event

Object = dict[str, Any]


class Target(StrEnum):
    """What was resized."""

    WORKLOAD = "workload"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class Change:
    """A size was written: when, of what, from and to."""

    at: float
    target: Target
    name: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Said:
    """A decision as the operator's status told it, and when it was told."""

    at: float
    target: Target
    before: int
    after: int
    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Removal:
    """A pod that was serving was removed. Percent; ``idlest_staying`` None = no serving pod stayed.

    ``utilization`` is the least of the pod's last few seconds, ``idlest_staying`` the most of those of the pod for
    which that is least: what the operator could have known, however old its reading was.
    """

    at: float
    pod: str
    cause: str
    utilization: float
    idlest_staying: float | None


@dataclass(frozen=True, slots=True)
class NodeRemoval:
    """A node was removed by its pool: whether it was marked for that, and how many GPU pods were on it."""

    at: float
    node: str
    marked: bool
    pods: int


@dataclass(frozen=True, slots=True)
class Moment:
    """One step, as the exporters' files said it from ``at`` on. ``utilization``: sum over the serving pods, percent."""

    at: float
    demand: float
    serving: int
    utilization: float
    replicas: int
    waiting: int
    pool_size: int
    nodes: int
    gpus: int
    gpus_held: int
    backlog: float


@dataclass
class Record:
    """Everything that happened so far, oldest first."""

    changes: list[Change] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    node_removals: list[NodeRemoval] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    _heard: set[tuple[Target, int, int, str]] = field(default_factory=set)

    def note_said(self, at: float, target: Target, status: Object) -> None:
        """Keep the decisions in a scaler's status that have not been kept yet and that changed a size."""
        for told in [*(status.get("decisions") or []), status.get("decision") or {}]:
            before, after = told.get("from"), told.get("to")
            if before is None or after is None or before == after:
                continue
            key = (target, before, after, told.get("time", ""))
            if key not in self._heard:
                self._heard.add(key)
                self.said.append(Said(at, target, before, after, told.get("reason", ""), told.get("sentence", "")))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Listens for changes of a size, noted in the moment in which they are stored, so that reaction times are exact."""

    record: Record
    target: Target
    size_field: str
    clock: Callable[[], float]

    def __call__(self, change: Event) -> None:
        """Note the change if it is one of the size."""
        if change.type != "MODIFIED" or change.previous is None:
            return
        before = _size(change.previous.obj, self.size_field)
        after = _size(change.entry.obj, self.size_field)
        if before != after:
            name = change.entry.obj["metadata"]["name"]
            self.record.changes.append(Change(self.clock(), self.target, name, before, after))


@dataclass(frozen=True, slots=True)
class Decisions:
    """Listens for what a kind of scaler says in its status."""

    record: Record
    target: Target
    clock: Callable[[], float]

    def __call__(self, change: Event) -> None:
        """Note the decisions in the object's status."""
        self.record.note_said(self.clock(), self.target, change.entry.obj.get("status") or {})


def _size(obj: Object, name: str) -> int:
    found = (obj.get("spec") or {}).get(name)
    return 1 if found is None else int(found)
