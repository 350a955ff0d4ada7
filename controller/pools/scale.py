"""The provider ``scale``: a pool whose size is the ``/scale`` subresource of any object.

Why it exists: Cluster API, machine controllers and many others have this one door. A size goes through it in full and
absolute, with the size that it was computed from; which nodes a shrink takes is said by the pool's victimMark.
"""

from collections.abc import Callable
from dataclasses import dataclass

from controller.cluster import Cluster, Conflict
from controller.pool_spec import PoolRef


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What the pool's object asks for."""

    size: int


class ScaleProvider:
    """One pool, by its object. Every method raises ApiError; NotFound names what is missing."""

    def __init__(self, cluster: Cluster, ref: PoolRef) -> None:
        self._cluster = cluster
        self._ref = ref

    async def describe(self) -> PoolSize:
        """Read the size."""
        kind = await self._cluster.resolve(self._ref.api_version, self._ref.kind)
        scale = await self._cluster.get_scale(kind, self._ref.name, self._ref.namespace)
        return PoolSize(scale.spec_replicas)

    async def resize(self, size: int, expect: int, before_write: Callable[[], None]) -> None:
        """Set the size, if it still is ``expect`` and nobody writes in between; else Conflict.

        ``before_write`` is called right before the write and stops it by raising.
        """
        kind = await self._cluster.resolve(self._ref.api_version, self._ref.kind)
        scale = await self._cluster.get_scale(kind, self._ref.name, self._ref.namespace)
        if scale.spec_replicas != expect:
            raise Conflict(409, "Conflict", f"the pool's size is {scale.spec_replicas}, not {expect} as decided from")
        before_write()
        await self._cluster.patch_scale(kind, self._ref.name, self._ref.namespace, size, scale.resource_version)
