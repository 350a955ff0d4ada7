"""The names of CCE's AI suite: bytes, mW and mJ, all gauges, with the pod on the card's own series.

Why it exists: autoscalers on CCE ask for cce_gpu_* by namespace and pod.
"""

from collections.abc import Callable
from typing import Any

from exporter import catalogue
from exporter.dialects.rows import MEBIBYTE, Row, Samples, View, fill, metric, reads
from exporter.readings import GpuReading

LABELS = ("node", "gpu_index", "namespace", "pod", "container")


def _row(
    name: str,
    unit: str,
    help_text: str,
    source: str,
    value: Callable[[Any], float | None],
    native: str = "",
    differs: str = "",
) -> Row:
    level = "container" if name.startswith("gpu_pod") else "node"
    prefix = "" if level == "container" else "cce_gpu_"
    native = native and (native if native.startswith("aom_") else f"aom_node_gpu_{native}")
    family = metric(prefix + name, "node" if prefix else "container", unit, "gauge", LABELS, help_text, source)
    return Row(family, value, native, differs)


def _field(
    name: str, unit: str, what: str, field: str, native: str = "", times: float = 1, *, whole: bool = False
) -> Row:
    differs = f"{unit}, not our unit." if times != 1 or unit == "bytes" else ""
    return _row(
        name, unit, f"{what} in {unit}.", f"GpuReading.{field}", reads(field, times, whole=whole), native, differs
    )


def _memory_percent(gpu: GpuReading) -> float | None:
    used, free = gpu.memory_used_bytes, gpu.memory_free_bytes
    return None if used is None or free is None or not used + free else 100 * used / (used + free)


BOARD: tuple[Row, ...] = (
    _field("utilization", "percent", "Utilisation of the GPU", "utilization_percent", "usage"),
    _row(
        "memory_utilization",
        "percent",
        "Used memory in percent of used and free.",
        "memory_used_bytes / (memory_used_bytes + memory_free_bytes)",
        _memory_percent,
        "aom_node_gpu_memory_usage",
        "Of used and free memory; ours is of the capacity, the reserved part included.",
    ),
    _field("encoder_utilization", "percent", "Encoder utilisation", "encoder_utilization_percent", "encoder_usage"),
    _field("decoder_utilization", "percent", "Decoder utilisation", "decoder_utilization_percent", "decoder_usage"),
    _field("memory_used", "bytes", "Used memory", "memory_used_bytes", "memory_used_megabytes"),
    _field("memory_total", "bytes", "All memory", "memory_total_bytes", "memory_capacity_megabytes"),
    _field("memory_free", "bytes", "Free memory", "memory_free_bytes", "memory_free_megabytes"),
    _field("bar1_memory_used", "bytes", "Used BAR1 memory", "bar1_used_bytes", "bar1_memory_used_megabytes"),
    _field("bar1_memory_total", "bytes", "All BAR1 memory", "bar1_total_bytes", "bar1_memory_capacity_megabytes"),
    _field("clock", "MHz", "SM clock", "sm_clock_hertz", "sm_clock_hertz", 1e-6),
    _field("memory_clock", "MHz", "Memory clock", "memory_clock_hertz", "memory_clock_hertz", 1e-6),
    _field("graphics_clock", "MHz", "Graphics clock", "graphics_clock_hertz", "graphics_clock_hertz", 1e-6),
    _field("video_clock", "MHz", "Video clock", "video_clock_hertz", "video_clock_hertz", 1e-6),
    _field("temperature", "degrees Celsius", "Temperature", "temperature_celsius", "temperature_centigrade"),
    _field("power_usage", "mW", "Power that the board draws", "power_watts", "power_watts", 1000),
    _field("total_energy_consumption", "mJ", "Energy", "energy_joules", "energy_joules_total", 1000, whole=True),
    _field("retired_pages_sbe", "pages", "Retired for corrected errors", "repair.retired_pages_corrected"),
    _field("retired_pages_dbe", "pages", "Retired for uncorrected errors", "repair.retired_pages_uncorrected"),
)


def _times(factor: float) -> Callable[[float], float]:
    return lambda value: value * factor


POD: tuple[tuple[catalogue.Metric, Row], ...] = tuple(
    (
        family,
        _row(name, unit, help_text, family.source, _times(times), family.name, differs),
    )
    for family, name, unit, times, help_text, differs in (
        (
            catalogue.CONTAINER_MEMORY_USED,
            "gpu_pod_memory_used",
            "bytes",
            MEBIBYTE,
            "Memory that the container uses on the GPU, in bytes.",
            "Bytes; ours is megabytes.",
        ),
        (
            catalogue.CONTAINER_MEMORY_CAPACITY,
            "gpu_pod_memory_total",
            "bytes",
            MEBIBYTE,
            "All memory of what the container holds alone, a GPU or instances of it, in bytes.",
            "Bytes; ours is megabytes.",
        ),
        (
            catalogue.CONTAINER_USAGE,
            "gpu_pod_core_percentage_used",
            "percent",
            1,
            "Utilisation of the GPU by the container in percent of the whole GPU.",
            "",
        ),
    )
)
WHOLE = _row(
    "gpu_pod_core_percentage_total",
    "percent",
    "100 where the container holds the GPU alone.",
    "Allocation",
    lambda _: 100,
)

ROWS: tuple[Row, ...] = (*BOARD, *(row for _, row in POD), WHOLE)


def speak(view: View, samples: Samples) -> None:
    """Add this dialect's samples."""
    index = {gpu.uuid: str(gpu.index) for gpu in view.gpus}
    for gpu in view.gpus:
        fill(samples, BOARD, (view.node, str(gpu.index), *view.holder(gpu.uuid)), gpu)
    for family, row in POD:
        for (node, uuid, _, namespace, pod, container), value in view.native.get(family, {}).items():
            labels = (node, index.get(uuid, ""), namespace, pod, container)
            fill(samples, (row,), labels, value)
            if view.holder(uuid) == (namespace, pod, container):
                fill(samples, (WHOLE,), labels, value)
