"""A plain client of the Kubernetes API, so that a check says what goes over the wire and nothing else."""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import aiohttp

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """What came back: the HTTP status, the decoded body (text when it is no JSON) and the headers."""

    status: int
    body: Any
    headers: Any

    def object(self) -> dict[str, Any]:
        """The body of an answer that has to be a success."""
        assert self.status in {200, 201, 202}, f"{self.status}: {json.dumps(self.body, indent=1)}"
        return self.body

    def refused(self, status: int, reason: str) -> dict[str, Any]:
        """The Status body of an answer that has to be this refusal."""
        assert self.status == status, f"{self.status}: {json.dumps(self.body, indent=1)}"
        assert self.body["kind"] == "Status"
        assert self.body["status"] == "Failure"
        assert (self.body["code"], self.body["reason"]) == (status, reason), self.body
        return self.body


@dataclass(frozen=True)
class Server:
    """Where the API is and how to get in."""

    url: str
    token: str | None
    ca: str | None

    def connect(self) -> aiohttp.ClientSession:
        """A session that trusts the server's certificate authority and carries the token."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        context = ssl.create_default_context(cafile=self.ca) if self.ca else True
        return aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS * 2),
        )


class Api:
    """One session with the server."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        accept: str = "",
        **query: str,
    ) -> Answer:
        """Send one request; the body is sent as JSON."""
        headers = {"Accept": accept} if accept else {}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers["Content-Type"] = content
        async with self._session.request(method, self.url(path, query), data=data, headers=headers) as response:
            text = await response.text()
            try:
                decoded = json.loads(text)
            except ValueError:
                decoded = text
            return Answer(response.status, decoded, response.headers)

    def url(self, path: str, query: dict[str, str]) -> str:
        return f"{self._server.url}{path}" + (f"?{urlencode(query)}" if query else "")

    async def get(self, path: str, **query: str) -> Answer:
        return await self.request("GET", path, **query)

    async def post(self, path: str, body: Any, **query: str) -> Answer:
        return await self.request("POST", path, body, **query)

    async def put(self, path: str, body: Any, **query: str) -> Answer:
        return await self.request("PUT", path, body, **query)

    async def patch(self, path: str, body: Any, content: str = MERGE, **query: str) -> Answer:
        return await self.request("PATCH", path, body, content=content, **query)

    async def delete(self, path: str, body: Any = None, **query: str) -> Answer:
        return await self.request("DELETE", path, body, **query)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator["Stream"]:
        """Open a watch; the server has it when the block begins."""
        query = {"watch": "true", "timeoutSeconds": "60", **query}
        async with self._session.get(self.url(path, query)) as response:
            assert response.status == 200, await response.text()
            try:
                yield Stream(response)
            finally:
                # the farewell of TLS would wait for the server, and outlive the check's loop
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()

    async def until(self, path: str, holds: Callable[[Answer], bool], wanted: str) -> Answer:
        """Read a path until its answer is as wanted; controllers and caches may take a moment."""
        return await eventually(lambda: self.get(path), holds, wanted)


class Stream:
    """The events of a watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event that is no unasked bookmark: its type and object."""
        line = await asyncio.wait_for(self._response.content.readline(), PATIENCE_SECONDS)
        assert line, "the watch ended"
        event = json.loads(line)
        return event["type"], event["object"]

    async def ended(self) -> bool:
        """Whether the server ends the stream, after whatever it still has to say."""
        while await asyncio.wait_for(self._response.content.readline(), PATIENCE_SECONDS):
            pass
        return True


async def eventually(read: Callable[[], Awaitable[Answer]], holds: Callable[[Answer], bool], wanted: str) -> Answer:
    """Repeat a read until its answer is as wanted."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = await read()
        if holds(answer):
            return answer
        assert time.monotonic() < end, f"never saw {wanted}; at last {answer.status}: {answer.body}"
        await asyncio.sleep(0.05)


def names(answer: Answer) -> list[str]:
    """The names in a list, in the order of the list."""
    return [item["metadata"]["name"] for item in answer.object()["items"]]
