"""Reads `nvidia-smi -q` as recorded on real machines into the exporter's simulation form."""

import re
from collections.abc import Iterator
from typing import Any

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
        elif path[1:] in _FIELDS:
            field, unit = _FIELDS[path[1:]]
            devices[-1][field] = value if unit is None else _number(value, unit)
    return {"driver": driver, "devices": devices, "processes": processes}


_FIELDS: dict[Path, tuple[str, float | None]] = {
    ("GPU UUID",): ("uuid", None),
    ("FB Memory Usage", "Total"): ("memory_total_bytes", MIB),
    ("FB Memory Usage", "Reserved"): ("memory_reserved_bytes", MIB),
    ("FB Memory Usage", "Used"): ("memory_used_bytes", MIB),
    ("FB Memory Usage", "Free"): ("memory_free_bytes", MIB),
    ("Utilization", "GPU"): ("utilization_percent", 1),
    ("Utilization", "Memory"): ("memory_utilization_percent", 1),
    ("Temperature", "GPU Current Temp"): ("temperature_celsius", 1),
    # what nvmlDeviceGetPowerUsage answers on these boards, and nvidia-smi prints as power.draw
    ("GPU Power Readings", "Average Power Draw"): ("power_watts", 1.0),
}


def _process(key: str, value: str, device: dict[str, Any], processes: list[dict[str, Any]]) -> None:
    if key == "Process ID":
        processes.append({"pid": int(value), "gpu_uuid": device["uuid"]})
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
