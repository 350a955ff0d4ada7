"""PURE: the vector selectors of a PromQL text, e.g. ``up{job="a"}`` in ``avg(last_over_time(up{job="a"}[5m]))``.

Why it exists: the age of the data behind a query must not depend on how its author wrote it, so the raw samples are
asked for by their selectors. This is a scanner of names, braces and strings, not a parser of PromQL.
"""

import re
from functools import lru_cache
from itertools import pairwise

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|\#[^\n]*)
    | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<braces>\{(?:[^}"'`]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)*\})
    | (?P<range>\[[^\]]*\])
    | (?P<number>(?:0x[0-9a-fA-F]+|[0-9.]+(?:[eE][+-]?[0-9]+)?)[a-z0-9]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# words after which, or as which, a name is not a metric
_OPERATORS = {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan", "start", "end"}
_LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = _OPERATORS | _LABEL_LISTS


def _tokens(query: str) -> list[tuple[str, str]]:
    found = ((match.lastgroup or "other", match[0]) for match in _TOKEN.finditer(query))
    return [(kind, text) for kind, text in found if kind != "space"]


def _without_label_lists(tokens: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Drop ``by (a, b)`` and its kin: the names in there are labels."""
    kept: list[tuple[str, str]] = []
    position = 0
    while position < len(tokens):
        kind, text = tokens[position]
        kept.append((kind, text))
        position += 1
        if kind == "name" and text.lower() in _LABEL_LISTS and tokens[position : position + 1] == [("other", "(")]:
            while position < len(tokens) and tokens[position] != ("other", ")"):
                position += 1
            position += 1
    return kept


@lru_cache(maxsize=10_000)
def selectors(query: str) -> tuple[str, ...]:
    """Name the distinct selectors in order, without ranges and offsets."""
    tokens = [*_without_label_lists(_tokens(query)), ("end", "")]
    found: dict[str, None] = {}
    previous = ""
    for (kind, text), (next_kind, next_text) in pairwise(tokens):
        if kind == "braces" and previous != "metric":
            found[text] = None
        is_metric = kind == "name" and text.lower() not in _WORDS and (next_kind, next_text) != ("other", "(")
        if is_metric:
            # an aggregation's name may stand before its label list: sum by (a) (x)
            is_metric = not (next_kind == "name" and next_text.lower() in _LABEL_LISTS)
        if is_metric:
            found[text + next_text if next_kind == "braces" else text] = None
        previous = "metric" if is_metric else kind
    return tuple(found)
