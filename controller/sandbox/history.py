"""What happened to one kind, for as long as it is kept: the source of watches and of 410."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Any, Literal

from controller.sandbox.errors import expired

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]
Object = dict[str, Any]


def encode(document: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


class Entry:
    """One version of one object. The object is never altered, so that it can be shared and its JSON kept."""

    __slots__ = ("_body", "key", "obj", "version")

    def __init__(self, key: str, obj: Object, version: int) -> None:
        self.key = key
        self.obj = obj
        self.version = version
        self._body: bytes | None = None

    @property
    def body(self) -> bytes:
        """The object as JSON, encoded at most once."""
        if self._body is None:
            self._body = encode(self.obj)
        return self._body


class Change:
    """One event: its type, the version after it (for DELETED the last one) and the version before it."""

    __slots__ = ("entry", "previous", "type", "version")

    def __init__(self, type_: ChangeType, entry: Entry, previous: Entry | None, version: int) -> None:
        self.type: ChangeType = type_
        self.entry = entry
        self.previous = previous
        self.version = version


class Subscription:
    """A stream of changes of one kind for one reader, in order and without a gap until it is closed.

    ``limit`` bounds what a slow reader may leave waiting (0 = no bound); past it the stream is closed.
    """

    def __init__(self, history: "History", limit: int = 0) -> None:
        self._history = history
        self._limit = limit
        self._waiting: deque[Change] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False

    def put(self, change: Change) -> None:
        """Take one more change."""
        self._waiting.append(change)
        if self._limit and len(self._waiting) > self._limit:
            self.close()
        self._wake()

    def close(self) -> None:
        """End the stream: readers get what is waiting, then the end."""
        self.closed = True
        self._history.subscriptions.discard(self)
        self._wake()

    def empty(self) -> bool:
        """Whether nothing is waiting."""
        return not self._waiting

    async def take(self) -> list[Change]:
        """Wait for at least one change and give all that are waiting; an empty list is the end."""
        while not self._waiting and not self.closed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    async def get(self) -> tuple[ChangeType, Object]:
        """Wait for the next change: its type and the object, which must not be altered. ``EOFError`` at the end."""
        while not self._waiting:
            if self.closed:
                raise EOFError("the subscription was closed")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.get_nowait()

    def get_nowait(self) -> tuple[ChangeType, Object]:
        """Give the next waiting change; raises ``IndexError`` when there is none."""
        change = self._waiting.popleft()
        return change.type, change.entry.obj

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class History:
    """The last changes of one kind, at most ``size``, and those who want the next ones.

    ``floor`` is the version of the newest change that is no longer kept.
    """

    def __init__(self, size: int, floor: int = 0) -> None:
        self._changes: deque[Change] = deque(maxlen=size)
        self.floor = floor
        self.subscriptions: set[Subscription] = set()
        self.listeners: list[Callable[[Change], None]] = []

    def append(self, change: Change) -> None:
        """Keep the change and hand it to every subscription, then to those who act on it at once."""
        if len(self._changes) == self._changes.maxlen:
            self.floor = self._changes[0].version
        self._changes.append(change)
        for subscription in tuple(self.subscriptions):
            subscription.put(change)
        for listener in self.listeners:
            listener(change)

    def subscribe(self, limit: int = 0) -> Subscription:
        """Stream what happens from now on."""
        subscription = Subscription(self, limit)
        self.subscriptions.add(subscription)
        return subscription

    def since(self, version: int) -> list[Change]:
        """Every change after ``version``, oldest first. Raises 410 when some of them are no longer kept."""
        if version < self.floor:
            raise expired(f"too old resource version: {version} ({self.floor})")
        newer = list(takewhile(lambda change: change.version > version, reversed(self._changes)))
        return newer[::-1]

    def compact(self, version: int) -> None:
        """Forget everything up to ``version``: an older watch gets 410."""
        self._changes.clear()
        self.floor = max(self.floor, version)
