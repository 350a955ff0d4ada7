"""Everything that the operator writes, each write behind a check that this process leads.

Why it exists: one place to look at for what is changed in a cluster, and in which order: marks on victims, the size,
status, Events. Nothing here decides anything, and nothing is retried blindly: a size that somebody else changed
meanwhile is decided again.
"""

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controller.buckets import Bucket
from controller.cluster import EVENT, NODE, POD, ApiError, Cluster, Conflict, Kind, NotFound, NotLeading
from controller.core.model import Reason
from controller.facts import DELETION_COST, MARKED_BY
from controller.pool_spec import VictimMark
from controller.pools.scale import ScaleProvider
from controller.status import timestamp
from controller.victim_marks import VICTIM_COST

log = logging.getLogger(__name__)

WRITE_SECONDS = 4.0
"""The longest that one write may take: shorter than what lies between renew deadline and lease duration."""
_EVENTS_PER_SECOND = 2.0
_EVENT_BURST = 50.0
_MOST_EVENTS_WAITING = 100


class Wrote(StrEnum):
    """What became of a write."""

    DONE = "done"
    CHANGED_MEANWHILE = "changed-meanwhile"
    NOT_LEADER = "not-leader"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a write, and the error's sentence."""

    wrote: Wrote
    message: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The custom resource that a write is about."""

    kind: Kind
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind.kind} {self.name}"


class NotLeaderError(Exception):
    """Raised right before a write where the process does not lead, or no longer."""


class Actor:
    """Writes to the cluster as long as ``is_leader`` says so."""

    def __init__(
        self,
        cluster: Cluster,
        is_leader: Callable[[], bool],
        *,
        count: Callable[[str, str], None] = lambda _what, _result: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._is_leader = is_leader
        self._count = count
        self._clock = clock
        self._event_room = Bucket(_EVENTS_PER_SECOND, _EVENT_BURST, monotonic)
        self._to_tell: deque[tuple[Subject, Reason, str, bool]] = deque()
        self._telling: asyncio.Task[None] | None = None

    async def resize_workload(
        self, api_version: str, kind: str, namespace: str, name: str, before: int, after: int
    ) -> Result:
        """Set a workload's size, if it still is ``before`` and nobody writes in between."""

        async def write() -> None:
            resolved = await self._cluster.resolve(api_version, kind)
            scale = await self._cluster.get_scale(resolved, name, namespace)
            if scale.spec_replicas != before:
                raise Conflict(409, "Conflict", f"the size is {scale.spec_replicas}, not {before} as decided from")
            self._check_leader()
            await self._cluster.patch_scale(resolved, name, namespace, after, scale.resource_version)

        return await self._guarded("scale", f"{kind} {namespace}/{name} {before} -> {after}", write())

    async def resize_pool(self, provider: ScaleProvider, name: str, before: int, after: int) -> Result:
        """Set a pool's size, if it still is ``before``."""
        resize = provider.resize(after, expect=before, before_write=self._check_leader)
        return await self._guarded("pool", f"pool {name} {before} -> {after}", resize)

    async def mark_victims(self, namespace: str, victims: Sequence[str]) -> Result:
        """Make these pods the first that a shrink takes, in this order."""
        costs = {name: str(VICTIM_COST + position) for position, name in enumerate(victims)}
        return await self._annotate_pods(namespace, costs)

    async def clear_victims(self, namespace: str, pods: Iterable[str]) -> Result:
        """Take our mark back from pods that stay."""
        return await self._annotate_pods(namespace, dict.fromkeys(pods))

    async def mark_node(self, name: str, mark: VictimMark, pool: str) -> Result:
        """Cordon a node and give it the mark by which the provider will remove it, signed with the scaler's name."""
        annotations = {mark.annotation: mark.value, MARKED_BY: pool}
        body = {"metadata": {"annotations": annotations}, "spec": {"unschedulable": True}}
        return await self._guarded("node", f"mark node {name}", self._cluster.patch(NODE, name, body))

    async def release_node(self, name: str, mark: VictimMark) -> Result:
        """Take back cordon and mark."""
        annotations = {mark.annotation: None, MARKED_BY: None}
        body = {"metadata": {"annotations": annotations}, "spec": {"unschedulable": None}}
        return await self._guarded("node", f"release node {name}", self._cluster.patch(NODE, name, body))

    async def write_status(self, subject: Subject, document: Mapping[str, Any]) -> Result:
        """Replace the whole status."""
        body = [{"op": "add", "path": "/status", "value": document}]
        patch = self._cluster.patch(
            subject.kind, subject.name, body, subject.namespace or None, subresource="status", content="json"
        )
        return await self._guarded("status", f"status of {subject}", patch)

    def tell_soon(self, subject: Subject, reason: Reason, message: str, *, warning: bool = False) -> None:
        """Have an Event posted without waiting for it: where Events hang, sizes must not. At most 100 wait."""
        if len(self._to_tell) >= _MOST_EVENTS_WAITING:
            self._count("event", "dropped")
            return
        self._to_tell.append((subject, reason, message, warning))
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_all(), name="posts Events")

    async def _tell_all(self) -> None:
        while self._to_tell:
            subject, reason, message, warning = self._to_tell.popleft()
            await self.tell(subject, reason, message, warning=warning)

    async def tell(self, subject: Subject, reason: Reason, message: str, *, warning: bool = False) -> Result:
        """Post an Event about the resource, if there is room; Events are dropped rather than queued."""
        if not self._event_room.take():
            self._count("event", "dropped")
            return Result(Wrote.FAILED, "too many Events")
        event = self._event(subject, reason, message, warning=warning)
        namespace = event["metadata"]["namespace"]
        return await self._guarded("event", f"event of {subject}", self._cluster.create(EVENT, event, namespace))

    async def _annotate_pods(self, namespace: str, costs: Mapping[str, str | None]) -> Result:
        """Write all at once; gives the first failure. A pod that is gone needs no mark."""
        results = await asyncio.gather(*(self._annotate_pod(namespace, name, cost) for name, cost in costs.items()))
        failed = (r for r in results if r.wrote is not Wrote.DONE and "NotFound" not in r.message)
        return next(failed, Result(Wrote.DONE))

    async def _annotate_pod(self, namespace: str, name: str, cost: str | None) -> Result:
        body = {"metadata": {"annotations": {DELETION_COST: cost}}}
        return await self._guarded("pod", f"pod {namespace}/{name}", self._cluster.patch(POD, name, body, namespace))

    def _check_leader(self) -> None:
        if not self._is_leader():
            raise NotLeaderError

    async def _guarded(self, what: str, where: str, write: Awaitable[object]) -> Result:
        """Run one write: only as leader, within its time, with its outcome as a value."""
        if not self._is_leader():
            _drop(write)
            return self._counted(what, Result(Wrote.NOT_LEADER))
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await write
        except (NotLeaderError, NotLeading):
            return self._counted(what, Result(Wrote.NOT_LEADER))
        except Conflict as conflict:
            log.info("%s: changed meanwhile, decided again: %s", where, conflict.message)
            return self._counted(what, Result(Wrote.CHANGED_MEANWHILE, conflict.message))
        except (ApiError, TimeoutError) as error:
            message = str(error) or f"no answer within {WRITE_SECONDS:g} s"
            log.log(logging.DEBUG if isinstance(error, NotFound) else logging.WARNING, "%s: %s", where, message)
            return self._counted(what, Result(Wrote.FAILED, message))
        return self._counted(what, Result(Wrote.DONE))

    def _counted(self, what: str, result: Result) -> Result:
        self._count(what, result.wrote.value)
        return result

    def _event(self, subject: Subject, reason: Reason, message: str, *, warning: bool) -> dict[str, Any]:
        now = self._clock()
        namespace = subject.namespace or "default"
        digest = hashlib.sha256(f"{subject.uid}{reason}{message}{now}".encode()).hexdigest()[:16]
        moment = timestamp(now)[:19] + "Z"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{subject.name[:230]}.{digest}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": subject.kind.api_version,
                "kind": subject.kind.kind,
                "namespace": subject.namespace,
                "name": subject.name,
                "uid": subject.uid,
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason.value,
            "message": message[:1000],
            "source": {"component": "gpuscale"},
            "reportingComponent": "gpuscale.dev/controller",
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }


def _drop(write: Awaitable[object]) -> None:
    """Close a coroutine that will not be awaited."""
    close = getattr(write, "close", None)
    if close is not None:
        close()
