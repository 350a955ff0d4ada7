"""An HTTP server on loopback whose every answer a test writes: the bad servers of the world."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Scripted:
    """``answer`` may be replaced at any time; ``requests`` are the paths with query that came in."""

    answer: Answering
    url: str = ""
    requests: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path_qs)
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.text())
        return await self.answer(request)


def text(body: str | bytes, status: int = 200, content_type: str = "text/plain", **headers: str) -> Answering:
    async def answer(_: web.Request) -> web.StreamResponse:
        raw = body.encode() if isinstance(body, str) else body
        return web.Response(body=raw, status=status, content_type=content_type, headers=headers)

    return answer


@asynccontextmanager
async def serving(answer: Answering) -> AsyncIterator[Scripted]:
    script = Scripted(answer)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", script.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    script.url = f"http://127.0.0.1:{port}"
    try:
        yield script
    finally:
        script.released.set()
        await runner.cleanup()


def hanging(script_of: Callable[[], Scripted]) -> Answering:
    async def answer(_: web.Request) -> web.StreamResponse:
        await script_of().released.wait()
        return web.Response()

    return answer


async def half_a_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "text/plain"})
    await response.prepare(request)
    await response.write(b"aom_container_gpu_usage{uuid=")
    assert request.transport is not None
    request.transport.close()
    return response


async def fifty_megabytes(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    chunk = b"# padding\n" * 100_000
    try:
        for _ in range(50):
            await response.write(chunk)
    except ConnectionError:
        return response
    return response
