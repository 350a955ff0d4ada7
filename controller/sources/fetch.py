"""One bounded HTTP read, shared by every source.

Why it exists: a source must survive whatever an address answers. Here an answer has a deadline, a size limit and one
kind of failure with a sentence for people; nothing else of aiohttp's many errors leaves this module.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

MAX_ANSWER_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024


class FetchError(Exception):
    """The address did not give a whole answer. ``slow`` = it cost the deadline, so it is worth asking less often."""

    def __init__(self, message: str, *, slow: bool = False) -> None:
        super().__init__(message)
        self.slow = slow


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: status, headers (case-insensitive as aiohttp gives them), the decompressed body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        """The media type in small letters without parameters; empty = the server named none."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def age_seconds(self) -> float:
        """Read the ``Age`` header in seconds (decimals allowed); 0 where it is absent, unreadable or negative."""
        try:
            age = float(self.headers.get("Age", "0"))
        except ValueError:
            return 0.0
        return age if 0.0 <= age < float("inf") else 0.0

    def excerpt(self, length: int = 200) -> str:
        """Give the start of the body as one line of text."""
        return " ".join(self.body[: 4 * length].decode("utf-8", "replace").split())[:length]


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    *,
    deadline_seconds: float,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | bool = True,
    form: Mapping[str, str] | None = None,
    limit: int = MAX_ANSWER_BYTES,
) -> Answer:
    """GET (or POST a form) and read at most ``limit`` decompressed bytes. Raises FetchError, nothing else.

    A connection is used again only by requests with the same ``tls``; True = what the session has.
    """
    try:
        async with asyncio.timeout(deadline_seconds):
            method = "GET" if form is None else "POST"
            async with session.request(
                method, url, headers=headers, data=form, allow_redirects=False, ssl=tls
            ) as response:
                body = await _read(response, limit)
                return Answer(response.status, response.headers, body)
    except TimeoutError:
        raise FetchError(f"no whole answer within {deadline_seconds:g} s", slow=True) from None
    except aiohttp.InvalidURL as error:
        raise FetchError(f"not a usable address: {error}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchError(str(error) or type(error).__name__) from None


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    if (response.content_length or 0) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        parts.append(chunk)
    return b"".join(parts)


def _too_large(limit: int) -> FetchError:
    return FetchError(f"the answer is larger than {limit // (1024 * 1024)} MiB")
