"""The loop: observe, decide, act, every tick, workloads before pools. It orders the steps and does nothing else.

Why it exists: the order is the safety. Nothing happens before every copy of the cluster is whole, nothing without the
lead; all readings are fetched once and shared; what workloads will need is known to the pools of the same pass.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from controller.observe import Sources
from controller.pool_round import PoolRound
from controller.sources.exporters import Exporters
from controller.sources.prometheus import Ask, Fault, PrometheusServers
from controller.status_desk import StatusDesk
from controller.telemetry import Telemetry
from controller.view import View
from controller.workload_round import WorkloadRound

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.2
"""What asks for a pass at once comes in bursts; one pass serves what comes within this time or up to the tick."""
STALE_VIEW_SECONDS = 5.0
"""A copy of the cluster whose watch has been dead for longer is stale, and stale is missing: hold.

Fresh readings beside old pods are the danger: after an outage of the API server its nodes look lost for a moment,
their pods get no work, and pods that the copy still calls ready would look idle.
"""


class Loop:
    """Runs passes until stopped. ``wake`` asks for one before the tick."""

    def __init__(
        self,
        view: View,
        exporters: Exporters,
        prometheus: PrometheusServers,
        workloads: WorkloadRound,
        pools: PoolRound,
        desk: StatusDesk,
        telemetry: Telemetry,
        is_leader: Callable[[], bool],
        *,
        tick_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.passed_at = monotonic()
        """When the last pass ended, by the monotonic clock."""
        self._view = view
        self._exporters = exporters
        self._prometheus = prometheus
        self._workloads = workloads
        self._pools = pools
        self._desk = desk
        self._telemetry = telemetry
        self._is_leader = is_leader
        self._tick_seconds = tick_seconds
        self._monotonic = monotonic
        self._woken = asyncio.Event()
        self._stopping = False
        self._said = ""

    def wake(self) -> None:
        """Ask for a pass at once."""
        self._woken.set()

    def stop(self) -> None:
        """End after the pass that runs now."""
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Pass after pass until ``stop``."""
        while not self._stopping:
            started = self._monotonic()
            try:
                await self._pass_once()
            except Exception:  # the next pass looks at everything anew; only its age tells that this one failed
                log.exception("a pass failed")
                self._workloads.missed()
            else:
                self.passed_at = self._monotonic()
            self._telemetry.passed(self._monotonic() - started, leads=self._is_leader())
            await self._rest(started + self._tick_seconds)

    async def _pass_once(self) -> None:
        if not self._view.synced:
            self._say_once("waiting for full lists: " + ", ".join(self._view.unsynced()))
            self._workloads.missed()
            return
        self._said = ""
        if not self._is_leader():
            self._forget()
            return
        silent = self._view.oldest_watch_seconds()
        if silent > STALE_VIEW_SECONDS:
            log.warning("nothing is decided: what is known of the cluster has not been renewed for %.0f s", silent)
            self._workloads.missed()
            return
        await self.evaluate()

    async def evaluate(self) -> None:
        """Make one pass over everything. Needs synced stores."""
        started = self._monotonic()
        workloads = self._workloads.begin()
        pools = self._pools.begin()
        sources, targets, sizes = await asyncio.gather(
            self._read(self._workloads.asks(workloads)),
            self._workloads.targets(workloads),
            self._pools.sizes(pools),
        )
        index = self._view.pods()
        plans = self._workloads.plan(workloads, targets, sources, index)
        planned = [plan.planned for plan in plans if plan.planned is not None]
        pool_plans = self._pools.plan(pools, sizes, index, planned)
        await self._workloads.perform(plans)
        await self._pools.perform(pool_plans)
        self._telemetry.acted(self._monotonic() - started)
        await self._desk.flush()

    async def _read(self, asks: list[Ask]) -> Sources:
        gpu, queries = await asyncio.gather(self._exporters.read(), self._prometheus.read(asks))
        failing = sum(isinstance(result, Fault) for result in queries.values())
        failures = {"exporters": len(gpu.failures), "prometheus": failing}
        self._telemetry.sources(gpu.exporters, failures, foreign_pods=len(gpu.foreign))
        return Sources(gpu, queries)

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.info(text)

    def _forget(self) -> None:
        """Another process leads: when it is our turn, its memory, kept in status, counts."""
        self._workloads.forget_all()
        self._pools.forget_all()
        self._desk.forget_all()

    async def _rest(self, until: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - self._monotonic())):
                await self._woken.wait()
        if self._woken.is_set() and not self._stopping:
            await asyncio.sleep(max(0.0, min(GATHER_SECONDS, until - self._monotonic())))
        self._woken.clear()
