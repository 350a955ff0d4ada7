"""PURE: one verdict per GPU, from all that its reading says: errors, repairs, a lost card, throttling, a slow link.

Why it exists: whoever drains a node, or alerts, wants one answer and its reasons, by rules that are written down
(docs/health.md) and can be set. Errors that come as events count for a window: nothing stays latched.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from exporter.readings import AbsentReason, EccReading, GpuReading, RepairReading, XidReading


class Level(IntEnum):
    """How bad: the value of the series."""

    OK = 0
    WARNING = 1
    FATAL = 2


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """What counts. An Xid in neither set is a warning. A limit is exceeded by one more than it.

    ignored_xids: errors of the application on the GPU, not of the GPU; fatal wins where both name an Xid.
    xid_window_seconds: how long an Xid counts after it last came.
    """

    fatal_xids: frozenset[int] = frozenset({74, 79})
    ignored_xids: frozenset[int] = frozenset({13, 31, 43, 45, 68, 109, 137})
    xid_window_seconds: float = 3600
    max_retired_pages: int = 60
    max_sram_errors: int = 4

    def level(self, xid: int) -> Level:
        """Class of an Xid."""
        if xid in self.fatal_xids:
            return Level.FATAL
        return Level.OK if xid in self.ignored_xids else Level.WARNING


DEFAULT_POLICY = HealthPolicy()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, under a reason of docs/health.md."""

    reason: str
    level: Level


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst level of the findings; OK where there is none."""

    level: Level
    findings: tuple[Finding, ...]


_FATAL_FAULTS = frozenset({AbsentReason.LOST, AbsentReason.RESET_REQUIRED})
_UNJUDGED = frozenset({AbsentReason.STALE, AbsentReason.NO_PERMISSION})
# bits of NVML's clocks event reasons that a healthy, well-cooled board does not show; a power cap is normal under load
_THROTTLE = (
    (0x08, "hw_slowdown"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
)
_BUSY_PERCENT = 50


def judge(gpu: GpuReading, now: float, policy: HealthPolicy) -> Verdict | None:
    """Judge one GPU at ``now`` (Unix seconds). None = nothing can be said. What is not known is held against nobody."""
    if gpu.fault in _UNJUDGED:
        return None
    findings = tuple(_fault(gpu.fault) if gpu.fault else _findings(gpu, policy)) + _xids(gpu.xids or (), now, policy)
    return Verdict(max((finding.level for finding in findings), default=Level.OK), findings)


def _fault(fault: AbsentReason) -> Iterator[Finding]:
    yield Finding(fault.value, Level.FATAL if fault in _FATAL_FAULTS else Level.WARNING)


def _findings(gpu: GpuReading, policy: HealthPolicy) -> Iterator[Finding]:
    if gpu.ecc:
        yield from _ecc(gpu.ecc, policy)
    if gpu.repair:
        yield from _repair(gpu.repair, policy)
    if gpu.recovery_action:
        yield Finding("recovery_action", Level.WARNING)
    for bit, reason in _THROTTLE:
        if (gpu.clocks_event_reasons or 0) & bit:
            yield Finding(reason, Level.WARNING)
    if _below(gpu.pcie_width, gpu.pcie_width_max):
        yield Finding("pcie_width", Level.WARNING)
    if _is_working(gpu) and _below(gpu.pcie_generation, gpu.pcie_generation_max):
        yield Finding("pcie_generation", Level.WARNING)


def _ecc(ecc: EccReading, policy: HealthPolicy) -> Iterator[Finding]:
    if (ecc.aggregate_sram_uncorrected or 0) > policy.max_sram_errors:
        yield Finding("sram_errors", Level.FATAL)
    if ecc.volatile_uncorrected:
        yield Finding("ecc_uncorrected", Level.WARNING)


def _repair(repair: RepairReading, policy: HealthPolicy) -> Iterator[Finding]:
    if (repair.retired_pages_corrected or 0) + (repair.retired_pages_uncorrected or 0) > policy.max_retired_pages:
        yield Finding("retired_pages", Level.FATAL)
    if repair.remapped_rows_failed:
        yield Finding("row_remap_failed", Level.FATAL)
    if repair.retired_pages_pending:
        yield Finding("retired_pages_pending", Level.WARNING)
    if repair.remapped_rows_pending:
        yield Finding("row_remap_pending", Level.WARNING)


def _xids(xids: tuple[XidReading, ...], now: float, policy: HealthPolicy) -> tuple[Finding, ...]:
    recent = (x for x in xids if x.count and now - x.last_at < policy.xid_window_seconds)
    found = (Finding(f"xid_{x.xid}", policy.level(x.xid)) for x in recent)
    return tuple(finding for finding in found if finding.level)


def _below(now: int | None, most: int | None) -> bool:
    # a link of 0 lanes or generation 0 is a value that is not known
    return bool(now and most and now < most)


def _is_working(gpu: GpuReading) -> bool:
    # an idle GPU lowers its link's speed to save power
    return gpu.performance_state == 0 and (gpu.utilization_percent or 0) >= _BUSY_PERCENT
