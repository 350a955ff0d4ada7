"""Who may write: the election of one leader through a Lease.

Why it exists: two controllers that write at once undo each other. The rules that keep them apart are few and are
written out here: a leader counts its right from the moment *before* it sent the renewal, and loses it by its own
monotonic clock; a candidate takes over only what it has itself seen unchanged for the whole lease duration. No wall
clocks of two machines are ever compared.
"""

import asyncio
import contextlib
import logging
import math
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controller.cluster import LEASE, ApiError, Cluster, Conflict, NotFound, Object

log = logging.getLogger(__name__)

LONGEST_TRUSTED_FACTOR = 10
"""Another holder's lease duration is believed up to this many times our own; a garbled one must not lock us out."""


def elapsed() -> float:
    """Seconds on a clock that nobody sets and that, where the system has one, goes on while the machine sleeps."""
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds. ``retry`` < ``renew_deadline`` < ``lease``: the gap to ``lease`` is what a write under way may last."""

    lease: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry * 2 < self.renew_deadline < self.lease:
            raise ValueError(
                f"lease durations must satisfy 0 < 2 x retry period < renew deadline < lease duration, "
                f"not {self.retry:g}, {self.renew_deadline:g}, {self.lease:g}"
            )


@dataclass(frozen=True, slots=True)
class _Seen:
    """Another's record, when it was first seen in this form on our clock, and for how long it may lead from there.

    It counts even if the Lease vanishes: its holder may not have noticed yet.
    """

    spec: tuple[Any, ...]
    at: float
    lasts: float


class Elector:
    """Takes part in the election for one Lease. ``is_leader()`` is asked right before each write."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        durations: Durations | None = None,
        clock: Callable[[], float] = elapsed,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        """``identity`` is for people; a random ending makes it ours alone, also after a restart under one name."""
        self.identity = f"{identity}_{secrets.token_hex(4)}"
        self.holder = ""
        """Who holds the Lease as last seen, "" for nobody."""
        self.last_error = ""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._durations = durations if durations is not None else Durations()
        self._clock = clock
        self._sleep = sleep
        self._leads_until = float("-inf")
        self._lease: Object | None = None
        self._seen: _Seen | None = None
        self._released = False
        self._told = False
        self._callbacks: list[Callable[[bool], None]] = []
        self._turn = asyncio.Lock()

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call ``callback(leads)`` when leadership was won or found lost (a loss may be noticed after the fact)."""
        self._callbacks.append(callback)

    def is_leader(self) -> bool:
        """Whether we may write now. False as soon as the renew deadline has passed, even if nothing else ran."""
        return self._clock() < self._leads_until

    def remaining_seconds(self) -> float:
        """How long we lead for certain without another renewal, 0 if we don't."""
        return max(0.0, self._leads_until - self._clock())

    def write_seconds(self) -> float:
        """How long a write that is sent now may last, 0 if we don't lead: no other can lead before that is over."""
        remaining = self.remaining_seconds()
        return remaining + self._durations.lease - self._durations.renew_deadline if remaining else 0.0

    async def run(self) -> None:
        """Campaign, lead, renew, lose, campaign again, until cancelled."""
        while True:
            await self.step()
            await self._sleep(self._durations.retry * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, not a secret

    async def step(self) -> None:
        """Try once to get or to renew the Lease; never raises an ApiError."""
        self._tell()
        async with self._turn:
            if not self._released:
                await self._step()
        self._tell()

    async def release(self) -> None:
        """Stop leading, for good, and say so in the Lease, so that another needs not wait. Stop all writes before."""
        held = self.is_leader()
        self._released = True
        self._leads_until = float("-inf")
        self._tell()
        async with self._turn:
            if held or self.holder == self.identity:
                with contextlib.suppress(ApiError, TimeoutError):
                    await self._give_up()

    async def _step(self) -> None:
        try:
            async with asyncio.timeout(self._call_seconds):
                if not await self._renewed():
                    await self._campaign()
            self.last_error = ""
        except Conflict:
            log.info("lease %s: another write came first", self._name)
        except (ApiError, TimeoutError) as error:
            sentence = str(error) or f"no answer within {self._call_seconds:g} s"
            level = logging.DEBUG if sentence == self.last_error else logging.WARNING
            log.log(level, "lease %s/%s: %s", self._namespace, self._name, sentence)
            self.last_error = sentence

    @property
    def _call_seconds(self) -> float:
        """The time for one try: two more fit into the renew deadline."""
        return self._durations.renew_deadline / 3

    async def _renewed(self) -> bool:
        """Renew what we hold, without reading it first: its resourceVersion makes that safe. False = look again."""
        lease, self._lease = self._lease, None
        if lease is None or not self.is_leader():
            return False
        try:
            await self._write(lease)
        except (Conflict, NotFound):
            return False
        return True

    async def _campaign(self) -> None:
        try:
            lease = await self._cluster.get(LEASE, self._name, self._namespace)
        except NotFound:
            self.holder = ""
            if self._seen is None or self._clock() - self._seen.at >= self._seen.lasts:
                await self._create()
            return
        self.holder = _holder(lease)
        if self.holder != self.identity:
            self._leads_until = float("-inf")
        if self.holder == self.identity or not self.holder or self._may_take_over(lease):
            await self._write(lease)

    def _may_take_over(self, lease: Object) -> bool:
        """Whether we have seen the other's record unchanged for as long as it may lead."""
        spec, now = _spec(lease), self._clock()
        if self._seen is None or self._seen.spec != _record(spec):
            theirs = min(_positive(spec.get("leaseDurationSeconds")), LONGEST_TRUSTED_FACTOR * self._durations.lease)
            self._seen = _Seen(_record(spec), now, max(self._durations.lease, theirs))
        return now - self._seen.at >= self._seen.lasts

    async def _create(self) -> None:
        sent_at = self._clock()
        lease = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._new_spec({}),
        }
        self._won(await self._cluster.create(LEASE, lease, self._namespace), sent_at)

    async def _write(self, lease: Object) -> None:
        sent_at = self._clock()
        self._won(await self._replace(lease, self._new_spec(_spec(lease))), sent_at)

    async def _replace(self, lease: Object, spec: Object) -> Object:
        return await self._cluster.replace(LEASE, lease | {"spec": spec}, self._namespace)

    def _won(self, lease: Object, sent_at: float) -> None:
        self._lease = lease
        self._seen = None
        self.holder = self.identity
        if not self._released:
            self._leads_until = sent_at + self._durations.renew_deadline

    def _new_spec(self, old: Object) -> Object:
        now = micro_time(datetime.now(UTC))
        keeps = old.get("holderIdentity") == self.identity
        transitions = int(_positive(old.get("leaseTransitions")))
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self._durations.lease),
            "acquireTime": old.get("acquireTime") if keeps and old.get("acquireTime") else now,
            "renewTime": now,
            "leaseTransitions": transitions if keeps or not old else transitions + 1,
        }

    async def _give_up(self) -> None:
        """Write an empty holder, if the Lease is still ours."""
        async with asyncio.timeout(self._call_seconds):
            lease = await self._cluster.get(LEASE, self._name, self._namespace)
            if _holder(lease) == self.identity:
                spec = {key: value for key, value in _spec(lease).items() if key != "holderIdentity"}
                spec |= {"leaseDurationSeconds": 1, "renewTime": micro_time(datetime.now(UTC))}
                await self._replace(lease, spec)
                self.holder = ""

    def _tell(self) -> None:
        leads = self.is_leader()
        if leads != self._told:
            self._told = leads
            log.info("%s leadership of lease %s/%s", "won" if leads else "lost", self._namespace, self._name)
            for callback in self._callbacks:
                callback(leads)


def micro_time(moment: datetime) -> str:
    """Write a moment as the API's MicroTime: UTC, six digits, ending in Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _spec(lease: Object) -> Object:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


def _holder(lease: Object) -> str:
    return str(_spec(lease).get("holderIdentity") or "")


def _record(spec: Object) -> tuple[Any, ...]:
    """Take the part of a Lease that its holder renews; labels and annotations of others are no sign of life."""
    return tuple(spec.get(key) for key in ("holderIdentity", "renewTime", "acquireTime", "leaseTransitions"))


def _positive(value: object) -> float:
    """Read a number that another program wrote; nonsense counts as 0."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0.0
