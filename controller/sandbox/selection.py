"""Label and field selectors: text to a predicate over one object."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from controller.sandbox.errors import bad_request
from controller.sandbox.kinds import FIELD_DEFAULTS, Resource

Match = Callable[[Mapping[str, Any]], bool]
_Labels = Callable[[Mapping[str, str]], bool]

_KEY = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"^({_KEY})\s+(in|notin)\s*\(([^()]*)\)$")
_COMPARE = re.compile(rf"^({_KEY})\s*(==|!=|=|>|<)\s*({_VALUE})$")
_EXISTS = re.compile(rf"^(!?)\s*({_KEY})$")
_COMMA = re.compile(r",(?![^()]*\))")
_FIELD = re.compile(r"^([A-Za-z0-9.\-_/\[\]]+)(==|!=|=)(.*)$")


def _everything(_: Mapping[str, Any]) -> bool:
    return True


def labels_match(selector: str) -> Match:
    """Make a predicate over whole objects. Raises 400 when the text is not a selector."""
    text = selector.strip()
    if not text:
        return _everything
    terms = [_label_term(part.strip(), text) for part in _COMMA.split(text)]
    return lambda obj: (lambda labels: all(term(labels) for term in terms))(obj["metadata"].get("labels") or {})


def _label_term(part: str, whole: str) -> _Labels:
    if found := _SET.match(part):
        key, word, inside = found.groups()
        return _member(key, {value.strip() for value in inside.split(",")}, wanted=word == "in")
    if found := _EXISTS.match(part):
        negated, key = found.groups()
        return lambda labels: (key in labels) is not bool(negated)
    if found := _COMPARE.match(part):
        key, sign, value = found.groups()
        if sign in "<>":
            return _ordered(key, sign, value, whole)
        return _member(key, {value}, wanted=sign != "!=")
    raise bad_request(f"unable to parse requirement: {part!r} in {whole!r} is not a label selector")


def _member(key: str, values: set[str], *, wanted: bool) -> _Labels:
    if wanted:
        return lambda labels: labels.get(key) in values
    return lambda labels: labels.get(key) not in values


def _ordered(key: str, sign: str, value: str, whole: str) -> _Labels:
    if not value.isdigit():
        raise bad_request(f"unable to parse requirement: {value!r} in {whole!r} must be an integer")
    limit = int(value)

    def holds(labels: Mapping[str, str]) -> bool:
        own = labels.get(key, "")
        return own.lstrip("-").isdigit() and (int(own) > limit if sign == ">" else int(own) < limit)

    return holds


def fields_match(resource: Resource, selector: str) -> Match:
    """Make a predicate over whole objects. Raises 400 for a field that the kind cannot be selected by."""
    terms = [_field_term(resource, part.strip(), selector) for part in selector.split(",") if part.strip()]
    if not terms:
        return _everything
    return lambda obj: all(term(obj) for term in terms)


def _field_term(resource: Resource, part: str, whole: str) -> Match:
    found = _FIELD.match(part)
    if found is None:
        raise bad_request(f"invalid selector: {whole!r}; can't understand {part!r}")
    path, sign, value = found.groups()
    if path not in {"metadata.name", "metadata.namespace", *resource.fields}:
        raise bad_request(
            f'Unable to find "{resource.group}/{resource.version}, Resource={resource.plural}" that match '
            f'label selector "", field selector "{whole}": field label not supported: {path}'
        )
    keys = tuple(path.split(".")) if path != "source" else ("source", "component")
    absent = FIELD_DEFAULTS.get(path, "")
    return lambda obj: (_field(obj, keys, absent) == value) is (sign != "!=")


def _field(obj: Mapping[str, Any], keys: tuple[str, ...], absent: str) -> str:
    value: Any = obj
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        return absent
    return str(value).lower() if isinstance(value, bool) else str(value)


def selector_match(selector: Mapping[str, Any] | None) -> Match:
    """Make a predicate from ``{matchLabels, matchExpressions}``; an absent selector matches nothing."""
    if selector is None:
        return lambda _: False
    return labels_match(selector_text(selector))


def selector_text(selector: Mapping[str, Any]) -> str:
    """Write the structured form as text, in the order that the API server prints it."""
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    terms += [(rule["key"], _expression_text(rule)) for rule in selector.get("matchExpressions") or []]
    return ",".join(text for _, text in sorted(terms))


def _expression_text(rule: Mapping[str, Any]) -> str:
    key, word = rule["key"], rule["operator"]
    if word in {"Exists", "DoesNotExist"}:
        return key if word == "Exists" else f"!{key}"
    return f"{key} {word.lower()} ({','.join(sorted(rule.get('values') or []))})"
