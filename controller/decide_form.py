"""The form of ``gpuscale decide``: the words in which a situation is written down by hand.

Why it exists: a decision can be asked for without a cluster, by a person, a test or a conformance table, and all of
them write the same few words. docs/decide.md describes them for users; situation.py makes the core's values of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from controller.shapes import Doc, Length, Pattern, Quantity, Range

Amount = Annotated[str, Quantity()]
Seconds = Annotated[float, Range(0)]
Count = Annotated[int, Range(0, 2**31 - 1)]
Value = Annotated[
    str,
    Pattern(
        r"^(NaN|[+-]?Inf|[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]{1,3}|[KMGTPE]i|[numkMGTPE])?)$",
        'a value such as 95, "500m" or NaN',
    ),
]
Dated = Annotated[tuple[float, ...], Length(2, 2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetForm:
    """The target's /scale."""

    replicas: Annotated[Count, Doc("spec.replicas.")]
    status_replicas: Annotated[Count | None, Doc("status.replicas; absent: as spec.replicas.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodForm:
    """One pod, or ``count`` pods of the same kind named NAME-0, NAME-1 and so on."""

    name: Annotated[str, Doc("its name")]
    count: Annotated[int | None, Range(1, 10_000)] = None
    phase: Literal["Pending", "Running", "Succeeded", "Failed"] = "Running"
    ready: bool | None = None
    deleting: bool = False
    crashing: bool = False
    age_seconds: Seconds | None = None
    created_at: float | None = None
    started_at: float | None = None
    ready_changed_at: float | None = None
    requests: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)
    utilization: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingForm:
    """What one metric of the spec showed: ``samples`` per pod, or ``values`` of the whole, or an ``error``."""

    samples: Mapping[str, Value] | None = None
    values: tuple[Value, ...] | None = None
    error: str | None = None
    reason: str | None = None
    age_seconds: Seconds = 0.0
    ages_seconds: Mapping[str, Seconds] = field(default_factory=dict)
    window_seconds: Seconds = 0.0
    capacities: Mapping[str, Amount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForm:
    """What the last decision left: [[time, size], ...] and whether a size of 0 was its own."""

    recommendations: tuple[Dated, ...] = ()
    up_events: tuple[Dated, ...] = ()
    down_events: tuple[Dated, ...] = ()
    scaled_to_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorForm:
    """A size that is not to be undercut."""

    name: Annotated[str, Doc("what asks for it")]
    replicas: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlenessForm:
    """The highest utilisation (percent) over so many seconds."""

    seconds: Seconds
    max_utilization: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleForm:
    """When a target counts as idle."""

    after_seconds: Seconds = 600.0
    max_utilization: Amount = "5"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsForm:
    """The operator's flags, with its defaults."""

    tolerance: Annotated[float, Range(0)] = 0.1
    downscale_stabilization_seconds: Seconds = 300.0
    cpu_initialization_seconds: Seconds = 300.0
    initial_readiness_delay_seconds: Seconds = 30.0
    idle: IdleForm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForm:
    """A later moment; what is absent stays, except the size, which is what was decided before."""

    at: Annotated[Seconds, Doc("seconds after now")]
    target: TargetForm | None = None
    pods: tuple[PodForm, ...] | None = None
    metrics: tuple[ReadingForm, ...] | None = None
    floors: tuple[FloorForm, ...] | None = None
    idleness: IdlenessForm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SituationForm:
    """The whole form, less ``spec``, which is read as a resource."""

    target: Annotated[TargetForm, Doc("the size of the target")]
    now: float = 0.0
    pods: tuple[PodForm, ...] = ()
    metrics: tuple[ReadingForm, ...] = ()
    memory: MemoryForm | None = None
    floors: tuple[FloorForm, ...] = ()
    idleness: IdlenessForm | None = None
    settings: SettingsForm | None = None
    steps: tuple[StepForm, ...] = ()
