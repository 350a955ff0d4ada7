"""Which pods go when a target shrinks.

Why it exists: left alone, a scale-down removes any pod. The least busy one should go, one whose load is unknown is not
taken for idle, and where a busy pod must not be removed the target shrinks by fewer.
"""

from itertools import takewhile
from typing import NamedTuple

from controller.core.model import GpuRules, Observation, Pod, VictimOrder
from controller.core.pod_classes import ended


class Chosen(NamedTuple):
    """``names`` in the order in which they should go; ``size`` is what remains if just they go."""

    names: tuple[str, ...]
    size: int
    protected: tuple[str, ...] = ()


def choose(rules: GpuRules, observation: Observation, size: int) -> Chosen:
    """Choose the pods to go from the observed size down to ``size``.

    First pods that do no work (pending, crashing, not ready), then by utilisation, then those whose utilisation is
    unknown. With ``protect_above_utilization`` (percent) a busier pod stays, and so does a ready one that is unknown.
    Replicas that exist in the size alone, not yet as pods, go without a name; pods that exist beyond the size are on
    their way out by an earlier shrink or a rollout, and are named too, or others would go in their place.
    """
    pods = [pod for pod in observation.pods if not ended(pod) and pod.phase != "Succeeded"]
    wanted = max(0, len(pods) - size)
    busy = observation.utilization
    ranked = sorted(pods, key=lambda pod: rank(pod, busy.get(pod.name)))
    protected = tuple(pod.name for pod in ranked if is_protected(pod, busy.get(pod.name), rules))
    names = able(rules.victim_order, ranked, set(protected))[:wanted]
    remaining = min(observation.replicas, size + wanted - len(names))
    return Chosen(tuple(names), remaining, protected if len(names) < wanted else ())


def able(order: VictimOrder, ranked: list[Pod], protected: set[str]) -> list[str]:
    """Name the pods that may go in the order in which they would. Where the kind has its own, nobody is passed over."""
    if order is VictimOrder.OURS:
        return [pod.name for pod in ranked if pod.name not in protected]
    if order is VictimOrder.UNKNOWN:
        return [] if protected else [pod.name for pod in ranked]
    by_ordinal = sorted(ranked, key=ordinal, reverse=True)
    return [pod.name for pod in takewhile(lambda pod: pod.name not in protected, by_ordinal)]


def ordinal(pod: Pod) -> int:
    """Give the number at the end of a StatefulSet's pod's name; -1 where there is none."""
    end = pod.name.rpartition("-")[2]
    return int(end) if end.isdecimal() else -1


def rank(pod: Pod, utilization: int | None) -> tuple[int, int, float, str]:
    """Give a sort key: who goes first is smallest. Of equals the youngest goes, then the first by name."""
    if pod.crashing or pod.phase == "Pending":
        order = 0
    elif not pod.ready:
        order = 1
    else:
        order = 2 if utilization is not None else 3
    return order, utilization or 0, -(pod.created_at or 0.0), pod.name


def is_protected(pod: Pod, utilization: int | None, rules: GpuRules) -> bool:
    """Tell whether the pod must stay. Only a pod that works can be protected for being unknown."""
    if rules.protect_above_utilization is None:
        return False
    if utilization is None:
        return pod.phase == "Running" and pod.ready is True and not pod.crashing
    return utilization > rules.protect_above_utilization * 1000
