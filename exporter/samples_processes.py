"""PURE: the processes of each GPU -> samples, one series each, with the container where it is known.

Why it exists: apart from the container series, which say only what is certain of a container as a whole. Of a process
everything is certain but whose it is.
"""

from collections.abc import Mapping

from exporter import catalogue_processes as c
from exporter.believable import PIB, believable
from exporter.exposition import Families, Labels
from exporter.holdings import Holder
from exporter.metric import Metric
from exporter.readings import Allocation, Snapshot

_MB = 2**20
_NOBODY: Holder = ("", "", "")


def process_samples(snapshot: Snapshot, node: str) -> Families:
    """Return the raw figures of every process on a readable GPU; what cannot be true is left out."""
    values: dict[Metric, dict[Labels, float]] = {metric: {} for metric in c.PROCESS}
    owners = {**_by_allocation(snapshot.allocations or ()), **snapshot.process_owners}
    for gpu in snapshot.gpus:
        for process in gpu.processes or ():
            where = (_text(process.gpu_instance), _text(process.compute_instance))
            who = owners.get(process.pid, _NOBODY)
            labels = (node, gpu.uuid, str(process.pid), process.name, *where, *who)
            usage, used = process.utilization_percent, process.memory_used_bytes
            if usage is not None and believable(usage, 0, 100):
                values[c.PROCESS_USAGE][labels] = usage
            if used is not None and believable(used, 0, gpu.memory_total_bytes or PIB):
                values[c.PROCESS_MEMORY_USED][labels] = used / _MB
    return values


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _by_allocation(allocations: tuple[Allocation, ...]) -> Mapping[int, Holder]:
    return {pid: (a.namespace, a.pod, a.container) for a in allocations for pid in a.pids or ()}
