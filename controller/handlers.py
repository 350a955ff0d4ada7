"""Kopf as the shell around the registry: it follows the custom resources and tells what happened to them.

Why it exists: Kopf must be kept where it does no harm. It runs in a thread and loop of its own, because it cancels
every task that was made after its start; it has event handlers only, because timers and create or update handlers
write to each object; it asks forever, because with its own patience a minute of a failing API server ends it; it never
meets a 401, because it would close its session, and end if the watch of the other kind was just being opened.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf

from controller.api_errors import one_line
from controller.cluster import ApiError, Cluster, Kind, NotFound
from controller.registry import Registry
from controller.stores import Backoff

WATCH_SECONDS = 30
"""How long one of Kopf's watches lasts. Each new one proves that it still watches, so this bounds our doubt."""
LOGIN_SECONDS = 30.0

log = logging.getLogger(__name__)


class _Forever:
    """Kopf's pauses between tries, without end; a sized sequence would end its patience, and the process with it."""

    def __iter__(self) -> Iterator[float]:
        backoff = Backoff(longest=15.0)
        while True:
            yield backoff.next()


class Shell:
    """Runs Kopf beside the loop in which it was started, and feeds the registry there."""

    def __init__(self, cluster: Cluster, registry: Registry, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._registry = registry
        self._kinds = [scalers.kind for scalers in registry.scalers.values()]
        self._clock = clock
        self._live_at = {kind.path(): clock() for kind in self._kinds}
        self._stopping = False
        self._kinds_missing = False
        self._operator_loop: asyncio.AbstractEventLoop | None = None
        self._stop_flag: asyncio.Event | None = None
        self._relogin = Backoff()
        self._logged_in_at: float | None = None

    def start(self) -> None:
        """Begin to wait for the custom resource definitions, and then to watch. Call it in the registry's loop."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self._starting = asyncio.create_task(self._start_when_served(), name="kopf waits for its kinds")

    async def wait_ended(self) -> str:
        """Return once Kopf has ended, with the reason: without it the process must end too, with a failure."""
        return await asyncio.shield(self._ended)

    async def stop(self, timeout_seconds: float = 8.0) -> None:
        """End Kopf; to be called when the loop has stopped and the Lease is released. Safe to call twice."""
        self._stopping = True
        self._starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._starting
        if self._thread.ident is None:
            return
        if self._operator_loop is not None and self._stop_flag is not None:
            with contextlib.suppress(RuntimeError):  # its loop has closed
                self._operator_loop.call_soon_threadsafe(self._stop_flag.set)
        done, _ = await asyncio.wait([self._ended], timeout=timeout_seconds)
        if done:
            self._thread.join(timeout=1.0)
        else:
            log.warning("kopf did not end within %g s; its thread ends with the process", timeout_seconds)

    def live_watch_age(self, now: float | None = None) -> float:
        """Seconds since Kopf's watch of any kind was last opened: about 30 while all is well, of the worst kind.

        0 while the definitions are known to be missing: there is nothing to watch, and no restart would bring them.
        """
        if self._kinds_missing:
            return 0.0
        return max(0.0, (self._clock() if now is None else now) - min(self._live_at.values()))

    async def _start_when_served(self) -> None:
        """Wait for the definitions: Kopf, which may not watch them, would not notice when they come later."""
        backoff = Backoff(longest=5.0)
        for kind in self._kinds:
            while True:
                try:
                    await self._cluster.resolve(kind.api_version, kind.kind)
                except ApiError as error:
                    self._kinds_missing = isinstance(error, NotFound)
                    wait = backoff.next()
                    log.warning("waiting for %s, again in %.1f s: %s", kind.resource, wait, error)
                    await asyncio.sleep(wait)
                else:
                    break
        if self._kinds_missing:
            self._kinds_missing, self._live_at = False, dict.fromkeys(self._live_at, self._clock())
        self._thread.start()

    def _run(self) -> None:
        """Run Kopf to its end; the body of the thread."""
        try:
            asyncio.run(self._operate())
            reason = "kopf has ended"
        except BaseException as problem:  # noqa: BLE001 - the thread's last words must reach the main loop
            reason = f"kopf has failed: {_named(problem)}"
        with contextlib.suppress(RuntimeError):  # the main loop has closed
            self._loop.call_soon_threadsafe(self._finish, reason)

    def _finish(self, reason: str) -> None:
        if self._ended.done():
            return
        self._ended.set_result(reason)
        if not self._stopping:
            log.error("%s", reason)

    async def _operate(self) -> None:
        self._stop_flag = asyncio.Event()
        self._operator_loop = asyncio.get_running_loop()
        if self._stopping:
            return
        # Kopf warns that it leaves signals alone outside of the main thread, which is what is wanted here.
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        own = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=self._handlers(),
            settings=_settings(),
            standalone=True,
            clusterwide=True,
            stop_flag=self._stop_flag,
        )
        for task in tasks:
            task.add_done_callback(self._root_ended)
        await kopf.run_tasks(tasks, ignored=own)

    def _root_ended(self, task: asyncio.Task[None]) -> None:
        """Tell of a failure at its first sign: the shutdown that Kopf then begins can hang."""
        if not self._stopping and not task.cancelled() and task.exception() is not None:
            self._tell(self._finish, f"kopf has failed: {_named(task.exception())}")

    def _handlers(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, id="login", backoff=5.0)(self._login)
        for kind in self._kinds:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(self._feed(kind))
        return registry

    def _feed(self, kind: Kind) -> Any:
        async def event_came(event: Any, **_: Any) -> None:
            self._tell(self._registry.take, kind.kind, event["type"], event["object"])

        return event_came

    def _tell(self, call: Callable[..., None], *args: object) -> None:
        """Call in the main loop, if there still is one."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        """Give Kopf a session with our credentials. It asks again when TLS has broken in a way that it knows."""
        connection = self._cluster.connection
        if self._logged_in_at is not None:
            if self._clock() - self._logged_in_at > 10 * LOGIN_SECONDS:
                self._relogin.reset()
            await asyncio.sleep(self._relogin.next())
        self._logged_in_at = self._clock()
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._answered)
        session = connection.session(trace, middlewares=[self._renew_refused])
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)

    async def _renew_refused(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Read the credentials anew after a 401, and let Kopf take it for a lost connection: it asks again for ever."""
        response = await send(request)
        if response.status != 401:
            return response
        response.close()
        renewal = self._cluster.connection.credentials.renew(request.headers.get("Authorization", ""))
        async with asyncio.timeout(LOGIN_SECONDS):
            renewed = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(renewal, self._loop))
        outcome = "they were read anew" if renewed else "there are no newer ones yet"
        raise aiohttp.ClientConnectionError(f"401: the credentials were refused; {outcome}")

    async def _answered(
        self, _session: aiohttp.ClientSession, _context: SimpleNamespace, end: aiohttp.TraceRequestEndParams
    ) -> None:
        """See what Kopf asks: an opened watch is a sign of life; a list may have passed over what has vanished.

        404 means that a definition was deleted, and all scalers of its kind with it.
        """
        if end.url.path not in self._live_at or end.response.status not in (200, 404):
            return
        if end.response.status == 404:
            self._tell(self._registry.reconcile_soon)
            return
        if end.url.query.get("watch"):
            self._live_at[end.url.path] = self._clock()
        else:
            self._tell(self._registry.reconcile_soon)


def _named(problem: BaseException | None) -> str:
    return f"{type(problem).__name__}: {one_line(str(problem))}"


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.networking.error_backoffs = _Forever()
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 5.0
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.inactivity_timeout = 1.5 * WATCH_SECONDS
    settings.watching.chunk_size = 500
    return settings
