"""Settings -> the parts that they ask for: where readings, allocations and owners come from, and the poller over them.

Why it exists: the command and its doctor must look in the same places.
"""

from pathlib import Path
from typing import NamedTuple

from exporter.dialects import Spoken
from exporter.kubelet import KubeletAllocations
from exporter.owners import ProcessOwners
from exporter.poller import AllocationSource, Poller, Source
from exporter.settings import Settings
from exporter.simulated import SimulatedSource
from exporter.system_memory import SystemMemory


class Parts(NamedTuple):
    """Where the poller's readings, allocations and owners of processes come from."""

    source: Source
    allocations: AllocationSource
    owners: ProcessOwners | None


def wire(settings: Settings) -> Parts:
    """Return the parts that the settings ask for."""
    if settings.simulate:
        simulated = SimulatedSource(settings.simulate, seed=settings.node)
        # a simulation tells its processes itself
        return Parts(simulated, simulated, None)
    # the driver's library is loaded only where a driver is asked for
    from exporter.nvml.device import NvmlSource

    source = NvmlSource(
        settings.deadline, slow_seconds=settings.slow_poll_seconds, detailed=Spoken(settings.dialect).detailed
    )
    owners = _owners(settings)
    signs = owners.signs if owners else lambda: None
    return Parts(source, KubeletAllocations(settings.kubelet_socket, settings.deadline, signs), owners)


def poller_of(settings: Settings, parts: Parts) -> Poller:
    """Return the poller over these parts."""
    return Poller(
        parts.source,
        parts.allocations,
        settings.node,
        settings.poll_seconds,
        health_policy=settings.health_policy,
        spoken=Spoken(settings.dialect, dict(settings.aom_labels)),
        most_series=settings.max_series,
        owners=parts.owners,
        system_memory=_system_memory(settings),
        process_series=settings.process_series,
        longest_gap_seconds=_longest_gap(settings),
    )


def _longest_gap(settings: Settings) -> float:
    """Return what lets a GPU hang, or a poll fail, before values are stale; a tenth of a poll is for all else."""
    stale = settings.stale_after_seconds
    return min(stale - settings.deadline, stale / 2) - settings.poll_seconds / 10


def _owners(settings: Settings) -> ProcessOwners | None:
    if not settings.proc:
        return None
    names_wanted = settings.process_series or "nvidia_smi" in settings.dialect
    return ProcessOwners(
        Path(settings.proc), Path(settings.container_logs), settings.deadline, names_wanted=names_wanted
    )


def _system_memory(settings: Settings) -> SystemMemory | None:
    fallback = settings.unified_memory_from_system
    # a simulated GPU has another machine's memory
    if settings.simulate and not fallback:
        return None
    # the sizes are the machine's in every /proc, so that turning the host's processes off costs none of them
    return SystemMemory(Path(settings.proc or "/proc"), fallback=fallback)
