"""Structural schemas of custom resources: pruning, defaulting and validation with the API server's sentences."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator

from controller.sandbox.errors import Cause
from controller.sandbox.strategy import clone

Object = dict[str, Any]
Schema = Mapping[str, Any]

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED = "x-kubernetes-embedded-resource"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_OBJECT_FIELDS = ("apiVersion", "kind", "metadata")


def prune(value: Any, schema: Schema, path: str = "", *, root: bool = True) -> list[str]:
    """Remove, in place, the fields that the schema does not know; gives their paths."""
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [p for i, item in enumerate(value) for p in prune(item, items, f"{path}[{i}]", root=False)]
    if not isinstance(value, dict):
        return []
    known = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    keeps = bool(schema.get(_PRESERVE)) or others is True
    unknown: list[str] = []
    for key in list(value):
        place = f"{path}.{key}" if path else key
        if key in _OBJECT_FIELDS and (root or schema.get(_EMBEDDED)):
            continue
        inner = known.get(key, others if isinstance(others, Mapping) else None)
        if inner is not None:
            unknown += prune(value[key], inner, place, root=False)
        elif not keeps:
            del value[key]
            unknown.append(place)
    return unknown


def fill_defaults(value: Any, schema: Schema) -> None:
    """Put the schema's defaults into absent fields, in place; a null where none is allowed counts as absent."""
    if isinstance(value, list):
        for item in value:
            fill_defaults(item, schema.get("items") or {})
    if not isinstance(value, dict):
        return
    others = schema.get("additionalProperties")
    known = schema.get("properties") or {}
    for key, inner in known.items():
        if key in value and value[key] is None and not inner.get("nullable"):
            del value[key]
        if "default" in inner and key not in value:
            value[key] = clone(inner["default"])
    for key, item in value.items():
        inner = known.get(key, others if isinstance(others, Mapping) else None)
        if inner is not None:
            fill_defaults(item, inner)


class SchemaCheck:
    """The checks of one version's schema, prepared once."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._validator: Validator = jsonschema.Draft4Validator(_json_schema(schema))

    def faults(self, obj: Mapping[str, Any], only: str = "") -> list[Cause]:
        """Every way in which the object breaks the schema; ``only`` names the one top-level field that is looked at."""
        body = {key: value for key, value in obj.items() if key not in _OBJECT_FIELDS}
        found = sorted(self._validator.iter_errors(body), key=lambda error: [str(part) for part in error.absolute_path])
        causes = [cause for error in found for cause in _causes(error)]
        causes += list(_list_faults(body, self._schema, ""))
        return [cause for cause in causes if not only or cause.field.split(".")[0].split("[")[0] == only]


def _json_schema(schema: Schema) -> Object:
    """Write an OpenAPI v3 schema as JSON schema draft 4, which knows neither ``nullable`` nor the extensions."""
    result: Object = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _json_schema(inner) for name, inner in value.items()}
        elif key in {"items", "additionalProperties", "not"} and isinstance(value, Mapping):
            result[key] = _json_schema(value)
        elif key in {"allOf", "anyOf", "oneOf"}:
            result[key] = [_json_schema(inner) for inner in value]
        elif not key.startswith("x-") and key not in {"default", "format", "description", "nullable"}:
            result[key] = value
    if schema.get(_INT_OR_STRING):
        result["type"] = ["integer", "string"]
        result.pop("anyOf", None)
    if schema.get("nullable"):
        return {"anyOf": [{"type": "null"}, result]} if "type" not in result else _nullable(result)
    return result


def _nullable(schema: Object) -> Object:
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*kinds, "null"], **enum}


def _dotted(parts: Any) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _type_name(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _causes(error: ValidationError) -> Iterator[Cause]:
    path = _dotted(error.absolute_path)
    value: Any = error.instance
    limit: Any = error.validator_value
    match error.validator:
        case "required":
            yield from _required(error, path)
        case "type":
            yield _type_fault(path, value, limit)
        case "enum":
            told = ", ".join(_shown(str(item)) for item in limit if item is not None)
            yield Cause("FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {told}", path)
        case "maxLength":
            yield Cause("FieldValueTooLong", f"Too long: may not be more than {limit} bytes", path)
        case "maxItems" | "maxProperties":
            told = f"Too many: {len(value)}: must have at most {limit} items"
            yield Cause("FieldValueTooMany", told, path)
        case _:
            yield _other_fault(error, path)


def _required(error: ValidationError, path: str) -> Iterator[Cause]:
    # jsonschema gives one error a missing name, each with the whole list: the name is the quoted word of its message
    name = error.message.split("'")[1] if "'" in error.message else str(error.validator_value)
    yield Cause("FieldValueRequired", "Required value", f"{path}.{name}" if path else name)


def _type_fault(path: str, value: Any, kinds: Any) -> Cause:
    wanted = ",".join(kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null")
    got = _type_name(value)
    told = f'Invalid value: {_shown(got)}: {path} in body must be of type {wanted}: "{got}"'
    return Cause("FieldValueTypeInvalid", told, path)


def _other_fault(error: ValidationError, path: str) -> Cause:
    value: Any = error.instance
    limit: Any = error.validator_value
    schema = error.schema
    strictly = isinstance(schema, Mapping) and schema
    sentences = {
        "pattern": f"should match '{limit}'",
        "minLength": f"should be at least {limit} chars long",
        "minItems": f"should have at least {limit} items",
        "minProperties": f"should have at least {limit} properties",
        "minimum": f"should be greater than {_inclusive(strictly, 'exclusiveMinimum')}{limit}",
        "maximum": f"should be less than {_inclusive(strictly, 'exclusiveMaximum')}{limit}",
        "multipleOf": f"should be a multiple of {limit}",
        "uniqueItems": "shouldn't contain duplicates",
    }
    shown = len(value) if error.validator in {"minItems", "minProperties"} else value
    if error.validator in sentences:
        told = f"{path} in body {sentences[str(error.validator)]}"
    else:
        told = _combined(str(error.validator), path)
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(shown)}: {told}", path)


def _inclusive(schema: Any, key: str) -> str:
    return "" if schema and schema.get(key) else "or equal to "


def _combined(validator: str, path: str) -> str:
    sentences = {
        "oneOf": f'"{path}" must validate one and only one schema (oneOf)',
        "anyOf": f'"{path}" must validate at least one schema (anyOf)',
        "allOf": f'"{path}" must validate all the schemas (allOf)',
        "not": f'"{path}" must not validate the schema (not)',
    }
    return sentences.get(validator, f"{path} in body breaks {validator}")


def _list_faults(value: Any, schema: Schema, path: str) -> Iterator[Cause]:
    """Duplicates in lists that are sets or keyed."""
    if isinstance(value, dict):
        known, others = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, item in value.items():
            inner = known.get(key, others if isinstance(others, Mapping) else None)
            if inner is not None:
                yield from _list_faults(item, inner, f"{path}.{key}" if path else key)
    if not isinstance(value, list):
        return
    keys, kind = schema.get("x-kubernetes-list-map-keys") or (), schema.get("x-kubernetes-list-type")
    seen: list[Any] = []
    for place, item in enumerate(value):
        mark = {key: item.get(key) for key in keys} if kind == "map" and isinstance(item, Mapping) else item
        if kind in {"map", "set"} and mark in seen:
            yield Cause("FieldValueDuplicate", f"Duplicate value: {_shown(mark)}", f"{path}[{place}]")
        seen.append(mark)
        yield from _list_faults(item, schema.get("items") or {}, f"{path}[{place}]")
