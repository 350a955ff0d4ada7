"""The rows of the catalogue that are GPU-seconds: counters that exporter.accounts adds up from poll to poll.

Why it exists: apart from what one reading tells. All end with what they are about, and start again with the exporter.
"""

from exporter.metric import Metric, container_row, node_row

NODE_BUSY_SECONDS = node_row(
    "aom_node_gpu_busy_seconds_total",
    "seconds",
    "Seconds in which the GPU was busy: its utilisation added up over time.",
    "exporter.accounts",
    kind="counter",
)
NODE_UNATTRIBUTED_SECONDS = node_row(
    "aom_node_gpu_unattributed_busy_seconds_total",
    "seconds",
    "Busy seconds of the GPU that no container can be told to have used: busy = this + the sum over its containers.",
    "exporter.accounts",
    kind="counter",
)
CONTAINER_ALLOCATED_SECONDS = container_row(
    "aom_container_gpu_allocated_seconds_total",
    "seconds",
    "GPU-seconds the container held: a GPU counts 1, a GPU instance its part of the memory, one that is shared is "
    "split evenly, so that sums are true.",
    "exporter.accounts",
    kind="counter",
)
CONTAINER_BUSY_SECONDS = container_row(
    "aom_container_gpu_busy_seconds_total",
    "seconds",
    "The container's part of the GPU's busy seconds: by its processes' part of the utilisation, else all where it "
    "holds the GPU alone. Absent where it cannot be told apart.",
    "exporter.accounts",
    kind="counter",
)
CONTAINER_SM_ACTIVE_SECONDS = container_row(
    "aom_container_gpu_sm_active_seconds_total",
    "seconds",
    "GPU-seconds in which multiprocessors were active. Only where the container holds a GPU or GPU instances alone.",
    "exporter.accounts",
    kind="counter",
)

NODE: tuple[Metric, ...] = (NODE_BUSY_SECONDS, NODE_UNATTRIBUTED_SECONDS)
CONTAINER: tuple[Metric, ...] = (CONTAINER_ALLOCATED_SECONDS, CONTAINER_BUSY_SECONDS, CONTAINER_SM_ACTIVE_SECONDS)
