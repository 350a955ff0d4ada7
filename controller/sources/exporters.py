"""Direct scrape: GPU values per pod, straight from the exporters, once per tick for all scalers.

Why it exists: a reading that goes through a scrape interval and a query is tens of seconds old; one page per node
and tick is cheap. One exporter's fault stays that exporter's, and each is believed about its own node only.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import aiohttp

from controller.facts import ExporterFacts
from controller.sources.credentials import Access, Credentials, CredentialsError, Presented
from controller.sources.fetch import Answer, FetchError, fetch
from controller.sources.series import GpuValues, Holder, LabelCache, NotMetricsError, read_page

log = logging.getLogger(__name__)

_METRIC_TYPES = ("", "text/plain", "application/openmetrics-text", "application/octet-stream")
_ACCEPT = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "gzip"}
_NATIVE = "/native"
NEXT_READ_HEADER = "X-Gpuscale-Next-Read-Seconds"
"""Says when we read again, so that the exporter's poll can end right before."""
_FIRST_PAUSE_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 15.0

PodName = tuple[str, str]
"""(namespace, pod)."""


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """One GPU as one container of a pod holds it, with the values read for it."""

    container: str
    gpu: str
    values: GpuValues


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """All exporters at one tick: pod -> its GPUs; exporter's address -> why it gave nothing."""

    pods: Mapping[PodName, tuple[HeldGpu, ...]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    exporters: int = 0
    foreign: Mapping[PodName, str] = field(default_factory=dict)
    """Pod -> a sentence about the exporter that tells of it from another node than it says, and is not believed."""
    sought: str = ""
    """Which exporters are looked for."""

    def why_empty(self) -> str:
        """Say, where no value is there at all, that there is no exporter or which ones fail."""
        if not self.exporters:
            return f"no GPU exporter was found{f': {self.sought}' if self.sought else ''}"
        if not self.failures:
            return f"none of the {self.exporters} GPU exporters names a container of these pods"
        name, why = next(iter(sorted(self.failures.items())))
        return f"{len(self.failures)} of {self.exporters} GPU exporters fail, e.g. {name}: {why}"


@dataclass(slots=True)
class _Exporter:
    """What is remembered of one address between ticks."""

    url: str
    node: str
    labels: LabelCache = field(default_factory=dict)
    failure: str = ""
    pause_seconds: float = 0.0
    not_before: float = 0.0
    speaks_of: str = ""
    """Another node than its own, of which its last page told."""

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
    """Scrapes every address that ``addresses`` names. ``deadline_seconds`` bounds one ``read`` as a whole.

    ``every_seconds``: how long after one read the next begins; None = nobody can say.
    """

    def __init__(
        self,
        addresses: Callable[[], Iterable[ExporterFacts]],
        *,
        deadline_seconds: float,
        every_seconds: float | None = None,
        sought: str = "",
        credentials: Credentials | None = None,
        concurrency: int = 128,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses = addresses
        self._deadline_seconds = deadline_seconds
        self._headers = _ACCEPT | ({NEXT_READ_HEADER: f"{every_seconds:g}"} if every_seconds else {})
        self._sought = sought
        self._credentials = credentials or Credentials(Access())
        self._concurrency = concurrency
        self._clock = clock
        self._monotonic = monotonic
        self._known: dict[ExporterFacts, _Exporter] = {}
        self._session: aiohttp.ClientSession | None = None

    async def read(self) -> GpuReadings:
        """One page from each exporter. Never raises; what failed is named in ``failures``."""
        found = sorted(set(self._addresses()), key=lambda one: (one.url, one.node))
        self._known = {one: self._known.get(one) or _Exporter(one.url, one.node) for one in found}
        try:
            presented = self._credentials.present()
        except CredentialsError as error:
            return GpuReadings({}, {one.url: str(error) for one in found}, len(found), {}, self._sought)
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._concurrency, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        pages = await asyncio.gather(*(self._page(one, self._session, presented) for one in self._known.values()))
        failures = {one.url: known.failure for one, known in self._known.items() if known.failure}
        own, foreign = _own_nodes(zip(self._known.values(), pages, strict=True))
        return GpuReadings(_by_pod(own), failures, len(found), foreign, self._sought)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _page(
        self, exporter: _Exporter, session: aiohttp.ClientSession, presented: Presented
    ) -> dict[Holder, GpuValues]:
        if self._monotonic() < exporter.not_before:
            return {}
        asked_at = self._clock()
        try:
            answer = await self._ask(exporter.url, session, presented)
            if answer.status == 404 and exporter.url.endswith(_NATIVE):
                # another exporter than ours has only the one page
                exporter.url = exporter.url.removesuffix(_NATIVE)
                asked_at = self._clock()
                answer = await self._ask(exporter.url, session, presented)
            _check(answer, self._credentials.access)
            # as old as it can be: the process may have been stopped between the answer and this line
            page = read_page(answer.body, asked_at - answer.age_seconds(), exporter.labels)
        except (FetchError, NotMetricsError) as error:
            slow = isinstance(error, FetchError) and error.slow
            exporter.failed(str(error), self._monotonic(), slow=slow)
            return {}
        exporter.answered()
        return page

    async def _ask(self, url: str, session: aiohttp.ClientSession, presented: Presented) -> Answer:
        return await fetch(
            session, url, headers=presented.headers, tls=presented.tls, deadline_seconds=self._deadline_seconds
        )


def _check(answer: Answer, access: Access) -> None:
    if answer.status in (401, 403):
        told = access.basic_auth_file or access.bearer_token_file
        why = f"what {told} holds is refused" if told else "it wants a user or a token: --exporter-basic-auth-file"
        raise NotMetricsError(f"HTTP {answer.status}: {why}")
    if answer.status != 200:
        raise NotMetricsError(f"HTTP {answer.status}: {answer.excerpt(100)}")
    if answer.content_type not in _METRIC_TYPES:
        raise NotMetricsError(f"answered {answer.content_type}, not metrics")


def _own_nodes(
    read: Iterable[tuple[_Exporter, Mapping[Holder, GpuValues]]],
) -> tuple[list[dict[Holder, GpuValues]], dict[PodName, str]]:
    """Keep what each exporter tells of its own node; a series that names no node is of the exporter's node.

    Else whoever runs on one node, and can pass for an exporter, could tell of the pods of all others.
    """
    pages: list[dict[Holder, GpuValues]] = []
    foreign: dict[PodName, str] = {}
    for exporter, page in read:
        own, named = {}, ""
        for holder, values in page.items():
            values.node = values.node or exporter.node
            if exporter.node in ("", values.node):
                own[holder] = values
            else:
                named = values.node
                foreign[holder.namespace, holder.pod] = (
                    f"the exporter {exporter.url} on node {exporter.node} tells of {holder.pod} as on node {named}, "
                    "which only that node's exporter may"
                )
        pages.append(own)
        _say_foreign(exporter, named)
    return pages, foreign


def _say_foreign(exporter: _Exporter, named: str) -> None:
    """Log when an exporter begins to tell of another node; a page that could not be had says nothing new."""
    if named and named != exporter.speaks_of:
        log.warning(
            "exporter %s runs on node %s and tells of node %s: not believed; is its --node right?",
            exporter.url, exporter.node, named,
        )  # fmt: skip
    if not exporter.failure:
        exporter.speaks_of = named


def _by_pod(pages: Iterable[Mapping[Holder, GpuValues]]) -> dict[PodName, tuple[HeldGpu, ...]]:
    """Group by pod; where two exporters tell of one holder, the fresher page counts, then the one that knows more."""
    merged: dict[Holder, GpuValues] = {}
    for page in pages:
        for holder, values in page.items():
            known = merged.get(holder)
            if known is None or (values.at, len(values.values)) > (known.at, len(known.values)):
                merged[holder] = values
    pods: dict[PodName, list[HeldGpu]] = {}
    for holder, values in merged.items():
        pods.setdefault((holder.namespace, holder.pod), []).append(HeldGpu(holder.container, holder.gpu, values))
    return {pod: tuple(held) for pod, held in pods.items()}
