"""What a typed field may be: the annotations of a field, and a dataclass's type hints read once.

Why it exists: the schema that a cluster checks and the parser of manifests both walk these shapes, so that they
cannot disagree. Generic: nothing here knows which resources there are.
"""

import types
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_MANTISSA = {
    "any": r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)",
    "nonnegative": r"\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)",
    "positive": r"\+?([0-9]*[1-9][0-9]*(\.[0-9]*)?|[0-9]*\.[0-9]*[1-9][0-9]*)",
}
_SUFFIX = r"([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?"
_QUANTITY_SAYS = {
    "any": 'a quantity such as "500m", 2 or "8Gi"',
    "nonnegative": 'a quantity of at least 0 such as "0.05", "500m" or "8Gi"',
    "positive": 'a quantity above 0 such as "500m", 2 or "8Gi"',
}


@dataclass(frozen=True, slots=True)
class Doc:
    """What a field means, for the reader of the CRD and of a fault."""

    text: str


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, both included."""

    minimum: int | None = None
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Length:
    """Bounds of a string's characters, a list's items or a map's entries. A maximum keeps CEL's cost bounded."""

    maximum: int
    minimum: int = 0


@dataclass(frozen=True, slots=True)
class Pattern:
    """A whole-string regular expression that RE2 and Python read alike; ``says`` completes "must be ..."."""

    regex: str
    says: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """The string is a Kubernetes quantity, a bare integer is taken too. ``sign``: any, nonnegative or positive."""

    sign: str = "any"

    @property
    def pattern(self) -> Pattern:
        """The text form of this kind of quantity."""
        return Pattern(f"^{_MANTISSA[self.sign]}{_SUFFIX}$", _QUANTITY_SAYS[self.sign])


@dataclass(frozen=True, slots=True)
class DateTime:
    """The string is an RFC 3339 time."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A type hint, read once: ``kind`` is string integer number boolean list map or object."""

    kind: str
    item: "Shape | None" = None
    owner: type[Any] | None = None
    choices: tuple[str, ...] = ()
    marks: tuple[object, ...] = ()

    def mark(self, kind: type[T]) -> T | None:
        """Return the annotation of that kind, or None where the field bears none."""
        return next((mark for mark in self.marks if isinstance(mark, kind)), None)


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One field of a dataclass: attribute name, the word in the manifest, its shape, its default."""

    name: str
    word: str
    shape: Shape
    required: bool
    default: object


def word_of(name: str) -> str:
    """``min_replicas`` -> ``minReplicas``; a trailing underscore, which dodges a Python keyword, is dropped."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(part.capitalize() for part in rest)


def plan_of(cls: type[Any]) -> tuple[FieldPlan, ...]:
    """Read a dataclass's fields and type hints. Cached: resolving hints costs more than parsing."""
    return _plan(cast("Hashable", cls))


@cache
def _plan(cls: Any) -> tuple[FieldPlan, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        FieldPlan(f.name, word_of(f.name), _shape(hints[f.name]), _is_required(f), _default(f)) for f in fields(cls)
    )


def _is_required(f: "Field[Any]") -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def _default(f: "Field[Any]") -> object:
    if f.default_factory is not MISSING:
        return f.default_factory()
    return None if f.default is MISSING else f.default


_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _shape(hint: Any, marks: tuple[object, ...] = ()) -> Shape:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *more = get_args(hint)
        return _shape(inner, (*marks, *more))
    if origin in (Union, types.UnionType):
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        return _shape(inner, marks)
    if origin is Literal:
        return Shape("string", choices=get_args(hint), marks=marks)
    if origin is tuple:
        return Shape("list", item=_shape(get_args(hint)[0]), marks=marks)
    if origin is Mapping:
        return Shape("map", item=_shape(get_args(hint)[1]), marks=marks)
    if is_dataclass(hint) and isinstance(hint, type):
        return Shape("object", owner=hint, marks=marks)
    return Shape(_SCALARS[hint], marks=marks)
