"""``gpuscale-exporter``: settings -> source, poller, server -> run until told to stop."""

import asyncio
import contextlib
import gc
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from exporter import doctor, explain
from exporter.guard import Guard
from exporter.listener import Listener, OnceAMinute, read_web_config
from exporter.parts import Parts, poller_of, wire
from exporter.server import Pages, is_worth_logging
from exporter.settings import Address, Settings, SettingsError, parse
from exporter.webconfig import WebConfig, WebConfigError

log = logging.getLogger("exporter")

CLOSE_SECONDS = 1.0
"""How long a source may take to close, and open requests to finish: both together stay below 2 s."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 = told to stop, or --once is done; 1 = the address cannot be served on; 2 = bad settings.

    ``doctor`` as the first word examines the machine instead, ``explain`` tells what a metric is; their codes are
    0, 1 and 2 too.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["doctor"]:
        return _say(lambda: doctor.main(words[1:], os.environ))
    if words[:1] == ["explain"]:
        return _say(lambda: explain.main(words[1:]))
    try:
        settings = parse(words, os.environ)
        web_config = read_web_config(settings.web_config_file)
    except (SettingsError, WebConfigError) as bad:
        print(f"gpuscale-exporter: {bad}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("aiohttp.server").addFilter(is_worth_logging)
    logging.getLogger("asyncio").addFilter(OnceAMinute())
    parts = wire(settings)
    try:
        return asyncio.run(once(settings, parts) if settings.once else serve(settings, parts, web_config))
    except OSError as error:
        print(f"gpuscale-exporter: {error}", file=sys.stderr)
        _forget_output()
        return 1


def _say(command: Callable[[], int]) -> int:
    """Run a command that prints; 2 = what it says can't be written, which is no finding of doctor's."""
    # a name of bytes that are no text must not end it
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command()
        print(end="", flush=True)
    except OSError as error:
        print(f"gpuscale-exporter: {error}", file=sys.stderr)
        _forget_output()
        return 2
    return code


def _forget_output() -> None:
    """Let nothing be written once more at the end, where Python would answer with a traceback."""
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def once(settings: Settings, parts: Parts) -> int:
    """Poll once and print what a scrape would get."""
    publication = await poller_of(settings, parts).poll()
    print(publication.fresh.plain.decode(), end="", flush=True)
    await _close(parts)
    return 0


async def serve(settings: Settings, parts: Parts, web_config: WebConfig | None = None) -> int:
    """Poll and serve until SIGTERM or SIGINT; SIGHUP has the web configuration read again.

    Raises OSError if the address cannot be served on.
    """
    stop = asyncio.create_task(_told_to_stop())
    poller = poller_of(settings, parts)
    pages = Pages(lambda: poller.latest, settings.node, settings.stale_after_seconds, pace=poller.pace)
    web_config = web_config or WebConfig()
    guard = Guard(web_config, settings.max_requests)
    runner = web.AppRunner(pages.app(guard), access_log=None, shutdown_timeout=CLOSE_SECONDS / 2)
    await runner.setup()
    listener = Listener(runner, guard, settings.web_config_file, web_config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, listener.ask)
    # what is there by now stays: the garbage collector need not walk through it while a scrape waits
    gc.freeze()
    polling = asyncio.create_task(poller.run())
    watching: asyncio.Task[None] | None = None
    try:
        await _listen(listener, settings.listen)
        watching = asyncio.create_task(listener.watch())
        _announce(runner, listener.scheme, settings)
        await asyncio.wait((stop, polling, watching), return_when=asyncio.FIRST_COMPLETED)
        reason = polling.result() if polling.done() else ""
    finally:
        log.info("stopping")
        for task in (stop, polling, watching):
            if task is not None:
                task.cancel()
        listener.close()
        await asyncio.gather(runner.cleanup(), _close(parts))
    if reason:
        _start_again(reason)
    return 0


async def _told_to_stop() -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await told.wait()


def _start_again(reason: str) -> None:
    log.warning("starting again as a new process: %s", reason)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this very command, without a shell


async def _listen(listener: Listener, address: Address) -> None:
    try:
        await listener.start(*address)
    except UnicodeError as error:
        raise OSError(f"--listen {address}: cannot be served on: it is no name of a host: {error}") from error
    except OSError as error:
        # asyncio wraps what bind says in a sentence of its own; a failed look-up has no number that the system knows
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise OSError(f"--listen {address}: cannot be served on: {why}") from error


def _announce(runner: web.AppRunner, scheme: str, settings: Settings) -> None:
    address = Address(*runner.addresses[0][:2])
    if settings.address_file:
        try:
            _write_whole(Path(settings.address_file), f"{address}\n")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise OSError(f"--address-file {settings.address_file}: cannot be written: {why}") from error
    log.info("serving node %s on %s://%s/metrics", settings.node, scheme, address)


def _write_whole(path: Path, text: str) -> None:
    """Write by rename, so that who waits for the file never reads half of it; a device or a link stays what it is."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


async def _close(parts: Parts) -> None:
    sources = {id(source): source for source in (parts.source, parts.allocations)}.values()
    await asyncio.wait([asyncio.create_task(source.close()) for source in sources], timeout=CLOSE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
