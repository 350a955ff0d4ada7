# ruff: noqa: N818 - the names are the API's own words, and callers read better with them
"""What the Kubernetes API refused, by meaning, so that callers catch a meaning and never compare numbers.

Why it exists: a message that goes to a log, a condition or an Event must be one short line and must hold no secret,
whatever the server, or a proxy in front of it, has answered. That is done here, once.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

MESSAGE_LIMIT = 300

_SECRETS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]{4,}"), r"\1 ***"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), "***"),
    (re.compile(r"//[^/\s:@]*:[^/\s@]*@"), "//***@"),
    (re.compile(r"(?i)\b(token|password|access_token|id_token)=[^\s&\"']+"), r"\1=***"),
)
_TAGS = re.compile(r"(?is)<(script|style)\b.*?</\1>|<[^>]*>")


class ConfigError(Exception):
    """How to reach the cluster cannot be read: one sentence for the person who started the program."""


class ApiError(Exception):
    """An answer that is not a success.

    ``status`` is the HTTP status (0 = no answer), ``reason`` the server's word (``NotFound``), ``message`` one line of
    at most 300 characters, ``retry_after`` the seconds that the server asked to wait, or None.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(status, reason, message, retry_after)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


class Unauthorized(ApiError):
    """401: the credentials are not accepted, also after they were read anew."""


class Forbidden(ApiError):
    """403: the identity lacks the right (or the server has just restarted; reads are tried again before this)."""


class NotFound(ApiError):
    """404: the object, or its whole kind, is not there."""


class Conflict(ApiError):
    """409: the object exists already, or was changed since it was read."""


class Gone(ApiError):
    """410: the resourceVersion, or the page token, is too old: list again."""


class Rejected(ApiError):
    """422: the server found the object invalid."""


class TooMany(ApiError):
    """429: later, please; for an eviction: a disruption budget forbids it now."""


class NotLeading(ApiError):
    """A write that was not sent, because we no longer lead; see ``Cluster.guard_writes``."""


class Unreachable(ApiError):
    """No usable answer: no connection, no answer in time, or something between us and the API server answered."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Rejected,
    429: TooMany,
}


def one_line(text: str) -> str:
    """Clean a text: without secrets, line breaks and HTML tags, at most 300 characters."""
    text = _TAGS.sub(" ", text)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 3] + "..."


def unreachable(message: str) -> Unreachable:
    """Make an Unreachable with a cleaned message."""
    return Unreachable(0, "Unreachable", one_line(message))


def from_answer(status: int, headers: Mapping[str, str], body: bytes, what: str) -> ApiError:
    """Name the error of an HTTP answer; ``what`` names the request, e.g. ``GET /api/v1/pods``."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("kind") == "Status":
        return from_status(document, what, status=status, retry_after=_seconds(headers.get("Retry-After")))
    text = one_line(body[:2000].decode(errors="replace"))
    message = f"{what} answered {status}: {text}" if text else f"{what} answered {status}"
    return _error(status, f"Http{status}", message, _seconds(headers.get("Retry-After")))


def from_status(
    document: Mapping[str, Any], what: str, *, status: int = 0, retry_after: float | None = None
) -> ApiError:
    """Name the error of a ``Status`` object, which also comes as an ERROR event of a watch."""
    code = document.get("code")
    status = code if isinstance(code, int) and not isinstance(code, bool) else status
    details = document.get("details")
    if retry_after is None and isinstance(details, dict):
        retry_after = _seconds(details.get("retryAfterSeconds"))
    reason = str(document.get("reason") or f"Http{status}")
    return _error(status, reason, f"{what}: {document.get('message') or 'no message'}", retry_after)


def _error(status: int, reason: str, message: str, retry_after: float | None) -> ApiError:
    return _BY_STATUS.get(status, ApiError)(status, one_line(reason), one_line(message), retry_after)


def _seconds(value: object) -> float | None:
    """``Retry-After`` as seconds; its form as a date, and nonsense, count as not given."""
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
