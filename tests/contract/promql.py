"""Which metrics and labels a PromQL expression names. No judge of syntax: that is promtool, where there is one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<variable>\$\{\w+\}|\$\w+)"""
    r"""|(?P<range>\[[^\]]*\])"""
    r"""|(?P<number>\d+(?:\.\d+)?(?:ms|[smhdwy])?)"""
    r"""|(?P<word>[A-Za-z_:][A-Za-z0-9_:]*)"""
    r"""|(?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^=<>(){},@])"""
    r"""|(?P<blank>\s+)"""
)
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_KEYWORDS = {"and", "or", "unless", "offset", "bool", "inf", "nan"}


@dataclass
class Names:
    """What an expression names: metric -> labels it is selected by, and the labels of by, on, group_left."""

    selected: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)


def names(expression: str) -> Names:
    """Read one expression. Raises ValueError at a character that PromQL does not have."""
    tokens = list(_tokens(expression))
    found = Names()
    position = 0
    while position < len(tokens):
        kind, text = tokens[position]
        following = tokens[position + 1][1] if position + 1 < len(tokens) else ""
        if kind == "word" and text in _GROUPING and following == "(":
            position = _inside(tokens, position + 1, ")", found.grouped)
        elif kind == "word" and text not in _KEYWORDS | _GROUPING and not _is_call(tokens, position):
            labels = found.selected.setdefault(text, set())
            position = _inside(tokens, position + 1, "}", labels) if following == "{" else position
        position += 1
    return found


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"unexpected {expression[position]!r} at {position} in {expression!r}")
        position = match.end()
        if match.lastgroup != "blank":
            yield str(match.lastgroup), match.group()


def _is_call(tokens: list[tuple[str, str]], position: int) -> bool:
    """A function or aggregation: followed by a bracket, or by ``by (...)`` or ``without (...)``."""
    following = tokens[position + 1][1] if position + 1 < len(tokens) else ""
    return following in {"(", "by", "without"}


def _inside(tokens: list[tuple[str, str]], opening: int, closing: str, labels: set[str]) -> int:
    """Collect the words between brackets; the position of the closing one."""
    position = opening + 1
    while tokens[position][1] != closing:
        if tokens[position][0] == "word":
            labels.add(tokens[position][1])
        position += 1
    return position
