"""The socket that is served on, and what happens when the web configuration changes.

Why it exists: certificates are renewed while the exporter runs. The socket stays open and only what stands behind it
is exchanged, so no connection is refused; a configuration that is wrong is told, and the last right one serves on.
"""

import asyncio
import contextlib
import logging
import math
import socket
from pathlib import Path

from aiohttp import web

from exporter.guard import Guard
from exporter.webconfig import WebConfig, WebConfigError, load

log = logging.getLogger("exporter.listener")

WAITING_CONNECTIONS = 128
WATCH_SECONDS = 1.0
HAND_ON_SECONDS = 0.05
SILENT_SECONDS = 10.0
"""How long a client may be connected before its first whole request; Prometheus asks at once."""
Signature = tuple[tuple[int, int, int] | None, ...]


class Listener:
    """Serves a runner on one address, and follows the file of its web configuration ("" = none)."""

    def __init__(self, runner: web.AppRunner, guard: Guard, path: str, config: WebConfig) -> None:
        self.scheme = "http"
        self._runner = runner
        self._guard = guard
        self._path = path
        self._config = config
        self._seen = _signature(config.files)
        self._refused = ""
        self._socket: socket.socket | None = None
        self._behind: socket.socket | None = None
        self._site: web.SockSite | None = None
        self._asked = asyncio.Event()
        self._since: dict[web.RequestHandler, float] = {}

    async def start(self, host: str, port: int) -> None:
        """Serve on an address; port 0 takes a free one. Raises OSError if it can't be had."""
        self._socket = await asyncio.to_thread(_listen, host, port)
        await self._serve(self._config)

    def ask(self) -> None:
        """Let the next look come now, and read the files even if they seem to be the same."""
        if not self._path:
            log.info("there is nothing to read again: no --web-config-file is set")
        self._asked.set()

    async def watch(self) -> None:
        """Look at the files and the connections once a second, and when asked, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), WATCH_SECONDS)
            asked = self._asked.is_set()
            self._asked.clear()
            self.sweep()
            try:
                await self.look(anew=asked)
            except Exception:
                # what is served now stays served: a surprise in a changed file must not end the exporter
                log.exception("the web configuration could not be looked at")

    def sweep(self) -> None:
        """Close who has long been connected and asked nothing: a process may hold only so many connections open."""
        server, now = self._runner.server, asyncio.get_running_loop().time()
        connected = server.connections if server else []
        self._since = {connection: self._since.get(connection, now) for connection in connected}
        self._guard.heard.intersection_update(connected)
        for connection, since in self._since.items():
            if connection not in self._guard.heard and now - since >= SILENT_SECONDS:
                connection.force_close()

    async def look(self, *, anew: bool = False) -> bool:
        """Use the files if one of them has changed, or anyway. Whether a new configuration is in use."""
        now = _signature(self._config.files)
        if not self._path or not (anew or self._refused or now != self._seen):
            return False
        self._seen = now
        try:
            config = await asyncio.to_thread(load, Path(self._path))
        except WebConfigError as bad:
            self._tell(str(bad))
            return False
        if config.files != self._config.files:
            self._seen = _signature(config.files)
        self._refused = ""
        self._guard.take(config)
        await self._serve(config)
        log.info("the web configuration was read again and is in use")
        return True

    def _tell(self, fault: str) -> None:
        """Say once what is wrong; what is missing may come later, so it is looked at again until it is right."""
        if fault != self._refused:
            log.error("the changed web configuration is not used, the last one stays: %s", fault)
        self._refused = fault

    def close(self) -> None:
        """Let go of the socket; the runner closes what it serves."""
        if self._socket is not None:
            self._socket.close()

    async def _serve(self, config: WebConfig) -> None:
        """Put a new server behind the socket, then take the old one away: the kernel keeps who waits meanwhile."""
        assert self._socket is not None  # noqa: S101 - start() comes first
        before, self._behind = self._behind, self._socket.dup()
        old, self._site = self._site, web.SockSite(self._runner, self._behind, ssl_context=config.context)
        await self._site.start()
        if old is not None and before is not None:
            # asyncio drops what is accepted but not yet handed on when a server closes: first accept no more
            asyncio.get_running_loop().remove_reader(before)
            await asyncio.sleep(HAND_ON_SECONDS)
            await old.stop()
        self._config = config
        self.scheme = "https" if config.context else "http"


class OnceAMinute(logging.Filter):
    """Lets one line a minute through about a process that may open no more: asyncio writes one for each who waits."""

    def __init__(self) -> None:
        super().__init__()
        self._told = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if "out of system resource" not in record.getMessage():
            return True
        if record.created - self._told < 60:
            return False
        self._told = record.created
        return True


def read_web_config(path: str) -> WebConfig:
    """Return the configuration of a file, the empty one for "". Raises WebConfigError."""
    return load(Path(path)) if path else WebConfig()


def _listen(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listening = socket.create_server(address[:2], family=family, backlog=WAITING_CONNECTIONS)
    listening.setblocking(False)
    return listening


def _signature(files: tuple[Path, ...]) -> Signature:
    """Return what changes when a file does, or the link that leads to it."""
    return tuple(_identity(file) for file in files)


def _identity(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
