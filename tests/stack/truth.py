"""What the recording rules must say, worked out from the exporters' own pages and the nodes' own labels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from controller.cluster import NODE, Cluster
from tests.realparts.machines import pages
from tests.stack.prometheus import Prometheus

NEAR = 1e-6
Recorded = dict[tuple[str, str], float]
"""(name of the recorded series, its pool or model, "" for the cluster's) -> value."""
_FACTS = {
    "aom_node_gpu_memory_capacity_megabytes": "capacity",
    "aom_node_gpu_memory_used_megabytes": "used",
    "aom_node_gpu_memory_reserved_megabytes": "reserved",
    "aom_node_gpu_usage": "usage",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its exporter shows it; what it does not show is not in ``facts``."""

    pool: str
    model: str
    facts: Mapping[str, float]


async def gpus(cluster: Cluster, namespace: str) -> list[Gpu]:
    """Read every exporter's page."""
    pools = {node["metadata"]["name"]: node["metadata"]["labels"]["pool"] for node in (await cluster.list(NODE)).items}
    told = await pages(cluster, namespace)
    return [gpu for node, page in told.items() if node in pools for gpu in _on_page(page, pools[node])]


def recorded(found: Iterable[Gpu]) -> Recorded:
    """Work out all that the recording rules have to say of these GPUs."""
    groups: dict[tuple[str, str], list[Gpu]] = {}
    for gpu in found:
        for key in (("cluster", ""), ("nodepool", gpu.pool), ("model", gpu.model)):
            groups.setdefault(key, []).append(gpu)
    return {
        (f"aom_{level}_gpu_{name}", one): value
        for (level, one), members in groups.items()
        for name, value in _of(members).items()
    }


async def differences(cluster: Cluster, namespace: str, prometheus: Prometheus) -> dict[tuple[str, str], str]:
    """Compare what Prometheus has recorded with the exporters, series by series, in both directions."""
    samples = await prometheus.query('{__name__=~"aom_(cluster|nodepool|model)_gpu_.*"}')
    said = {
        (one.labels["__name__"], one.labels.get("pool") or one.labels.get("model", "")): one.value for one in samples
    }
    true = recorded(await gpus(cluster, namespace))
    return {
        key: f"recorded {said.get(key)}, by the exporters {true.get(key)}"
        for key in said.keys() | true.keys()
        if not _same(said.get(key), true.get(key))
    }


def _of(members: list[Gpu]) -> dict[str, float]:
    known = [gpu.facts for gpu in members if gpu.facts]
    if not known:
        return {}
    capacity = sum(facts["capacity"] for facts in known)
    used = sum(facts["used"] for facts in known)
    return {
        "memory_capacity_megabytes": capacity,
        "memory_used_megabytes": used,
        "memory_free_megabytes": capacity - used - sum(facts["reserved"] for facts in known),
        "memory_usage": 100 * used / capacity,
        "usage": sum(facts["usage"] for facts in known) / len(known),
    }


def _same(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) <= NEAR * max(1.0, abs(other))


def _on_page(page: str, pool: str) -> list[Gpu]:
    facts: dict[tuple[str, str], dict[str, float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in _FACTS:
                key = (sample.labels["uuid"], sample.labels["model"])
                facts.setdefault(key, {})[_FACTS[sample.name]] = sample.value
    return [Gpu(pool, model, of) for (_, model), of in facts.items()]
