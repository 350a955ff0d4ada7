"""From the form of ``gpuscale decide`` to what the decision core takes, and the decisions themselves.

Why it exists: the command, the tests and the conformance tables ask through one function, ``decisions``, which is the
same code as a live decision from the policy on.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controller.core.decide import decide
from controller.core.model import (
    Decision,
    Failed,
    Floor,
    Idleness,
    IdleRules,
    Memory,
    Metric,
    Observation,
    Pod,
    PodValues,
    Policy,
    Reading,
    Reason,
    Sample,
    Source,
    Total,
)
from controller.core.proposals import FAILED
from controller.decide_form import (
    FloorForm,
    IdlenessForm,
    MemoryForm,
    PodForm,
    ReadingForm,
    SettingsForm,
    SituationForm,
    StepForm,
    TargetForm,
)
from controller.policy import PolicyDefaults, workload_policy
from controller.quantity import milli
from controller.resources import API_VERSION, HPA_KIND, WORKLOAD_KIND, parse_workload_scaler
from controller.schema import Fault, Invalid, parse
from controller.workload_spec import WorkloadSpec

TOTALS = (Source.OBJECT, Source.EXTERNAL)
PLACEHOLDER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "target"}
REASONS = {reason.value: reason for reason in Reason}


@dataclass(frozen=True, slots=True)
class Moment:
    """One decision to make; ``target`` None = the size that was decided before."""

    now: float
    target: TargetForm | None
    observation: Observation


@dataclass(frozen=True, slots=True)
class Situation:
    """What a form asks for: decisions by one policy, from one memory on, at one or several moments."""

    policy: Policy
    memory: Memory | None
    moments: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision, with when and from what it was made."""

    now: float
    observation: Observation
    decision: Decision


def decisions(document: object) -> tuple[Decided, ...]:
    """Make the decisions that a form asks for, each from what the one before left. Raises Invalid with all faults."""
    situation = read(document)
    memory, made = situation.memory, []
    size, status = 0, 0
    for moment in situation.moments:
        if moment.target is not None:
            size = moment.target.replicas
            status = size if moment.target.status_replicas is None else moment.target.status_replicas
        observation = replace(moment.observation, replicas=size, status_replicas=status)
        decision = decide(situation.policy, observation, memory, moment.now)
        made.append(Decided(moment.now, observation, decision))
        size = status = decision.desired
        memory = decision.memory
    return tuple(made)


def read(document: object) -> Situation:
    """Read a form. Raises Invalid with every fault and its path."""
    if not isinstance(document, Mapping):
        raise Invalid([Fault("form", "must be a mapping with spec, target, pods and metrics")])
    if "kind" in document and "target" not in document:
        raise Invalid(
            [Fault("kind", "this is a manifest: write it under spec: with target, pods and metrics beside it")]
        )
    faults: list[Fault] = []
    spec = read_spec(document.get("spec"), faults)
    form = read_form({str(key): value for key, value in document.items() if key != "spec"}, faults)
    if spec is None or form is None:
        raise Invalid(faults)
    _say_parts_of_replicas(form.memory or MemoryForm(), faults)
    policy = policy_of(spec, form.settings or SettingsForm())
    moments = moments_of(form, policy, faults)
    if faults:
        raise Invalid(faults)
    return Situation(policy, memory_of(form.memory), moments)


def read_spec(written: object, faults: list[Fault]) -> WorkloadSpec | None:
    """Read ``spec``: a manifest of a scaler or of an HPA, or the spec of one."""
    if not isinstance(written, Mapping):
        faults.append(Fault("spec", "is required: a scaler's or an HPA's spec, or the whole manifest"))
        return None
    if "kind" in written or "spec" in written:
        manifest, path = dict(without_floats(written) if written.get("kind") == HPA_KIND else written), "spec."
        manifest.setdefault("metadata", {"name": "offline"})
    else:
        body = {"scaleTargetRef": PLACEHOLDER, **written}
        manifest = {"apiVersion": API_VERSION, "kind": WORKLOAD_KIND, "metadata": {"name": "offline"}, "spec": body}
        path = ""
    try:
        return parse_workload_scaler(manifest).spec
    except Invalid as invalid:
        faults.extend(Fault(path + fault.path, fault.message) for fault in invalid.faults)
        return None


def read_form(written: Mapping[str, Any], faults: list[Fault]) -> SituationForm | None:
    """Read all but ``spec``."""
    try:
        return parse(SituationForm, as_text(written))
    except Invalid as invalid:
        faults.extend(invalid.faults)
        return None


def as_text(value: Any, word: str = "") -> Any:
    """Give a copy in which amounts are text, as YAML makes numbers of ``95`` and ``.nan``; null is left out."""
    if isinstance(value, Mapping):
        return {str(key): as_text(part, in_word(word, str(key))) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [as_text(part, word) for part in value]
    if word in AMOUNTS and isinstance(value, int | float) and not isinstance(value, bool):
        return number_text(value)
    return value


AMOUNTS = ("samples", "values", "capacities", "requests", "utilization", "maxUtilization")


def in_word(word: str, key: str) -> str:
    """Give the word that a nested value belongs to: the keys of ``samples`` are pods, not words."""
    return word if word in AMOUNTS else key


def without_floats(value: Any) -> Any:
    """Give a copy of an HPA's manifest in which 0.5 is a quantity as text, as the API server takes it from there.

    No field of an HPA is a float, while a scaler's own definition refuses a bare 0.5.
    """
    if isinstance(value, Mapping):
        return {key: without_floats(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_floats(part) for part in value]
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else number_text(value)


def number_text(value: float) -> str:
    """Write a number as a quantity; NaN and infinities as such."""
    if isinstance(value, float) and math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) else f"{value:.9f}".rstrip("0")


def policy_of(spec: WorkloadSpec, settings: SettingsForm) -> Policy:
    """Give the policy by the form's settings."""
    defaults = PolicyDefaults(
        tolerance=settings.tolerance,
        downscale_stabilization_seconds=settings.downscale_stabilization_seconds,
        cpu_initialization_seconds=settings.cpu_initialization_seconds,
        initial_readiness_delay_seconds=settings.initial_readiness_delay_seconds,
    )
    policy = workload_policy(spec, defaults)
    if settings.idle is None:
        return policy
    return replace(policy, idle=IdleRules(settings.idle.after_seconds, milli(settings.idle.max_utilization)))


def _say_parts_of_replicas(form: MemoryForm, faults: list[Fault]) -> None:
    """Add a fault for each entry of the memory whose number is no size or change of one."""
    words = {"recommendations": form.recommendations, "upEvents": form.up_events, "downEvents": form.down_events}
    for word, entries in words.items():
        for index, (_, size) in enumerate(entries):
            if size < 0 or size != int(size):
                faults.append(
                    Fault(f"memory.{word}[{index}][1]", f"must be a whole number from 0 on; here it is {size:g}")
                )


def memory_of(form: MemoryForm | None) -> Memory | None:
    """Give the memory, oldest first; None = never decided before."""
    if form is None:
        return None
    recommendations, up_events, down_events = (
        tuple(sorted((at, int(size)) for at, size in entries))
        for entries in (form.recommendations, form.up_events, form.down_events)
    )
    return Memory(recommendations, up_events, down_events, form.scaled_to_zero)


def moments_of(form: SituationForm, policy: Policy, faults: list[Fault]) -> tuple[Moment, ...]:
    """Give the moment of ``now``, or one per step where there are steps."""
    if not form.steps:
        return (moment_of(form, StepForm(at=0.0), "", form.target, policy, faults),)
    moments = []
    for index, step in enumerate(form.steps):
        target = step.target or (form.target if index == 0 else None)
        moments.append(moment_of(form, step, f"steps[{index}].", target, policy, faults))
        if index and step.at < form.steps[index - 1].at:
            faults.append(Fault(f"steps[{index}].at", "must not be before the step before it"))
    return tuple(moments)


def moment_of(
    form: SituationForm, step: StepForm, path: str, target: TargetForm | None, policy: Policy, faults: list[Fault]
) -> Moment:
    """Give one moment: what the step says, over what the form says."""
    now = form.now + step.at
    readings = form.metrics if step.metrics is None else step.metrics
    where = path if step.metrics is not None else ""
    written = form.pods if step.pods is None else step.pods
    pods = [pod for row in written for pod in expanded(row)]
    _say_twins(pods, path if step.pods is not None else "", faults)
    born = form.now if step.pods is None else now
    floors = form.floors if step.floors is None else step.floors
    if len(readings) != len(policy.metrics):
        faults.append(
            Fault(f"{where}metrics", f"must have one entry for each of the spec's {len(policy.metrics)} metrics")
        )
    observation = Observation(
        replicas=0,
        status_replicas=0,
        pods=tuple(pod_of(row, born) for row in pods),
        readings=tuple(
            reading_of(metric, reading, f"{where}metrics[{index}]", now, faults)
            for index, (metric, reading) in enumerate(zip(policy.metrics, readings, strict=False))
        ),
        utilization={row.name: milli(row.utilization) for row in pods if is_number(row.utilization or "NaN")},
        floors=tuple(floor_of(floor) for floor in floors),
        idleness=idleness_of(step.idleness or form.idleness),
    )
    return Moment(now, target, observation)


def _say_twins(pods: Sequence[PodForm], path: str, faults: list[Fault]) -> None:
    """Add a fault for each name that several pods have: samples could not tell them apart."""
    names = Counter(pod.name for pod in pods)
    faults.extend(
        Fault(f"{path}pods", f"must have names of their own; {times} are named {name}")
        for name, times in names.items()
        if times > 1 and not any(fault.path == f"{path}pods" for fault in faults)
    )


def expanded(row: PodForm) -> tuple[PodForm, ...]:
    """Give the pods that a row stands for."""
    if row.count is None:
        return (row,)
    return tuple(replace(row, name=f"{row.name}-{index}", count=None) for index in range(row.count))


def pod_of(row: PodForm, now: float) -> Pod:
    """Give a pod; it is ready if it is Running and nothing else is said."""
    born = None if row.age_seconds is None else now - row.age_seconds
    ready = row.ready if row.ready is not None else row.phase == "Running" and not row.crashing
    return Pod(
        name=row.name,
        phase=row.phase,
        deleting=row.deleting,
        ready=ready,
        ready_changed_at=first_of(row.ready_changed_at, born),
        started_at=first_of(row.started_at, born, now - 86_400 if ready else None),
        created_at=first_of(row.created_at, born),
        crashing=row.crashing,
        requests={name: {what: milli(much) for what, much in of.items()} for name, of in row.requests.items()},
    )


def first_of(*times: float | None) -> float | None:
    """Give the first time that is known."""
    return next((at for at in times if at is not None), None)


def reading_of(metric: Metric, form: ReadingForm, path: str, now: float, faults: list[Fault]) -> Reading:
    """Give one reading; exactly one of samples, values and error says what it was."""
    per_pod = metric.source not in TOTALS
    wanted = "samples" if per_pod else "values"
    given = [word for word in ("samples", "values", "error") if getattr(form, word) is not None]
    if given not in ([wanted], ["error"]):
        found = " and ".join(given) or "neither"
        faults.append(Fault(path, f"must have {wanted} or an error, as {metric.label} needs them; here it has {found}"))
        return Failed(FAILED[metric.source], "")
    if form.error is not None:
        if form.reason is not None and form.reason not in REASONS:
            faults.append(Fault(f"{path}.reason", "must be a reason of docs/reasons.md"))
        return Failed(REASONS.get(form.reason or "", FAILED[metric.source]), form.error)
    return pod_values(form, now) if per_pod else total(metric, form, now)


def total(metric: Metric, form: ReadingForm, now: float) -> Reading:
    """Give a reading of the whole target; one value that is no number spoils it."""
    values = form.values or ()
    spoilt = [value for value in values if not is_number(value)]
    if spoilt:
        return Failed(FAILED[metric.source], f"the answer has the value {spoilt[0]}")
    return Total(tuple(milli(value) for value in values), now - form.age_seconds)


def pod_values(form: ReadingForm, now: float) -> Reading:
    """Give a reading per pod; what is no number is rejected, so missing."""
    written = form.samples or {}
    samples = {
        name: Sample(
            milli(value),
            now - form.ages_seconds.get(name, form.age_seconds),
            form.window_seconds,
            milli(form.capacities[name]) if name in form.capacities else None,
        )
        for name, value in written.items()
        if is_number(value)
    }
    return PodValues(samples, {name: value for name, value in written.items() if not is_number(value)})


def is_number(value: str) -> bool:
    """Tell a number from NaN and the infinities."""
    return value not in ("NaN", "Inf", "+Inf", "-Inf")


def floor_of(form: FloorForm) -> Floor:
    """Give a floor."""
    return Floor(form.name, form.replicas)


def idleness_of(form: IdlenessForm | None) -> Idleness | None:
    """Give the proof of idleness; a highest utilisation that is no number proves nothing."""
    if form is None or not is_number(form.max_utilization):
        return None
    return Idleness(form.seconds, milli(form.max_utilization))
