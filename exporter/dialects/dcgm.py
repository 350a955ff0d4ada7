"""The names of dcgm-exporter: MiB, W, mJ; one series per GPU, or per GPU instance where MIG is on.

Why it exists: dashboard 12239 and most alert rules for NVIDIA GPUs ask for these names.
"""

from collections.abc import Callable
from typing import Any

from exporter.dialects.rows import BANKS, MEBIBYTE, Row, Samples, View, fact, fill, metric, reads
from exporter.metric import Kind
from exporter.readings import GpuReading, MigReading

LABELS = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "GPU_I_PROFILE",
    "GPU_I_ID",
    "Hostname",
    "DCGM_FI_DRIVER_VERSION",
    "container",
    "namespace",
    "pod",
)


def _row(
    name: str,
    unit: str,
    help_text: str,
    source: str,
    value: Callable[[Any], float | None],
    native: str = "",
    differs: str = "",
    kind: Kind = "gauge",
) -> Row:
    family = metric(f"DCGM_FI_{name}", "node", unit, kind, LABELS, help_text, f"GpuReading.{source}")
    return Row(family, value, native, differs)


def _field(
    name: str,
    unit: str,
    help_text: str,
    source: str,
    native: str = "",
    differs: str = "",
    *,
    times: float = 1,
    whole: bool = False,
    kind: Kind = "gauge",
) -> Row:
    return _row(name, unit, help_text, source, reads(source, times, whole=whole), native, differs, kind)


def _mib(name: str, help_text: str, source: str, native: str = "") -> Row:
    differs = "MiB rounded down to a whole number; ours keeps the fraction." if native else ""
    return _field(name, "MiB", help_text + " in MiB.", source, native, differs, times=1 / MEBIBYTE, whole=True)


def _count(name: str, help_text: str, source: str, native: str = "") -> Row:
    return _field(name, "", help_text, source, native, kind="counter")


def _last_xid(gpu: GpuReading) -> float | None:
    if gpu.xids is None:
        return None
    return max(gpu.xids, key=lambda xid: xid.last_at).xid if gpu.xids else 0


def _used_part(memory: GpuReading | MigReading) -> float | None:
    if memory.memory_used_bytes is None or not memory.memory_total_bytes:
        return None
    return memory.memory_used_bytes / (memory.memory_total_bytes - (memory.memory_reserved_bytes or 0) or 1)


MEMORY: tuple[Row, ...] = (
    _mib("DEV_FB_FREE", "Free frame buffer memory", "memory_free_bytes", "aom_node_gpu_memory_free_megabytes"),
    _mib("DEV_FB_USED", "Used frame buffer memory", "memory_used_bytes", "aom_node_gpu_memory_used_megabytes"),
    _mib("DEV_FB_TOTAL", "All frame buffer memory", "memory_total_bytes", "aom_node_gpu_memory_capacity_megabytes"),
    _mib(
        "DEV_FB_RESERVED",
        "Frame buffer memory that the driver reserves",
        "memory_reserved_bytes",
        "aom_node_gpu_memory_reserved_megabytes",
    ),
    _row(
        "DEV_FB_USED_PERCENT",
        "ratio",
        "Used part (0-1) of the frame buffer memory that is not reserved.",
        "memory_used_bytes / (memory_total_bytes - memory_reserved_bytes)",
        _used_part,
        "aom_node_gpu_memory_usage",
        "A ratio of 0-1 in spite of its name, of the memory that is not reserved; ours is percent of the capacity.",
    ),
)
"""Of a GPU, or of each GPU instance where MIG is on."""

ACTIVITY: tuple[Row, ...] = (
    _field("PROF_SM_ACTIVE", "ratio", "Mean part (0-1) of SMs with a warp assigned.", "sm_active_ratio"),
)
"""Of a GPU, or of each GPU instance where MIG is on."""

BOARD: tuple[Row, ...] = (
    _field("DEV_SM_CLOCK", "MHz", "SM clock in MHz.", "sm_clock_hertz", times=1e-6),
    _field("DEV_MEM_CLOCK", "MHz", "Memory clock in MHz.", "memory_clock_hertz", times=1e-6),
    _field("DEV_VIDEO_CLOCK", "MHz", "Video clock in MHz.", "video_clock_hertz", times=1e-6),
    _field("DEV_MEMORY_TEMP", "C", "Temperature of the memory in degrees Celsius.", "memory_temperature_celsius"),
    _field(
        "DEV_GPU_TEMP",
        "C",
        "Temperature of the GPU in degrees Celsius.",
        "temperature_celsius",
        "aom_node_gpu_temperature_centigrade",
    ),
    _field(
        "DEV_GPU_TEMP_LIMIT",
        "C",
        "How many degrees Celsius warmer it may get before its clocks are held down.",
        "temperature_margin_celsius",
        "aom_node_gpu_temperature_margin_centigrade",
    ),
    _field("DEV_POWER_USAGE", "W", "Power that the board draws, in W.", "power_watts", "aom_node_gpu_power_watts"),
    _field("DEV_POWER_USAGE_INSTANT", "W", "Power drawn at this instant, in W.", "details.power.instant_watts"),
    _field("DEV_ENFORCED_POWER_LIMIT", "W", "Power limit in force, in W.", "power_limit_watts"),
    _field(
        "DEV_POWER_MGMT_LIMIT", "W", "Power limit as it was asked for, in W.", "details.power.requested_limit_watts"
    ),
    *(
        _row(f"DEV_POWER_MGMT_LIMIT_{name}", "W", f"{words} power limit, in W.", f"facts[{key}]", fact(key))
        for name, words, key in (
            ("MIN", "Lowest possible", "power_min_limit_watts"),
            ("MAX", "Highest possible", "power_max_limit_watts"),
            ("DEF", "Default", "power_default_limit_watts"),
        )
    ),
    _field(
        "DEV_TOTAL_ENERGY_CONSUMPTION",
        "mJ",
        "Energy since the driver was loaded, in mJ.",
        "energy_joules",
        times=1000,
        whole=True,
        kind="counter",
    ),
    _field("DEV_FAN_SPEED", "percent", "Intended fan speed in percent (0-100).", "fan_percent"),
    _field("DEV_PSTATE", "", "Performance state, 0 = fastest.", "performance_state"),
    _count("DEV_PCIE_REPLAY_COUNTER", "PCIe retries.", "pcie_replays"),
    _field("DEV_PCIE_LINK_GEN", "", "PCIe generation in use.", "pcie_generation"),
    _field("DEV_PCIE_LINK_WIDTH", "", "PCIe lanes in use.", "pcie_width"),
    _field("DEV_PCIE_MAX_LINK_GEN", "", "Highest possible PCIe generation.", "pcie_generation_max"),
    _field("DEV_PCIE_MAX_LINK_WIDTH", "", "Highest possible number of PCIe lanes.", "pcie_width_max"),
    _field(
        "DEV_GPU_UTIL",
        "percent",
        "Utilisation of the GPU in percent (0-100). Absent where MIG is on.",
        "utilization_percent",
        "aom_node_gpu_usage",
    ),
    _field(
        "DEV_MEM_COPY_UTIL",
        "percent",
        "Utilisation of the memory controller in percent (0-100).",
        "memory_utilization_percent",
        "aom_node_gpu_memory_controller_usage",
    ),
    _field("DEV_ENC_UTIL", "percent", "Encoder utilisation in percent (0-100).", "encoder_utilization_percent"),
    _field("DEV_DEC_UTIL", "percent", "Decoder utilisation in percent (0-100).", "decoder_utilization_percent"),
    _field("DEV_CLOCK_THROTTLE_REASONS", "", "Bit mask of why clocks are held down.", "clocks_event_reasons"),
    *(
        _field(
            f"DEV_CLOCKS_EVENT_REASON_{name}_NS",
            "ns",
            f"For how long {field} has held the clocks down, in ns.",
            f"clocks_event.{field}_seconds",
            "aom_node_gpu_clocks_event_seconds_total",
            "Nanoseconds, one family a reason; ours is seconds with a label reason.",
            times=1e9,
            kind="counter",
        )
        for name, field in (
            ("SW_POWER_CAP", "sw_power_cap"),
            ("SYNC_BOOST", "sync_boost"),
            ("SW_THERM_SLOWDOWN", "sw_thermal_slowdown"),
            ("HW_THERM_SLOWDOWN", "hw_thermal_slowdown"),
            ("HW_POWER_BRAKE_SLOWDOWN", "hw_power_brake_slowdown"),
        )
    ),
    _field(
        "DEV_GET_GPU_RECOVERY_ACTION",
        "",
        "What the driver says the GPU needs: 0 nothing, 1 a reset, 2 a restart of the node.",
        "recovery_action",
        "aom_node_gpu_recovery_action",
    ),
    _row(
        "DEV_XID_ERRORS", "", "The last Xid since the exporter started, 0 = none. It never clears.", "xids", _last_xid
    ),
    _mib("DEV_BAR1_USED", "Used BAR1 memory", "bar1_used_bytes"),
    _mib("DEV_BAR1_TOTAL", "All BAR1 memory", "bar1_total_bytes"),
    _count("DEV_ECC_SBE_VOL_TOTAL", "Corrected ECC errors since the driver was loaded.", "ecc.volatile_corrected"),
    _count("DEV_ECC_DBE_VOL_TOTAL", "Uncorrected ECC errors since the driver was loaded.", "ecc.volatile_uncorrected"),
    _count("DEV_ECC_SBE_AGG_TOTAL", "Corrected ECC errors over the board's life.", "ecc.aggregate_corrected"),
    _count("DEV_ECC_DBE_AGG_TOTAL", "Uncorrected ECC errors over the board's life.", "ecc.aggregate_uncorrected"),
    *(
        _count(
            f"DEV_ECC_{errors}_{life}_{place}",
            f"ECC errors in {memory}, {kind}, {span}.",
            f"details.ecc.{span}_{kind}_{memory.lower()}",
        )
        for life, span in (("VOL", "volatile"), ("AGG", "aggregate"))
        for errors, kind in (("SBE", "corrected"), ("DBE", "uncorrected"))
        for place, memory in (("DEV", "DRAM"), ("SRM", "SRAM"))
    ),
    _field(
        "DEV_THRESHOLD_SRM",
        "",
        "1 if there are more ECC errors in SRAM than the maker accepts.",
        "details.ecc.sram_threshold_exceeded",
    ),
    *(
        _field(
            f"DEV_BANKS_REMAP_ROWS_AVAIL_{mark.upper()}", "", f"Banks that have {left}.", f"details.rows.banks_{mark}"
        )
        for mark, left in BANKS.items()
    ),
    _count("DEV_RETIRED_SBE", "Pages retired for corrected errors.", "repair.retired_pages_corrected"),
    _count("DEV_RETIRED_DBE", "Pages retired for uncorrected errors.", "repair.retired_pages_uncorrected"),
    _count("DEV_RETIRED_PENDING", "1 if pages wait to be retired.", "repair.retired_pages_pending"),
    _count("DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for corrected errors.", "repair.remapped_rows_corrected"),
    _count(
        "DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrected errors.", "repair.remapped_rows_uncorrected"
    ),
    _field("DEV_ROW_REMAP_PENDING", "", "1 if a remapping waits for a reset.", "repair.remapped_rows_pending"),
    _field("DEV_ROW_REMAP_FAILURE", "", "1 if a remapping has failed.", "repair.remapped_rows_failed"),
    _field("PROF_GR_ENGINE_ACTIVE", "ratio", "Part (0-1) of the time in which a kernel ran.", "graphics_active_ratio"),
    _field("PROF_SM_OCCUPANCY", "ratio", "Mean part (0-1) of the warps that could be resident.", "sm_occupancy_ratio"),
    _field("PROF_PIPE_TENSOR_ACTIVE", "ratio", "Part (0-1) of cycles of the tensor pipes.", "tensor_active_ratio"),
    _field("PROF_DRAM_ACTIVE", "ratio", "Part (0-1) of cycles of the memory interface.", "dram_active_ratio"),
)
"""Of the board, once each whatever is partitioned."""

ROWS: tuple[Row, ...] = (*MEMORY, *ACTIVITY, *BOARD)


def speak(view: View, samples: Samples) -> None:
    """Add this dialect's samples."""
    for gpu in view.gpus:
        whole = _labels(view, gpu, None)
        fill(samples, BOARD, whole, gpu)
        instances = {mig.gpu_instance: mig for mig in reversed(gpu.mig)}
        for mig in instances.values():
            fill(samples, (*MEMORY, *ACTIVITY), _labels(view, gpu, mig), mig)
        if not instances:
            fill(samples, (*MEMORY, *ACTIVITY), whole, gpu)


def _labels(view: View, gpu: GpuReading, mig: MigReading | None) -> tuple[str, ...]:
    namespace, pod, container = view.holder(gpu.uuid, mig.gpu_instance if mig else None)
    return (
        str(gpu.index),
        gpu.uuid,
        gpu.facts.get("pci_bus_id", ""),
        f"nvidia{gpu.facts.get('minor_number') or gpu.index}",
        gpu.name,
        mig.profile if mig else "",
        str(mig.gpu_instance) if mig else "",
        view.node,
        view.snapshot.driver_version,
        container,
        namespace,
        pod,
    )
