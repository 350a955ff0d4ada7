"""The rules across fields of our own kinds, run here where a real API server runs the CEL of the same rows."""

from collections.abc import Callable, Mapping
from typing import Any

from controller import resources
from controller.sandbox.errors import Cause
from controller.validation import RULES

Predicate = Callable[[Mapping[str, Any]], list[Cause]]


def _predicate(parse: Callable[[Mapping[str, Any]], object]) -> Predicate:
    def faults(obj: Mapping[str, Any]) -> list[Cause]:
        try:
            parse(obj)
        except resources.Invalid as invalid:
            return [_cause(fault) for fault in invalid.faults]
        return []

    return faults


def _cause(fault: resources.Fault) -> Cause:
    """Word a fault as the API server does: the row's message, without the values that our own parser adds."""
    message = next((rule.message for rule in RULES if fault.message.startswith(rule.message)), fault.message)
    return Cause("FieldValueInvalid", f'Invalid value: "object": {message}', fault.path)


PREDICATES: Mapping[str, Predicate] = {
    "gpuworkloadscalers.gpuscale.dev": _predicate(resources.parse_workload_scaler),
    "gpunodepoolscalers.gpuscale.dev": _predicate(resources.parse_pool_scaler),
}
