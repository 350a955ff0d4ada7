"""What the GPUs of one simulated node say: the file that an exporter started with --simulate reads at each poll.

Why it exists: this file is the only way by which load reaches the operator. From it on, everything is as with real
GPUs: the exporter polls, the operator scrapes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.sandbox.kubelet import Life
from controller.sandbox.scheduler import GPU

Object = dict[str, Any]

DRIVER = "550.54.15"
MEMORY_BYTES = 80 * 2**30
RESERVED_BYTES = 640 * 2**20
MODEL_BYTES = 60 * 2**30
CACHE_BYTES = 12 * 2**30
"""What a fully busy pod holds beside its model."""
IDLE_WATTS, BUSY_WATTS = 72.0, 610.0
IDLE_CELSIUS, BUSY_CELSIUS = 34.0, 71.0


def simulation(
    uuids: Sequence[str], model: str, lives: Iterable[Life], utilization: Mapping[str, float], now: float
) -> Object:
    """Describe a node's GPUs and who uses them. ``utilization``: pod name -> percent of each of its GPUs."""
    held = list(lives)
    owner = {gpu: life for life in held for gpu in life.gpus}
    return {
        "driver": DRIVER,
        "devices": [_device(gpu, index, model, owner.get(gpu), utilization, now) for index, gpu in enumerate(uuids)],
        "processes": [_process(gpu, life, utilization, now) for gpu, life in sorted(owner.items())],
        "allocations": [_allocation(life) for life in held if life.gpus],
    }


def _device(
    gpu: str, index: int, model: str, life: Life | None, utilization: Mapping[str, float], now: float
) -> Object:
    busy = utilization.get(life.pod, 0.0) if life else 0.0
    used = _memory(life, busy, now) if life else 0
    return {
        "uuid": gpu,
        "index": index,
        "name": model,
        "memory_total_bytes": MEMORY_BYTES,
        "memory_used_bytes": used,
        "memory_reserved_bytes": RESERVED_BYTES,
        "utilization_percent": round(busy, 2),
        "memory_utilization_percent": round(busy * 0.6, 2),
        "temperature_celsius": round(IDLE_CELSIUS + (BUSY_CELSIUS - IDLE_CELSIUS) * busy / 100, 1),
        "power_watts": round(IDLE_WATTS + (BUSY_WATTS - IDLE_WATTS) * busy / 100, 1),
    }


def _memory(life: Life, busy: float, now: float) -> int:
    return int(MODEL_BYTES * life.loaded(now) + CACHE_BYTES * busy / 100)


def _process(gpu: str, life: Life, utilization: Mapping[str, float], now: float) -> Object:
    busy = utilization.get(life.pod, 0.0)
    return {
        "pid": life.pid,
        "gpu_uuid": gpu,
        "memory_used_bytes": _memory(life, busy, now),
        "utilization_percent": round(busy, 2),
        "name": "model-server",
    }


def _allocation(life: Life) -> Object:
    return {
        "namespace": life.namespace,
        "pod": life.pod,
        "container": life.container,
        "resource": GPU,
        "device_ids": list(life.gpus),
        "pids": [life.pid],
    }


def write(path: Path, document: Object) -> None:
    """Put the document in the place of the file in one move, so that a reader never sees half of it."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(document))
    beside.replace(path)
