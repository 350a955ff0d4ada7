"""What nvidia_gpu_exporter has of a board beside: what is fixed, and what is read only because its names ask for it.

Why it exists: few would chart these, but its users join and alert on them; where the driver tells one, it is here.
"""

import re
from collections.abc import Callable

from exporter.dialects.nvidia_smi_board import ratio, reading, row
from exporter.dialects.rows import BANKS, Row, fact, numeral
from exporter.readings import GpuReading


def _fact(name: str, help_text: str, key: str = "", unit: str = "") -> Row:
    """One family whose value is a fact of the GPU."""
    key = key or name
    return row(name, unit, help_text, f"GpuReading.facts[{key}]", fact(key))


def _part_of_address(number: int) -> Callable[[GpuReading], float | None]:
    """Domain, bus or device out of ``00000000:83:00.0``."""

    def value(gpu: GpuReading) -> float | None:
        parts = gpu.facts.get("pci_bus_id", "").replace(".", ":").split(":")
        return numeral("0x" + parts[number]) if len(parts) == 4 else None

    return value


def _number_in_name(gpu: GpuReading) -> float | None:
    """Return the one number in the model's name: 200 for H200; None where there are two, as in H100 80GB."""
    found = _NUMBER.findall(gpu.name)
    return float(found[0]) if len(found) == 1 else None


def _detail(name: str, unit: str, help_text: str, source: str, times: float = 1) -> Row:
    return reading(name, unit, help_text, f"details.{source}", times=times)


_NUMBER = re.compile(r"[+-]?(?:[0-9]*[.])?[0-9]+")
_CHIP = {
    "l2": "the L2 cache",
    "sm": "the SMs",
    "mcu": "microcontrollers",
    "pcie": "the PCIe interface",
    "other": "other places",
}

DETAILS: tuple[Row, ...] = (
    row("name", "", "The number in the model's name, where there is one.", "GpuReading.name", _number_in_name),
    _detail("power_draw_instant_watts", "watts", "Power drawn at this instant.", "power.instant_watts"),
    _detail("power_draw_average_watts", "watts", "Mean power of the last second.", "power.average_watts"),
    _detail("power_limit_watts", "watts", "Power limit as it was asked for.", "power.requested_limit_watts"),
    _detail(
        "edpp_multiplier_ratio", "ratio", "How far peaks of current may go.", "power.edpp_multiplier_percent", 0.01
    ),
    ratio("utilization_jpeg_ratio", "Utilisation of the JPEG engine", "details.engines.jpeg_utilization_percent"),
    ratio("utilization_ofa_ratio", "Utilisation of the optical flow engine", "details.engines.ofa_utilization_percent"),
    _detail("encoder_stats_session_count", "", "Sessions of the video encoder.", "engines.encoder_sessions"),
    _detail("encoder_stats_average_fps", "", "Frames a second of a session.", "engines.encoder_frames_per_second"),
    _detail(
        "encoder_stats_average_latency", "", "Microseconds to encode a frame.", "engines.encoder_latency_microseconds"
    ),
    *(
        _detail(
            f"ecc_errors_{kind}_{life}_{place}",
            "",
            f"ECC errors in {memory}, {kind}, {life}.",
            f"ecc.{life}_{kind}_{'sram' if place == 'sram' else 'dram'}",
        )
        for kind in ("corrected", "uncorrected")
        for life in ("volatile", "aggregate")
        for place, memory in (("device_memory", "DRAM"), ("dram", "DRAM"), ("sram", "SRAM"))
    ),
    *(
        _detail(
            f"ecc_errors_uncorrected_{life}_sram_{how}",
            "",
            f"Uncorrected ECC errors in SRAM found by {how}, {life}.",
            f"ecc.{life}_sram_{how}",
        )
        for life in ("volatile", "aggregate")
        for how in ("parity", "secded")
    ),
    *(
        _detail(
            f"ecc_errors_uncorrected_aggregate_sram_{part}",
            "",
            f"Uncorrected ECC errors in the SRAM of {where}, aggregate.",
            f"ecc.aggregate_sram_{part}",
        )
        for part, where in _CHIP.items()
    ),
    _detail(
        "ecc_errors_uncorrected_aggregate_sram_threshold_exceeded",
        "",
        "1 if there are more ECC errors in SRAM than the maker accepts.",
        "ecc.sram_threshold_exceeded",
    ),
    *(
        _detail(f"remapped_rows_histogram_{mark}", "", f"Banks that have {left}.", f"rows.banks_{mark}")
        for mark, left in BANKS.items()
    ),
    *(
        _detail(
            f"remapped_rows_{kind}able_inactive",
            "",
            f"Remappings for {kind}ed errors that are not in force yet.",
            f"rows.inactive_{kind}ed",
        )
        for kind in ("correct", "uncorrect")
    ),
    *(
        _detail(f"protected_memory_{part}_bytes", "bytes", f"{words}.", f"protected_memory.{part}_bytes")
        for part, words in (
            ("total", "Memory under confidential computing"),
            ("used", "Used memory under confidential computing"),
            ("free", "Free memory under confidential computing"),
        )
    ),
    _detail("fabric_state", "", "NVLink fabric: 1 not started, 2 in progress, 3 completed.", "fabric.state"),
    _detail("fabric_clique_id", "", "Which GPUs of the fabric reach each other.", "fabric.clique_id"),
    _detail("accounting_mode", "", "1 if accounting is on.", "switches.accounting"),
    _detail("compute_mode", "", "Compute mode: 0 default, 2 prohibited, 3 one process.", "switches.compute_mode"),
    _detail("persistence_mode", "", "1 if persistence mode is on.", "switches.persistence"),
    _detail("display_attached", "", "1 if a display is attached.", "switches.display_attached"),
    _detail("display_active", "", "1 if a display is initialised.", "switches.display_active"),
    _detail("ecc_mode_pending", "", "1 if ECC will be on after a restart.", "switches.ecc_pending"),
    _detail("mig_mode_pending", "", "1 if MIG will be on after a reset.", "switches.mig_pending"),
)
"""Read where this dialect is spoken."""

FACTS: tuple[Row, ...] = (
    row("pci_domain", "", "PCI domain.", "GpuReading.facts[pci_bus_id]", _part_of_address(0)),
    row("pci_bus", "", "PCI bus.", "GpuReading.facts[pci_bus_id]", _part_of_address(1)),
    row("pci_device", "", "PCI device.", "GpuReading.facts[pci_bus_id]", _part_of_address(2)),
    _fact("pci_device_id", "PCI device and vendor."),
    _fact("pci_sub_device_id", "PCI subsystem device and vendor."),
    _fact("pci_base_class", "PCI base class."),
    _fact("pci_sub_class", "PCI subclass."),
    _fact("serial", "Serial number of the board, where it is a number."),
    _fact("compute_cap", "Compute capability as a decimal number."),
    _fact("inforom_ecc", "Version of the ECC object."),
    _fact("inforom_oem", "Version of the OEM object."),
    _fact("accounting_buffer_size", "Processes that accounting remembers."),
    _fact("ecc_mode_current", "1 if ECC is on."),
    _fact("gsp_mode_current", "1 if the GSP firmware runs."),
    _fact("gsp_mode_default", "1 if the GSP firmware runs by default."),
    _fact("c2c_mode", "1 if chip-to-chip links are on."),
    _fact("clocks_event_reasons_supported", "Bit mask of the reasons that the GPU can tell."),
    *(
        _fact(f"power_{which}_limit_watts", f"{words} power limit.", unit="watts")
        for which, words in (("default", "Default"), ("min", "Lowest possible"), ("max", "Highest possible"))
    ),
    *(
        _fact(f"clocks_max_{d}_clock_hz", f"Highest {d} clock in Hz.", f"clocks_max_{d}_hertz", "hz")
        for d in ("graphics", "sm", "memory")
    ),
    _fact("pcie_link_gen_gpumax", "Highest PCIe generation of the GPU, whatever the slot has."),
    _fact("platform_slot_number", "Slot in the chassis."),
    _fact("platform_tray_index", "Tray in the chassis."),
    _fact("platform_host_id", "Host in the tray."),
    _fact("platform_module_id", "Module in the host."),
    _fact("platform_gpu_fabric_guid", "GUID in the NVLink fabric."),
)
"""Read once in a driver's life."""
