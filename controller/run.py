"""``gpuscale run``: the operator. Wires the parts together, starts and stops them in the right order.

Why it exists: which part knows which is said here and nowhere else. On the way down the loop stops first, then the
Lease is released, then Kopf stops; an end of Kopf ends the process, with a failure.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web

from controller.act import Actor
from controller.cluster import Cluster, ConfigError
from controller.facts import ExporterFacts
from controller.handlers import Shell
from controller.leader import Durations, Elector, elapsed
from controller.loop import Loop
from controller.policy import PolicyDefaults
from controller.pool_round import PoolRound
from controller.reports import Reports
from controller.served_schema import keep_comparing
from controller.settings import Settings, SettingsError, add_arguments, settings_from
from controller.sources.credentials import Credentials
from controller.sources.exporters import Exporters
from controller.sources.prometheus import PrometheusServers
from controller.status_desk import StatusDesk
from controller.telemetry import Telemetry
from controller.view import POOLS, WORKLOADS, View
from controller.workload_round import WorkloadRound

__all__ = ["add_arguments", "main"]

log = logging.getLogger(__name__)

SCRAPE_SHARE = 0.4
"""The part of a tick that reading the sources may take."""
LATE_TICKS = 10
DEAD_WATCH_SECONDS = 60.0
STOP_SECONDS = 10.0


def main(args: argparse.Namespace) -> int:
    """Run until a signal. 0 = stopped by one, 1 = the operator failed, 2 = the settings or the kubeconfig are wrong."""
    try:
        settings = settings_from(args, os.environ)
    except SettingsError as error:
        return _refused(str(error))
    _configure_logging(settings)
    try:
        return asyncio.run(operate(settings))
    except ConfigError as error:
        return _refused(str(error))


async def operate(settings: Settings) -> int:
    """Run the operator in this event loop. Raises ConfigError where the cluster's configuration can't be read."""
    stopped = asyncio.Event()
    async with _operator(settings) as operator:
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, stopped.set)
        return await operator.until(stopped)


class Operator:
    """One running operator."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        clock = steady_clock()
        self._settings = settings
        self._cluster = cluster
        self._telemetry = Telemetry()
        durations = Durations(settings.lease_duration, settings.renew_deadline, settings.retry_period)
        self._elector = Elector(cluster, settings.lease_namespace, settings.lease_name, settings.identity, durations)
        cluster.guard_writes(self._elector.write_seconds)
        self._elector.on_change(lambda _leads: self._loop.wake())
        self.view = View(
            cluster,
            exporter_selector="" if settings.exporter_url else settings.exporter_selector,
            exporter_port=settings.exporter_port,
            exporter_namespaces=settings.exporter_namespace,
            exporter_scheme=settings.exporter_scheme,
            on_wake=lambda: self._loop.wake(),
        )
        self._shell = Shell(cluster, self.view.registry)
        self._actor = Actor(cluster, self._elector.is_leader, count=self._telemetry.wrote, clock=clock)
        self._exporters = Exporters(
            _given_or_found(settings, self.view),
            sought=_sought(settings),
            credentials=Credentials(settings.exporter_access),
            deadline_seconds=SCRAPE_SHARE * settings.tick,
            every_seconds=settings.tick,
            clock=clock,
        )
        self._prometheus = PrometheusServers(
            settings.prometheus, deadline_seconds=SCRAPE_SHARE * settings.tick, clock=clock
        )
        self._loop = self._make_loop(clock)
        self._tasks: list[asyncio.Task[None]] = []

    def _make_loop(self, clock: Callable[[], float]) -> Loop:
        defaults = PolicyDefaults(
            tolerance=self._settings.tolerance,
            downscale_stabilization_seconds=self._settings.downscale_stabilization,
            cpu_initialization_seconds=self._settings.cpu_initialization_period,
            initial_readiness_delay_seconds=self._settings.initial_readiness_delay,
        )
        desk = StatusDesk(self._actor, time.monotonic)
        reports = {
            kind.kind: Reports(kind.kind, self._actor, desk, self._telemetry, clock) for kind in (WORKLOADS, POOLS)
        }
        return Loop(
            self.view,
            self._exporters,
            self._prometheus,
            WorkloadRound(self.view, self._actor, reports[WORKLOADS.kind], defaults, clock),
            PoolRound(self.view, self._cluster, self._actor, reports[POOLS.kind], self._telemetry, clock),
            desk,
            self._telemetry,
            self._elector.is_leader,
            tick_seconds=self._settings.tick,
        )

    def start(self) -> None:
        """Begin to watch, to campaign, to look."""
        self.view.start()
        self._shell.start()
        self._tasks = [
            asyncio.create_task(self._elector.run(), name="elector"),
            asyncio.create_task(self._loop.run(), name="loop"),
        ]
        self._comparing = asyncio.create_task(
            keep_comparing(self._cluster, self._telemetry.definition_lacks), name="compares definitions"
        )

    async def until(self, stopped: asyncio.Event) -> int:
        """Wait for the signal, or for a part that ended although it must not."""
        ends = [
            asyncio.create_task(stopped.wait(), name="signal"),
            asyncio.create_task(self._shell.wait_ended(), name="kopf ended"),
        ]
        done, _ = await asyncio.wait([*ends, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if ends[0] in done:
            log.info("stopping")
            return 0
        log.error("%s ended, so the operator ends", ", ".join(task.get_name() for task in done))
        return 1

    async def stop(self) -> None:
        """Stop in the order that is safe: no more writes, then the lead, then the watches."""
        self._loop.stop()
        self._comparing.cancel()
        elector, loop = self._tasks
        await asyncio.wait([loop], timeout=STOP_SECONDS)
        for task in (loop, elector):
            task.cancel()
        await asyncio.wait([*self._tasks, self._comparing])
        await self._elector.release()
        await self._shell.stop()
        await self.view.stop()
        await self._exporters.close()
        await self._prometheus.close()

    def application(self) -> web.Application:
        """Serve /metrics, /healthz and /readyz."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        return app

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._telemetry.page(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _healthz(self, _: web.Request) -> web.Response:
        """Answer 503 where a restart would help: passes that stopped, watches that died."""
        faults = []
        late = time.monotonic() - self._loop.passed_at
        if late > max(30.0, LATE_TICKS * self._settings.tick):
            faults.append(f"the last whole pass ended {late:.0f} s ago")
        watches = max(self.view.oldest_watch_seconds(), self._shell.live_watch_age())
        if watches > DEAD_WATCH_SECONDS:
            faults.append(f"a watch has been dead for {watches:.0f} s")
        return web.Response(text="; ".join(faults) or "ok", status=503 if faults else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = [] if self.view.synced else self.view.unsynced()
        text = f"not listed yet: {', '.join(missing)}" if missing else "ok"
        return web.Response(text=text, status=503 if missing else 200)


def _given_or_found(settings: Settings, view: View) -> Callable[[], list[ExporterFacts]]:
    given = [ExporterFacts(url) for url in settings.exporter_url]
    return (lambda: given) if given else view.exporters


def _sought(settings: Settings) -> str:
    """Say which pods are taken for exporters."""
    namespaces = ", ".join(settings.exporter_namespace)
    where = f"in namespace {namespaces}" if namespaces else "in any namespace"
    return f"a running pod {where} with the labels {settings.exporter_selector} and a port {settings.exporter_port}"


def steady_clock() -> Callable[[], float]:
    """Make a clock of Unix seconds that nobody can set: a jump of the wall clock must not end a window early."""
    offset = time.time() - elapsed()
    return lambda: elapsed() + offset


@contextlib.asynccontextmanager
async def _operator(settings: Settings) -> AsyncIterator[Operator]:
    cluster = await Cluster.connect(
        settings.server or None, settings.kubeconfig or None, settings.context or None, None
    )
    try:
        operator = Operator(settings, cluster)
        async with _served(operator.application(), settings):
            operator.start()
            try:
                yield operator
            finally:
                await operator.stop()
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def _served(app: web.Application, settings: Settings) -> AsyncIterator[None]:
    host, port = settings.listen
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError(f"--listen {host}:{port}: {error.strerror}") from None
        address = "{}:{}".format(*runner.addresses[0][:2])
        log.info("serving on %s", address)
        if settings.address_file:
            _write_whole(Path(settings.address_file), address)
        yield
    finally:
        await runner.cleanup()


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or nothing."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _refused(message: str) -> int:
    sys.stderr.write(f"gpuscale run: {message}\n")
    return 2


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _configure_logging(settings: Settings) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for noisy in ("kopf", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
