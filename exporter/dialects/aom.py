"""AOM's own meaning and labels: ``_free_`` is the capacity at node and container level.

Why it exists: what is written for AOM must keep working. It replaces the native families of these names on /metrics,
because ours say what their names say.
"""

from collections.abc import Callable
from typing import Any

from exporter import catalogue
from exporter.dialects.rows import MEBIBYTE, Row, Samples, View, fill, metric, reads
from exporter.exposition import Labels
from exporter.readings import GpuReading

SETTABLE = ("clusterId", "clusterName", "hostID", "nodeIP")
"""Labels that nobody but the settings can know."""
NODE_LABELS = ("clusterId", "clusterName", "gpuName", "gpuID", "hostID", "nodeIP", "hostName")
CONTAINER_LABELS = ("clusterId", "clusterName", "containerName", "nameSpace", "podName", "gpuID", "nodeIP", "nodename")
LABELS_DIFFER = "AOM's labels instead of ours."


def _percent(gpu: GpuReading) -> float | None:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    return None if used is None or not total else 100 * used / total


def _node(
    name: str, unit: str, help_text: str, field: str, value: Callable[[Any], float | None], native: str, differs: str
) -> Row:
    return Row(
        metric(name, "node", unit, "gauge", NODE_LABELS, help_text, f"GpuReading.{field}"), value, native, differs
    )


_FREE_IS_CAPACITY = "The capacity, as AOM documents it in spite of the name; ours of this name is what is free."
_MEBIBYTES = reads("memory_total_bytes", 1 / MEBIBYTE)
_USED = reads("memory_used_bytes", 1 / MEBIBYTE)

NODE: tuple[Row, ...] = tuple(
    _node(name, unit, help_text, field, value, native, differs)
    for names, unit, help_text, field, value, native, differs in (
        (
            ("aom_node_gpu_memory_free_megabytes", "gpuMemCapacity"),
            "megabytes",
            "AOM's meaning: the capacity of GPU memory, not what is free. 1 MB = 2^20 bytes.",
            "memory_total_bytes",
            _MEBIBYTES,
            "aom_node_gpu_memory_capacity_megabytes",
            _FREE_IS_CAPACITY,
        ),
        (
            ("aom_node_gpu_memory_used_megabytes", "gpuMemUsed"),
            "megabytes",
            "AOM's meaning: used GPU memory. 1 MB = 2^20 bytes.",
            "memory_used_bytes",
            _USED,
            "aom_node_gpu_memory_used_megabytes",
            LABELS_DIFFER,
        ),
        (
            ("aom_node_gpu_memory_usage", "gpuMemUsage"),
            "percent",
            "AOM's meaning: used GPU memory in percent (0-100) of the capacity.",
            "memory_used_bytes / GpuReading.memory_total_bytes",
            _percent,
            "aom_node_gpu_memory_usage",
            LABELS_DIFFER,
        ),
        (
            ("aom_node_gpu_usage", "gpuUtil"),
            "percent",
            "AOM's meaning: utilisation of the GPU in percent (0-100).",
            "utilization_percent",
            reads("utilization_percent"),
            "aom_node_gpu_usage",
            LABELS_DIFFER,
        ),
        (
            ("aom_node_gpu_temperature_centigrade",),
            "centigrade",
            "AOM's meaning: temperature of the GPU in degrees Celsius.",
            "temperature_celsius",
            reads("temperature_celsius"),
            "aom_node_gpu_temperature_centigrade",
            LABELS_DIFFER,
        ),
    )
    for name in names
)
"""The old short names are of the node level only, so that no sum counts a GPU twice."""


def _container(name: str, help_text: str, native: catalogue.Metric, differs: str) -> Row:
    family = metric(name, "container", native.unit, "gauge", CONTAINER_LABELS, help_text, native.source)
    return Row(family, lambda value: value, native.name, differs)


CONTAINER: dict[catalogue.Metric, Row] = {
    catalogue.CONTAINER_MEMORY_CAPACITY: _container(
        "aom_container_gpu_memory_free_megabytes",
        "AOM's meaning: the capacity of GPU memory, not what is free. 1 MB = 2^20 bytes.",
        catalogue.CONTAINER_MEMORY_CAPACITY,
        _FREE_IS_CAPACITY,
    ),
    **{
        native: _container(native.name, f"AOM's meaning: {what}.", native, LABELS_DIFFER)
        for native, what in (
            (catalogue.CONTAINER_MEMORY_USED, "used GPU memory. 1 MB = 2^20 bytes"),
            (catalogue.CONTAINER_MEMORY_USAGE, "used GPU memory in percent (0-100) of the capacity"),
            (catalogue.CONTAINER_USAGE, "utilisation of the GPU in percent (0-100)"),
        )
    },
}

ROWS: tuple[Row, ...] = (*NODE, *CONTAINER.values())


def speak(view: View, samples: Samples) -> None:
    """Add this dialect's samples. gpuID is the uuid."""
    for gpu in view.gpus:
        known = {"gpuName": gpu.name, "gpuID": gpu.uuid, "hostName": view.node}
        fill(samples, NODE, _labels(view, NODE_LABELS, known), gpu)
    for native, row in CONTAINER.items():
        for (_, uuid, _, namespace, pod, container), value in view.native.get(native, {}).items():
            known = {"containerName": container, "nameSpace": namespace, "podName": pod, "gpuID": uuid}
            known["nodename"] = view.node
            fill(samples, (row,), _labels(view, CONTAINER_LABELS, known), value)


def _labels(view: View, names: tuple[str, ...], known: dict[str, str]) -> Labels:
    return tuple(known.get(name) or view.labels.get(name, "") for name in names)
