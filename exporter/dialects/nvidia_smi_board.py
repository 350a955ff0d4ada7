"""What nvidia_gpu_exporter calls the facts of a board that every node reads: nvidia-smi's query fields in base units.

Why it exists: the tables of this dialect fill three files; this one has the rows that are ours too under another name.
"""

from collections.abc import Callable
from typing import Any

from exporter.dialects.rows import Row, metric, reads
from exporter.metric import Kind
from exporter.readings import GpuReading

GPU = ("uuid",)


def row(
    name: str,
    unit: str,
    help_text: str,
    source: str,
    value: Callable[[Any], float | None],
    native: str = "",
    differs: str = "",
    *,
    labels: tuple[str, ...] = GPU,
    kind: Kind = "gauge",
) -> Row:
    """Make one family of this dialect."""
    return Row(metric(f"nvidia_smi_{name}", "node", unit, kind, labels, help_text, source), value, native, differs)


def reading(
    name: str, unit: str, help_text: str, field: str, native: str = "", differs: str = "", *, times: float = 1
) -> Row:
    """Make a family that is one field of the reading, ``a.b`` for a part's, in another unit where ``times`` is set."""
    native = native and f"aom_node_gpu_{native}"
    return row(name, unit, help_text, f"GpuReading.{field}", reads(field, times), native, differs)


def ratio(name: str, what: str, field: str, native: str = "") -> Row:
    """Make a family that is a field in percent, as a ratio."""
    differs = "0-1; ours is percent." if native else ""
    return reading(name, "ratio", f"{what} as a ratio (0-1).", field, native, differs, times=0.01)


def _bytes(name: str, what: str, field: str, native: str) -> Row:
    return reading(f"memory_{name}_bytes", "bytes", f"{what} in bytes.", field, native, "Bytes; ours is megabytes.")


def _clock(domain: str) -> Row:
    help_text = f"Present {domain} clock in Hz."
    name = f"clocks_current_{domain}_clock_hz"
    return reading(name, "hz", help_text, f"{domain}_clock_hertz", f"{domain}_clock_hertz")


def _flag(prefix: str, name: str, bit: int) -> Row:
    def value(gpu: GpuReading) -> float | None:
        return None if gpu.clocks_event_reasons is None else int(bool(gpu.clocks_event_reasons & bit))

    help_text = f"1 if clocks are held down for the reason {name}."
    native, differs = "aom_node_gpu_clocks_event", "One family a reason; ours is one family with a label reason."
    return row(f"{prefix}_{name}", "", help_text, "GpuReading.clocks_event_reasons", value, native, differs)


REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
HELD = ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
"""The reasons of which the driver counts the time."""

READINGS: tuple[Row, ...] = (
    reading("index", "", "Index of the GPU.", "index", "info", "A value; ours is a label."),
    ratio("utilization_gpu_ratio", "Utilisation of the GPU", "utilization_percent", "usage"),
    ratio(
        "utilization_memory_ratio",
        "Utilisation of the memory controller",
        "memory_utilization_percent",
        "memory_controller_usage",
    ),
    ratio("utilization_encoder_ratio", "Utilisation of the encoder", "encoder_utilization_percent", "encoder_usage"),
    ratio("utilization_decoder_ratio", "Utilisation of the decoder", "decoder_utilization_percent", "decoder_usage"),
    ratio("fan_speed_ratio", "Intended fan speed", "fan_percent", "fan_speed"),
    _bytes("total", "All memory", "memory_total_bytes", "memory_capacity_megabytes"),
    _bytes("used", "Used memory", "memory_used_bytes", "memory_used_megabytes"),
    _bytes("free", "Free memory", "memory_free_bytes", "memory_free_megabytes"),
    _bytes("reserved", "Memory reserved by the driver", "memory_reserved_bytes", "memory_reserved_megabytes"),
    reading("temperature_gpu", "", "Temperature in degrees Celsius.", "temperature_celsius", "temperature_centigrade"),
    reading(
        "temperature_memory",
        "",
        "Temperature of the memory in degrees Celsius.",
        "memory_temperature_celsius",
        "memory_temperature_centigrade",
    ),
    reading("power_draw_watts", "watts", "Power that the board draws.", "power_watts", "power_watts"),
    reading("enforced_power_limit_watts", "watts", "Power limit in force.", "power_limit_watts", "power_limit_watts"),
    *(_clock(domain) for domain in ("graphics", "sm", "memory", "video")),
    reading("clocks_event_reasons_active", "", "Bit mask of why clocks are held down.", "clocks_event_reasons"),
    *(_flag("clocks_event_reasons", *reason) for reason in REASONS.items()),
    *(_flag("clocks_throttle_reasons", *reason) for reason in REASONS.items()),
    reading("pstate", "", "Performance state, 0 = fastest.", "performance_state", "performance_state"),
    *(
        reading(f"pcie_link_gen_{which}", "", "PCIe generation in use.", "pcie_generation", "pcie_generation")
        for which in ("current", "gpucurrent")
    ),
    reading("pcie_link_gen_max", "", "Highest PCIe generation.", "pcie_generation_max", "pcie_generation_max"),
    reading("pcie_link_width_current", "", "PCIe lanes in use.", "pcie_width", "pcie_width"),
    reading("pcie_link_width_max", "", "Most PCIe lanes.", "pcie_width_max", "pcie_width_max"),
    reading("mig_mode_current", "", "1 if MIG is on.", "mig_enabled", "mig_enabled"),
    reading(
        "temperature_gpu_tlimit",
        "",
        "How many degrees Celsius warmer it may get before its clocks are held down.",
        "temperature_margin_celsius",
        "temperature_margin_centigrade",
    ),
    reading(
        "gpu_recovery_action",
        "",
        "What the driver says the GPU needs: 0 nothing, 1 a reset, 2 a restart of the node.",
        "recovery_action",
        "recovery_action",
    ),
    *(
        reading(
            f"clocks_event_reasons_counters_{name}_seconds",
            "seconds",
            f"For how long {name} has held the clocks down.",
            f"clocks_event.{name}_seconds",
            "clocks_event_seconds_total",
            "A gauge for each reason; ours is a counter with a label reason.",
        )
        for name in HELD
    ),
    *(
        reading(
            f"ecc_errors_{kind}_{life}_total",
            "",
            f"ECC errors, {kind}, {life}.",
            f"ecc.{life}_{kind}",
            f"ecc_{life}_errors_total",
            "A gauge for each kind; ours is a counter with a label kind.",
        )
        for kind in ("corrected", "uncorrected")
        for life in ("volatile", "aggregate")
    ),
    *(
        reading(f"remapped_rows_{name}", "", help_text, f"repair.remapped_rows_{field}", native)
        for name, field, help_text, native in (
            ("correctable", "corrected", "Rows remapped for corrected errors.", "remapped_rows"),
            ("uncorrectable", "uncorrected", "Rows remapped for uncorrected errors.", "remapped_rows"),
            ("pending", "pending", "1 if a remapping waits for a reset.", "remapped_rows_pending"),
            ("failure", "failed", "1 if a remapping has failed.", "remapped_rows_failed"),
        )
    ),
    reading("retired_pages_single_bit_ecc_count", "", "Pages retired, corrected.", "repair.retired_pages_corrected"),
    reading("retired_pages_double_bit_count", "", "Pages retired, uncorrected.", "repair.retired_pages_uncorrected"),
    reading("retired_pages_pending", "", "1 if pages wait to be retired.", "repair.retired_pages_pending"),
    row(
        "energy_joules_total",
        "joules",
        "Energy since the driver was loaded.",
        "GpuReading.energy_joules",
        reads("energy_joules"),
        "aom_node_gpu_energy_joules_total",
        kind="counter",
    ),
)
