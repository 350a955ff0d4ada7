"""The cluster as one pass of the loop sees it: stores of pods, nodes, targets, HPAs, and the registry of scalers.

Why it exists: the loop must not know which kinds are copied and which are asked for; and it must not begin before
every copy is whole.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from controller.cluster import NODE, POD, ApiError, Cluster, Kind, NotFound, Object
from controller.facts import (
    ExporterFacts,
    HpaFacts,
    NodeFacts,
    PodFacts,
    Shape,
    TargetFacts,
    exporter_facts,
    hpa_facts,
    node_facts,
    pod_facts,
    target_facts,
)
from controller.labels import PodIndex
from controller.registry import Registry
from controller.resources import GROUP, POOL_KIND, VERSION, WORKLOAD_KIND
from controller.stores import Store
from controller.workload_spec import ScaleTargetRef

WORKLOADS = Kind(GROUP, VERSION, "gpuworkloadscalers", WORKLOAD_KIND, namespaced=True)
POOLS = Kind(GROUP, VERSION, "gpunodepoolscalers", POOL_KIND, namespaced=False)
HPA = Kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", namespaced=True)
TARGETS = (
    Kind("apps", "v1", "deployments", "Deployment", namespaced=True),
    Kind("apps", "v1", "statefulsets", "StatefulSet", namespaced=True),
    Kind("apps", "v1", "replicasets", "ReplicaSet", namespaced=True),
)

READ_SECONDS = 2.0
"""The longest that a pass waits for the size of one object: one that is slow must not keep all others waiting."""

TargetKey = tuple[str, str, str, str]
"""(namespace, API group, kind, name)."""


def target_key(namespace: str, ref: ScaleTargetRef) -> TargetKey:
    """Name a target so that two references to it are equal whatever version they use."""
    return namespace, ref.api_version.rpartition("/")[0], ref.kind, ref.name


@dataclass(frozen=True, slots=True)
class MissingTarget:
    """A target whose size can't be read, and why."""

    why: str


class View:
    """Everything that is watched. ``on_wake`` is called when a pass should come at once."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        exporter_selector: str,
        exporter_port: str,
        exporter_namespaces: Collection[str] = (),
        exporter_scheme: str = "http",
        on_wake: Callable[[], None],
    ) -> None:
        """With an empty ``exporter_selector`` no exporters are looked for; no namespaces = in all."""

        def exporter(pod: Object) -> ExporterFacts | None:
            here = not exporter_namespaces or pod["metadata"].get("namespace") in exporter_namespaces
            return exporter_facts(pod, exporter_port, exporter_scheme) if here else None

        self.registry = Registry(cluster, [WORKLOADS, POOLS])
        self._cluster = cluster
        self._pods = Store(cluster, POD, pod_facts)
        self._nodes = Store(cluster, NODE, node_facts)
        self._hpas = Store(cluster, HPA, hpa_facts)
        self._targets = {kind.kind: Store(cluster, kind, target_facts) for kind in TARGETS}
        self._exporters = Store(cluster, POD, exporter, label_selector=exporter_selector) if exporter_selector else None
        self._index: PodIndex | None = None
        self._on_wake = on_wake
        self._pods.on_change(self._pod_changed)
        for scalers in self.registry.scalers.values():
            scalers.on_spec_change(lambda _key, _entry: on_wake())

    def stores(
        self,
    ) -> list[Store[PodFacts] | Store[NodeFacts] | Store[HpaFacts] | Store[TargetFacts] | Store[ExporterFacts]]:
        """List every store."""
        exporters = [self._exporters] if self._exporters is not None else []
        return [self._pods, self._nodes, self._hpas, *self._targets.values(), *exporters]

    def start(self) -> None:
        """Begin to list and watch everything."""
        for store in self.stores():
            store.start()
        self.registry.start()

    async def stop(self) -> None:
        """End all watches."""
        await asyncio.gather(self.registry.stop(), *(store.stop() for store in self.stores()))

    @property
    def synced(self) -> bool:
        """Whether every copy is whole; before that nothing may be decided."""
        return self.registry.synced and all(store.synced for store in self.stores())

    def unsynced(self) -> list[str]:
        """Name what is still missing, with the error that keeps it so."""
        missing = [f"{store.kind.plural} {store.last_error}".strip() for store in self.stores() if not store.synced]
        return missing if self.registry.synced else [*missing, f"custom resources {self.registry.last_error}".strip()]

    def oldest_watch_seconds(self) -> float:
        """Seconds since the worst of the watches was last alive."""
        return max(store.live_watch_age() for store in self.stores())

    def exporters(self) -> list[ExporterFacts]:
        """List the exporters."""
        return list(self._exporters.objects.values()) if self._exporters is not None else []

    def nodes(self) -> list[NodeFacts]:
        """List all nodes."""
        return list(self._nodes.objects.values())

    def hpas(self) -> list[HpaFacts]:
        """List all HPAs."""
        return list(self._hpas.objects.values())

    def pods(self) -> PodIndex:
        """Give the pods, indexed; built anew only when one has changed."""
        if self._index is None:
            self._index = PodIndex(self._pods.objects.values())
        return self._index

    async def targets(self, keys: Iterable[tuple[TargetKey, str]]) -> dict[TargetKey, TargetFacts | MissingTarget]:
        """Read targets: built-in kinds from their copy, others by one GET each. The text is the apiVersion."""
        wanted = dict(keys)
        found = await asyncio.gather(*(self._target(key, version) for key, version in wanted.items()))
        return dict(zip(wanted, found, strict=True))

    async def _target(self, key: TargetKey, api_version: str) -> TargetFacts | MissingTarget:
        namespace, group, kind, name = key
        if group == "apps" and kind in self._targets:
            held = self._targets[kind].objects.get((namespace, name))
            return held or MissingTarget(f"{kind} {namespace}/{name} does not exist")
        try:
            async with asyncio.timeout(READ_SECONDS):
                resolved = await self._cluster.resolve(api_version, kind)
                scale = await self._cluster.get_scale(resolved, name, namespace)
        except TimeoutError:
            return MissingTarget(f"the size of {kind} {namespace}/{name} can't be read within {READ_SECONDS:g} s")
        except NotFound as error:
            return MissingTarget(f"{kind} {namespace}/{name} of {api_version}: {error.message}")
        except ApiError as error:
            return MissingTarget(f"the size of {kind} {namespace}/{name} can't be read: {error}")
        return TargetFacts(scale.spec_replicas, scale.status_replicas, scale.selector, Shape())

    def _pod_changed(self, _key: tuple[str, str], old: PodFacts | None, new: PodFacts | None) -> None:
        self._index = None
        if new is not None and new.waits_for_gpu and not (old is not None and old.waits_for_gpu):
            self._on_wake()
