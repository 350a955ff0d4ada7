"""Which status documents are written when: what matters at once, mere values as there is room, the oldest first.

Why it exists: 10,000 scalers whose values move at every tick would be thousands of writes a second.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.act import Actor, Subject, Wrote
from controller.buckets import Bucket
from controller.status import Document, Worth, worth_writing

RETRY_SECONDS = 5.0
"""A document that the API server refused is not sent at every tick."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    since: float
    worth: Worth
    subject: Subject
    make: Callable[[], Document]


class StatusDesk:
    """Holds the last document of each scaler and writes what is worth it."""

    def __init__(
        self, actor: Actor, monotonic: Callable[[], float], *, values_per_second: float = 10.0, burst: float = 100.0
    ) -> None:
        self._actor = actor
        self._monotonic = monotonic
        self._room = Bucket(values_per_second, burst, monotonic)
        self._latest: dict[str, Document] = {}
        self._written: dict[str, Document] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._not_before: dict[str, float] = {}

    def latest(self, subject: Subject, on_server: Mapping[str, Any]) -> Document:
        """Give the newest document of a scaler; that of the server where this process has made none yet."""
        if subject.uid not in self._latest:
            self._latest[subject.uid] = self._written[subject.uid] = on_server
        return self._latest[subject.uid]

    def offer(self, subject: Subject, document: Document, refresh_seconds: float = 60.0) -> None:
        """Take a new document; ``flush`` writes it if it is worth it."""
        self._latest[subject.uid] = document
        worth = worth_writing(self._written.get(subject.uid, {}), document, refresh_seconds)
        if worth is Worth.NEVER:
            self._waiting.pop(subject.uid, None)
            return
        self._wait(subject, worth, lambda: document)

    def postpone(self, subject: Subject, make: Callable[[], Document]) -> None:
        """Take a document of which only values are new; it is made when there is room to write it."""
        before = self._waiting.get(subject.uid)
        if before is None or before.worth is Worth.LATER:
            self._wait(subject, Worth.LATER, make)

    def _wait(self, subject: Subject, worth: Worth, make: Callable[[], Document]) -> None:
        before = self._waiting.get(subject.uid)
        since = before.since if before is not None else self._monotonic()
        self._waiting[subject.uid] = _Waiting(since, worth, subject, make)

    async def flush(self) -> None:
        """Write what is due. What could not be written is offered again by the next pass."""
        now = self._monotonic()
        ready = [entry for uid, entry in self._waiting.items() if self._not_before.get(uid, now) <= now]
        urgent = [entry for entry in ready if entry.worth is Worth.NOW]
        rest = sorted((e for e in ready if e.worth is Worth.LATER), key=lambda entry: entry.since)
        due = urgent
        for entry in rest:
            if not self._room.take():
                break
            due.append(entry)
        await asyncio.gather(*(self._write(entry) for entry in due))

    def forget(self, uid: str) -> None:
        """Drop a scaler that is gone."""
        for known in (self._latest, self._written, self._waiting, self._not_before):
            known.pop(uid, None)

    def forget_all(self) -> None:
        """Drop everything: another process leads, and its documents count."""
        for known in (self._latest, self._written, self._waiting, self._not_before):
            known.clear()

    async def _write(self, entry: _Waiting) -> None:
        uid = entry.subject.uid
        document = entry.make()
        result = await self._actor.write_status(entry.subject, document)
        if result.wrote is Wrote.DONE:
            self._latest[uid] = self._written[uid] = document
            self._waiting.pop(uid, None)
            self._not_before.pop(uid, None)
        elif result.wrote is Wrote.FAILED:
            self._not_before[uid] = self._monotonic() + RETRY_SECONDS
