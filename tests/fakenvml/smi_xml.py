"""What `nvidia-smi -q -x` would print of a simulation form, so that a comparison with it can be rehearsed.

Why it exists: the fake driver has no nvidia-smi. The words and their nesting are those of drivers since R535.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from typing import Any

from exporter.samples_boards import CLOCKS_EVENT_REASONS

MIB = 2**20
ACTIONS = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
Tree = Mapping[str, Any]
"""tag -> text, a number, a tree, or several trees; None is printed as N/A"""


def document(form: Tree) -> str:
    """Return the text of it."""
    return ET.tostring(tree(form), encoding="unicode")


def tree(form: Tree) -> ET.Element:
    """Return the whole of it, for every board of the form."""
    root = ET.Element("nvidia_smi_log")
    ET.SubElement(root, "driver_version").text = str(form.get("driver", "590.48.01"))
    for at, device in enumerate(form["devices"]):
        held = [process for process in form.get("processes", ()) if process["gpu_uuid"] == device["uuid"]]
        _fill(ET.SubElement(root, "gpu", id=f"{at}"), _board(device, at, held))
    return root


def _fill(element: ET.Element, of: Tree) -> None:
    for tag, value in of.items():
        for one in value if isinstance(value, list) else [value]:
            child = ET.SubElement(element, tag)
            if isinstance(one, dict):
                _fill(child, one)
            else:
                child.text = "N/A" if one is None else str(one)


def _board(device: Tree, at: int, processes: Iterable[Tree]) -> dict[str, Any]:
    facts, ecc, repair = (device.get(part) or {} for part in ("facts", "ecc", "repair"))
    return {
        "product_name": device["name"],
        "uuid": device["uuid"],
        "serial": facts.get("serial"),
        "minor_number": facts.get("minor_number", at),
        "vbios_version": facts.get("vbios_version"),
        "mig_mode": {"current_mig": _word(device.get("mig_enabled"), "Disabled", "Enabled")},
        "mig_devices": {"mig_device": [_instance(one) for one in device.get("mig") or ()]},
        "pci": _pci(device, facts.get("pci_bus_id", f"{0:08X}:{at + 1:02X}:00.0")),
        "fan_speed": _unit(device.get("fan_percent"), "%"),
        "performance_state": None if device.get("performance_state") is None else f"P{device['performance_state']}",
        "clocks_event_reasons": _reasons(device.get("clocks_event_reasons")),
        "clocks_event_reasons_counters": _held(device.get("clocks_event") or {}),
        "gpu_recovery_action": None if device.get("recovery_action") is None else ACTIONS[device["recovery_action"]],
        "fb_memory_usage": _memory(device),
        "bar1_memory_usage": {part: _mib(device.get(f"bar1_{part}_bytes")) for part in ("total", "used")},
        "utilization": {
            tag: _unit(device.get(key), "%")
            for tag, key in (
                ("gpu_util", "utilization_percent"),
                ("memory_util", "memory_utilization_percent"),
                ("encoder_util", "encoder_utilization_percent"),
                ("decoder_util", "decoder_utilization_percent"),
            )
        },
        "ecc_errors": _ecc(ecc),
        "retired_pages": {
            "multiple_single_bit_retirement": {"retired_count": repair.get("retired_pages_corrected")},
            "double_bit_retirement": {"retired_count": repair.get("retired_pages_uncorrected")},
            "pending_retirement": _word(repair.get("retired_pages_pending"), "No", "Yes"),
        },
        "remapped_rows": {
            "remapped_row_corr": repair.get("remapped_rows_corrected"),
            "remapped_row_unc": repair.get("remapped_rows_uncorrected"),
            "remapped_row_pending": _word(repair.get("remapped_rows_pending"), "No", "Yes"),
            "remapped_row_failure": _word(repair.get("remapped_rows_failed"), "No", "Yes"),
        },
        "temperature": {
            "gpu_temp": _unit(device.get("temperature_celsius"), "C"),
            "gpu_temp_tlimit": _unit(device.get("temperature_margin_celsius"), "C"),
            "memory_temp": _unit(device.get("memory_temperature_celsius"), "C"),
        },
        "gpu_power_readings": {
            "average_power_draw": _unit(device.get("power_watts"), "W"),
            "current_power_limit": _unit(device.get("power_limit_watts"), "W"),
        },
        "clocks": {
            f"{tag}_clock": _unit(None if hertz is None else round(hertz / 1e6), "MHz")
            for tag, key in (("graphics", "graphics"), ("sm", "sm"), ("mem", "memory"), ("video", "video"))
            for hertz in (device.get(f"{key}_clock_hertz"),)
        },
        "processes": {
            "process_info": [
                {"pid": one["pid"], "type": "C", "used_memory": _mib(one.get("memory_used_bytes"))} for one in processes
            ]
        },
    }


def _pci(device: Tree, bus_id: str) -> dict[str, Any]:
    width = {key: device.get(key) for key in ("pcie_width", "pcie_width_max")}
    return {
        "pci_bus_id": bus_id,
        "pci_gpu_link_info": {
            "pcie_gen": {
                "max_link_gen": device.get("pcie_generation_max"),
                "current_link_gen": device.get("pcie_generation"),
            },
            "link_widths": {
                "max_link_width": f"{width['pcie_width_max']}x",
                "current_link_width": f"{width['pcie_width']}x",
            },
        },
        "replay_counter": device.get("pcie_replays"),
    }


def _reasons(mask: int | None) -> dict[str, Any]:
    words = {reason: reason for reason in CLOCKS_EVENT_REASONS.values()} | {
        "display_clock_setting": "display_clocks_setting"
    }
    return {
        f"clocks_event_reason_{words[reason]}": _word(None if mask is None else mask & bit, "Not Active", "Active")
        for bit, reason in CLOCKS_EVENT_REASONS.items()
    }


def _held(seconds: Tree) -> dict[str, Any]:
    words = {"sw_thermal_slowdown": "sw_therm_slowdown", "hw_thermal_slowdown": "hw_therm_slowdown"}
    words |= {"hw_power_brake_slowdown": "hw_power_brake"}
    reasons = {key.removesuffix("_seconds"): value for key, value in seconds.items()}
    return {
        f"clocks_event_reasons_counters_{words.get(reason, reason)}": _unit(round(held * 1e6), "us")
        for reason, held in reasons.items()
    }


def _ecc(ecc: Tree) -> dict[str, Any]:
    """Split the totals: what is not said to be the SRAM's is the DRAM's."""
    found = {}
    for span, in_sram in (("volatile", 0), ("aggregate", ecc.get("aggregate_sram_uncorrected"))):
        total = ecc.get(f"{span}_uncorrected")
        known = total is not None and in_sram is not None
        uncorrected = {
            "sram_uncorrectable_parity": 0 if known else None,
            "sram_uncorrectable_secded": in_sram if known else None,
            "dram_uncorrectable": (total or 0) - (in_sram or 0) if known else None,
        }
        corrected = ecc.get(f"{span}_corrected")
        found[span] = {
            "sram_correctable": None if corrected is None else 0,
            "dram_correctable": corrected,
            **uncorrected,
        }
    return found


def _instance(instance: Tree) -> dict[str, Any]:
    return {
        "gpu_instance_id": instance["gpu_instance"],
        "compute_instance_id": instance["compute_instance"],
        "fb_memory_usage": _memory(instance),
    }


def _memory(of: Tree) -> dict[str, Any]:
    total, used, reserved = (of.get(f"memory_{part}_bytes") or 0 for part in ("total", "used", "reserved"))
    free = of.get("memory_free_bytes", total - used - reserved)
    figures = {"total": total, "reserved": reserved, "used": used, "free": free}
    return {part: _mib(size if total else None) for part, size in figures.items()}


def _mib(size: float | None) -> str | None:
    return None if size is None else f"{size // MIB} MiB"


def _unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value} {unit}"


def _word(value: object, no: str, yes: str) -> str | None:
    return None if value is None else yes if value else no
