"""Reads `nvidia-smi -q` as recorded on real machines into the exporter's simulation form."""

import re
from collections.abc import Iterator
from typing import Any

from tests.fakenvml import captures_details

_GPU = re.compile(r"GPU [0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:")
MIB = 2**20

Path = tuple[str, ...]


def section(text: str, title: str) -> str:
    """Return the section of a capture file whose banner starts with a title, such as "load :: query (-q)"."""
    banner = re.compile(r"^#{20,}\n# (?P<title>[^\n]+)\n(?:# [^\n]*\n)*#{20,}\n", re.MULTILINE)
    banners = list(banner.finditer(text))
    for at, found in enumerate(banners):
        if found["title"].startswith(title):
            end = banners[at + 1].start() if at + 1 < len(banners) else len(text)
            return text[found.end() : end]
    raise ValueError(f"the capture has no section {title!r}, only {[found['title'] for found in banners]}")


def form(query: str) -> dict[str, Any]:
    """Return the simulation form of the text that `nvidia-smi -q` printed. What it calls N/A is not known."""
    devices: list[dict[str, Any]] = []
    processes: list[dict[str, Any]] = []
    driver = ""
    for path, value in _leaves(query):
        if path == ("Driver Version",):
            driver = value
        elif not _GPU.match(path[0]):
            continue
        elif path[1:] == ("Product Name",):
            devices.append({"index": len(devices), "name": value})
        elif path[1:2] == ("Processes",):
            _process(path[-1], value, devices[-1], processes)
        elif path[1:2] == ("MIG Device",):
            _instance(path[2:], value, devices[-1])
        else:
            _board(path[1:], value, devices[-1])
    for device in devices:
        _finish(device)
    return {"driver": driver, "devices": devices, "processes": processes}


def _board(path: Path, value: str, device: dict[str, Any]) -> None:
    captures_details.take(path, value, device)
    if path in _FIELDS:
        field, unit = _FIELDS[path]
        device[field] = value if unit is None else _number(value, unit)
    else:
        _part(path, value, device)


_FIELDS: dict[Path, tuple[str, float | None]] = {
    ("GPU UUID",): ("uuid", None),
    ("FB Memory Usage", "Total"): ("memory_total_bytes", MIB),
    ("FB Memory Usage", "Reserved"): ("memory_reserved_bytes", MIB),
    ("FB Memory Usage", "Used"): ("memory_used_bytes", MIB),
    ("FB Memory Usage", "Free"): ("memory_free_bytes", MIB),
    ("Utilization", "GPU"): ("utilization_percent", 1),
    ("Utilization", "Memory"): ("memory_utilization_percent", 1),
    ("Temperature", "GPU Current Temp"): ("temperature_celsius", 1),
    ("Temperature", "Memory Current Temp"): ("memory_temperature_celsius", 1),
    ("GPU Power Readings", "Current Power Limit"): ("power_limit_watts", 1.0),
    ("Fan Speed",): ("fan_percent", 1),
    ("BAR1 Memory Usage", "Total"): ("bar1_total_bytes", MIB),
    ("BAR1 Memory Usage", "Used"): ("bar1_used_bytes", MIB),
    ("Utilization", "Encoder"): ("encoder_utilization_percent", 1),
    ("Utilization", "Decoder"): ("decoder_utilization_percent", 1),
    ("Clocks", "Graphics"): ("graphics_clock_hertz", 1_000_000),
    ("Clocks", "SM"): ("sm_clock_hertz", 1_000_000),
    ("Clocks", "Memory"): ("memory_clock_hertz", 1_000_000),
    ("Clocks", "Video"): ("video_clock_hertz", 1_000_000),
    ("PCI", "GPU Link Info", "PCIe Generation", "Current"): ("pcie_generation", 1),
    ("PCI", "GPU Link Info", "PCIe Generation", "Max"): ("pcie_generation_max", 1),
    ("PCI", "GPU Link Info", "Link Width", "Current"): ("pcie_width", 1),
    ("PCI", "GPU Link Info", "Link Width", "Max"): ("pcie_width_max", 1),
    ("PCI", "Replays Since Reset"): ("pcie_replays", 1),
    # what nvmlDeviceGetPowerUsage answers on these boards, and nvidia-smi prints as power.draw
    ("GPU Power Readings", "Average Power Draw"): ("power_watts", 1.0),
}


_FACTS: dict[Path, str] = {
    ("Serial Number",): "serial",
    ("Minor Number",): "minor_number",
    ("VBIOS Version",): "vbios_version",
    ("PCI", "Bus Id"): "pci_bus_id",
    ("Product Architecture",): "architecture",
}
_REASONS = {
    "Idle": 0x001,
    "Applications Clocks Setting": 0x002,
    "SW Power Cap": 0x004,
    "HW Slowdown": 0x008,
    "Sync Boost": 0x010,
    "SW Thermal Slowdown": 0x020,
    "HW Thermal Slowdown": 0x040,
    "HW Power Brake Slowdown": 0x080,
    "Display Clock Setting": 0x100,
}
_REPAIRS: dict[Path, str] = {
    ("Retired Pages", "Single Bit ECC"): "retired_pages_corrected",
    ("Retired Pages", "Double Bit ECC"): "retired_pages_uncorrected",
    ("Retired Pages", "Pending Page Blacklist"): "retired_pages_pending",
    ("Remapped Rows", "Correctable Error"): "remapped_rows_corrected",
    ("Remapped Rows", "Uncorrectable Error"): "remapped_rows_uncorrected",
    ("Remapped Rows", "Pending"): "remapped_rows_pending",
    ("Remapped Rows", "Remapping Failure Occurred"): "remapped_rows_failed",
}
_INSTANCE: dict[Path, tuple[str, int]] = {
    ("GPU Instance ID",): ("gpu_instance", 1),
    ("Compute Instance ID",): ("compute_instance", 1),
    **{
        ("Shared FB Memory Usage", part): (f"memory_{part.lower()}_bytes", MIB)
        for part in ("Total", "Reserved", "Used", "Free")
    },
}


def _part(path: Path, value: str, device: dict[str, Any]) -> None:
    """Take what is more than one number: reasons, errors, repairs, names."""
    if path == ("Performance State",):
        device["performance_state"] = _number(value.removeprefix("P"), 1)
    elif path == ("MIG Mode", "Current"):
        device["mig_enabled"] = {"Enabled": True, "Disabled": False}.get(value)
    elif path[:1] == ("Clocks Event Reasons",) and path[-1] in _REASONS:
        active = _REASONS[path[-1]] if value == "Active" else 0
        device["clocks_event_reasons"] = device.get("clocks_event_reasons", 0) | active
    elif path[:1] == ("ECC Errors",):
        _error(path, _number(value, 1), device)
    elif path in _REPAIRS and value != "N/A":
        answer = value == "Yes" if value in {"Yes", "No"} else _number(value, 1)
        device.setdefault("repair", {})[_REPAIRS[path]] = answer
    elif path in _FACTS and value != "N/A":
        # NVML has a number for it, and we the first word of its name
        device.setdefault("facts", {})[_FACTS[path]] = value.removesuffix(" Lovelace")
    elif path == ("GPU Power Readings", "Instantaneous Power Draw") and device.get("power_watts") is None:
        device["power_watts"] = _number(value, 1.0)


def _error(path: Path, count: float | None, device: dict[str, Any]) -> None:
    """Add one line of errors to its sum: nvidia-smi splits by place what NVML also tells as a total."""
    if count is None or path[1] not in {"Volatile", "Aggregate"}:
        return
    kind = "uncorrected" if "Uncorrectable" in path[-1] else "corrected"
    errors = device.setdefault("ecc", {})
    names = [f"{path[1].lower()}_{kind}"]
    if path[1] == "Aggregate" and path[-1].startswith("SRAM Uncorrectable"):
        names.append("aggregate_sram_uncorrected")
    for name in names:
        errors[name] = errors.get(name, 0) + count


def _instance(path: Path, value: str, device: dict[str, Any]) -> None:
    instances = device.setdefault("mig", [])
    if path == ("Index",):
        instances.append({"profile": ""})
    elif path in _INSTANCE:
        field, unit = _INSTANCE[path]
        instances[-1][field] = _number(value, unit)


def _finish(device: dict[str, Any]) -> None:
    """Name the instances by the grammar of older drivers, as the query does not tell their uuids; add up errors."""
    captures_details.sum_up(device)
    for instance in device.get("mig", ()):
        instance["uuid"] = f"MIG-{device['uuid']}/{instance['gpu_instance']}/{instance['compute_instance']}"


_PLACES = {"GPU instance ID": "gpu_instance", "Compute instance ID": "compute_instance"}


def _process(key: str, value: str, device: dict[str, Any], processes: list[dict[str, Any]]) -> None:
    # the instances stand before the process that runs in them
    if key == "GPU instance ID":
        processes.append({"gpu_uuid": device["uuid"]})
    if key in _PLACES:
        processes[-1][_PLACES[key]] = _number(value, 1)
    elif key == "Process ID":
        if not processes or "pid" in processes[-1]:
            processes.append({"gpu_uuid": device["uuid"]})
        processes[-1]["pid"] = int(value)
    elif key == "Name":
        processes[-1]["name"] = value
    elif key == "Used GPU Memory":
        processes[-1]["memory_used_bytes"] = _number(value, MIB)


def _number(value: str, unit: float) -> float | None:
    found = re.match(r"-?[0-9]+(\.[0-9]+)?", value)
    if found is None:
        return None
    return float(found[0]) * unit if isinstance(unit, float) else int(found[0]) * unit


def _leaves(query: str) -> Iterator[tuple[Path, str]]:
    """Each `key : value` with the headings it stands under, known by their indentation."""
    headings: list[tuple[int, str]] = []
    for line in query.splitlines():
        depth = len(line) - len(line.lstrip())
        key, colon, value = (part.strip() for part in line.partition(" : "))
        if not key or key.startswith(("=", "#")):
            continue
        while headings and headings[-1][0] >= depth:
            headings.pop()
        if colon:
            yield (*(heading for _, heading in headings), key), value
        else:
            headings.append((depth, key))
