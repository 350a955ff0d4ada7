"""Compiles what only other exporters ask for, of the simulation form, into the fake driver's state."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.fakenvml.state import NOT_SUPPORTED, Device, FakeDriver

Values = Mapping[str, Any]


class Place(NamedTuple):
    """Where the fake keeps a value, by attribute and place in it (None = it is the attribute), and who tells it."""

    attribute: str
    at: int | None
    functions: tuple[str, ...]
    convert: Callable[[Any], Any] = int


def _hexadecimal(text: str) -> int:
    return int(text, 16)


def _milliwatts(watts: Any) -> int:
    return round(1000 * float(watts))


def _megahertz(hertz: Any) -> int:
    return round(float(hertz) / 1_000_000)


def _model(name: str) -> int:
    return ("WDDM", "TCC", "MCDM").index(name)


_CLASS, _SEAT, _GSP = ("nvmlDeviceGetPciInfoExt",), ("nvmlDeviceGetPlatformInfo",), ("nvmlDeviceGetGspFirmwareMode",)
_REASONS = ("nvmlDeviceGetSupportedClocksEventReasons", "nvmlDeviceGetSupportedClocksThrottleReasons")
_LIMITS, _MODEL = ("nvmlDeviceGetPowerManagementLimitConstraints",), ("nvmlDeviceGetDriverModel_v2",)
FACTS: dict[str, Place] = {
    "pci_base_class": Place("pci_class", 0, _CLASS, _hexadecimal),
    "pci_sub_class": Place("pci_class", 1, _CLASS, _hexadecimal),
    "accounting_buffer_size": Place("accounting_buffer", None, ("nvmlDeviceGetAccountingBufferSize",)),
    "clocks_event_reasons_supported": Place("supported_reasons", None, _REASONS, _hexadecimal),
    "power_default_limit_watts": Place("limits_mw", 1, ("nvmlDeviceGetPowerManagementDefaultLimit",), _milliwatts),
    "power_min_limit_watts": Place("limits_mw", 2, _LIMITS, _milliwatts),
    "power_max_limit_watts": Place("limits_mw", 3, _LIMITS, _milliwatts),
    "clocks_max_graphics_hertz": Place("max_clock_mhz", 0, ("nvmlDeviceGetMaxClockInfo",), _megahertz),
    "clocks_max_sm_hertz": Place("max_clock_mhz", 1, ("nvmlDeviceGetMaxClockInfo",), _megahertz),
    "clocks_max_memory_hertz": Place("max_clock_mhz", 2, ("nvmlDeviceGetMaxClockInfo",), _megahertz),
    "pcie_link_gen_gpumax": Place("gpu_pcie_generation", None, ("nvmlDeviceGetGpuMaxPcieLinkGeneration",)),
    "gsp_mode_current": Place("gsp", 0, _GSP),
    "gsp_mode_default": Place("gsp", 1, _GSP),
    "c2c_mode": Place("c2c", None, ("nvmlDeviceGetC2cModeInfoV",)),
    "platform_slot_number": Place("platform", 0, _SEAT),
    "platform_tray_index": Place("platform", 1, _SEAT),
    "platform_host_id": Place("platform", 2, _SEAT),
    "platform_module_id": Place("platform", 4, _SEAT),
    "ecc_mode_current": Place("ecc_mode", 0, ("nvmlDeviceGetEccMode",)),
    "driver_model_current": Place("driver_model", 0, _MODEL, _model),
    "driver_model_pending": Place("driver_model", 1, _MODEL, _model),
}
DETAILS: dict[str, dict[str, Place]] = {
    "power": {"requested_limit_watts": Place("limits_mw", 0, ("nvmlDeviceGetPowerManagementLimit",), _milliwatts)},
    "engines": {
        "jpeg_utilization_percent": Place("jpeg_percent", None, ("nvmlDeviceGetJpgUtilization",)),
        "ofa_utilization_percent": Place("ofa_percent", None, ("nvmlDeviceGetOfaUtilization",)),
        **{
            field: Place("encoder_stats", at, ("nvmlDeviceGetEncoderStats",))
            for at, field in enumerate(
                ("encoder_sessions", "encoder_frames_per_second", "encoder_latency_microseconds")
            )
        },
    },
    "ecc": {
        field: Place("sram", at, ("nvmlDeviceGetSramEccErrorStatus",))
        for at, field in enumerate(
            (
                "aggregate_sram_parity",
                "aggregate_sram_secded",
                "volatile_sram_parity",
                "volatile_sram_secded",
                "aggregate_sram_l2",
                "aggregate_sram_sm",
                "aggregate_sram_pcie",
                "aggregate_sram_mcu",
                "aggregate_sram_other",
                "sram_threshold_exceeded",
            )
        )
    },
    "rows": {
        f"banks_{mark}": Place("banks", at, ("nvmlDeviceGetRowRemapperHistogram",))
        for at, mark in enumerate(("max", "high", "partial", "low", "none"))
    },
    "protected_memory": {
        f"{part}_bytes": Place("protected_memory", at, ("nvmlDeviceGetConfComputeProtectedMemoryUsage",))
        for at, part in enumerate(("total", "free", "used"))
    },
    "fabric": {
        "state": Place("fabric", 0, ("nvmlDeviceGetGpuFabricInfoV",)),
        "clique_id": Place("fabric", 1, ("nvmlDeviceGetGpuFabricInfoV",)),
    },
    "switches": {
        "persistence": Place("persistence", None, ("nvmlDeviceGetPersistenceMode",)),
        "accounting": Place("accounting", None, ("nvmlDeviceGetAccountingMode",)),
        "compute_mode": Place("compute_mode", None, ("nvmlDeviceGetComputeMode",)),
        "display_attached": Place("display_attached", None, ("nvmlDeviceGetDisplayMode",)),
        "display_active": Place("display_active", None, ("nvmlDeviceGetDisplayActive",)),
        "ecc_pending": Place("ecc_mode", 1, ("nvmlDeviceGetEccMode",)),
        "mig_pending": Place("mig_pending", None, ()),
    },
}
# field of the form -> id of nvmlDeviceGetFieldValues, factor, type of the value
FIELDS: dict[str, dict[str, tuple[int, int, int]]] = {
    "power": {
        "average_watts": (185, 1000, 1),
        "instant_watts": (186, 1000, 1),
        "edpp_multiplier_percent": (274, 1, 1),
    },
    "rows": {"inactive_corrected": (301, 1, 3), "inactive_uncorrected": (302, 1, 3)},
}
CLOCKS_EVENT = {
    "sw_power_cap_seconds": 74,
    "sync_boost_seconds": 76,
    "sw_thermal_slowdown_seconds": 269,
    "hw_thermal_slowdown_seconds": 270,
    "hw_power_brake_slowdown_seconds": 271,
}
RECOVERY_ACTION = 230
DEVICE_ID = "0x233510DE"
ERRORS = ("nvmlDeviceGetMemoryErrorCounter",)


def load_details(fake: FakeDriver, at: int, form: Values) -> None:
    """Write the details of one board; what the form does not name is not supported."""
    device, told = fake.state.devices[at], form.get("details") or {}
    for subject, places in DETAILS.items():
        _load(fake, at, places, told.get(subject) or {})
    _load(fake, at, {"margin": Place("margin", None, ("nvmlDeviceGetMarginTemperature",))}, _margin(form))
    for subject, fields in FIELDS.items():
        for field, (number, factor, kind) in fields.items():
            value = (told.get(subject) or {}).get(field)
            fake.field(at, number, None if value is None else round(factor * value), kind=kind)
    seconds = form.get("clocks_event") or {}
    for field, number in CLOCKS_EVENT.items():
        fake.field(at, number, None if seconds.get(field) is None else round(seconds[field] * 1e9))
    fake.field(at, RECOVERY_ACTION, form.get("recovery_action"), kind=1)
    if (told.get("switches") or {}).get("mig_pending") is None:
        device.mig_pending = device.mig_mode
    _load_errors(device, told.get("ecc") or {}, (form.get("ecc") or {}).get("aggregate_sram_uncorrected"))


def _margin(form: Values) -> Values:
    return {"margin": form.get("temperature_margin_celsius")}


def _load_errors(device: Device, told: Values, sram: int | None) -> None:
    known = {"aggregate_uncorrected_sram": sram} | dict(told)
    for kind, kind_name in enumerate(("corrected", "uncorrected")):
        for life, life_name in enumerate(("volatile", "aggregate")):
            for place, place_name in ((2, "dram"), (7, "sram")):
                count = known.get(f"{life_name}_{kind_name}_{place_name}")
                device.errors[kind][life][place] = count or 0
                device.errors_told[kind][life][place] = count is not None


def load_facts(fake: FakeDriver, at: int, facts: Mapping[str, str]) -> None:
    """Write what is fixed; what the form does not name is not supported, but for the address and what comes with it."""
    device = fake.state.devices[at]
    _load(fake, at, FACTS, facts)
    for place, name in enumerate(("pci_device_id", "pci_sub_device_id")):
        device.pci_ids[place] = int(facts.get(name, DEVICE_ID), 16)
    for place, name in enumerate(("inforom_oem", "inforom_ecc")):
        device.inforom[place].value = facts.get(name, "").encode()
    guid = int(facts.get("platform_gpu_fabric_guid", "0x0"), 16).to_bytes(8, "big")
    device.fabric_guid[:8] = tuple(guid)
    major, _, minor = facts.get("compute_cap", "9.0").partition(".")
    device.capability[:] = int(major), int(minor)
    if "cuda_version" in facts:
        major, _, minor = facts["cuda_version"].partition(".")
        fake.state.cuda_version = 1000 * int(major) + 10 * int(minor)


def _load(fake: FakeDriver, at: int, places: Mapping[str, Place], told: Values) -> None:
    device = fake.state.devices[at]
    known: dict[str, bool] = {}
    for field, place in places.items():
        value = told.get(field)
        stored = 0 if value is None else place.convert(value)
        if place.at is None:
            setattr(device, place.attribute, stored)
        else:
            getattr(device, place.attribute)[place.at] = stored
        for function in place.functions:
            known[function] = known.get(function, False) or value is not None
    for function, supported in known.items():
        fake.fail(at, function, 0 if supported else NOT_SUPPORTED)
