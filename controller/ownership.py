"""PURE: who else drives the size of a target.

Why it exists: two scalers on one target undo each other's work. The older one acts, every other says who is in its
way; an HPA (KEDA makes one too) is never fought.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from controller.core.model import Condition, Reason
from controller.facts import HpaFacts

TARGET_OWNED = "TargetOwned"


@dataclass(frozen=True, slots=True)
class Claim:
    """One active scaler's claim on a target. ``created`` orders; equal times are ordered by name."""

    uid: str
    name: str
    created: str
    target: Hashable


def hpa_owners(hpas: Iterable[HpaFacts]) -> dict[Hashable, str]:
    """Name the HPA of each target that has one."""
    return {
        (hpa.namespace, hpa.target_api_version.rpartition("/")[0], hpa.target_kind, hpa.target_name): (
            f"HorizontalPodAutoscaler {hpa.namespace}/{hpa.name}" + (f" (made by {hpa.owner})" if hpa.owner else "")
        )
        for hpa in hpas
    }


def rivals(claims: Iterable[Claim], hpas: Mapping[Hashable, str]) -> dict[str, str]:
    """Say, by uid, who is in a claim's way; claims without a rival are not among them."""
    owners: dict[Hashable, str] = dict(hpas)
    found: dict[str, str] = {}
    for claim in sorted(claims, key=lambda claim: (claim.created, claim.name, claim.uid)):
        if claim.target in owners:
            found[claim.uid] = owners[claim.target]
        else:
            owners[claim.target] = claim.name
    return found


def owned() -> Condition:
    """Say that nobody else is known to drive the target."""
    return Condition(TARGET_OWNED, "True", Reason.NO_COMPETING_WRITER, "no other scaler of this target is known")


def contested(rival: str) -> Condition:
    """Say who is in the way and what to do."""
    message = f"{rival} drives the size of the same target: nothing is written; remove one, or use mode Preview"
    return Condition(TARGET_OWNED, "False", Reason.COMPETING_SCALER, message)


def shares_node(rival: str, node: str) -> Condition:
    """Say which other pool has the same node, and what to do."""
    message = f"{rival} has node {node} too: nothing is written; let each pool's nodeSelector match its own nodes only"
    return Condition(TARGET_OWNED, "False", Reason.COMPETING_SCALER, message)
