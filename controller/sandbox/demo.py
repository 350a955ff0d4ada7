"""The verb ``demo``: the whole product on an embedded cluster, then a summary of what it did and why.

In this process run the emulated API and the simulated world; the operator and the exporters are processes of their own,
started as a user would start them. Nothing is left behind: children are ended by their id, the folder is removed.
"""

import argparse
import asyncio
import contextlib
import json
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from controller.crds import definitions
from controller.resources import GROUP
from controller.sandbox import api, nodepool, scenario
from controller.sandbox.children import last_line
from controller.sandbox.display import Display
from controller.sandbox.exporters import EXPORTER_GAP_SECONDS
from controller.sandbox.load import SHORTEST_WAVE_SECONDS, Load, from_file, waves
from controller.sandbox.operator_process import OperatorProcess
from controller.sandbox.record import Decisions, Target
from controller.sandbox.recordings import LoadError
from controller.sandbox.scenario import Scenario
from controller.sandbox.store import Store
from controller.sandbox.summary import FORM, Run, lines, summary
from controller.sandbox.world import Served, World

DEFAULT_SECONDS = 120.0
LONGEST_SECONDS = 86_400.0
DEFAULT_TICK_SECONDS = 2.0
STEP_SECONDS = 0.25
START_SECONDS = 90.0
"""How long the parts may take to start; a busy machine needs some seconds."""
KUBECONFIG_MARK = "# written by gpuscale demo; valid until it ends\n"


class UsageError(Exception):
    """The command line asks for what cannot be done. The message is one line."""


class PartDiedError(Exception):
    """A part of the demo ended or never came up. The message says which and what it said last."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    seconds: float
    tick_seconds: float
    load: Load
    json: Path | None
    kubeconfig: Path | None
    scenario: Scenario


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
    parser.add_argument("--for", dest="seconds", default=DEFAULT_SECONDS, metavar="SECONDS", help="default 120")
    parser.add_argument("--load", metavar="FILE", help="CSV of time and demand, or of requests with token counts")
    parser.add_argument("--json", metavar="FILE", help="write the summary as JSON too (keys: docs/demo.md)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="where to write the kubeconfig; removed at the end")
    parser.add_argument(
        "--tick", default=DEFAULT_TICK_SECONDS, metavar="SECONDS", help="the operator's tick, default 2"
    )


def main(args: argparse.Namespace) -> int:
    """Exit code 0 = it ran, or was interrupted; 1 = a part died; 2 = bad usage or an unusable file."""
    try:
        options = options_from(args)
    except (UsageError, LoadError) as error:
        print(f"gpuscale demo: {error}", file=sys.stderr)
        return 2
    return asyncio.run(demo(options))


def options_from(args: argparse.Namespace) -> Options:
    """Check the flags and read the load. Raises UsageError or LoadError."""
    seconds = _number("--for", args.seconds, 1.0, LONGEST_SECONDS)
    tick = _number("--tick", args.tick, 0.2, 60.0)
    numbers = Scenario()
    given = args.load is not None
    load = from_file(args.load, seconds, numbers.peak_gpus) if given else waves(seconds, numbers.peak_gpus)
    return Options(seconds, tick, load, _writable("--json", args.json), _kubeconfig(args.kubeconfig), numbers)


def _number(flag: str, text: Any, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise UsageError(f"{flag} {text}: expected seconds from {least:g} to {most:g}")
    return value


def _writable(flag: str, name: str | None) -> Path | None:
    """Find out now, and not after two minutes, that a file cannot be written."""
    if name is None:
        return None
    path = Path(name)
    try:
        with path.open("a"):
            return path
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag} {name}: cannot be written: {getattr(error, 'strerror', error)}") from error


def _kubeconfig(name: str | None) -> Path | None:
    """Accept a new file or one that a demo wrote: the file is removed at the end, and nobody's clusters go with it."""
    if name is None:
        return None
    path = Path(name)
    if path.exists() and not _ours(path):
        raise UsageError(f"--kubeconfig {name}: is there already and not from a demo; name a new file")
    return _writable("--kubeconfig", name)


def _ours(path: Path) -> bool:
    if not path.is_file():
        return False
    text = path.read_bytes()
    return not text or text.startswith(KUBECONFIG_MARK.encode())


async def demo(options: Options) -> int:
    """Run the demo and write its summary."""
    with _interrupts() as stop:
        stage = Stage(options)
        try:
            outcome, failure = await stage.run(stop)
            return stage.conclude(outcome, failure)
        finally:
            await stage.close()


@contextlib.contextmanager
def _interrupts() -> Iterator[asyncio.Event]:
    """Turn Ctrl-C and its like into an event, to the very end: a second one must not leave children behind."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in caught:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


class Stage:
    """The running demo: its parts, and how they are started and ended."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="gpuscale-demo-"))
        self.kubeconfig = options.kubeconfig or self.folder / "kubeconfig"
        self.started = time.time()
        self.began = self.started
        self.store = Store()
        self.world: World | None = None
        self.operator: OperatorProcess | None = None
        self.display: Display | None = None
        self._runner: web.AppRunner | None = None

    async def run(self, stop: asyncio.Event) -> tuple[str, str | None]:
        """Start everything, let the load run, and give the outcome and the failure, if there is one."""
        work = asyncio.create_task(self._play())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return "interrupted", None
        try:
            await work
        except PartDiedError as error:
            return "failed", str(error)
        return "finished", None

    def conclude(self, outcome: str, failure: str | None) -> int:
        """Write the summary and give the exit code."""
        world, options = self.world, self.options
        if failure:
            print(f"gpuscale demo: {failure}", file=sys.stderr)
        if world is None or self.display is None:
            print("ended before the load began")
            document = {"form": FORM, "outcome": outcome, "failure": failure, "seconds": 0.0}
            return 1 if not self._write_json(document) or failure else 0
        self.display.finish()
        run = Run(
            began=self.began,
            ended=time.time(),
            asked_seconds=options.seconds,
            start_seconds=self.began - self.started,
            tick_seconds=options.tick_seconds,
            outcome=outcome,
            failure=failure,
        )
        document = summary(world.record, world.plant, options.scenario, options.load, run)
        print("\n".join(lines(document, options.load)))
        return 1 if not self._write_json(document) or failure else 0

    def _write_json(self, document: dict[str, Any]) -> bool:
        """Write the file that was asked for. False = it can't be written any more, which is said."""
        path = self.options.json
        try:
            if path is not None:
                path.write_text(json.dumps(document, indent=2) + "\n")
        except OSError as error:
            print(f"gpuscale demo: --json {path}: cannot be written: {error.strerror}", file=sys.stderr)
            return False
        return True

    async def close(self) -> None:
        """End every part that was started, and remove what was written."""
        if self.operator is not None:
            await self.operator.stop()
        if self.world is not None:
            await asyncio.to_thread(self.world.exporters.close)
        if self._runner is not None:
            await self._runner.cleanup()
        self.kubeconfig.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _play(self) -> None:
        server = await self._start_api()
        self.world = world = self._start_world()
        self.operator = OperatorProcess.begin(server, self.options.tick_seconds, self.folder)
        async with self._stepping(world) as steps:
            await self._wait_until_ready(steps)
            self.began = self.store.clock()
            world.begin(self.began)
            self.display = Display(sys.stdout, world, self.options.scenario, self.began)
            while (now := self.store.clock()) < self.began + self.options.seconds:
                self._check(steps)
                self.display.show(now)
                await asyncio.sleep(STEP_SECONDS)

    async def _start_api(self) -> str:
        self._runner, server = await api.serve(api.build_app(self.store), "127.0.0.1", 0)
        self.kubeconfig.write_text(KUBECONFIG_MARK + json.dumps(api.kubeconfig(server), indent=2) + "\n")
        print(f"gpuscale demo: an embedded cluster on {server}, no GPU and no container engine needed")
        print(f"  kubectl --kubeconfig {self.kubeconfig} get gws,gnps,deploy,pods,nodes -A")
        print(f"  {self.options.load.sentence}", flush=True)
        if self.options.load.source == "built-in" and self.options.seconds < SHORTEST_WAVE_SECONDS:
            print(f"  below {SHORTEST_WAVE_SECONDS:g} s the load has no time to go up and back", flush=True)
        return server

    def _start_world(self) -> World:
        numbers = self.options.scenario
        for document in (*definitions(), nodepool.definition()):
            self._apply(document)
        self._apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": scenario.NAMESPACE}})
        self._apply(scenario.node_pool(numbers))
        self._apply(scenario.deployment(numbers))
        world = World(
            self.store,
            Served(scenario.NAMESPACE, scenario.WORKLOAD, scenario.POOL),
            lambda now: self.options.load.curve.at(now - self.began) if self.display else 0.0,
            self.folder,
            reading_age_seconds=EXPORTER_GAP_SECONDS + self.options.tick_seconds,
        )
        world.warm_up(self.store.clock())
        world.watch_sizes()
        for kind, target in (("gpuworkloadscalers", Target.WORKLOAD), ("gpunodepoolscalers", Target.POOL)):
            history = self.store.history(self.store.resources[f"{kind}.{GROUP}"])
            history.listeners.append(Decisions(world.record, target, self.store.clock))
        self._apply(scenario.workload_scaler(numbers))
        self._apply(scenario.pool_scaler(numbers))
        return world

    def _apply(self, document: dict[str, Any]) -> None:
        resource = self.store.find(document["apiVersion"], document["kind"])
        if resource is None:
            raise PartDiedError(f"the embedded API does not serve {document['kind']}")
        self.store.create(resource, document)

    @contextlib.asynccontextmanager
    async def _stepping(self, world: World) -> AsyncIterator[asyncio.Task[None]]:
        steps = asyncio.create_task(world.run(STEP_SECONDS))
        try:
            yield steps
        finally:
            steps.cancel()
            await asyncio.gather(steps, return_exceptions=True)

    async def _wait_until_ready(self, steps: asyncio.Task[None]) -> None:
        assert self.world is not None  # noqa: S101 - _play starts them first
        assert self.operator is not None  # noqa: S101
        deadline = time.monotonic() + START_SECONDS
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not (self.world.exporters.all_ready() and await self.operator.is_ready(session) and self._decided()):
                self._check(steps)
                if time.monotonic() > deadline:
                    said = last_line(self.operator.log_file)
                    raise PartDiedError(f"the parts were not ready within {START_SECONDS:g} s; the operator: {said}")
                await asyncio.sleep(STEP_SECONDS)

    def _decided(self) -> bool:
        """Tell whether the operator has looked at both resources once."""
        kinds = ("gpuworkloadscalers", "gpunodepoolscalers")
        found = [obj for kind in kinds for obj in self.store.list(self.store.resources[f"{kind}.{GROUP}"])]
        return all((obj.get("status") or {}).get("decision") for obj in found)

    def _check(self, steps: asyncio.Task[None]) -> None:
        """Raise PartDiedError if something that has to run does not."""
        if steps.done():
            error = steps.exception()
            raise PartDiedError(f"the simulated world stopped: {type(error).__name__}: {error}") from error
        failure = (self.operator and self.operator.died()) or (self.world and self.world.exporters.failure())
        if failure:
            raise PartDiedError(failure)
