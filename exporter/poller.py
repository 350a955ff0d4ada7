"""Readings and allocations -> one immutable Snapshot a period, rendered once.

Why it exists: the driver is asked by the clock, never by a scrape. However many scrape, and whatever hangs, a scrape
costs the copying of bytes that are ready.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from exporter import catalogue
from exporter.accounts import Accounts
from exporter.budget import Budget
from exporter.dialects import Spoken
from exporter.exposition import Body, Demand, Families, Renderer, Texts, finish
from exporter.health import DEFAULT_POLICY, HealthPolicy
from exporter.holdings import Holdings, held_at
from exporter.owners import Matched, ProcessOwners, with_names
from exporter.pace import Pace
from exporter.process_metrics import ProcessMetrics
from exporter.readings import PROCESSES_OFF, AbsentReason, Allocation, GpuReading, Snapshot, SourceState
from exporter.samples import collect, withdrawn
from exporter.samples_processes import process_samples
from exporter.system_memory import SystemMemory

log = logging.getLogger("exporter.poller")

COUNTED_POLLS = 3
"""Of a longer gap between two polls, only this many periods count as GPU-seconds."""

NATIVE_ONLY = Spoken()


class Source(Protocol):
    """Where readings come from: the driver or the simulation."""

    @property
    def driver_version(self) -> str:
        """Version of the driver, "" while unknown."""

    @property
    def needs_restart(self) -> str | None:
        """Why only a new process can read this driver; None = it need not be."""

    async def read(self, now: float) -> tuple[tuple[GpuReading, ...], SourceState]:
        """Every GPU of the node. Never raises, never blocks the loop, ends within its deadline."""

    async def close(self) -> None:
        """Let go of everything within 1 s, whatever hangs."""


class AllocationSource(Protocol):
    """Where allocations come from: the kubelet or the simulation."""

    async def allocations(self) -> tuple[tuple[Allocation, ...] | None, SourceState]:
        """Who holds what, or None and why. Never raises, never blocks the loop, ends within its deadline."""

    async def close(self) -> None:
        """Let go of everything within 1 s, whatever hangs."""


@dataclass(frozen=True)
class Publication:
    """One finished poll. ``began``: monotonic time at which its reading began, so that ages do not follow the wall."""

    snapshot: Snapshot
    began: float
    fresh: Body
    make_stale: Callable[[], Body]
    native: Body
    """``fresh`` in native names only."""
    series: int = 0
    """GPU series of ``fresh``, and the most that it may have (0 = any number)."""
    most_series: int = 0

    @cached_property
    def stale(self) -> Body:
        """Health only: what is served once the snapshot is too old. Made when it is, which is seldom."""
        return self.make_stale()


class _Pages:
    """The two pages of a poll: native names beside the dialects' (they replace native families), and native alone."""

    def __init__(self, spoken: Spoken) -> None:
        self._replaced = spoken.replaced
        self._kept = Renderer([metric for metric in catalogue.CATALOGUE if metric not in self._replaced])
        self._giving_way = Renderer([metric for metric in catalogue.CATALOGUE if metric in self._replaced])
        self._foreign = Renderer(spoken.order)
        self._alone = not spoken.names
        self._demand = Demand()
        self._demand_native = Demand()

    def render(self, native: Families, foreign: Families, own: Texts) -> tuple[Body, Body]:
        """Return the page in all names and that in native names; one object where they are the same."""
        kept = self._kept.render(native) + own
        if self._alone:
            body = finish(kept, self._demand)
            return body, body
        everything = finish(kept + self._foreign.render(foreign), self._demand)
        return everything, finish(kept + self._giving_way.render(native), self._demand_native)


class Poller:
    """Polls in a period of ``period_seconds``; ``latest`` is the last finished poll, None before the first.

    Who serves it tells ``pace`` of each read.
    """

    def __init__(
        self,
        source: Source,
        allocations: AllocationSource,
        node: str,
        period_seconds: float,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        health_policy: HealthPolicy = DEFAULT_POLICY,
        spoken: Spoken = NATIVE_ONLY,
        most_series: int = 0,
        owners: ProcessOwners | None = None,
        system_memory: SystemMemory | None = None,
        *,
        process_series: bool = False,
        longest_gap_seconds: float = math.inf,
    ) -> None:
        self.latest: Publication | None = None
        self.pace = Pace(period_seconds, longest_gap_seconds)
        self._source = source
        self._allocations = allocations
        self._node = node
        self._wall = wall
        self._monotonic = monotonic
        self._health_policy = health_policy
        self._owners = owners
        self._system_memory = system_memory
        self._process_series = process_series
        self._accounts = Accounts(longest_seconds=COUNTED_POLLS * period_seconds)
        self._own = ProcessMetrics()
        self._spoken = spoken
        self._budget = Budget(most_series)
        self._pages = _Pages(spoken)
        # one thread, always the same: the allocator keeps the pages of each thread that ever made one
        self._press = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")
        self._known: tuple[GpuReading, ...] = ()
        self._polls = 0
        self._failures = 0
        self._told: set[tuple[str, ...]] = set()

    async def run(self) -> str:
        """Poll in the rhythm of ``pace`` until only a new process can go on; returns why."""
        due = self._monotonic()
        while True:
            if reason := self._source.needs_restart:
                return reason
            try:
                await self.poll()
            except Exception:
                log.exception("a poll failed; the values age and are withdrawn if this goes on")
            due = self.pace.after(due, self._monotonic())
            await asyncio.sleep(due - self._monotonic())

    async def poll(self) -> Publication:
        """One poll, read and rendered. Becomes ``latest``."""
        began = self._monotonic()
        snapshot, who = await self._read(began)
        # in a thread: compression lets go of the interpreter, and scrapes go on meanwhile
        publication = await asyncio.get_running_loop().run_in_executor(self._press, self._publish, snapshot, who, began)
        self.latest = publication
        return publication

    async def _read(self, began: float) -> tuple[Snapshot, Holdings]:
        taken_at = self._wall()
        (gpus, driver), (allocations, kubelet) = await asyncio.gather(
            self._source.read(taken_at), self._allocations.allocations()
        )
        if self._system_memory:
            gpus = self._system_memory.fill(gpus)
        matched = await self._match(gpus, allocations)
        self._polls += 1
        self._failures += not driver.up
        snapshot = Snapshot(
            taken_at=taken_at,
            gpus=self._with_known(with_names(gpus, matched), driver),
            allocations=matched.allocations,
            processes=matched.state,
            unresolved_processes=matched.unresolved,
            process_owners=matched.owners,
            driver=driver,
            kubelet=kubelet,
            driver_version=self._source.driver_version,
            poll_seconds=self._monotonic() - began,
            polls=self._polls,
            driver_failures=self._failures,
        )
        self._tell_sources(snapshot)
        # a GPU that did not answer is missing from what was matched
        known = matched.who if driver.up else None
        return snapshot, known.told_of({gpu.uuid: gpu for gpu in snapshot.gpus}) if known else held_at(snapshot)

    async def _match(self, gpus: tuple[GpuReading, ...], allocations: tuple[Allocation, ...] | None) -> Matched:
        return await self._owners.match(gpus, allocations) if self._owners else Matched(allocations, PROCESSES_OFF)

    def _with_known(self, gpus: tuple[GpuReading, ...], driver: SourceState) -> tuple[GpuReading, ...]:
        """While the driver does not answer, its GPUs are absent, not gone: they keep their identity."""
        if driver.up:
            self._known = gpus
            return gpus
        named = {gpu.uuid for gpu in gpus}
        missing = (gpu for gpu in self._known if gpu.uuid not in named)
        return gpus + tuple(
            GpuReading(gpu.uuid, gpu.index, gpu.name, fault=AbsentReason.DRIVER_ERROR) for gpu in missing
        )

    def _publish(self, snapshot: Snapshot, who: Holdings, began: float) -> Publication:
        health, values = collect(snapshot, who, self._node, self._health_policy)
        values = {**values, **self._accounts.add(snapshot, who, began, self._node)}
        self._tell_gpus(health)
        foreign = self._spoken.families(snapshot, who, self._node, values)
        processes = process_samples(snapshot, self._node) if self._process_series else {}
        values, foreign, processes = self._budget.fit(health, values, foreign, processes)
        health = {
            **health,
            catalogue.SERIES: {(self._node,): self._budget.series},
            catalogue.SERIES_DROPPED: {(self._node,): self._budget.dropped_total},
        }
        fresh, native = self._pages.render({**values, **processes, **health}, foreign, self._own.render())
        stale = partial(_stale_page, snapshot, self._node)
        return Publication(snapshot, began, fresh, stale, native, self._budget.series, self._budget.most)

    def _tell_sources(self, snapshot: Snapshot) -> None:
        before = self.latest.snapshot if self.latest else None
        for name, was, now in (
            ("driver", before and before.driver, snapshot.driver),
            ("kubelet", before and before.kubelet, snapshot.kubelet),
            ("matching of processes", before and before.processes, snapshot.processes),
        ):
            if was and (was.up, was.reason) == (now.up, now.reason):
                continue
            if now.up:
                log.info("%s answers", name)
            else:
                level = logging.INFO if now.reason == "off" else logging.WARNING
                log.log(level, "%s does not answer (%s): %s", name, now.reason, now.message)

    def _tell_gpus(self, health: Families) -> None:
        """One line for each (GPU, field) and each GPU that becomes absent, not one a poll."""
        absent = set(health.get(catalogue.GPU_ABSENT, ()))
        for labels in absent - self._told:
            log.warning("GPU %s (%s) is absent: %s", *labels[1:])
        fields = set(health.get(catalogue.GPU_CAPABILITY, ()))
        for labels in fields - self._told:
            log.info("GPU %s: %s is not published: %s", *labels[1:])
        gpus = {labels[1] for labels in health.get(catalogue.GPU_UP, ())}
        # a field that comes and goes is told once; a GPU that is absent again is told again
        remembered = {labels for labels in self._told if labels[1] in gpus and labels[2] in _FIELDS}
        self._told = remembered | absent | fields


def _stale_page(snapshot: Snapshot, node: str) -> Body:
    health, _ = collect(withdrawn(snapshot), Holdings(), node)
    return finish(Renderer().render(health))


_FIELDS = frozenset(GpuReading.__dataclass_fields__)
