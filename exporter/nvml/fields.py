"""Many values of one GPU in one call to the driver.

Why it exists: a field costs a fraction of a call of its own. The array is made once and handed to the raw function,
because the binding's way of filling it costs fifty times as much as the call.
"""

import ctypes
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from exporter.nvml.calls import Absent, Handle, absent
from exporter.readings import AbsentReason

log = logging.getLogger(__name__)

FieldKey = tuple[int, int]
"""(field id, scope); the scope is 0, or the number of a link."""
Fields = dict[FieldKey, float | Absent]

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_UNKNOWN = frozenset({2**64 - 1})


def field_id(name: str) -> int | None:
    """Return the id of NVML_FI_DEV_name; None: this binding does not know it."""
    found: int | None = getattr(pynvml, f"NVML_FI_DEV_{name}", None)
    return found


def keys(*names: str) -> list[FieldKey]:
    """Return the keys of those fields that this binding knows."""
    return [(number, 0) for name in names if (number := field_id(name)) is not None]


def value_of(fields: Fields | Absent, name: str, scope: int = 0) -> float | Absent:
    """Return one field's value out of the answers, or why there is none."""
    if isinstance(fields, Absent):
        return fields
    return fields.get((field_id(name) or 0, scope), Absent(AbsentReason.NOT_SUPPORTED))


class FieldBatch:
    """The fields that are wanted of one GPU. One that is not supported leaves the batch for good."""

    def __init__(self, wanted: Sequence[FieldKey]) -> None:
        self._refused: Fields = {}
        self._arrange(list(wanted))

    def read(self, handle: Handle) -> Fields:
        """Return each wanted field's value, or why there is none. Raises NVMLError where the whole call fails."""
        if not self._wanted:
            return dict(self._refused)
        code = _function()(handle, len(self._wanted), self._array)
        if code:
            raise pynvml.NVMLError(code)
        answers = {key: _value(entry) for key, entry in zip(self._wanted, self._array, strict=True)}
        refused = {
            key: answer
            for key, answer in answers.items()
            if isinstance(answer, Absent) and answer.reason is AbsentReason.NOT_SUPPORTED
        }
        answers |= self._refused
        if refused:
            self._refused |= refused
            self._arrange([key for key in self._wanted if key not in refused])
        return answers

    def _arrange(self, wanted: list[FieldKey]) -> None:
        self._wanted = wanted
        self._array = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        for entry, (number, scope) in zip(self._array, wanted, strict=True):
            entry.fieldId, entry.scopeId = number, scope


def _value(entry: Any) -> float | Absent:
    if entry.nvmlReturn:
        # by its value alone: a newer driver's code is not in the binding
        code = entry.nvmlReturn
        refused = code == pynvml.NVML_ERROR_INVALID_ARGUMENT
        return Absent(AbsentReason.NOT_SUPPORTED, code) if refused else absent(code)
    if not 0 <= entry.valueType < len(_MEMBERS):
        return Absent(AbsentReason.OUT_OF_RANGE)
    value: float = getattr(entry.value, _MEMBERS[entry.valueType])
    return Absent(AbsentReason.OUT_OF_RANGE) if value in _UNKNOWN or math.isnan(value) else value


def _function() -> Callable[[Handle, int, ctypes.Array[Any]], int]:
    found: Callable[[Handle, int, ctypes.Array[Any]], int] | None = getattr(
        pynvml.nvmlLib, "nvmlDeviceGetFieldValues", None
    )
    if found is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return found
