"""What does not change while a driver runs, as texts: who a board is, and what only other exporters' names ask for.

Why it exists: each is asked once in a driver's life, so their number costs nothing. Switches that an administrator may
turn meanwhile (persistence, compute and accounting mode) are not here: they would be told wrong.
"""

from collections.abc import Callable, Mapping

import pynvml

from exporter.nvml.calls import Handle

Ask = Callable[[Handle], object]


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


ASKED: Mapping[str, Ask] = {
    "compute_cap": _capability,
    "cuda_version": _cuda,
    "pci_device_id": lambda handle: f"0x{pynvml.nvmlDeviceGetPciInfo(handle).pciDeviceId:08X}",
    "pci_sub_device_id": lambda handle: f"0x{pynvml.nvmlDeviceGetPciInfo(handle).pciSubSystemId:08X}",
    "inforom_ecc": _inforom(pynvml.NVML_INFOROM_ECC),
    "inforom_oem": _inforom(pynvml.NVML_INFOROM_OEM),
    "accounting_buffer_size": lambda handle: str(pynvml.nvmlDeviceGetAccountingBufferSize(handle)),
    "ecc_mode_current": lambda handle: str(pynvml.nvmlDeviceGetEccMode(handle)[0]),
    "clocks_event_reasons_supported": lambda handle: (
        f"0x{pynvml.nvmlDeviceGetSupportedClocksThrottleReasons(handle):X}"
    ),
    "power_default_limit_watts": lambda handle: _watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)),
    "power_min_limit_watts": _limit(0),
    "power_max_limit_watts": _limit(1),
    "clocks_max_graphics_hertz": _max_clock(pynvml.NVML_CLOCK_GRAPHICS),
    "clocks_max_sm_hertz": _max_clock(pynvml.NVML_CLOCK_SM),
    "clocks_max_memory_hertz": _max_clock(pynvml.NVML_CLOCK_MEM),
}
"""Fact -> how to ask for it. Raises NVMLError where the board or the driver cannot tell."""
