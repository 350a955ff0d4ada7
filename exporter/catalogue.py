"""Every metric the exporter publishes, one row each: the only source of metric names.

Why it exists: names, labels and units are read by the renderer, by the controller, by rules and by
dashboards. All of them look here. Standard library only, so that any of them may import it.
"""

from exporter import catalogue_boards as boards
from exporter import catalogue_processes as processes
from exporter import catalogue_seconds as seconds
from exporter.metric import CONTAINER_LABELS, GPU_LABELS, Kind, Level, Metric, container_row, node_row

__all__ = ["CONTAINER_LABELS", "GPU_LABELS", "Kind", "Level", "Metric"]


def _health(
    name: str, labels: tuple[str, ...], help_text: str, source: str, *, unit: str = "", kind: Kind = "gauge"
) -> Metric:
    return Metric(name, "health", unit, kind, labels, help_text, source)


def _self(name: str, labels: tuple[str, ...], help_text: str, *, unit: str = "", kind: Kind = "gauge") -> Metric:
    return Metric(name, "self", unit, kind, labels, help_text, "prometheus_client")


NODE_USAGE = node_row(
    "aom_node_gpu_usage",
    "percent",
    "Utilisation of the GPU: percent (0-100) of the driver's last sampling period in which a kernel ran.",
    "GpuReading.utilization_percent",
)
NODE_MEMORY_FREE = node_row(
    "aom_node_gpu_memory_free_megabytes",
    "megabytes",
    "GPU memory that is free, by the driver's own figure. 1 MB = 2^20 bytes. Not the capacity. Of unified memory, with "
    "--unified-memory-from-system, what is available to GPU and host alike.",
    "GpuReading.memory_free_bytes",
)
NODE_MEMORY_CAPACITY = node_row(
    "aom_node_gpu_memory_capacity_megabytes",
    "megabytes",
    "All memory of the GPU, the part that the driver reserves included. 1 MB = 2^20 bytes. Of unified memory, with "
    "--unified-memory-from-system, all memory of the machine, else absent.",
    "GpuReading.memory_total_bytes",
)
NODE_MEMORY_USED = node_row(
    "aom_node_gpu_memory_used_megabytes",
    "megabytes",
    "GPU memory in use, without what the driver reserves for itself. 1 MB = 2^20 bytes. Of unified memory, with "
    "--unified-memory-from-system, what the GPU's processes hold and never what the host uses.",
    "GpuReading.memory_used_bytes",
)
NODE_MEMORY_RESERVED = node_row(
    "aom_node_gpu_memory_reserved_megabytes",
    "megabytes",
    "GPU memory that the driver reserves for itself. 1 MB = 2^20 bytes.",
    "GpuReading.memory_reserved_bytes",
)
NODE_MEMORY_USAGE = node_row(
    "aom_node_gpu_memory_usage",
    "percent",
    "Used memory in percent (0-100) of the capacity.",
    "GpuReading.memory_used_bytes / GpuReading.memory_total_bytes",
)
NODE_MEMORY_CONTROLLER_USAGE = node_row(
    "aom_node_gpu_memory_controller_usage",
    "percent",
    "Utilisation of the memory controller: percent (0-100) of the last sampling period in which memory was accessed.",
    "GpuReading.memory_utilization_percent",
)
NODE_TEMPERATURE = node_row(
    "aom_node_gpu_temperature_centigrade",
    "centigrade",
    "Temperature of the GPU in degrees Celsius.",
    "GpuReading.temperature_celsius",
)
NODE_POWER = node_row(
    "aom_node_gpu_power_watts", "watts", "Power that the board draws, in watts.", "GpuReading.power_watts"
)
NODE_INFO = node_row(
    "aom_node_gpu_info",
    "",
    "Always 1. What the GPU is beside its identity: where it sits, which driver runs it, and unified=true where it has "
    "no memory of its own but works in the machine's. An empty label is not known.",
    "GpuReading.index, Snapshot.driver_version, GpuReading.facts, GpuReading.memory_unified",
    "index",
    "driver_version",
    "minor_number",
    "pci_bus_id",
    "architecture",
    "unified",
)
NODE_BOARD_INFO = node_row(
    "aom_node_gpu_board_info",
    "",
    "Always 1. What is written in the board: its serial number and the version of its firmware. An empty label is not "
    "known.",
    "GpuReading.facts",
    "serial",
    "vbios_version",
)

CONTAINER_USAGE = container_row(
    "aom_container_gpu_usage",
    "percent",
    "Utilisation of the GPU by the container in percent (0-100): the GPU's own where the container holds it alone, "
    "else the sum over its processes, at most 100. Absent where it cannot be told apart.",
    "GpuReading.utilization_percent or ProcessReading.utilization_percent",
)
CONTAINER_MEMORY_FREE = container_row(
    "aom_container_gpu_memory_free_megabytes",
    "megabytes",
    "Memory the container can still take: capacity - reserved by the driver - used by the container. Only where it "
    "holds the GPU, or GPU instances, alone. 1 MB = 2^20 bytes. Not the capacity.",
    "GpuReading.memory_total_bytes - GpuReading.memory_reserved_bytes - used",
)
CONTAINER_MEMORY_CAPACITY = container_row(
    "aom_container_gpu_memory_capacity_megabytes",
    "megabytes",
    "All memory of the GPU, or of the GPU instances, that the container holds alone, so that sums are true. "
    "1 MB = 2^20 bytes.",
    "GpuReading.memory_total_bytes or MigReading.memory_total_bytes",
)
CONTAINER_MEMORY_USED = container_row(
    "aom_container_gpu_memory_used_megabytes",
    "megabytes",
    "Memory the container uses on the GPU: the sum over its processes where the driver tells it, else, where the "
    "container holds the GPU, or GPU instances, alone, their used memory. 1 MB = 2^20 bytes.",
    "ProcessReading.memory_used_bytes, GpuReading.memory_used_bytes or MigReading.memory_used_bytes",
)
CONTAINER_MEMORY_USAGE = container_row(
    "aom_container_gpu_memory_usage",
    "percent",
    "Memory the container uses in percent (0-100) of the GPU instances that it holds alone, else of the whole GPU.",
    "used / GpuReading.memory_total_bytes or MigReading.memory_total_bytes",
)

DRIVER_UP = _health(
    "gpuscale_driver_up",
    ("node", "reason"),
    "1 if the GPU driver (or the simulation) answered at the last poll, else 0 and the reason.",
    "Snapshot.driver",
)
KUBELET_UP = _health(
    "gpuscale_kubelet_up",
    ("node", "reason"),
    "1 if the kubelet told which container holds which GPU when it was last asked, else 0 and the reason.",
    "Snapshot.kubelet",
)
GPUS_EXPECTED = _health(
    "gpuscale_gpus_expected", ("node",), "GPUs this node is known to have, absent ones included.", "Snapshot.gpus"
)
GPUS_SEEN = _health("gpuscale_gpus_seen", ("node",), "GPUs that could be read at the last poll.", "Snapshot.gpus")
GPU_UP = _health(
    "gpuscale_gpu_up", GPU_LABELS, "1 if the GPU could be read at the last poll, else 0.", "GpuReading.fault"
)
GPU_ABSENT = _health(
    "gpuscale_gpu_absent",
    (*GPU_LABELS, "reason"),
    "1 for each GPU that could not be read at the last poll, with the reason. Its values are withdrawn.",
    "GpuReading.fault",
)
GPU_CAPABILITY = _health(
    "gpuscale_gpu_capability",
    ("node", "uuid", "field", "reason"),
    "0 for each field of a readable GPU that is not published, with the reason. Published fields have no series here.",
    "GpuReading.absent",
)
GPU_READ_SECONDS = _health(
    "gpuscale_gpu_read_seconds",
    ("node", "uuid"),
    "How long reading the GPU took at the last poll, or for how long it has hung.",
    "GpuReading.read_seconds",
    unit="seconds",
)
CONTAINER_ATTRIBUTION = _health(
    "gpuscale_container_attribution",
    ("node", "uuid", "namespace", "pod", "container", "reason"),
    "One series for each device a container holds: 1 if the container's use of it is published, else 0 and the "
    "reason. uuid is the GPU's, or the id as the kubelet gives it where that names no GPU of this node.",
    "Allocation",
)
GPU_HEALTH = _health(
    "gpuscale_gpu_health",
    GPU_LABELS,
    "Verdict on the GPU: 0 nothing wrong is known, 1 warning, 2 fatal: put no work on it. See docs/health.md.",
    "exporter.health.judge",
)
GPU_HEALTH_REASON = _health(
    "gpuscale_gpu_health_reason",
    (*GPU_LABELS, "reason"),
    "One series for each thing that is wrong with the GPU, with its level: 1 warning, 2 fatal.",
    "exporter.health.judge",
)
PROCESSES_UP = _health(
    "gpuscale_process_attribution_up",
    ("node", "reason"),
    "1 if the GPUs' processes can be told by container, else 0 and the reason. GPUs that are shared can then not be "
    "told apart.",
    "Snapshot.processes",
)
UNRESOLVED_PROCESSES = _health(
    "gpuscale_unresolved_processes",
    ("node", "reason"),
    "Processes on the node's GPUs that are no container's, by the reason. None is blamed on a container.",
    "Snapshot.unresolved_processes",
)
SNAPSHOT_TIMESTAMP = _health(
    "gpuscale_snapshot_timestamp_seconds",
    ("node",),
    "Unix time at which the values here began to be read.",
    "Snapshot.taken_at",
    unit="seconds",
)
POLL_DURATION = _health(
    "gpuscale_poll_duration_seconds",
    ("node",),
    "How long the last poll took, from the first question to the last answer.",
    "Snapshot.poll_seconds",
    unit="seconds",
)
POLLS = _health(
    "gpuscale_polls_total", ("node",), "Polls since the exporter started.", "Snapshot.polls", kind="counter"
)
SERIES = _health(
    "gpuscale_exporter_series",
    ("node",),
    "GPU series that the exporter publishes, without those about its own process.",
    "Budget.series",
)
SERIES_DROPPED = _health(
    "gpuscale_exporter_series_dropped_total",
    ("node",),
    "Series left out since the exporter started, at each poll, because they are beyond --max-series.",
    "Budget.dropped_total",
    kind="counter",
)
DRIVER_FAILURES = _health(
    "gpuscale_driver_failures_total",
    ("node",),
    "Polls since the exporter started at which the driver did not answer.",
    "Snapshot.driver_failures",
    kind="counter",
)

NODE: tuple[Metric, ...] = (
    NODE_USAGE,
    NODE_MEMORY_FREE,
    NODE_MEMORY_CAPACITY,
    NODE_MEMORY_USED,
    NODE_MEMORY_RESERVED,
    NODE_MEMORY_USAGE,
    NODE_MEMORY_CONTROLLER_USAGE,
    NODE_TEMPERATURE,
    NODE_POWER,
    NODE_INFO,
    NODE_BOARD_INFO,
    *boards.NODE,
    *seconds.NODE,
)
MIG: tuple[Metric, ...] = boards.MIG
CONTAINER: tuple[Metric, ...] = (
    CONTAINER_USAGE,
    CONTAINER_MEMORY_FREE,
    CONTAINER_MEMORY_CAPACITY,
    CONTAINER_MEMORY_USED,
    CONTAINER_MEMORY_USAGE,
    *seconds.CONTAINER,
)
PROCESS: tuple[Metric, ...] = processes.PROCESS
HEALTH: tuple[Metric, ...] = (
    DRIVER_UP,
    KUBELET_UP,
    GPUS_EXPECTED,
    GPUS_SEEN,
    GPU_UP,
    GPU_ABSENT,
    GPU_CAPABILITY,
    GPU_READ_SECONDS,
    GPU_HEALTH,
    GPU_HEALTH_REASON,
    CONTAINER_ATTRIBUTION,
    PROCESSES_UP,
    UNRESOLVED_PROCESSES,
    SNAPSHOT_TIMESTAMP,
    POLL_DURATION,
    POLLS,
    DRIVER_FAILURES,
    SERIES,
    SERIES_DROPPED,
)
SELF: tuple[Metric, ...] = (
    _self("gpuscale_exporter_info", ("version",), "Always 1. The version of this exporter."),
    _self("process_virtual_memory_bytes", (), "Virtual memory of the exporter.", unit="bytes"),
    _self("process_resident_memory_bytes", (), "Resident memory of the exporter.", unit="bytes"),
    _self("process_start_time_seconds", (), "Unix time at which the exporter started.", unit="seconds"),
    _self("process_cpu_seconds_total", (), "CPU time of the exporter.", unit="seconds", kind="counter"),
    _self("process_open_fds", (), "Open file descriptors of the exporter."),
    _self("process_max_fds", (), "Most file descriptors the exporter may open."),
    _self("python_gc_objects_collected_total", ("generation",), "Objects that gc collected.", kind="counter"),
    _self("python_gc_objects_uncollectable_total", ("generation",), "Objects gc could not collect.", kind="counter"),
    _self("python_gc_collections_total", ("generation",), "Runs of gc.", kind="counter"),
    _self(
        "python_info", ("implementation", "major", "minor", "patchlevel", "version"), "Always 1. The Python it runs on."
    ),
)
CATALOGUE: tuple[Metric, ...] = (*NODE, *MIG, *CONTAINER, *PROCESS, *HEALTH, *SELF)
"""Every row that the exporter publishes, in the order in which it is printed."""


def _recorded(level: Level, what: str, labels: tuple[str, ...]) -> tuple[Metric, ...]:
    def row(name: str, unit: str, help_text: str) -> Metric:
        return Metric(f"aom_{level}_gpu_{name}", level, unit, "gauge", labels, help_text.format(what), "recorded")

    return (
        row("memory_capacity_megabytes", "megabytes", "All memory of the GPUs of {}. 1 MB = 2^20 bytes."),
        row("memory_used_megabytes", "megabytes", "GPU memory in use in {}. 1 MB = 2^20 bytes."),
        row(
            "memory_free_megabytes",
            "megabytes",
            "GPU memory that can still be taken in {}: capacity - used - reserved. 1 MB = 2^20 bytes.",
        ),
        row("memory_usage", "percent", "Used GPU memory of {} in percent (0-100) of its capacity."),
        row("usage", "percent", "Mean utilisation (0-100) over the GPUs of {}."),
    )


RECORDED: tuple[Metric, ...] = (
    *_recorded("cluster", "the cluster", ()),
    *_recorded("nodepool", "a node pool", ("pool",)),
    *_recorded("model", "one GPU model", ("model",)),
)
"""Rows that no exporter publishes: each is made by one rule of rules/recording.yaml."""

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in (*CATALOGUE, *RECORDED)}
