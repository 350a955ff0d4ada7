"""PURE: which pods of a target get our deletion cost, and which lose it.

Why it exists: a ReplicaSet removes the pods with the lowest cost. A mark that stays on a pod which is no victim any
more kills that pod at the next shrink, and a cost that a user wrote is a wish that we must not overwrite.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.model import Decision
from controller.facts import PodFacts, TargetFacts

VICTIM_COST = -1_000_000
"""The deletion cost of the first victim; the next ones follow. A cost in that range is ours, any other a user's."""
_VICTIM_RANGE = 100_000


@dataclass(frozen=True, slots=True)
class VictimMarks:
    """Pods by name: ``victims`` to mark, in the order in which they should go, ``clear`` to take our mark from."""

    victims: tuple[str, ...] = ()
    clear: tuple[str, ...] = ()


NO_MARKS = VictimMarks()


def is_our_cost(cost: str) -> bool:
    """Tell whether a pod's deletion cost was written by us."""
    try:
        return VICTIM_COST <= int(cost) < VICTIM_COST + _VICTIM_RANGE
    except ValueError:
        return False


def victim_marks(pods: Sequence[PodFacts], decision: Decision, target: TargetFacts) -> VictimMarks:
    """Give the marks that a decision asks for.

    While an earlier shrink is under way its victims keep their mark, or other pods would go instead of them.
    """
    ours = [pod.name for pod in pods if not pod.deleting and is_our_cost(pod.deletion_cost)]
    users = {pod.name for pod in pods if pod.deletion_cost and not is_our_cost(pod.deletion_cost)}
    victims = tuple(name for name in decision.victims if name not in users)
    if target.status_replicas > target.replicas:
        return VictimMarks(victims)
    return VictimMarks(victims, tuple(name for name in ours if name not in victims))
