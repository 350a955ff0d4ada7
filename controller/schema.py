"""Typed dataclass -> structural OpenAPI v3, and dict -> dataclass with all faults at once.

Why it exists: the words that users write are declared once, as dataclasses. The CRDs that a cluster checks and
the parser that the operator, the emulator and the offline commands use are both made from that declaration.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, Generic, TypeVar

from controller.shapes import DateTime, Doc, FieldPlan, Length, Pattern, Quantity, Range, Shape, plan_of, word_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: the whole field path and a sentence that says what would be right."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class Invalid(ValueError):  # noqa: N818  it is raised for a manifest that is invalid, and reads so
    """Raised with everything that is wrong with a resource, not only the first fault."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """One validation across fields: checked by ``holds`` here and by ``cel`` in an API server.

    ``fields`` are the attribute names that it reads; the fault stands at the first. It is skipped where one of
    them is faulty already. ``holds`` gets the parsed value of ``owner``, ``cel`` the same object as ``self``.
    """

    owner: type[T]
    fields: tuple[str, ...]
    holds: Callable[[T], bool]
    cel: str
    message: str


Rules = tuple[Rule[Any], ...]


# --- dataclass -> OpenAPI ---------------------------------------------------------------------------------------


def openapi(cls: type[Any], rules: Rules = ()) -> dict[str, Any]:
    """Make the structural schema of a dataclass, with the CEL of each rule at the object that it belongs to."""
    plans = plan_of(cls)
    schema: dict[str, Any] = {"type": "object", "properties": {p.word: _property(p, rules) for p in plans}}
    required = [p.word for p in plans if p.required]
    if required:
        schema["required"] = required
    own = [_validation(rule) for rule in rules if rule.owner is cls]
    if own:
        schema["x-kubernetes-validations"] = own
    return schema


def _validation(rule: Rule[Any]) -> dict[str, str]:
    return {"fieldPath": f".{word_of(rule.fields[0])}", "message": rule.message, "rule": rule.cel}


def _property(plan: FieldPlan, rules: Rules) -> dict[str, Any]:
    schema = _schema(plan.shape, rules)
    if isinstance(plan.default, str | int | float | bool):
        schema["default"] = plan.default
    return schema


def _schema(shape: Shape, rules: Rules) -> dict[str, Any]:
    doc = shape.mark(Doc)
    schema: dict[str, Any] = {"description": doc.text} if doc else {}
    if shape.owner is not None:
        return schema | openapi(shape.owner, rules)
    if shape.mark(Quantity):
        return schema | _quantity_schema(shape)
    schema["type"] = {"list": "array", "map": "object"}.get(shape.kind, shape.kind)
    if shape.item is not None:
        schema["items" if shape.kind == "list" else "additionalProperties"] = _schema(shape.item, rules)
    if shape.choices:
        schema["enum"] = list(shape.choices)
    return schema | _limits(shape)


def _quantity_schema(shape: Shape) -> dict[str, Any]:
    quantity = shape.mark(Quantity) or Quantity()
    minimum = {"nonnegative": {"minimum": 0}, "positive": {"minimum": 1}}.get(quantity.sign, {})
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "pattern": quantity.pattern.regex,
        "maxLength": 40,
        **minimum,
    }


_LENGTH_WORDS = {"string": "Length", "list": "Items", "map": "Properties"}


def _limits(shape: Shape) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if bounds := shape.mark(Range):
        found |= {"minimum": bounds.minimum, "maximum": bounds.maximum}
    if length := shape.mark(Length):
        word = _LENGTH_WORDS[shape.kind]
        found |= {f"min{word}": length.minimum or None, f"max{word}": length.maximum}
    if pattern := shape.mark(Pattern):
        found["pattern"] = pattern.regex
    if shape.mark(DateTime):
        found |= {"format": "date-time", "maxLength": 40}
    return {word: value for word, value in found.items() if value is not None}


# --- dict -> dataclass ------------------------------------------------------------------------------------------

_BAD = object()


@dataclass(frozen=True, slots=True)
class _Reading:
    """One pass over a manifest: the rules to check and the faults found so far."""

    rules: Rules
    faults: list[Fault]

    def bad(self, path: str, message: str) -> object:
        self.faults.append(Fault(path, message))
        return _BAD


def parse(cls: type[T], obj: object, rules: Rules = (), path: str = "") -> T:
    """Build ``cls`` from a manifest's mapping (camelCase words, null = absent). Raises Invalid with all faults."""
    reading = _Reading(rules, [])
    value = _object(Shape("object", owner=cls), obj, path, reading)
    if reading.faults:
        raise Invalid(reading.faults)
    assert isinstance(value, cls)  # noqa: S101  a shape without faults is a value
    return value


def _object(shape: Shape, value: object, path: str, reading: _Reading) -> object:
    assert shape.owner is not None  # noqa: S101  only shapes of dataclasses come here
    if not isinstance(value, Mapping):
        return reading.bad(path, f"must be an object with the fields {_names(shape.owner)}; here it is {_show(value)}")
    plans = plan_of(shape.owner)
    _unknown_fields(plans, value, path, reading)
    parts = {p.name: _member(p, value.get(p.word), _join(path, p.word), reading) for p in plans}
    faulty = {name for name, part in parts.items() if part is _BAD}
    built = shape.owner(**{name: None if name in faulty else part for name, part in parts.items()})
    before = len(reading.faults)
    for rule in reading.rules:
        if rule.owner is shape.owner and faulty.isdisjoint(rule.fields) and not rule.holds(built):
            reading.bad(_join(path, word_of(rule.fields[0])), rule.message + _values(rule, built))
    return _BAD if faulty or len(reading.faults) > before else built


def _names(cls: type[Any]) -> str:
    return ", ".join(plan.word for plan in plan_of(cls))


def _values(rule: Rule[Any], built: object) -> str:
    """Show the numbers and words that a rule across fields looked at, so that nobody has to look them up."""
    seen = [(word_of(name), getattr(built, name)) for name in rule.fields]
    shown = [f"{word} is {_show(value)}" for word, value in seen if isinstance(value, str | int | float)]
    return f"; here {' and '.join(shown)}" if shown else ""


def _unknown_fields(plans: tuple[FieldPlan, ...], value: Mapping[Any, Any], path: str, reading: _Reading) -> None:
    words = [plan.word for plan in plans]
    for key in value:
        if key not in words:
            reading.bad(
                _join(path, str(key)), f"is not a field of {path or 'this object'}; {_nearest(str(key), words)}"
            )


def _nearest(key: str, words: list[str]) -> str:
    lower = {word.lower(): word for word in words}
    near = difflib.get_close_matches(key.lower(), list(lower), n=1, cutoff=0.6)
    return f"did you mean {lower[near[0]]}?" if near else f"its fields are {', '.join(words)}"


def _member(plan: FieldPlan, value: object, path: str, reading: _Reading) -> object:
    if value is not None:
        return _read(plan.shape, value, path, reading)
    if not plan.required:
        return plan.default
    doc = plan.shape.mark(Doc)
    return reading.bad(path, f"is required ({doc.text.rstrip('.')})" if doc else "is required")


def _read(shape: Shape, value: object, path: str, reading: _Reading) -> object:
    return _READERS[shape.kind](shape, value, path, reading)


def _join(path: str, word: str) -> str:
    return f"{path}.{word}" if path else word


def _show(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _string(shape: Shape, value: object, path: str, reading: _Reading) -> object:
    quantity = shape.mark(Quantity)
    if quantity and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    pattern = quantity.pattern if quantity else shape.mark(Pattern)
    if not isinstance(value, str):
        wanted = _one_of(shape) if shape.choices else pattern.says if pattern else "text"
        return reading.bad(path, f"must be {wanted}, in quotes; here it is {_show(value)}")
    if shape.choices and value not in shape.choices:
        return reading.bad(path, f"must be {_one_of(shape)}; here it is {_show(value)}")
    if pattern and not re.fullmatch(pattern.regex, value):
        return reading.bad(path, f"must be {pattern.says}; here it is {_show(value)}")
    return _sized(shape, value, path, reading, "characters")


def _one_of(shape: Shape) -> str:
    return f"one of {', '.join(shape.choices)}"


def _number(shape: Shape, value: object, path: str, reading: _Reading) -> object:
    bounds = shape.mark(Range) or Range()
    if isinstance(value, int | float) and not isinstance(value, bool) and _finite(value) and _inside(value, bounds):
        if shape.kind == "number":
            return value
        if value == int(value):  # 3.0 is a whole number, as in JSON schema
            return int(value)
    kind = "a whole number" if shape.kind == "integer" else "a number"
    return reading.bad(path, f"must be {kind}{_bounds_text(bounds)}; here it is {_show(value)}")


def _finite(value: float) -> bool:
    """Tell what can be calculated with from infinity, NaN and integers that no float can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _inside(value: float, bounds: Range) -> bool:
    above = bounds.minimum is None or value >= bounds.minimum
    return above and (bounds.maximum is None or value <= bounds.maximum)


def _bounds_text(bounds: Range) -> str:
    if bounds.minimum is not None and bounds.maximum is not None:
        return f" from {bounds.minimum} to {bounds.maximum}"
    if bounds.minimum is not None:
        return f" of at least {bounds.minimum}"
    return "" if bounds.maximum is None else f" of at most {bounds.maximum}"


def _boolean(_shape_: Shape, value: object, path: str, reading: _Reading) -> object:
    return value if isinstance(value, bool) else reading.bad(path, f"must be true or false; here it is {_show(value)}")


def _list(shape: Shape, value: object, path: str, reading: _Reading) -> object:
    assert shape.item is not None  # noqa: S101  a list's shape has an item
    if not isinstance(value, list | tuple):
        return reading.bad(path, f"must be a list; here it is {_show(value)}")
    items = tuple(_read(shape.item, item, f"{path}[{i}]", reading) for i, item in enumerate(value))
    sized = _sized(shape, items, path, reading, "items")
    return _BAD if any(item is _BAD for item in items) else sized


def _map(shape: Shape, value: object, path: str, reading: _Reading) -> object:
    assert shape.item is not None  # noqa: S101  a map's shape has an item
    if not isinstance(value, Mapping):
        return reading.bad(path, f"must be a map of names to values; here it is {_show(value)}")
    entries = {str(key): _read(shape.item, item, _join(path, str(key)), reading) for key, item in value.items()}
    sized = _sized(shape, entries, path, reading, "entries")
    return _BAD if any(item is _BAD for item in entries.values()) else sized


def _sized(shape: Shape, value: Any, path: str, reading: _Reading, unit: str) -> object:
    length = shape.mark(Length)
    if length is None or length.minimum <= len(value) <= length.maximum:
        return value
    wanted = f"{length.minimum} to {length.maximum}" if length.minimum else f"at most {length.maximum}"
    return reading.bad(path, f"must have {wanted} {unit}; here it has {len(value)}")


_READERS: Mapping[str, Callable[[Shape, object, str, _Reading], object]] = {
    "string": _string,
    "integer": _number,
    "number": _number,
    "boolean": _boolean,
    "list": _list,
    "map": _map,
    "object": _object,
}


# --- dataclass -> dict ------------------------------------------------------------------------------------------


def dump(value: Any) -> Any:
    """Turn a dataclass into its manifest form: camelCase words, plain values; fields that are None are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = ((plan.word, getattr(value, plan.name)) for plan in plan_of(type(value)))
        return {word: dump(part) for word, part in parts if part is not None}
    if isinstance(value, Mapping):
        return {str(key): dump(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [dump(part) for part in value]
    return value
