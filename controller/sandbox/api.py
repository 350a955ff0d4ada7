"""The embedded Kubernetes API over HTTP: an aiohttp application around a store; runs alone, too."""

import argparse
import asyncio
import contextlib
import hmac
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from controller.sandbox import discovery, errors, writing
from controller.sandbox.calls import Call, place_of
from controller.sandbox.faults import Faults
from controller.sandbox.history import encode
from controller.sandbox.reading import Pages, json_response, read_list, read_one
from controller.sandbox.store import Store
from controller.sandbox.watching import watch

FAULTS = web.AppKey("faults", Faults)

_log = logging.getLogger(__name__)
_LARGEST_BODY = 3 * 2**20
_HEALTHY = {"healthz", "livez", "readyz"}
_WRITES = {"POST": writing.create, "PUT": writing.replace, "PATCH": writing.patch, "DELETE": writing.delete}


class Api:
    """Answers every request from one store. ``token`` None accepts any bearer."""

    def __init__(self, store: Store, token: str | None = None) -> None:
        self.faults = Faults(store)
        self._store = store
        self._token = token
        self._pages = Pages(store)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; a refusal becomes the ``Status`` that the API sends."""
        try:
            self._authenticate(request)
            await self.faults.before(request)
            return await self._answer(request)
        except errors.StatusError as exc:
            return _refusal(exc)

    def _authenticate(self, request: web.Request) -> None:
        if self._token is None:
            return
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(sent.encode(), self._token.encode()):
            raise errors.StatusError(401, "Unauthorized", "Unauthorized")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        if parts and parts[0] in {"api", "apis"} and len(parts) > (2 if parts[0] == "api" else 3):
            return await self._resource(request, parts)
        if request.method != "GET":
            raise errors.StatusError(405, "MethodNotAllowed", "the server does not allow this method here")
        return self._document(request, parts)

    async def _resource(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        call = Call(request, place_of(self._store.resources, parts))
        place = call.place
        if request.method == "GET":
            if not place.name and call.flag("watch"):
                return await watch(self._store, call, self.faults.streams)
            if not place.name:
                return read_list(self._store, self._pages, call)
            return read_one(self._store, call)
        write = _WRITES.get(request.method)
        collection = not place.name and request.method not in {"POST", "DELETE"}
        if write is None or collection or (place.subresource and request.method == "DELETE"):
            raise errors.not_allowed(place.resource.group, place.resource.plural, request.method.lower())
        response = await write(self._store, call)
        for warning in call.options.warnings:
            response.headers.add("Warning", f"299 - {json.dumps(warning)}")
        return response

    def _document(self, request: web.Request, parts: list[str]) -> web.Response:
        if parts and parts[0] in _HEALTHY:
            return web.Response(text="ok")
        if parts == ["version"]:
            return json_response(encode(discovery.VERSION))
        served, definitions = self._store.resources.values(), self._store.definitions
        if parts[:2] == ["openapi", "v3"]:
            if len(parts) == 2:
                return json_response(encode(discovery.open_api_index(served, definitions)))
            return json_response(encode(discovery.open_api("/".join(parts[3:]), served, definitions)))
        return json_response(encode(discovery.document(tuple(parts), served)))


def _refusal(exc: errors.StatusError) -> web.Response:
    response = json_response(encode(exc.document()), exc.code)
    if exc.retry_after_seconds:
        response.headers["Retry-After"] = str(exc.retry_after_seconds)
    return response


def build_app(store: Store, token: str | None = None) -> web.Application:
    """Make the application that serves the store. ``app[FAULTS]`` makes things go wrong on purpose."""
    app = web.Application(client_max_size=_LARGEST_BODY)
    api = Api(store, token)
    app[FAULTS] = api.faults
    app.router.add_route("*", "/{path:.*}", api.handle)

    async def end_watches(_: web.Application) -> None:
        api.faults.drop_watches()

    app.on_shutdown.append(end_watches)
    return app


async def serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, str]:
    """Listen; gives the runner to clean up and the URL, with the port that was chosen for 0."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    chosen = runner.addresses[0][1]
    return runner, f"http://{host}:{chosen}"


def kubeconfig(url: str, token: str | None = None) -> dict[str, object]:
    """Give the document by which kubectl and clients find the API."""
    name = "gpuscale-sandbox"
    user = {"token": token} if token else {}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m controller.sandbox.api", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", help="HOST:PORT; port 0 = a free one (%(default)s)")
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig to this file")
    parser.add_argument("--address-file", type=Path, help="write the URL to this file")
    parser.add_argument(
        "--token", help="the one bearer token that is let in (default: any; kubectl sends none to http)"
    )
    return parser.parse_args(argv)


async def _run(args: argparse.Namespace) -> None:
    host, _, port = args.listen.rpartition(":")
    runner, url = await serve(build_app(Store(), args.token), host, int(port))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if args.kubeconfig:
        _write(args.kubeconfig, json.dumps(kubeconfig(url, args.token), indent=2))
    if args.address_file:
        _write(args.address_file, url)
    _log.info("the embedded Kubernetes API listens on %s", url)
    await stop.wait()
    await runner.cleanup()


def _write(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none."""
    part = path.with_name(path.name + ".part")
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve an empty cluster until SIGINT or SIGTERM."""
    args = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
