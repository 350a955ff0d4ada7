"""The rows about each process on a GPU, published only where a setting asks for them.

Why it exists: container series are clamped and summed. Who doubts one, or looks for a process of nobody's, needs the
driver's raw figures; but their number follows the workload, so they are nobody's default.
"""

from exporter.metric import Metric

LABELS = ("node", "uuid", "pid", "process_name", "gi", "ci", "namespace", "pod", "container")
_WHO = (
    "pid and process_name are the host's, gi and ci the instances (MIG) that it runs in; what is empty is not known. "
    "Only with --process-series. Not clamped: the sum over a GPU's processes may exceed {}."
)

PROCESS_USAGE = Metric(
    "aom_process_gpu_usage",
    "process",
    "percent",
    "gauge",
    LABELS,
    "Utilisation of the GPU by one process in percent (0-100), as the driver tells it. " + _WHO.format("100"),
    "ProcessReading.utilization_percent",
)
PROCESS_MEMORY_USED = Metric(
    "aom_process_gpu_memory_used_megabytes",
    "process",
    "megabytes",
    "gauge",
    LABELS,
    "Memory of the GPU that one process holds. 1 MB = 2^20 bytes. " + _WHO.format("what the GPU has in use"),
    "ProcessReading.memory_used_bytes",
)
PROCESS: tuple[Metric, ...] = (PROCESS_USAGE, PROCESS_MEMORY_USED)
