"""PURE: the further facts of a GPU, and its MIG instances -> samples.

Why it exists: apart from samples.py, which decides what is said of memory, utilisation and containers. The rules are
the same: what is not known, or cannot be true, is not published.
"""

import dataclasses
import re
from collections.abc import Mapping

from exporter import catalogue_boards as c
from exporter.exposition import Labels
from exporter.metric import Metric
from exporter.readings import ClocksEventReading, GpuReading, MigReading

_MB = 2**20
_PIB = 2.0**50
_COUNT = 2.0**63
_LATEST = 2.0**40
"""No clock shows so many Unix seconds."""
_Samples = dict[Metric, dict[Labels, float]]

# field of GpuReading -> family, divisor, smallest and largest value (in the reading's unit) that can be true
FIELDS: tuple[tuple[str, Metric, float, float, float], ...] = (
    ("memory_temperature_celsius", c.MEMORY_TEMPERATURE, 1, 0, 200),
    ("temperature_margin_celsius", c.TEMPERATURE_MARGIN, 1, -250, 250),
    ("recovery_action", c.RECOVERY_ACTION, 1, 0, 255),
    ("power_limit_watts", c.POWER_LIMIT, 1, 0, 10_000),
    ("energy_joules", c.ENERGY, 1, 0, _COUNT),
    ("fan_percent", c.FAN, 1, 0, 200),
    ("bar1_total_bytes", c.BAR1_CAPACITY, _MB, 1, _PIB),
    ("bar1_used_bytes", c.BAR1_USED, _MB, 0, _PIB),
    ("encoder_utilization_percent", c.ENCODER_USAGE, 1, 0, 100),
    ("decoder_utilization_percent", c.DECODER_USAGE, 1, 0, 100),
    ("sm_clock_hertz", c.SM_CLOCK, 1, 0, 1e11),
    ("memory_clock_hertz", c.MEMORY_CLOCK, 1, 0, 1e11),
    ("graphics_clock_hertz", c.GRAPHICS_CLOCK, 1, 0, 1e11),
    ("video_clock_hertz", c.VIDEO_CLOCK, 1, 0, 1e11),
    ("pcie_generation", c.PCIE_GENERATION, 1, 1, 32),
    ("pcie_width", c.PCIE_WIDTH, 1, 1, 64),
    ("pcie_generation_max", c.PCIE_GENERATION_MAX, 1, 1, 32),
    ("pcie_width_max", c.PCIE_WIDTH_MAX, 1, 1, 64),
    ("pcie_replays", c.PCIE_REPLAYS, 1, 0, _COUNT),
    ("performance_state", c.PERFORMANCE_STATE, 1, 0, 15),
    ("sm_active_ratio", c.SM_ACTIVE, 1, 0, 1),
    ("sm_occupancy_ratio", c.SM_OCCUPANCY, 1, 0, 1),
    ("tensor_active_ratio", c.TENSOR_ACTIVE, 1, 0, 1),
    ("dram_active_ratio", c.DRAM_ACTIVE, 1, 0, 1),
    ("mig_enabled", c.MIG_ENABLED, 1, 0, 1),
)

CLOCKS_EVENT_REASONS: Mapping[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""NVML's bits, by NVML's words."""
_ALL_REASONS = sum(CLOCKS_EVENT_REASONS)

# family, further label values, part of the reading, field of that part
_PARTS: tuple[tuple[Metric, tuple[str, ...], str, str], ...] = (
    (c.ECC_VOLATILE, ("corrected",), "ecc", "volatile_corrected"),
    (c.ECC_VOLATILE, ("uncorrected",), "ecc", "volatile_uncorrected"),
    (c.ECC_AGGREGATE, ("corrected",), "ecc", "aggregate_corrected"),
    (c.ECC_AGGREGATE, ("uncorrected",), "ecc", "aggregate_uncorrected"),
    (c.ECC_SRAM, (), "ecc", "aggregate_sram_uncorrected"),
    (c.RETIRED_PAGES, ("corrected",), "repair", "retired_pages_corrected"),
    (c.RETIRED_PAGES, ("uncorrected",), "repair", "retired_pages_uncorrected"),
    (c.RETIRED_PAGES_PENDING, (), "repair", "retired_pages_pending"),
    (c.REMAPPED_ROWS, ("corrected",), "repair", "remapped_rows_corrected"),
    (c.REMAPPED_ROWS, ("uncorrected",), "repair", "remapped_rows_uncorrected"),
    (c.REMAPPED_ROWS_PENDING, (), "repair", "remapped_rows_pending"),
    (c.REMAPPED_ROWS_FAILED, (), "repair", "remapped_rows_failed"),
)
_HELD = tuple(field.name for field in dataclasses.fields(ClocksEventReading))
_LINK_FIELDS = (
    (c.NVLINK_RECEIVED, "received_bytes"),
    (c.NVLINK_TRANSMITTED, "transmitted_bytes"),
    (c.NVLINK_ERRORS, "errors"),
)
_MIG_FIELDS: tuple[tuple[Metric, str, float, float, float], ...] = (
    (c.MIG_MEMORY_FREE, "memory_free_bytes", _MB, 0, _PIB),
    (c.MIG_MEMORY_CAPACITY, "memory_total_bytes", _MB, 1, _PIB),
    (c.MIG_MEMORY_USED, "memory_used_bytes", _MB, 0, _PIB),
    (c.MIG_MEMORY_RESERVED, "memory_reserved_bytes", _MB, 0, _PIB),
    (c.MIG_SM_ACTIVE, "sm_active_ratio", 1, 0, 1),
)
_COMPUTE_PART = re.compile(r"^[0-9]+c\.")


def board(gpu: GpuReading, node: str, values: _Samples) -> list[str]:
    """Publish the further facts of one readable GPU. Returns the fields whose value cannot be true."""
    labels = (node, gpu.uuid, gpu.name)
    wrong = _plain(gpu, labels, values)
    for metric, more, part, field in _PARTS:
        _put_count(values, metric, (*labels, *more), getattr(getattr(gpu, part), field, None))
    for link in gpu.nvlinks or ():
        for metric, field in _LINK_FIELDS:
            _put_count(values, metric, (*labels, str(link.link)), getattr(link, field))
    for event in gpu.xids or ():
        _put_count(values, c.XID_EVENTS, (*labels, str(event.xid)), event.count)
        if 0 <= event.last_at < _LATEST:
            values[c.XID_LAST][(*labels, str(event.xid))] = event.last_at
    _clocks_events(gpu, labels, values)
    return wrong


def instances(gpu: GpuReading, node: str, values: _Samples) -> None:
    """Publish the MIG instances of one GPU: memory once per GPU instance, whatever number of compute instances."""
    done: set[int] = set()
    for instance in gpu.mig:
        labels = (node, gpu.uuid, str(instance.gpu_instance), gpu_profile(instance.profile))
        values[c.MIG_INFO][(*labels, str(instance.compute_instance), instance.uuid)] = 1
        if instance.gpu_instance not in done and _publish(instance, labels, values):
            done.add(instance.gpu_instance)


def gpu_profile(profile: str) -> str:
    """``1c.4g.71gb`` -> ``4g.71gb``: the profile of the GPU instance in which a compute instance lives."""
    return _COMPUTE_PART.sub("", profile)


def _plain(gpu: GpuReading, labels: Labels, values: _Samples) -> list[str]:
    wrong = []
    for field, metric, divisor, smallest, largest in FIELDS:
        value = getattr(gpu, field)
        if value is None:
            continue
        if smallest <= value <= largest:
            values[metric][labels] = value / divisor
        else:
            wrong.append(field)
    return wrong


def _put_count(values: _Samples, metric: Metric, labels: Labels, value: float | None) -> None:
    if value is not None and 0 <= value < _COUNT:
        values[metric][labels] = int(value)


def _clocks_events(gpu: GpuReading, labels: Labels, values: _Samples) -> None:
    for field in _HELD:
        seconds = getattr(gpu.clocks_event, field, None)
        if seconds is not None and 0 <= seconds < _COUNT:
            values[c.CLOCKS_EVENT_SECONDS][(*labels, field.removesuffix("_seconds"))] = seconds
    mask = gpu.clocks_event_reasons
    if mask is None:
        return
    rows = values[c.CLOCKS_EVENT]
    for bit, reason in CLOCKS_EVENT_REASONS.items():
        rows[(*labels, reason)] = int(bool(mask & bit))
    rows[(*labels, "other")] = int(bool(mask & ~_ALL_REASONS))


def _publish(instance: MigReading, labels: Labels, values: _Samples) -> bool:
    """Publish one GPU instance. Returns whether its memory was told."""
    total, used = instance.memory_total_bytes, instance.memory_used_bytes
    for metric, field, divisor, smallest, largest in _MIG_FIELDS:
        value = getattr(instance, field)
        limit = total if total and field.startswith("memory_") else largest
        if value is not None and smallest <= value <= min(limit, largest):
            values[metric][labels] = value / divisor
    if total and used is not None and 0 <= used <= total <= _PIB:
        values[c.MIG_MEMORY_USAGE][labels] = 100 * used / total
    return total is not None
