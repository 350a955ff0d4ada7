"""The catalogue's rows about boards and their parts: what NVML tells beside memory, utilisation and power.

Why it exists: apart from the rows that the controller decides by, because these are many and change together.
"""

from exporter.metric import Metric, mig_row, node_row


def _counter(name: str, unit: str, help_text: str, source: str, *more_labels: str) -> Metric:
    return node_row(name, unit, help_text, source, *more_labels, kind="counter")


MEMORY_TEMPERATURE = node_row(
    "aom_node_gpu_memory_temperature_centigrade",
    "centigrade",
    "Temperature of the GPU's memory in degrees Celsius.",
    "GpuReading.memory_temperature_celsius",
)
TEMPERATURE_MARGIN = node_row(
    "aom_node_gpu_temperature_margin_centigrade",
    "centigrade",
    "How many degrees Celsius warmer the GPU may get before its clocks are held down; negative where it is too warm.",
    "GpuReading.temperature_margin_celsius",
)
RECOVERY_ACTION = node_row(
    "aom_node_gpu_recovery_action",
    "",
    "What the driver says the GPU needs: 0 nothing, 1 a reset, 2 a restart of the node, 3 an end of its peer traffic, "
    "4 to be drained and reset; more from newer drivers.",
    "GpuReading.recovery_action",
)
POWER_LIMIT = node_row(
    "aom_node_gpu_power_limit_watts",
    "watts",
    "Power to which the driver holds the board at present, in watts.",
    "GpuReading.power_limit_watts",
)
ENERGY = _counter(
    "aom_node_gpu_energy_joules_total",
    "joules",
    "Energy the board has drawn since the driver was loaded, in joules.",
    "GpuReading.energy_joules",
)
FAN = node_row(
    "aom_node_gpu_fan_speed",
    "percent",
    "Speed the fan is set to, in percent of its full speed; absent on boards without one.",
    "GpuReading.fan_percent",
)
BAR1_CAPACITY = node_row(
    "aom_node_gpu_bar1_memory_capacity_megabytes",
    "megabytes",
    "Size of the window (BAR1) through which others reach GPU memory over PCIe. 1 MB = 2^20 bytes.",
    "GpuReading.bar1_total_bytes",
)
BAR1_USED = node_row(
    "aom_node_gpu_bar1_memory_used_megabytes",
    "megabytes",
    "Mapped part of the window (BAR1) to GPU memory. 1 MB = 2^20 bytes.",
    "GpuReading.bar1_used_bytes",
)
ENCODER_USAGE = node_row(
    "aom_node_gpu_encoder_usage",
    "percent",
    "Utilisation of the video encoder in percent (0-100).",
    "GpuReading.encoder_utilization_percent",
)
DECODER_USAGE = node_row(
    "aom_node_gpu_decoder_usage",
    "percent",
    "Utilisation of the video decoder in percent (0-100).",
    "GpuReading.decoder_utilization_percent",
)
SM_CLOCK, MEMORY_CLOCK, GRAPHICS_CLOCK, VIDEO_CLOCK = (
    node_row(
        f"aom_node_gpu_{domain}_clock_hertz",
        "hertz",
        f"Present frequency of the {domain} clock, in hertz.",
        f"GpuReading.{domain}_clock_hertz",
    )
    for domain in ("sm", "memory", "graphics", "video")
)
PCIE_GENERATION = node_row(
    "aom_node_gpu_pcie_generation",
    "",
    "PCIe generation of the link at present; it may fall while the GPU is idle.",
    "GpuReading.pcie_generation",
)
PCIE_WIDTH = node_row(
    "aom_node_gpu_pcie_width", "", "Lanes of the PCIe link in use at present.", "GpuReading.pcie_width"
)
PCIE_GENERATION_MAX = node_row(
    "aom_node_gpu_pcie_generation_max",
    "",
    "Highest PCIe generation that the GPU and its slot can have together.",
    "GpuReading.pcie_generation_max",
)
PCIE_WIDTH_MAX = node_row(
    "aom_node_gpu_pcie_width_max",
    "",
    "Most PCIe lanes that the GPU and its slot can have together.",
    "GpuReading.pcie_width_max",
)
PCIE_REPLAYS = _counter(
    "aom_node_gpu_pcie_replays_total",
    "",
    "Packets sent again over PCIe because of an error of the link.",
    "GpuReading.pcie_replays",
)
CLOCKS_EVENT = node_row(
    "aom_node_gpu_clocks_event",
    "",
    "1 if this reason holds the clocks below what they could be, else 0.",
    "GpuReading.clocks_event_reasons",
    "reason",
)
CLOCKS_EVENT_SECONDS = _counter(
    "aom_node_gpu_clocks_event_seconds_total",
    "seconds",
    "For how long this reason has held the clocks down since the driver was loaded, in seconds.",
    "GpuReading.clocks_event",
    "reason",
)
PERFORMANCE_STATE = node_row(
    "aom_node_gpu_performance_state",
    "",
    "Performance state: 0 is the fastest, 15 the slowest.",
    "GpuReading.performance_state",
)
SM_ACTIVE = node_row(
    "aom_node_gpu_sm_active_ratio",
    "ratio",
    "Part (0-1) of the time since the last sample in which an SM had work, as a mean over the SMs.",
    "GpuReading.sm_active_ratio",
)
SM_OCCUPANCY = node_row(
    "aom_node_gpu_sm_occupancy_ratio",
    "ratio",
    "Part (0-1) of the warps the SMs could hold that they held, since the last sample.",
    "GpuReading.sm_occupancy_ratio",
)
TENSOR_ACTIVE = node_row(
    "aom_node_gpu_tensor_active_ratio",
    "ratio",
    "Part (0-1) of the time since the last sample in which the tensor cores were busy.",
    "GpuReading.tensor_active_ratio",
)
DRAM_ACTIVE = node_row(
    "aom_node_gpu_dram_active_ratio",
    "ratio",
    "Part (0-1) of the memory's bandwidth in use since the last sample.",
    "GpuReading.dram_active_ratio",
)
ECC_VOLATILE = _counter(
    "aom_node_gpu_ecc_volatile_errors_total",
    "",
    "Memory errors since the driver was loaded, corrected and uncorrected.",
    "GpuReading.ecc",
    "kind",
)
ECC_AGGREGATE = _counter(
    "aom_node_gpu_ecc_aggregate_errors_total",
    "",
    "Memory errors over the board's life, corrected and uncorrected.",
    "GpuReading.ecc",
    "kind",
)
ECC_SRAM = _counter(
    "aom_node_gpu_ecc_sram_uncorrected_errors_total",
    "",
    "Uncorrected errors in the board's on-chip memory (SRAM) over its life; the aggregate family has them too.",
    "GpuReading.ecc",
)
RETIRED_PAGES = node_row(
    "aom_node_gpu_retired_pages",
    "",
    "Memory pages taken out of use, by the kind of error that caused it; boards before Ampere.",
    "GpuReading.repair",
    "cause",
)
REMAPPED_ROWS = node_row(
    "aom_node_gpu_remapped_rows",
    "",
    "Memory rows replaced by spare ones, by the kind of error that caused it; boards since Ampere.",
    "GpuReading.repair",
    "cause",
)
RETIRED_PAGES_PENDING = node_row(
    "aom_node_gpu_retired_pages_pending",
    "",
    "1 if pages wait for a restart to be taken out of use, else 0.",
    "GpuReading.repair",
)
REMAPPED_ROWS_PENDING = node_row(
    "aom_node_gpu_remapped_rows_pending",
    "",
    "1 if rows wait for a reset of the GPU to be replaced, else 0.",
    "GpuReading.repair",
)
REMAPPED_ROWS_FAILED = node_row(
    "aom_node_gpu_remapped_rows_failed",
    "",
    "1 if a row could not be replaced, which calls for another board, else 0.",
    "GpuReading.repair",
)
NVLINK_RECEIVED = _counter(
    "aom_node_gpu_nvlink_received_bytes_total", "bytes", "Bytes received over an NVLink.", "NvlinkReading", "link"
)
NVLINK_TRANSMITTED = _counter(
    "aom_node_gpu_nvlink_transmitted_bytes_total", "bytes", "Bytes sent over an NVLink.", "NvlinkReading", "link"
)
NVLINK_ERRORS = _counter(
    "aom_node_gpu_nvlink_errors_total", "", "Errors of an NVLink, of all kinds.", "NvlinkReading", "link"
)
XID_EVENTS = _counter(
    "aom_node_gpu_xid_events_total",
    "",
    "Error events (Xid) of the GPU since the exporter started, by their number. Earlier ones are not known.",
    "XidReading",
    "xid",
)
XID_LAST = node_row(
    "aom_node_gpu_xid_last_timestamp_seconds",
    "seconds",
    "Unix time of the last error event (Xid) of this number since the exporter started.",
    "XidReading",
    "xid",
)
MIG_ENABLED = node_row(
    "aom_node_gpu_mig_enabled",
    "",
    "1 if the GPU is split into instances (MIG), else 0; absent on GPUs that cannot be.",
    "GpuReading.mig_enabled",
)

MIG_MEMORY_FREE, MIG_MEMORY_CAPACITY, MIG_MEMORY_USED, MIG_MEMORY_RESERVED = (
    mig_row(
        f"aom_mig_gpu_memory_{part}_megabytes",
        "megabytes",
        f"Memory of a GPU instance (MIG) {what}, shared by all compute instances within. 1 MB = 2^20 bytes.",
        f"MigReading.memory_{field}_bytes",
    )
    for part, field, what in (
        ("free", "free", "that is free"),
        ("capacity", "total", "as a whole"),
        ("used", "used", "that is in use"),
        ("reserved", "reserved", "that the driver reserves for itself"),
    )
)
MIG_MEMORY_USAGE = mig_row(
    "aom_mig_gpu_memory_usage",
    "percent",
    "Used memory of a GPU instance (MIG) in percent (0-100) of its capacity.",
    "MigReading.memory_used_bytes / MigReading.memory_total_bytes",
)
MIG_SM_ACTIVE = mig_row(
    "aom_mig_gpu_sm_active_ratio",
    "ratio",
    "Part (0-1) of the time since the last sample in which an SM of a GPU instance (MIG) had work.",
    "MigReading.sm_active_ratio",
)
MIG_INFO = mig_row(
    "aom_mig_gpu_info",
    "",
    "Always 1. One series per compute instance (MIG): its uuid, and the GPU instance that it is part of.",
    "MigReading",
    "ci",
    "mig_uuid",
)

NODE: tuple[Metric, ...] = (
    MEMORY_TEMPERATURE,
    TEMPERATURE_MARGIN,
    RECOVERY_ACTION,
    POWER_LIMIT,
    ENERGY,
    FAN,
    BAR1_CAPACITY,
    BAR1_USED,
    ENCODER_USAGE,
    DECODER_USAGE,
    SM_CLOCK,
    MEMORY_CLOCK,
    GRAPHICS_CLOCK,
    VIDEO_CLOCK,
    PCIE_GENERATION,
    PCIE_WIDTH,
    PCIE_GENERATION_MAX,
    PCIE_WIDTH_MAX,
    PCIE_REPLAYS,
    CLOCKS_EVENT,
    CLOCKS_EVENT_SECONDS,
    PERFORMANCE_STATE,
    SM_ACTIVE,
    SM_OCCUPANCY,
    TENSOR_ACTIVE,
    DRAM_ACTIVE,
    ECC_VOLATILE,
    ECC_AGGREGATE,
    ECC_SRAM,
    RETIRED_PAGES,
    RETIRED_PAGES_PENDING,
    REMAPPED_ROWS,
    REMAPPED_ROWS_PENDING,
    REMAPPED_ROWS_FAILED,
    NVLINK_RECEIVED,
    NVLINK_TRANSMITTED,
    NVLINK_ERRORS,
    XID_EVENTS,
    XID_LAST,
    MIG_ENABLED,
)
MIG: tuple[Metric, ...] = (
    MIG_MEMORY_FREE,
    MIG_MEMORY_CAPACITY,
    MIG_MEMORY_USED,
    MIG_MEMORY_RESERVED,
    MIG_MEMORY_USAGE,
    MIG_SM_ACTIVE,
    MIG_INFO,
)
