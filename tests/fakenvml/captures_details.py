"""Reads what only other exporters ask for out of `nvidia-smi -q` into the exporter's simulation form."""

import re
from typing import Any

from tests.fakenvml.details import CLOCKS_EVENT

MIB = 2**20
Path = tuple[str, ...]
_WORDS = {"Enabled": 1, "Yes": 1, "Disabled": 0, "No": 0, "Default": 0, "Prohibited": 2, "Exclusive_Process": 3}
_FABRIC = {"Not Started": 1, "In Progress": 2, "Completed": 3}
_RECOVERY = {"None": 0}
_FLAGS = {"sram_threshold_exceeded", "persistence", "accounting", "display_attached", "display_active"} | {
    "ecc_pending",
    "mig_pending",
}
# where nvidia-smi prints it -> subject of the details, field, unit
DETAILS: dict[Path, tuple[str, str, float]] = {
    ("GPU Power Readings", "Instantaneous Power Draw"): ("power", "instant_watts", 1.0),
    ("GPU Power Readings", "Average Power Draw"): ("power", "average_watts", 1.0),
    ("GPU Power Readings", "Requested Power Limit"): ("power", "requested_limit_watts", 1.0),
    ("EDPp Multiplier",): ("power", "edpp_multiplier_percent", 1.0),
    ("Utilization", "JPEG"): ("engines", "jpeg_utilization_percent", 1),
    ("Utilization", "OFA"): ("engines", "ofa_utilization_percent", 1),
    ("Encoder Stats", "Active Sessions"): ("engines", "encoder_sessions", 1),
    ("Encoder Stats", "Average FPS"): ("engines", "encoder_frames_per_second", 1),
    ("Encoder Stats", "Average Latency"): ("engines", "encoder_latency_microseconds", 1),
    **{
        ("ECC Errors", life, line): ("ecc", f"{life.lower()}_{field}", 1)
        for life in ("Volatile", "Aggregate")
        for line, field in (
            ("SRAM Correctable", "corrected_sram"),
            ("SRAM Uncorrectable Parity", "sram_parity"),
            ("SRAM Uncorrectable SEC-DED", "sram_secded"),
            ("DRAM Correctable", "corrected_dram"),
            ("DRAM Uncorrectable", "uncorrected_dram"),
        )
    },
    ("ECC Errors", "Aggregate", "SRAM Threshold Exceeded"): ("ecc", "sram_threshold_exceeded", 1),
    **{
        ("ECC Errors", "Aggregate Uncorrectable SRAM Sources", f"SRAM {part}"): ("ecc", f"aggregate_sram_{field}", 1)
        for part, field in (
            ("L2", "l2"),
            ("SM", "sm"),
            ("Microcontroller", "mcu"),
            ("PCIE", "pcie"),
            ("Other", "other"),
        )
    },
    **{
        ("Remapped Rows", "Bank Remap Availability Histogram", mark): ("rows", f"banks_{mark.lower()}", 1)
        for mark in ("Max", "High", "Partial", "Low", "None")
    },
    ("Remapped Rows", "Inactive Correctable Error"): ("rows", "inactive_corrected", 1),
    ("Remapped Rows", "Inactive Uncorrectable Error"): ("rows", "inactive_uncorrected", 1),
    **{
        ("Conf Compute Protected Memory Usage", part): ("protected_memory", f"{part.lower()}_bytes", MIB)
        for part in ("Total", "Used", "Free")
    },
    ("Fabric", "State"): ("fabric", "state", 1),
    ("Fabric", "CliqueId"): ("fabric", "clique_id", 1),
    ("Persistence Mode",): ("switches", "persistence", 1),
    ("Accounting Mode",): ("switches", "accounting", 1),
    ("Compute Mode",): ("switches", "compute_mode", 1),
    ("Display Attached",): ("switches", "display_attached", 1),
    ("Display Active",): ("switches", "display_active", 1),
    ("ECC Mode", "Pending"): ("switches", "ecc_pending", 1),
    ("MIG Mode", "Pending"): ("switches", "mig_pending", 1),
}
_HELD = dict(
    zip(
        ("SW Power Capping", "Sync Boost", "SW Thermal Slowdown", "HW Thermal Slowdown", "HW Power Braking"),
        CLOCKS_EVENT,
        strict=True,
    )
)
# where nvidia-smi prints it -> fact, factor; the text is taken as it stands where there is none
FACTS: dict[Path, tuple[str, int | None]] = {
    ("PCI", "Base Classcode"): ("pci_base_class", None),
    ("PCI", "Sub Classcode"): ("pci_sub_class", None),
    ("PCI", "Device Id"): ("pci_device_id", None),
    ("PCI", "Sub System Id"): ("pci_sub_device_id", None),
    ("PCI", "GPU Link Info", "PCIe Generation", "Device Max"): ("pcie_link_gen_gpumax", None),
    ("Inforom Version", "OEM Object"): ("inforom_oem", None),
    ("Inforom Version", "ECC Object"): ("inforom_ecc", None),
    ("Accounting Mode Buffer Size",): ("accounting_buffer_size", None),
    ("GPU C2C Mode",): ("c2c_mode", None),
    ("ECC Mode", "Current"): ("ecc_mode_current", None),
    ("Platform Info", "Module Id"): ("platform_module_id", None),
    ("GPU Power Readings", "Default Power Limit"): ("power_default_limit_watts", 1),
    ("GPU Power Readings", "Min Power Limit"): ("power_min_limit_watts", 1),
    ("GPU Power Readings", "Max Power Limit"): ("power_max_limit_watts", 1),
    ("Max Clocks", "Graphics"): ("clocks_max_graphics_hertz", 1_000_000),
    ("Max Clocks", "SM"): ("clocks_max_sm_hertz", 1_000_000),
    ("Max Clocks", "Memory"): ("clocks_max_memory_hertz", 1_000_000),
}


def take(path: Path, value: str, device: dict[str, Any]) -> None:
    """Add what one line tells of a device's details, seconds of held clocks and facts; N/A is not known."""
    number = _number(value)
    if path in DETAILS and number is not None:
        subject, field, unit = DETAILS[path]
        told = bool(number) if field in _FLAGS else number * unit if isinstance(unit, float) else int(number) * unit
        device.setdefault("details", {}).setdefault(subject, {})[field] = told
    if path in FACTS and value != "N/A":
        name, factor = FACTS[path]
        text = str(_WORDS.get(value, value)) if factor is None else f"{(number or 0) * factor:.15g}"
        device.setdefault("facts", {})[name] = text
    if path[:1] == ("Clocks Event Reasons Counters",) and number is not None:
        device.setdefault("clocks_event", {})[_HELD[path[-1]]] = number / 1_000_000
    if path == ("Temperature", "GPU T.Limit Temp"):
        device["temperature_margin_celsius"] = None if number is None else int(number)
    if path == ("GPU Recovery Action",):
        device["recovery_action"] = _RECOVERY.get(value)


def _number(value: str) -> float | None:
    if value in _WORDS or value in _FABRIC:
        return float(_WORDS.get(value, _FABRIC.get(value, 0)))
    found = re.match(r"-?[0-9]+(\.[0-9]+)?", value)
    return float(found[0]) if found else None


def sum_up(device: dict[str, Any]) -> None:
    """Tell the SRAM errors that nvidia-smi splits by how they were found, as NVML tells them too."""
    errors = device.get("details", {}).get("ecc", {})
    for life in ("volatile", "aggregate"):
        if f"{life}_sram_parity" in errors and f"{life}_corrected_sram" in errors:
            errors[f"{life}_uncorrected_sram"] = errors[f"{life}_sram_parity"] + errors[f"{life}_sram_secded"]
