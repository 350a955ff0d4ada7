"""Which pods of a target count, which are assumed, which are left out.

Why it exists: two rule books. The HPA's looks at the phase and, for cpu only, at readiness. Ours knows that a pod
which loads a model is neither idle nor busy, that it is capacity on its way, and that a crashing one is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.core.model import GpuRules, Pod, Policy, Sample

SETTLING_SECONDS = 2.0
"""Readiness is dated in whole seconds, and a GPU's utilisation is that of up to a second before it was read."""


@dataclass(slots=True)
class Classes:
    """Names of pods by class. ``unready`` is the HPA's word for what leaves the average but is filled on a raise."""

    counted: list[str] = field(default_factory=list)
    unready: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    warming: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def ended(pod: Pod) -> bool:
    """Tell whether the pod is on its way out or has failed: it is removed everywhere."""
    return pod.deleting or pod.phase == "Failed"


def by_hpa(pods: tuple[Pod, ...], samples: Mapping[str, Sample], policy: Policy, now: float, *, cpu: bool) -> Classes:
    """Group pods as the HPA does: phase first, then a missing sample, then readiness for cpu alone."""
    classes = Classes()
    for pod in pods:
        if pod.deleting or pod.phase == "Failed":
            classes.ignored.append(pod.name)
        elif pod.phase == "Pending":
            classes.unready.append(pod.name)
        elif (sample := samples.get(pod.name)) is None:
            classes.missing.append(pod.name)
        elif cpu and cpu_unready(pod, sample, policy, now):
            classes.unready.append(pod.name)
        else:
            classes.counted.append(pod.name)
    return classes


def cpu_unready(pod: Pod, sample: Sample, policy: Policy, now: float) -> bool:
    """Tell whether a cpu sample may still show the start of the pod rather than its work."""
    if pod.ready is None or pod.started_at is None:
        return True
    changed_at = pod.ready_changed_at
    if pod.started_at + policy.cpu_initialization_seconds > now:
        return not pod.ready or (changed_at is not None and sample.at < changed_at + sample.window_seconds)
    if pod.ready:
        return False
    return changed_at is None or pod.started_at + policy.initial_readiness_delay_seconds > changed_at


def by_gpu_rules(
    pods: tuple[Pod, ...],
    samples: Mapping[str, Sample],
    rejected: Mapping[str, str],
    policy: Policy,
    rules: GpuRules,
    now: float,
    *,
    bar: float,
    cpu: bool = False,
) -> Classes:
    """Group pods by what they are worth: counted, missing, warming (capacity on its way) or broken (none).

    A stale sample is a missing one. ``bar`` (milli-units) is what a pod that was ready before and still works must
    at least show to be counted while it isn't ready: it may raise the size and never lower it.
    """
    classes = Classes()
    for pod in pods:
        if ended(pod) or pod.phase == "Succeeded":
            classes.ignored.append(pod.name)
            continue
        sample = samples.get(pod.name)
        fresh = sample is not None and now - sample.at <= rules.max_age_seconds
        if pod.crashing:
            classes.broken.append(pod.name)
        elif pod.phase == "Pending" or not pod.ready:
            if fresh and sample is not None and sample.value >= bar and was_ready_before(pod, policy):
                classes.counted.append(pod.name)
            else:
                (classes.warming if starting(pod, rules, now) else classes.broken).append(pod.name)
        elif sample is None and pod.name not in rejected and young(pod, rules, now):
            classes.warming.append(pod.name)
        elif not fresh:
            classes.missing.append(pod.name)
        elif sample is not None and (
            before_it_worked(pod, sample, bar) or (cpu and cpu_unready(pod, sample, policy, now))
        ):
            classes.warming.append(pod.name)
        else:
            classes.counted.append(pod.name)
    return classes


def before_it_worked(pod: Pod, sample: Sample, bar: float) -> bool:
    """Tell whether a low value may be from before the pod got work: it was measured before the pod was ready."""
    changed_at = pod.ready_changed_at
    return changed_at is not None and sample.value < bar and sample.at < changed_at + SETTLING_SECONDS


def was_ready_before(pod: Pod, policy: Policy) -> bool:
    """Tell whether the pod's readiness last changed so late that it must have been ready in between."""
    return (
        pod.phase == "Running"
        and pod.ready is False
        and pod.started_at is not None
        and pod.ready_changed_at is not None
        and pod.ready_changed_at > pod.started_at + policy.initial_readiness_delay_seconds
    )


def young(pod: Pod, rules: GpuRules, now: float) -> bool:
    """Tell whether a pod without its first sample may still be about to give one. Unknown age = no."""
    born_at = pod.created_at if pod.created_at is not None else pod.started_at
    return born_at is not None and now - born_at < rules.max_startup_seconds


def starting(pod: Pod, rules: GpuRules, now: float) -> bool:
    """Tell whether a pod that isn't ready is still within its time to start. Unknown age = yes.

    The time runs from when it stopped being ready, so that a restarted container gets its model loaded again.
    """
    since = pod.created_at
    if pod.started_at is not None and (since is None or pod.started_at > since):
        since = pod.started_at
    if pod.ready_changed_at is not None and (since is None or pod.ready_changed_at > since):
        since = pod.ready_changed_at
    return since is None or now - since < rules.max_startup_seconds


def warming_pod(pod: Pod, rules: GpuRules, now: float) -> bool:
    """Tell whether the pod is capacity on its way, whatever it reports."""
    return (
        not ended(pod)
        and not pod.crashing
        and pod.phase in ("Pending", "Running")
        and (pod.phase == "Pending" or not pod.ready)
        and starting(pod, rules, now)
    )


def broken_pod(pod: Pod, rules: GpuRules, now: float) -> bool:
    """Tell whether the pod is no capacity: it crashes, or it isn't ready and its time to start is over."""
    if ended(pod) or pod.phase == "Succeeded":
        return False
    return pod.crashing or ((pod.phase == "Pending" or not pod.ready) and not starting(pod, rules, now))
