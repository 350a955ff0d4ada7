"""The rules across fields of our own kinds, run here where a real API server runs the CEL of the same rows."""

from collections.abc import Callable, Iterator, Mapping
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
            return [cause for fault in invalid.faults for cause in _causes(fault)]
        return []

    return faults


def _causes(fault: resources.Fault) -> Iterator[Cause]:
    """Word a broken rule as the API server does, without the values that our own parser adds.

    What is no row of the table is left to the schema: a real server knows nothing else.
    """
    for rule in RULES:
        if fault.message.startswith(rule.message):
            yield Cause("FieldValueInvalid", f"Invalid value: {rule.message}", fault.path)
            return


PREDICATES: Mapping[str, Predicate] = {
    "gpuworkloadscalers.gpuscale.dev": _predicate(resources.parse_workload_scaler),
    "gpunodepoolscalers.gpuscale.dev": _predicate(resources.parse_pool_scaler),
}
