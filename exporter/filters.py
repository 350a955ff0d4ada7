"""PURE: a page -> the part of it that a query asks for.

Why it exists: one Prometheus takes the health of all nodes often, another one GPU's values seldom. The page is
rendered once a poll anyway; leaving lines out of it costs no call to the driver and works in every dialect.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from exporter.catalogue import CATALOGUE
from exporter.exposition import OPENMETRICS_END, Body, Texts, escape_label, finish
from exporter.readings import GpuReading

DIALECT = "dialect"
COLLECTORS: tuple[str, ...] = (*dict.fromkeys(metric.level for metric in CATALOGUE), DIALECT)
"""What ?collect[]= may name: the levels of the native families, and all that other dialects say."""

_LEVELS = {metric.name: str(metric.level) for metric in CATALOGUE}
_FAMILY = re.compile(r"# (?:HELP|TYPE|UNIT) ([^ ]+) ")
_LINE = re.compile(r"[^\n]*\n")
_NAME = re.compile(r"[^ {]+")


class QueryError(ValueError):
    """The query names what is not there. str() says what is."""


def select(body: Body, collectors: Sequence[str], gpus: Sequence[str], known: Sequence[GpuReading]) -> Body:
    """Keep the families of the collectors and the series of the GPUs, by UUID or index; series of no GPU stay.

    An empty sequence keeps all. Raises QueryError.
    """
    unknown = [name for name in collectors if name not in COLLECTORS]
    if unknown:
        raise QueryError(f"no collector {', '.join(unknown)}: known are {', '.join(COLLECTORS)}")
    others = _others(gpus, known)
    plain = "".join(_kept(body.plain.decode(), frozenset(collectors), others))
    openmetrics = "".join(_kept(body.openmetrics.decode(), frozenset(collectors), others))
    return finish(Texts(plain, openmetrics.removesuffix(OPENMETRICS_END)))


def _others(gpus: Sequence[str], known: Sequence[GpuReading]) -> re.Pattern[str] | None:
    """Return what tells the lines of the GPUs that are not asked for; None = all are asked for."""
    if not gpus:
        return None
    names = {name for gpu in known for name in (gpu.uuid, str(gpu.index))}
    unknown = [name for name in gpus if name not in names]
    if unknown:
        raise QueryError(f"no GPU {', '.join(unknown)}: known are {', '.join(gpu.uuid for gpu in known) or 'none'}")
    others = [gpu for gpu in known if gpu.uuid not in gpus and str(gpu.index) not in gpus]
    uuids = "|".join(re.escape(_printed(name)) for gpu in others for name in _spellings(gpu.uuid))
    indexes = "|".join(str(gpu.index) for gpu in others)
    # a pod, or a process, may be called like a GPU: only the labels that name one tell whose series it is
    marks = f'(?:uuid|UUID|gpuID)="(?:{uuids})"|gpu_index="(?:{indexes})"'
    return re.compile(f"[{{,](?:{marks})[,}}]") if others else None


def _spellings(uuid: str) -> Iterable[str]:
    """Give a UUID as the dialects write it: nvidia_gpu_exporter leaves the beginning out."""
    return dict.fromkeys((uuid, uuid.removeprefix("GPU-"), uuid.removeprefix("GPU-").lower()))


def _printed(name: str) -> str:
    return escape_label(name).encode("utf-8", "replace").decode()


def _kept(text: str, collectors: frozenset[str], others: re.Pattern[str] | None) -> Iterator[str]:
    heads: list[str] = []
    # a label may hold what Python too takes for the end of a line (a vertical tab, U+2028); here only \n is one
    for line in _LINE.findall(text):
        if line.startswith("# EOF"):
            yield line
        elif line.startswith("#"):
            # the heads of a family whose series are all left out are left out with them
            heads = [*heads, line] if heads and _family(heads[0]) == _family(line) else [line]
        elif _is_kept(line, collectors, others):
            yield from heads
            heads = []
            yield line


def _family(head: str) -> str:
    found = _FAMILY.match(head)
    return found[1] if found else head


def _is_kept(line: str, collectors: frozenset[str], others: re.Pattern[str] | None) -> bool:
    if others is not None and others.search(line):
        return False
    if not collectors:
        return True
    found = _NAME.match(line)
    return _LEVELS.get(found[0] if found else "", DIALECT) in collectors
