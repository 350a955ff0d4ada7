"""Status conditions as every part of the simulated world reads and writes them."""

from collections.abc import Sequence
from typing import Any

from controller.sandbox.strategy import timestamp

Object = dict[str, Any]


def holds(obj: Object, kind: str) -> bool:
    """Whether a condition of that type is there and True."""
    return any(c.get("type") == kind and c.get("status") == "True" for c in conditions(obj))


def conditions(obj: Object) -> list[Object]:
    """List the conditions in an object's status; may be empty."""
    return list((obj.get("status") or {}).get("conditions") or [])


def with_conditions(before: Sequence[Object], now: float, *wanted: Object) -> list[Object]:
    """``before`` with each of ``wanted`` (type, status, and what else) put in; the time moves only with the status."""
    found = {c["type"]: dict(c) for c in before}
    for condition in wanted:
        old = found.get(condition["type"], {})
        same = old.get("status") == condition["status"]
        since = old.get("lastTransitionTime") if same else None
        found[condition["type"]] = {"lastTransitionTime": since or timestamp(now), **condition}
    return list(found.values())


def condition(kind: str, *, status: bool, reason: str = "", message: str = "") -> Object:
    """One condition, without its time; empty texts are left out."""
    found = {"type": kind, "status": "True" if status else "False", "reason": reason, "message": message}
    return {key: value for key, value in found.items() if value}
