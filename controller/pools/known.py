"""Which pool providers there are: our own, and those of installed packages by the entry point ``gpuscale.node_pools``.

Why it exists: a provider of a cloud comes in a package of its own; ours must also work from a checkout, where no entry
points are registered.
"""

from collections.abc import Callable
from importlib.metadata import entry_points

from controller.cluster import Cluster
from controller.pool_spec import PoolRef
from controller.pools.scale import ScaleProvider

ENTRY_POINT = "gpuscale.node_pools"

MakeProvider = Callable[[Cluster, PoolRef], ScaleProvider]
"""Anything that is called and behaves like ScaleProvider."""


def known_providers() -> dict[str, MakeProvider]:
    """Load every provider by its name. Raises what a broken package raises at its import."""
    found: dict[str, MakeProvider] = {"scale": ScaleProvider}
    for point in entry_points(group=ENTRY_POINT):
        found[point.name] = point.load()
    return found
