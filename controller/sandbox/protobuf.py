"""The protobuf bodies that kubectl sends from some commands (drain, create): read for the few kinds that need it.

What is not in the table below is refused, never guessed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"

# message -> field number -> (JSON name, type). Types: s string, i number and b flag (both kept only when not zero),
# I number that may be zero; another message's name; a leading * is a list, m: a map to that type.
_Fields = Mapping[int, tuple[str, str]]
_MESSAGES: Mapping[str, _Fields] = {
    "Unknown": {1: ("typeMeta", "TypeMeta"), 2: ("raw", "bytes"), 3: ("encoding", "s"), 4: ("type", "s")},
    "TypeMeta": {1: ("apiVersion", "s"), 2: ("kind", "s")},
    "ObjectMeta": {
        1: ("name", "s"),
        2: ("generateName", "s"),
        3: ("namespace", "s"),
        5: ("uid", "s"),
        6: ("resourceVersion", "s"),
        11: ("labels", "m:s"),
        12: ("annotations", "m:s"),
        14: ("finalizers", "*s"),
    },
    "Preconditions": {1: ("uid", "s"), 2: ("resourceVersion", "s")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "I"),
        2: ("preconditions", "Preconditions"),
        3: ("orphanDependents", "b"),
        4: ("propagationPolicy", "s"),
        5: ("dryRun", "*s"),
    },
    "Eviction": {1: ("metadata", "ObjectMeta"), 2: ("deleteOptions", "DeleteOptions")},
    "Namespace": {1: ("metadata", "ObjectMeta")},
    "ConfigMap": {1: ("metadata", "ObjectMeta"), 2: ("data", "m:s"), 4: ("immutable", "b")},
    "LabelSelector": {1: ("matchLabels", "m:s")},
    "ContainerPort": {1: ("name", "s"), 3: ("containerPort", "i"), 4: ("protocol", "s")},
    "EnvVar": {1: ("name", "s"), 2: ("value", "s")},
    "Container": {
        1: ("name", "s"),
        2: ("image", "s"),
        3: ("command", "*s"),
        4: ("args", "*s"),
        6: ("ports", "*ContainerPort"),
        7: ("env", "*EnvVar"),
        14: ("imagePullPolicy", "s"),
    },
    "PodSpec": {2: ("containers", "*Container"), 3: ("restartPolicy", "s"), 7: ("nodeSelector", "m:s")},
    "PodTemplateSpec": {1: ("metadata", "ObjectMeta"), 2: ("spec", "PodSpec")},
    "DeploymentSpec": {
        1: ("replicas", "I"),
        2: ("selector", "LabelSelector"),
        3: ("template", "PodTemplateSpec"),
        7: ("paused", "b"),
    },
    "Deployment": {1: ("metadata", "ObjectMeta"), 2: ("spec", "DeploymentSpec")},
}


class UnreadableError(ValueError):
    """The body is no protobuf object, or has something that the table does not know."""


def decode(body: bytes) -> dict[str, Any]:
    """Read one object, as its JSON form. Raises ``UnreadableError``."""
    if not body.startswith(_MAGIC):
        raise UnreadableError("the body is no Kubernetes protobuf")
    try:
        envelope = _message("Unknown", body[len(_MAGIC) :])
        kind = envelope["typeMeta"]["kind"]
        if kind not in _MESSAGES:
            raise UnreadableError(f"{kind} is read as JSON or YAML only")
        return {**envelope["typeMeta"], **_message(kind, envelope.get("raw", b""))}
    except (KeyError, IndexError, UnicodeDecodeError) as exc:
        raise UnreadableError(f"the body is broken: {exc}") from exc


def _message(name: str, body: bytes) -> dict[str, Any]:
    fields, found = _MESSAGES[name], dict[str, Any]()
    for number, raw in _raw_fields(body):
        known = fields.get(number)
        if known is None:
            if not _is_empty(raw):
                raise UnreadableError(f"field {number} of {name} is read as JSON or YAML only")
            continue
        _put(found, *known, raw)
    return found


def _put(found: dict[str, Any], key: str, kind: str, raw: bytes | int) -> None:
    if kind.startswith("*"):
        found.setdefault(key, []).append(_value(kind[1:], raw))
    elif kind.startswith("m:"):
        pair = dict(_raw_fields(raw)) if isinstance(raw, bytes) else {}
        found.setdefault(key, {})[_value("s", pair.get(1, b""))] = _value(kind[2:], pair.get(2, b""))
    else:
        value = _value(kind, raw)
        if kind == "I" or value not in ("", 0, False, {}):
            found[key] = value


def _value(kind: str, raw: bytes | int) -> Any:
    if isinstance(raw, int):
        return bool(raw) if kind == "b" else raw - 2**64 if raw >= 2**63 else raw
    if kind == "bytes":
        return raw
    return raw.decode() if kind == "s" else _message(kind, raw)


def _is_empty(raw: bytes | int) -> bool:
    """Whether a field says nothing: zero, no text, or a message of such fields."""
    if isinstance(raw, int):
        return raw == 0
    try:
        return all(_is_empty(inner) for _, inner in _raw_fields(raw))
    except (IndexError, UnreadableError):
        return False


def _raw_fields(body: bytes) -> Iterator[tuple[int, bytes | int]]:
    place = 0
    while place < len(body):
        tag, place = _varint(body, place)
        value, place = _varint(body, place)
        match tag & 7:
            case 0:
                yield tag >> 3, value
            case 2:
                if place + value > len(body):
                    raise UnreadableError("the body is cut off")
                yield tag >> 3, body[place : place + value]
                place += value
            case _:
                raise UnreadableError("the body has a wire type that no known message has")


def _varint(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
