"""A JSON object whose fields are taken by type.

Why it exists: whoever writes a simulation file is told every fault of it at once, each with its path.
"""

import dataclasses
import json
import types
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from exporter.readings import AbsentReason

T = TypeVar("T")
_REQUIRED = object()
_LARGEST = 2**64
_DIGITS = 20
"""A number of more digits is no whole one that anybody means, and Python refuses to read the longest of them."""


class Object(dict[str, object]):
    """A JSON object that knows which of its keys are given more than once; the last value counts."""

    def __init__(self, pairs: Sequence[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.repeated: tuple[str, ...] = ()
        if len(self) < len(pairs):
            self.repeated = tuple(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)


def read_json(content: bytes) -> object:
    """Return what a JSON text says, its objects as Object. Raises ValueError, RecursionError."""
    return json.loads(content, object_pairs_hook=Object, parse_int=_number)


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS else float(digits)


class Checked:
    """A JSON object whose fields are taken by type; each that does not fit is added to the faults with its path."""

    def __init__(self, values: Mapping[str, object], path: str, faults: list[str]) -> None:
        self._values = values
        self._path = path
        self._faults = faults
        self._once(values)

    def only(self, *keys: str) -> None:
        """Add every other key to the faults."""
        for key in self._values:
            if key not in keys:
                self._fault(key, f"is not known, only {', '.join(keys)} are")

    def text(self, key: str, default: object = _REQUIRED) -> str:
        """Take text; without a default it must be there and not empty."""
        value = self._take(key, default)
        if isinstance(value, str) and (value or default is not _REQUIRED):
            return value
        self._fault(key, "must be text" if default is not _REQUIRED else "must be non-empty text")
        return ""

    def natural(self, key: str, default: object = _REQUIRED) -> int:
        """Take a whole number that is not negative."""
        value = self.whole(key, default)
        if value is not None and value < 0:
            self._fault(key, "must be a whole number of 0 or more")
        return value or 0

    def quantity(self, key: str) -> float:
        """Take a number that is there, has an end and is not negative."""
        value = self._take(key, None)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
            return value
        self._fault(key, "must be a number of 0 or more")
        return 0

    def whole(self, key: str, default: object = _REQUIRED) -> int | None:
        """Take a whole number; None only where that is the default."""
        value = self._take(key, default)
        if value is None and default is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_whole(value):
            return int(value)
        self._fault(key, "must be a whole number")
        return None

    def number(self, key: str) -> float | None:
        """Take a number; None = it is not there."""
        value = self._take(key, None)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        self._fault(key, "must be a number")
        return None

    def reason(self, key: str) -> AbsentReason | None:
        """Take why something is absent; None = it is not there."""
        value = self._take(key, None)
        if value is None:
            return None
        if isinstance(value, str) and value in set(AbsentReason):
            return AbsentReason(value)
        self._fault(key, f"must be null or one of {', '.join(AbsentReason)}")
        return None

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of texts."""
        value = self._take(key, _REQUIRED)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self._fault(key, "must be a list of texts")
        return ()

    def wholes(self, key: str) -> tuple[int, ...] | None:
        """Take a list of whole numbers; None = it is not there."""
        value = self._take(key, None)
        if value is None:
            return None
        if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            return tuple(value)
        self._fault(key, "must be null or a list of whole numbers")
        return None

    def items(self, key: str) -> list["Checked"]:
        """Take a list of objects."""
        value = self._take(key, [])
        if not isinstance(value, list):
            self._fault(key, "must be a list of objects")
            return []
        found = []
        for index, item in enumerate(value):
            path = f"{self._path}{key}[{index}]"
            if isinstance(item, dict):
                found.append(Checked(item, f"{path}.", self._faults))
            else:
                self._faults.append(f"{path}: must be an object")
        return found

    def typed(self, cls: type, *names: str) -> dict[str, Any]:
        """Take these fields of a dataclass by their types: text, whole number, number, yes or no, another dataclass.

        Each may be null. A field without a default must be there.
        """
        hints = typing.get_type_hints(cls)
        needed = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
        return {name: self._by_type(name, hints[name], needed=name in needed) for name in names}

    def part(self, key: str, cls: type[T]) -> T | None:
        """Take an object with the fields of a dataclass; None = it is not there."""
        value = self._take(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._fault(key, "must be null or an object")
            return None
        return Checked(value, f"{self._path}{key}.", self._faults).whole_of(cls)

    def parts(self, key: str, cls: type[T]) -> tuple[T, ...] | None:
        """Take a list of such objects; None = it is not there."""
        return None if self._values.get(key) is None else tuple(item.whole_of(cls) for item in self.items(key))

    def words(self, key: str) -> dict[str, str]:
        """Take an object of texts."""
        value = self._take(key, {})
        if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
            self._once(value, f"{key}.")
            return value
        self._fault(key, "must be an object of texts")
        return {}

    def whole_of(self, cls: type[T]) -> T:
        """Take this object as a dataclass; a key that is none of its fields is a fault."""
        names = [field.name for field in dataclasses.fields(typing.cast("Any", cls))]
        self.only(*names)
        return cls(**self.typed(cls, *names))

    def yes_no(self, key: str) -> bool | None:
        """Take true or false; None = it is not there."""
        value = self._take(key, None)
        if value is None or isinstance(value, bool):
            return value
        self._fault(key, "must be true, false or null")
        return None

    def _by_type(self, name: str, hint: object, *, needed: bool) -> object:
        kinds = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
        default = _REQUIRED if needed else None
        for kind in kinds:
            if dataclasses.is_dataclass(kind):
                return self.part(name, typing.cast("type", kind))
        if str in kinds:
            return self.text(name, default)
        if bool in kinds:
            return self.yes_no(name)
        if needed:
            return self.quantity(name) if float in kinds else self.natural(name)
        return self.number(name) if float in kinds else self.whole(name, None)

    def _take(self, key: str, default: object) -> object:
        value = self._values.get(key)
        return default if value is None else value

    def _once(self, values: Mapping[str, object], path: str = "") -> None:
        for key in values.repeated if isinstance(values, Object) else ():
            self._faults.append(f"{self._path}{path}{key}: is given more than once")

    def _fault(self, key: str, complaint: str) -> None:
        shown = f", not {self._values[key]!r:.60}" if key in self._values and complaint.startswith("must") else ""
        owner = self._values.get("uuid")
        named = f" ({owner})" if isinstance(owner, str) and key != "uuid" else ""
        self._faults.append(f"{self._path}{key}{named}: {complaint}{shown}")


def _is_whole(value: float) -> bool:
    # what is not a number is within no limits
    return abs(value) <= _LARGEST and value == int(value)
