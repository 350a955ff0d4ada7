"""PURE: the bytes of one exporter's page -> GPU values per container, through a prefix filter.

Why it exists beside prometheus_client's parser: a page has hundreds of lines of which we want a few dozen, once a tick
and node; the general parser costs two hundred times as much. Labels, where a line is wanted, are read with care.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Fact(StrEnum):
    """What one series says about a container on a GPU. Units: milli-percent, milli-MiB, milli-watt."""

    UTILIZATION = "utilization"
    MEMORY_USED = "memoryUsed"
    MEMORY_FREE = "memoryFree"
    MEMORY_CAPACITY = "memoryCapacity"
    POWER = "power"


class Holder(NamedTuple):
    """Who holds which GPU: one container and one GPU (or GPU instance)."""

    namespace: str
    pod: str
    container: str
    gpu: str


@dataclass(slots=True)
class GpuValues:
    """One container's values on one GPU: milli-units by fact, and why a fact that was there was not taken."""

    at: float
    values: dict[Fact, int] = field(default_factory=dict)
    rejected: dict[Fact, str] = field(default_factory=dict)
    node: str = ""
    """The node that the series name, "" where they name none."""
    unknown: str = ""
    """Why the exporter, which knows the holder, says nothing of its use."""


class _Labels(NamedTuple):
    namespace: str
    pod: str
    container: str
    gpu: str
    board: str
    node: str
    reason: str


# name -> (fact, whether the series names its container); the catalogue's contract test compares the aom names
CONTAINER_SERIES: Mapping[bytes, Fact] = {
    b"aom_container_gpu_usage": Fact.UTILIZATION,
    b"aom_container_gpu_memory_used_megabytes": Fact.MEMORY_USED,
    b"aom_container_gpu_memory_capacity_megabytes": Fact.MEMORY_CAPACITY,
    b"DCGM_FI_DEV_GPU_UTIL": Fact.UTILIZATION,
    b"DCGM_FI_DEV_FB_USED": Fact.MEMORY_USED,
    b"DCGM_FI_DEV_FB_FREE": Fact.MEMORY_FREE,
}
BOARD_SERIES: Mapping[bytes, Fact] = {
    b"aom_node_gpu_power_watts": Fact.POWER,
    b"DCGM_FI_DEV_POWER_USAGE": Fact.POWER,
}
_ATTRIBUTION = b"gpuscale_container_attribution"
"""0 for a device that a container holds and of which nothing is published: the GPUs that are missing in the others."""
_NO_GPU = "unknown_device"
_PREFIXES = (b"aom_container_gpu_", b"aom_node_gpu_power_watts", b"DCGM_FI_DEV_", _ATTRIBUTION)
_NAMES = {**CONTAINER_SERIES, **BOARD_SERIES}

# above these a value is a driver's blank or garbage, not a reading
_UPPER = {
    Fact.UTILIZATION: 100.0,
    Fact.MEMORY_USED: 1e8,
    Fact.MEMORY_FREE: 1e8,
    Fact.MEMORY_CAPACITY: 1e8,
    Fact.POWER: 1e5,
}
_LABEL = re.compile(rb'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_MEANING = {"n": "\n", "\\": "\\", '"': '"'}

LabelCache = dict[bytes, "_Labels | None"]


class NotMetricsError(Exception):
    """The page is not a whole page of metrics; the text says what it is."""


def read_page(body: bytes, at: float, cache: LabelCache | None = None) -> dict[Holder, GpuValues]:
    """Every container's GPU values on one page. ``at``: Unix seconds when the page was true.

    ``cache`` (raw label text -> labels) may be kept between the pages of one exporter. Raises NotMetricsError.
    """
    _check_whole(body)
    labels_of: LabelCache = {} if cache is None else cache
    _trim(labels_of)
    found: dict[Holder, GpuValues] = {}
    boards: dict[str, _Board] = {}
    for line in body.split(b"\n"):
        if line.startswith(_PREFIXES):
            _take(line, at, labels_of, found, boards)
    for values in found.values():
        _derive_capacity(values)
    _attribute_boards(found, boards)
    return found


def _check_whole(body: bytes) -> None:
    if body.lstrip()[:1] in (b"<", b"{", b"["):
        raise NotMetricsError("the page is HTML or JSON, not metrics")
    if body and not body.endswith(b"\n"):
        raise NotMetricsError("the page ends in the middle of a line")


def _trim(cache: LabelCache) -> None:
    """Pods come and go: an exporter's labels are forgotten together before they become many."""
    if len(cache) > 20_000:
        cache.clear()


def _take(
    line: bytes, at: float, cache: LabelCache, found: dict[Holder, GpuValues], boards: "dict[str, _Board]"
) -> None:
    opening, closing = line.find(b"{"), line.rfind(b"}")
    name = line[:opening]
    fact = _NAMES.get(name)
    if (fact is None and name != _ATTRIBUTION) or closing < opening:
        return
    raw = line[opening + 1 : closing]
    if raw not in cache:
        cache[raw] = _parse_labels(raw)
    labels = cache[raw]
    if labels is None:
        return
    if fact is None:
        _take_attribution(labels, line[closing + 1 :], at, found)
        return
    reading = _reading(fact, line[closing + 1 :])
    if fact is Fact.POWER:
        boards[labels.board] = _Board(reading, names_pod=bool(labels.pod))
    if labels.pod and labels.namespace:
        entry = found.setdefault(_holder(labels), GpuValues(at, node=labels.node))
        if fact is not Fact.POWER:
            _put(entry, fact, reading)


def _holder(labels: _Labels) -> Holder:
    return Holder(labels.namespace, labels.pod, labels.container, labels.gpu)


def _take_attribution(labels: _Labels, rest: bytes, at: float, found: dict[Holder, GpuValues]) -> None:
    """Note a device that is held and says nothing; other vendors' devices are no GPU and say nothing of one."""
    if rest.split()[:1] not in ([b"0"], [b"0.0"]) or (labels.reason == _NO_GPU and not labels.gpu.startswith("GPU-")):
        return
    found.setdefault(_holder(labels), GpuValues(at, node=labels.node)).unknown = labels.reason or "not published"


def _put(entry: GpuValues, fact: Fact, reading: int | str) -> None:
    if isinstance(reading, int):
        entry.values[fact] = reading
    else:
        entry.rejected[fact] = reading


def _parse_labels(raw: bytes) -> "_Labels | None":
    """Read the labels that matter; None where the text is not a list of labels or names no GPU."""
    pairs: dict[str, str] = {}
    position = 0
    while position < len(raw):
        match = _LABEL.match(raw, position)
        if match is None:
            return None
        pairs[match[1].decode("ascii")] = _unescape(match[2])
        position = match.end()
    board = pairs.get("uuid") or pairs.get("UUID") or ""
    if not board:
        return None
    instance = pairs.get("GPU_I_ID") or pairs.get("gi") or ""
    return _Labels(
        # where Prometheus' own target labels took the short names, the exporter's own are kept as exported_*
        pairs.get("exported_namespace") or pairs.get("namespace", ""),
        pairs.get("exported_pod") or pairs.get("pod", ""),
        pairs.get("exported_container") or pairs.get("container", ""),
        f"{board}/{instance}" if instance else board,
        board,
        pairs.get("node", ""),
        pairs.get("reason", ""),
    )


def _unescape(text: bytes) -> str:
    value = text.decode("utf-8", "replace")
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: _MEANING.get(match[1], match[0]), value)


def _reading(fact: Fact, rest: bytes) -> int | str:
    """Milli-units, or why the value is not one. An explicit timestamp behind the value is not looked at."""
    words = rest.split()
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return f"not a number: {words[0][:20].decode('ascii', 'replace')}"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite"
    if value < 0:
        return "negative"
    if value > _UPPER[fact]:
        return f"out of range: {value:g}"
    return round(value * 1000)


def _derive_capacity(entry: GpuValues) -> None:
    """dcgm-exporter gives used and free; what the driver reserves is then not part of the capacity."""
    free = entry.values.pop(Fact.MEMORY_FREE, None)
    used = entry.values.get(Fact.MEMORY_USED)
    if free is not None and used is not None:
        entry.values.setdefault(Fact.MEMORY_CAPACITY, used + free)


class _Board(NamedTuple):
    """A board's power, and whether the series itself named the pod that holds the board."""

    power: int | str
    names_pod: bool


def _attribute_boards(found: dict[Holder, GpuValues], boards: dict[str, _Board]) -> None:
    """Give a board's power to its container, only where that container alone holds the whole board.

    One holder on the page is no proof: of a time-sliced GPU others may hold the rest. Our exporter says a memory
    capacity only of a container that holds the GPU alone.
    """
    holders: dict[str, list[Holder]] = {}
    for holder in found:
        holders.setdefault(holder.gpu.partition("/")[0], []).append(holder)
    for board, (power, names_pod) in boards.items():
        sharing = holders.get(board, [])
        for holder in sharing:
            exclusive = names_pod or Fact.MEMORY_CAPACITY in found[holder].values
            alone = len(sharing) == 1 and holder.gpu == board and exclusive
            _put(found[holder], Fact.POWER, power if alone else "the board's power is shared by several holders")
