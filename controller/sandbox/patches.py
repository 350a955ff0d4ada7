"""The patch formats: JSON merge patch, JSON patch, strategic merge patch."""

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386: ``patch`` laid over ``target``; null removes. The target may be altered."""
    if not isinstance(patch, Mapping):
        return patch
    base = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = merged(base.get(key), value)
    return base
