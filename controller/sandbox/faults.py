"""Faults on purpose: tests and rehearsals make the embedded API slow, refusing, forgetful or silent."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from controller.sandbox import errors
from controller.sandbox.history import Subscription
from controller.sandbox.store import Store

Matches = Callable[[web.Request], bool]

_REASONS = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 403: "Forbidden", 409: "Conflict"}


def every_request(_: web.Request) -> bool:
    """Match any request."""
    return True


@dataclass
class _Refusal:
    code: int
    left: int | None
    matches: Matches
    retry_after_seconds: int


@dataclass
class Faults:
    """What goes wrong now. ``latency_seconds`` is waited before each answer that ``slow`` matches."""

    store: Store
    streams: set[Subscription] = field(default_factory=set)
    latency_seconds: float = 0.0
    slow: Matches = every_request
    _refusals: list[_Refusal] = field(default_factory=list)

    def refuse(
        self, code: int, count: int | None = 1, matches: Matches = every_request, retry_after_seconds: int = 0
    ) -> None:
        """Answer the next ``count`` matching requests with ``code``; None: until ``heal``."""
        self._refusals.append(_Refusal(code, count, matches, retry_after_seconds))

    def heal(self) -> None:
        """Let everything work again."""
        self._refusals.clear()
        self.latency_seconds = 0.0

    def drop_watches(self) -> int:
        """End every watch; gives how many there were."""
        dropped = list(self.streams)
        for subscription in dropped:
            subscription.close()
        return len(dropped)

    def forget(self) -> None:
        """Drop the history, so that watches and page tokens from before get 410."""
        self.store.version += 1
        self.store.compact()

    async def before(self, request: web.Request) -> None:
        """Do to one request what is to go wrong. Raises the refusal."""
        if self.latency_seconds and self.slow(request):
            await asyncio.sleep(self.latency_seconds)
        for refusal in self._refusals:
            if refusal.left != 0 and refusal.matches(request):
                if refusal.left is not None:
                    refusal.left -= 1
                raise _refused(refusal)


def _refused(refusal: _Refusal) -> errors.StatusError:
    details = {"retryAfterSeconds": refusal.retry_after_seconds} if refusal.retry_after_seconds else {}
    reason = _REASONS.get(refusal.code, "Unknown")
    return errors.StatusError(refusal.code, reason, "refused on purpose by the embedded API", details=details)
