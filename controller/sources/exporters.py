"""Direct scrape: GPU values per pod, straight from the exporters, once per tick for all scalers.

Why it exists: a reading that goes through a scrape interval and a query is tens of seconds old; one page per node
and tick is cheap. One exporter's fault stays that exporter's.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import aiohttp

from controller.sources.fetch import Answer, FetchError, fetch
from controller.sources.series import GpuValues, Holder, LabelCache, NotMetricsError, read_page

_METRIC_TYPES = ("", "text/plain", "application/openmetrics-text", "application/octet-stream")
_ACCEPT = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "gzip"}
_NATIVE = "/native"
_FIRST_PAUSE_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """One GPU as one container of a pod holds it, with the values read for it."""

    container: str
    gpu: str
    values: GpuValues


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """All exporters at one tick: (namespace, pod) -> its GPUs; exporter -> why it gave nothing."""

    pods: Mapping[tuple[str, str], tuple[HeldGpu, ...]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    exporters: int = 0

    def why_empty(self) -> str:
        """Say, where no value is there at all, that there is no exporter or which ones fail."""
        if not self.exporters:
            return "no GPU exporter was found"
        if not self.failures:
            return f"none of the {self.exporters} GPU exporters names a container of these pods"
        name, why = next(iter(sorted(self.failures.items())))
        return f"{len(self.failures)} of {self.exporters} GPU exporters fail, e.g. {name}: {why}"


@dataclass(slots=True)
class _Exporter:
    """What is remembered of one address between ticks."""

    url: str
    labels: LabelCache = field(default_factory=dict)
    failure: str = ""
    pause_seconds: float = 0.0
    not_before: float = 0.0

    def failed(self, why: str, now: float, *, slow: bool) -> None:
        """Note a failure. One that costs the deadline is repeated less and less often: it must not slow every tick."""
        self.failure = why
        if slow:
            self.pause_seconds = min(_LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * self.pause_seconds))
            self.not_before = now + self.pause_seconds

    def answered(self) -> None:
        """Forget the failures."""
        self.failure, self.pause_seconds, self.not_before = "", 0.0, 0.0


class Exporters:
    """Scrapes every address that ``addresses`` names. ``deadline_seconds`` bounds one ``read`` as a whole."""

    def __init__(
        self,
        addresses: Callable[[], Iterable[str]],
        *,
        deadline_seconds: float,
        concurrency: int = 128,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses = addresses
        self._deadline_seconds = deadline_seconds
        self._concurrency = concurrency
        self._clock = clock
        self._monotonic = monotonic
        self._known: dict[str, _Exporter] = {}
        self._session: aiohttp.ClientSession | None = None

    async def read(self) -> GpuReadings:
        """One page from each exporter. Never raises; what failed is named in ``failures``."""
        urls = sorted(set(self._addresses()))
        self._known = {url: self._known.get(url) or _Exporter(url) for url in urls}
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._concurrency, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, headers=_ACCEPT)
        pages = await asyncio.gather(*(self._page(url, self._session) for url in urls))
        failures = {url: known.failure for url, known in self._known.items() if known.failure}
        return GpuReadings(_by_pod(pages), failures, len(urls))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _page(self, url: str, session: aiohttp.ClientSession) -> dict[Holder, GpuValues]:
        exporter = self._known[url]
        if self._monotonic() < exporter.not_before:
            return {}
        asked_at = self._clock()
        try:
            answer = await fetch(session, exporter.url, deadline_seconds=self._deadline_seconds)
            if answer.status == 404 and exporter.url.endswith(_NATIVE):
                # another exporter than ours has only the one page
                exporter.url = exporter.url.removesuffix(_NATIVE)
                asked_at = self._clock()
                answer = await fetch(session, exporter.url, deadline_seconds=self._deadline_seconds)
            _check(answer)
            # as old as it can be: the process may have been stopped between the answer and this line
            page = read_page(answer.body, asked_at - answer.age_seconds(), exporter.labels)
        except (FetchError, NotMetricsError) as error:
            slow = isinstance(error, FetchError) and error.slow
            exporter.failed(str(error), self._monotonic(), slow=slow)
            return {}
        exporter.answered()
        return page


def _check(answer: Answer) -> None:
    if answer.status != 200:
        raise NotMetricsError(f"HTTP {answer.status}: {answer.excerpt(100)}")
    if answer.content_type not in _METRIC_TYPES:
        raise NotMetricsError(f"answered {answer.content_type}, not metrics")


def _by_pod(pages: Iterable[Mapping[Holder, GpuValues]]) -> dict[tuple[str, str], tuple[HeldGpu, ...]]:
    """Group by pod; where two exporters tell of one holder, the fresher page counts, then the one that knows more."""
    merged: dict[Holder, GpuValues] = {}
    for page in pages:
        for holder, values in page.items():
            known = merged.get(holder)
            if known is None or (values.at, len(values.values)) > (known.at, len(known.values)):
                merged[holder] = values
    pods: dict[tuple[str, str], list[HeldGpu]] = {}
    for holder, values in merged.items():
        pods.setdefault((holder.namespace, holder.pod), []).append(HeldGpu(holder.container, holder.gpu, values))
    return {pod: tuple(held) for pod, held in pods.items()}
