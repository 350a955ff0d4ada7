"""Compiles the exporter's simulation form into the fake driver's state, so that one description drives both."""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from exporter.readings import Snapshot
from tests.fakenvml.details import load_details, load_facts
from tests.fakenvml.state import (
    DEVICES,
    LINKS,
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
    Slot,
)

MEMORY = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
UTILIZATION = ("nvmlDeviceGetUtilizationRates",)
TEMPERATURE = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
POWER = ("nvmlDeviceGetPowerUsage",)
GPM = ("nvmlGpmQueryDeviceSupport",)
# key of the form -> attribute of the fake, factor, functions that tell it
NUMBERS: dict[str, tuple[str, float, tuple[str, ...]]] = {
    "fan_percent": ("fan_percent", 1, ("nvmlDeviceGetFanSpeed",)),
    "power_limit_watts": ("power_limit_mw", 1000, ("nvmlDeviceGetEnforcedPowerLimit",)),
    "encoder_utilization_percent": ("encoder_percent", 1, ("nvmlDeviceGetEncoderUtilization",)),
    "decoder_utilization_percent": ("decoder_percent", 1, ("nvmlDeviceGetDecoderUtilization",)),
    "bar1_total_bytes": ("bar1_total", 1, ("nvmlDeviceGetBAR1MemoryInfo",)),
    "bar1_used_bytes": ("bar1_used", 1, ()),
    "pcie_replays": ("pcie_replays", 1, ("nvmlDeviceGetPcieReplayCounter",)),
    "performance_state": ("performance_state", 1, ("nvmlDeviceGetPerformanceState",)),
    "clocks_event_reasons": (
        "clocks_event_reasons",
        1,
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
}
CLOCKS = ("graphics_clock_hertz", "sm_clock_hertz", "memory_clock_hertz", "video_clock_hertz")
PCIE = {
    "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
}
ACTIVITY = (
    "sm_active_ratio",
    "sm_occupancy_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "graphics_active_ratio",
)
FACTS = {"serial": "nvmlDeviceGetSerial", "vbios_version": "nvmlDeviceGetVbiosVersion"}
ARCHITECTURES = ("", "", "Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell")
FIELDS = {
    "volatile_corrected": 3,
    "volatile_uncorrected": 4,
    "aggregate_corrected": 5,
    "aggregate_uncorrected": 6,
    "retired_pages_corrected": 29,
    "retired_pages_uncorrected": 30,
    "retired_pages_pending": 31,
    "remapped_rows_corrected": 142,
    "remapped_rows_uncorrected": 143,
    "remapped_rows_pending": 144,
    "remapped_rows_failed": 145,
}
MEMORY_TEMPERATURE, ENERGY, LINK_SENT, LINK_RECEIVED, LINK_CRC = 82, 83, 202, 204, 163
PROCESS_UTILIZATION = ("nvmlDeviceGetProcessUtilization",)

FAULTS = {
    "lost": LOST,
    "reset_required": RESET_REQUIRED,
    "driver_error": UNKNOWN,
    "no_permission": NO_PERMISSION,
    "not_supported": NOT_SUPPORTED,
}


LIVES, KINDS = ("volatile", "aggregate"), ("corrected", "uncorrected")
FURTHER: dict[str, Any] = {
    "memory_temperature_celsius": 34,
    "power_limit_watts": 700,
    "energy_joules": 1234.5,
    "fan_percent": 30,
    "bar1_total_bytes": 2**37,
    "bar1_used_bytes": 2**20,
    "encoder_utilization_percent": 1,
    "decoder_utilization_percent": 2,
    "sm_clock_hertz": 1_980_000_000,
    "memory_clock_hertz": 2_619_000_000,
    "graphics_clock_hertz": 1_980_000_000,
    "video_clock_hertz": 1_545_000_000,
    "pcie_generation": 4,
    "pcie_width": 8,
    "pcie_generation_max": 5,
    "pcie_width_max": 16,
    "pcie_replays": 0,
    "clocks_event_reasons": 4,
    "performance_state": 0,
    "temperature_margin_celsius": 47,
    "recovery_action": 0,
    "sm_active_ratio": 0.5,
    "sm_occupancy_ratio": 0.25,
    "tensor_active_ratio": 0.125,
    "dram_active_ratio": 0.75,
    "graphics_active_ratio": 0.625,
    "ecc": {
        "volatile_corrected": 1,
        "volatile_uncorrected": 0,
        "aggregate_corrected": 3,
        "aggregate_uncorrected": 2,
        "aggregate_sram_uncorrected": 1,
    },
    "repair": {
        "remapped_rows_corrected": 1,
        "remapped_rows_uncorrected": 0,
        "remapped_rows_pending": False,
        "remapped_rows_failed": False,
    },
    "clocks_event": {
        "sw_power_cap_seconds": 200.74,
        "sync_boost_seconds": 0.0,
        "sw_thermal_slowdown_seconds": 1.5,
        "hw_thermal_slowdown_seconds": 0.25,
        "hw_power_brake_slowdown_seconds": 0.125,
    },
    "nvlinks": [{"link": 0, "received_bytes": 2**50, "transmitted_bytes": 7, "errors": 0}],
    "mig_enabled": False,
    "facts": {"serial": "1650000000001", "vbios_version": "96.00.89.00.01", "architecture": "Hopper"},
}
"""What gpus() gives every board beside."""
DETAILS: dict[str, Any] = {
    "power": {
        "instant_watts": 71.25,
        "average_watts": 70.5,
        "requested_limit_watts": 650.0,
        "edpp_multiplier_percent": 90.0,
    },
    "engines": {
        "jpeg_utilization_percent": 11.0,
        "ofa_utilization_percent": 12.0,
        "encoder_sessions": 2,
        "encoder_frames_per_second": 184,
        "encoder_latency_microseconds": 62844,
    },
    "ecc": {
        name: number
        for number, name in enumerate(
            (
                *(f"{life}_{kind}_{place}" for life, kind, place in product(LIVES, KINDS, ("dram", "sram"))),
                *(f"{life}_sram_{how}" for life, how in product(LIVES, ("parity", "secded"))),
                *(f"aggregate_sram_{part}" for part in ("l2", "sm", "mcu", "pcie", "other")),
            ),
            start=21,
        )
    }
    | {"aggregate_uncorrected_sram": 1, "sram_threshold_exceeded": True},
    "rows": {
        "banks_max": 3066,
        "banks_high": 3,
        "banks_partial": 2,
        "banks_low": 1,
        "banks_none": 0,
        "inactive_corrected": 4,
        "inactive_uncorrected": 5,
    },
    "protected_memory": {"total_bytes": 3 * 2**30, "used_bytes": 2**30, "free_bytes": 2 * 2**30},
    "fabric": {"state": 3, "clique_id": 7},
    "switches": {
        "persistence": True,
        "accounting": False,
        "compute_mode": 3,
        "display_attached": True,
        "display_active": False,
        "ecc_pending": True,
        "mig_pending": True,
    },
}
"""What a board has beside, of which only some dialects tell."""


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
        **FURTHER,
        "details": DETAILS,
    }
    return {"devices": [{"uuid": uuid(i), "index": i, **board, **values} for i in range(count)], "processes": []}


def of_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Return the form of a node that was read."""
    devices = [dataclasses.asdict(gpu) for gpu in snapshot.gpus]
    processes = [process for device in devices for process in device.pop("processes") or ()]
    return {"driver": snapshot.driver_version, "devices": devices, "processes": processes}


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
    device.gpu_percent = round(_or(form.get("utilization_percent"), UNKNOWN_PERCENT))
    device.memory_percent = round(_or(form.get("memory_utilization_percent"), UNKNOWN_PERCENT))
    device.temperature = round(_or(form.get("temperature_celsius"), 0))
    device.power_mw = round(1000 * _or(form.get("power_watts"), 0))
    _load_further(fake, at, form)
    _load_parts(fake, at, form)
    _load_instances(fake, at, form)
    load_facts(fake, at, form.get("facts", {}))
    load_details(fake, at, form)
    _support(fake, at, MEMORY, form.get("memory_total_bytes"))
    _support(fake, at, UTILIZATION, form.get("utilization_percent"))
    _support(fake, at, TEMPERATURE, form.get("temperature_celsius"))
    _support(fake, at, POWER, form.get("power_watts"))
    device.present = 1


def _load_further(fake: FakeDriver, at: int, form: Mapping[str, Any]) -> None:
    device, facts = fake.state.devices[at], form.get("facts", {})
    for key, (attribute, factor, functions) in NUMBERS.items():
        setattr(device, attribute, round(factor * _or(form.get(key), 0)))
        _support(fake, at, functions, form.get(key))
    for place, key in enumerate(CLOCKS):
        device.clock_mhz[place] = round(_or(form.get(key), 0) / 1_000_000)
    _support(fake, at, ("nvmlDeviceGetClockInfo",), form.get(CLOCKS[1]))
    for place, (key, function) in enumerate(PCIE.items()):
        device.pcie[place] = _or(form.get(key), 0)
        _support(fake, at, (function,), form.get(key))
    device.gpm_supported = form.get(ACTIVITY[0]) is not None
    for place, key in enumerate(ACTIVITY):
        device.gpm[place] = 100 * _or(form.get(key), 0)
    device.serial, device.vbios = facts.get("serial", "").encode(), facts.get("vbios_version", "").encode()
    for key, function in FACTS.items():
        _support(fake, at, (function,), facts.get(key))
    device.architecture = ARCHITECTURES.index(facts.get("architecture", ""))
    if "pci_bus_id" in facts:
        device.bus_id = facts["pci_bus_id"].encode()
    if "minor_number" in facts:
        device.minor = int(facts["minor_number"])


def _load_parts(fake: FakeDriver, at: int, form: Mapping[str, Any]) -> None:
    device = fake.state.devices[at]
    device.field_count = 0
    warmth = form.get("memory_temperature_celsius")
    fake.field(at, MEMORY_TEMPERATURE, None if warmth is None else round(warmth), kind=1)
    energy = form.get("energy_joules")
    fake.field(at, ENERGY, None if energy is None else round(1000 * energy))
    counts = {**(form.get("ecc") or {}), **(form.get("repair") or {})}
    for key, number in FIELDS.items():
        fake.field(at, number, counts.get(key))
    links = {link["link"]: link for link in form.get("nvlinks") or ()}
    _support(fake, at, ("nvmlDeviceGetNvLinkState",), form.get("nvlinks"))
    for place in range(LINKS):
        device.links[place] = place in links
    for place, link in links.items():
        fake.field(at, LINK_SENT, link.get("transmitted_bytes"), place)
        fake.field(at, LINK_RECEIVED, link.get("received_bytes"), place)
        fake.field(at, LINK_CRC, link.get("errors"), place)


def _load_instances(fake: FakeDriver, at: int, form: Mapping[str, Any]) -> None:
    """One slot for each MIG instance; ``slot`` in the form leaves gaps between them."""
    fake.state.devices[at].mig_mode = bool(form.get("mig_enabled"))
    _support(fake, at, ("nvmlDeviceGetMigMode",), form.get("mig_enabled"))
    for slot in fake.state.slots[at]:
        slot.present = 0
    for place, instance in enumerate(form.get("mig") or ()):
        slot = fake.state.slots[at][instance.get("slot", place)]
        slot.gpu_instance, slot.compute_instance = instance["gpu_instance"], instance["compute_instance"]
        slot.uuid, slot.device = instance["uuid"].encode(), at
        slot.name = f"{form.get('name', '')} MIG {instance['profile']}".encode()
        _load_memory(slot, instance)
        slot.sm_percent = 100 * _or(instance.get("sm_active_ratio"), 0)
        slot.profile_id, slot.placement[0] = (_or(instance.get(key), 0) for key in ("profile_id", "placement_start"))
        _support(fake, at, ("nvmlDeviceGetGpuInstanceById",), instance.get("profile_id"))
        slot.present = 1


def _load_memory(device: Device | Slot, form: Mapping[str, Any]) -> None:
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
        process.pid, process.kinds = form["pid"], 1 if form.get("computes", True) else 2
        process.name = form.get("name", "").encode()
        process.gpu_instance = _or(form.get("gpu_instance"), UNKNOWN_PERCENT)
        process.compute_instance = _or(form.get("compute_instance"), UNKNOWN_PERCENT)
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
