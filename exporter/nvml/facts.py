"""What does not change while a driver runs, as texts: who a board is, and what only other exporters' names ask for.

Why it exists: each is asked once in a driver's life, so their number costs nothing. Switches that an administrator may
turn meanwhile (persistence, compute and accounting mode) are not here, but in the details: they would be told wrong.
"""

import ctypes
from collections.abc import Callable, Mapping

import pynvml

from exporter.nvml.calls import Handle, binding, structure

Ask = Callable[[Handle], object]
_DRIVER_MODELS = {0: "WDDM", 1: "TCC", 2: "MCDM"}


def _limit(which: int) -> Ask:
    return lambda handle: _watts(pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[which])


def _max_clock(domain: int) -> Ask:
    return lambda handle: str(pynvml.nvmlDeviceGetMaxClockInfo(handle, domain) * 1_000_000)


def _inforom(part: int) -> Ask:
    return lambda handle: pynvml.nvmlDeviceGetInforomVersion(handle, part)


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:g}"


def _capability(handle: Handle) -> str:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _cuda(_handle: Handle) -> str:
    version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{version // 1000}.{version % 1000 // 10}"


def _supported_reasons(handle: Handle) -> str:
    newer, older = (binding(f"nvmlDeviceGetSupportedClocks{word}Reasons") for word in ("Event", "Throttle"))
    try:
        return f"0x{newer(handle):X}"
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return f"0x{older(handle):X}"


def _pci_class(part: str) -> Ask:
    def ask(handle: Handle) -> str:
        told = structure("nvmlPciInfoExt_v1_t")
        told.version = pynvml.nvmlPciInfoExt_v1
        binding("nvmlDeviceGetPciInfoExt")(handle, ctypes.byref(told))
        return f"0x{getattr(told, part):X}"

    return ask


def _driver_model(which: int) -> Ask:
    return lambda handle: _DRIVER_MODELS.get(binding("nvmlDeviceGetDriverModel")(handle)[which], "")


def _firmware(which: int) -> Ask:
    def ask(handle: Handle) -> str:
        # variables of our own: the binding's are shared by all threads
        told = ctypes.c_uint(), ctypes.c_uint()
        binding("nvmlDeviceGetGspFirmwareMode")(handle, *(ctypes.byref(word) for word in told))
        return str(told[which].value)

    return ask


def _platform(part: str, size: int = 0) -> Ask:
    """Ask where the board sits: one byte as a decimal number, or so many as a hexadecimal one."""

    def ask(handle: Handle) -> str:
        told = structure("c_nvmlPlatformInfo_v2_t")
        binding("nvmlDeviceGetPlatformInfo")(handle, ctypes.byref(told))
        at = getattr(type(told), part).offset
        return f"0x{bytes(told)[at : at + size].hex().upper()}" if size else str(bytes(told)[at])

    return ask


ASKED: Mapping[str, Ask] = {
    "compute_cap": _capability,
    "cuda_version": _cuda,
    "pci_device_id": lambda handle: f"0x{pynvml.nvmlDeviceGetPciInfo(handle).pciDeviceId:08X}",
    "pci_sub_device_id": lambda handle: f"0x{pynvml.nvmlDeviceGetPciInfo(handle).pciSubSystemId:08X}",
    "inforom_ecc": _inforom(pynvml.NVML_INFOROM_ECC),
    "inforom_oem": _inforom(pynvml.NVML_INFOROM_OEM),
    "accounting_buffer_size": lambda handle: str(pynvml.nvmlDeviceGetAccountingBufferSize(handle)),
    "ecc_mode_current": lambda handle: str(pynvml.nvmlDeviceGetEccMode(handle)[0]),
    "clocks_event_reasons_supported": _supported_reasons,
    "pci_base_class": _pci_class("baseClass"),
    "pci_sub_class": _pci_class("subClass"),
    "pcie_link_gen_gpumax": lambda handle: str(binding("nvmlDeviceGetGpuMaxPcieLinkGeneration")(handle)),
    "driver_model_current": _driver_model(0),
    "driver_model_pending": _driver_model(1),
    "gsp_mode_current": _firmware(0),
    "gsp_mode_default": _firmware(1),
    "c2c_mode": lambda handle: str(binding("nvmlDeviceGetC2cModeInfoV")(handle).isC2cEnabled),
    "platform_slot_number": _platform("slotNumber"),
    "platform_tray_index": _platform("trayIndex"),
    "platform_host_id": _platform("hostId"),
    "platform_module_id": _platform("moduleId"),
    "platform_gpu_fabric_guid": _platform("ibGuid", size=8),
    "power_default_limit_watts": lambda handle: _watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)),
    "power_min_limit_watts": _limit(0),
    "power_max_limit_watts": _limit(1),
    "clocks_max_graphics_hertz": _max_clock(pynvml.NVML_CLOCK_GRAPHICS),
    "clocks_max_sm_hertz": _max_clock(pynvml.NVML_CLOCK_SM),
    "clocks_max_memory_hertz": _max_clock(pynvml.NVML_CLOCK_MEM),
}
"""Fact -> how to ask for it. Raises NVMLError where the board or the driver cannot tell."""
