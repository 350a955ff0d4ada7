"""Compiles the exporter's simulation form into the fake driver's state, so that one description drives both."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakenvml.state import (
    DEVICES,
    LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    PROCESSES,
    RESET_REQUIRED,
    UNKNOWN,
    UNKNOWN_BYTES,
    UNKNOWN_PERCENT,
    Device,
    FakeDriver,
)

MEMORY = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
UTILIZATION = ("nvmlDeviceGetUtilizationRates",)
TEMPERATURE = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
POWER = ("nvmlDeviceGetPowerUsage",)
PROCESS_UTILIZATION = ("nvmlDeviceGetProcessUtilization",)

FAULTS = {
    "lost": LOST,
    "reset_required": RESET_REQUIRED,
    "driver_error": UNKNOWN,
    "no_permission": NO_PERMISSION,
    "not_supported": NOT_SUPPORTED,
}


def gpus(count: int, **values: object) -> dict[str, Any]:
    """Return the form of equal H100 boards that differ by UUID and index; values replace the defaults."""
    board = {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total_bytes": 81559 * 2**20,
        "memory_used_bytes": 0,
        "memory_reserved_bytes": 551 * 2**20,
        "utilization_percent": 0,
        "memory_utilization_percent": 0,
        "temperature_celsius": 30,
        "power_watts": 70.5,
    }
    return {"devices": [{"uuid": uuid(i), "index": i, **board, **values} for i in range(count)], "processes": []}


def uuid(index: int) -> str:
    """Return the UUID of the GPU that gpus() puts at an index."""
    return f"GPU-{index:08d}-0000-4000-8000-000000000000"


def load(fake: FakeDriver, form: Mapping[str, Any]) -> None:
    """Write a simulation form into the fake. Counters stay; what the form does not name is gone."""
    devices: Sequence[Mapping[str, Any]] = sorted(form["devices"], key=lambda device: device["index"])
    if len(devices) > DEVICES:
        raise ValueError(f"the fake has room for {DEVICES} GPUs, the scenario has {len(devices)}")
    if "driver" in form:
        fake.state.driver_version = str(form["driver"]).encode()
    for at in range(DEVICES):
        if at >= len(devices):
            fake.state.devices[at].present = 0
            continue
        held = [process for process in form.get("processes", ()) if process["gpu_uuid"] == devices[at]["uuid"]]
        _load_device(fake, at, devices[at])
        _load_processes(fake, at, held)


def _load_device(fake: FakeDriver, at: int, form: Mapping[str, Any]) -> None:
    device = fake.state.devices[at]
    device.uuid, device.name = form["uuid"].encode(), form.get("name", "").encode()
    device.bus_id, device.minor = f"{0:08X}:{at + 1:02X}:00.0".encode(), at
    device.error, device.hang = FAULTS.get(form.get("fault") or "", 0), form.get("fault") == "timeout"
    _load_memory(device, form)
    device.gpu_percent = _or(form.get("utilization_percent"), UNKNOWN_PERCENT)
    device.memory_percent = _or(form.get("memory_utilization_percent"), UNKNOWN_PERCENT)
    device.temperature = _or(form.get("temperature_celsius"), 0)
    device.power_mw = round(1000 * _or(form.get("power_watts"), 0))
    device.power_limit_mw = 700_000
    _support(fake, at, MEMORY, form.get("memory_total_bytes"))
    _support(fake, at, UTILIZATION, form.get("utilization_percent"))
    _support(fake, at, TEMPERATURE, form.get("temperature_celsius"))
    _support(fake, at, POWER, form.get("power_watts"))
    device.present = 1


def _load_memory(device: Device, form: Mapping[str, Any]) -> None:
    total, used = _or(form.get("memory_total_bytes"), 0), _or(form.get("memory_used_bytes"), 0)
    reserved = _or(form.get("memory_reserved_bytes"), 0)
    device.memory_total, device.memory_used, device.memory_reserved = total, used, reserved
    device.memory_free = _or(form.get("memory_free_bytes"), total - used - reserved)


def _load_processes(fake: FakeDriver, at: int, forms: Sequence[Mapping[str, Any]]) -> None:
    if len(forms) > PROCESSES:
        raise ValueError(f"the fake has room for {PROCESSES} processes on a GPU, the scenario has {len(forms)}")
    device = fake.state.devices[at]
    for slot, form in enumerate(forms):
        process = device.processes[slot]
        process.pid, process.kinds = form["pid"], 1
        process.memory_used = _or(form.get("memory_used_bytes"), UNKNOWN_BYTES)
        process.sm_percent, process.sampled_us = _or(form.get("utilization_percent"), 0), 0
    device.process_count = len(forms)
    shares = [form.get("utilization_percent") for form in forms]
    unknown = bool(shares) and all(share is None for share in shares)
    _support(fake, at, PROCESS_UTILIZATION, None if unknown else 0)


def _support(fake: FakeDriver, at: int, functions: Sequence[str], value: object) -> None:
    for function in functions:
        fake.fail(at, function, NOT_SUPPORTED if value is None else 0)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
