"""Refusals in the form that the Kubernetes API gives them, so that every layer raises one exception type."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cause:
    """One reason of a refusal: the field's path, the kind of fault (``FieldValueInvalid`` ...) and a sentence."""

    reason: str
    message: str
    field: str = ""

    def document(self) -> dict[str, str]:
        """Give the entry of ``details.causes``."""
        return {"reason": self.reason, "message": self.message, **({"field": self.field} if self.field else {})}


class StatusError(Exception):
    """A request was refused. ``code`` is the HTTP status, ``reason`` the machine-readable word beside it."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})
        self.extra = dict(extra or {})

    @property
    def retry_after_seconds(self) -> int | None:
        """Seconds after which the caller may try again, if the refusal names them."""
        value = self.details.get("retryAfterSeconds")
        return value if isinstance(value, int) else None

    def document(self) -> dict[str, Any]:
        """Give the ``Status`` object that the API sends as the body."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.extra,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": self.details} if self.details else {}),
            "code": self.code,
        }


def _details(group: str, kind: str, name: str) -> dict[str, Any]:
    found = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in found.items() if value}


def qualified(group: str, word: str) -> str:
    """``deployments.apps``, or ``pods`` for the core group."""
    return f"{word}.{group}" if group else word


def shown(value: Any) -> str:
    """Write a value as a refusal shows it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def not_found(group: str, plural: str, name: str) -> StatusError:
    """404 for one object."""
    message = f"{qualified(group, plural)} {json.dumps(name)} not found"
    return StatusError(404, "NotFound", message, details=_details(group, plural, name))


def no_such_path() -> StatusError:
    """404 for a path that no resource is served at."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(group: str, plural: str, name: str) -> StatusError:
    """409: the name is taken."""
    message = f"{qualified(group, plural)} {json.dumps(name)} already exists"
    return StatusError(409, "AlreadyExists", message, details=_details(group, plural, name))


def conflict(group: str, plural: str, name: str, sentence: str) -> StatusError:
    """409: the object is not the one that the caller has read."""
    message = f"Operation cannot be fulfilled on {qualified(group, plural)} {json.dumps(name)}: {sentence}"
    return StatusError(409, "Conflict", message, details=_details(group, plural, name))


def stale(group: str, plural: str, name: str) -> StatusError:
    """409: the resourceVersion sent is not the newest."""
    sentence = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(group, plural, name, sentence)


def forbidden(group: str, plural: str, name: str, sentence: str, causes: Sequence[Cause] = ()) -> StatusError:
    """403: not now, or not by anyone."""
    subject = f"{qualified(group, plural)} {json.dumps(name)}" if name else qualified(group, plural)
    details = _details(group, plural, name)
    if causes:
        details["causes"] = [cause.document() for cause in causes]
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {sentence}", details=details)


def bad_request(message: str) -> StatusError:
    """400: the request cannot be understood."""
    return StatusError(400, "BadRequest", message)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> StatusError:
    """422: the object breaks its rules; every broken rule is listed with its field."""
    sentences = [f"{cause.field}: {cause.message}" for cause in causes]
    told = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    details = _details(group, kind, name)
    details["causes"] = [cause.document() for cause in causes]
    return StatusError(
        422, "Invalid", f"{qualified(group, kind)} {json.dumps(name)} is invalid: {told}", details=details
    )


def expired(message: str, extra: Mapping[str, Any] | None = None) -> StatusError:
    """410: the history asked for is no longer kept."""
    return StatusError(410, "Expired", message, extra=extra)


def too_many_requests(message: str, retry_after_seconds: int = 0, causes: Sequence[Cause] = ()) -> StatusError:
    """429: try again later."""
    details: dict[str, Any] = {}
    if causes:
        details["causes"] = [cause.document() for cause in causes]
    if retry_after_seconds:
        details["retryAfterSeconds"] = retry_after_seconds
    return StatusError(429, "TooManyRequests", message, details=details)


def not_allowed(group: str, plural: str, action: str) -> StatusError:
    """405: the resource exists and has no such verb."""
    message = f"{action} is not supported on resources of kind {json.dumps(qualified(group, plural))}"
    return StatusError(405, "MethodNotAllowed", message, details=_details(group, plural, ""))


def unsupported_media(accepted: Sequence[str]) -> StatusError:
    """415: the body's content type has no reader."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message)
