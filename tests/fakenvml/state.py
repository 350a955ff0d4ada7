"""The fake driver's GPUs as a struct in a file: the Python twin of the one in fakenvml.c.

Why it exists: a test changes what the driver answers while the program under test is running, without a protocol.
"""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

MAGIC = 0x4C4D564E454B4146
LAYOUT = 3
DEVICES = 16
PROCESSES = 32
FIELDS, LINKS, SLOTS, EVENTS = 128, 18, 8, 64
XID = 8
UNKNOWN_BYTES = 2**64 - 1
UNKNOWN_PERCENT = 2**32 - 1

NOT_SUPPORTED, NO_PERMISSION, INSUFFICIENT_SIZE, NOT_LOADED = 3, 4, 7, 9
LOST, RESET_REQUIRED, MISMATCH, UNKNOWN = 15, 16, 18, 999

FUNCTIONS = (
    "nvmlInit_v2",
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetProcessName",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetPciInfoExt",
    "nvmlDeviceGetPlatformInfo",
    "nvmlDeviceGetGspFirmwareMode",
    "nvmlDeviceGetC2cModeInfoV",
    "nvmlDeviceGetInforomVersion",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetAccountingBufferSize",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetSupportedClocksThrottleReasons",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization",
    "nvmlDeviceGetEncoderStats",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetConfComputeProtectedMemoryUsage",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetAccountingMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetDisplayMode",
    "nvmlDeviceGetDisplayActive",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetDriverModel_v2",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet",
    "nvmlEventSetCreate",
    "nvmlEventSetFree",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
)
"""Every function with knobs, in the order of the struct's arrays; the build writes the C enum from it."""

_u32 = ctypes.c_uint32
_u64 = ctypes.c_uint64
_words = _u32 * len(FUNCTIONS)


class Process(ctypes.Structure):
    _fields_ = (
        ("pid", _u32),
        ("kinds", _u32),
        ("memory_used", _u64),
        ("sm_percent", _u32),
        ("memory_percent", _u32),
        ("sampled_us", _u64),
        ("gpu_instance", _u32),
        ("compute_instance", _u32),
        ("name", ctypes.c_char * 256),
    )


class Knobs(ctypes.Structure):
    _fields_ = (
        ("error", _words),
        ("hang", _words),
        ("latency_us", _words),
        ("too_small", _words),
        ("calls", _u64 * len(FUNCTIONS)),
    )


class Field(ctypes.Structure):
    _fields_ = (("id", _u32), ("scope", _u32), ("type", _u32), ("code", _u32), ("value", _u64))


class Slot(ctypes.Structure):
    _fields_ = (
        ("present", _u32),
        ("gpu_instance", _u32),
        ("compute_instance", _u32),
        ("device", _u32),
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("memory_total", _u64),
        ("memory_reserved", _u64),
        ("memory_free", _u64),
        ("memory_used", _u64),
        ("sm_percent", ctypes.c_double),
        ("profile_id", _u32),
        ("placement", _u32 * 2),
        ("unused", _u32),
    )


class Event(ctypes.Structure):
    _fields_ = (("device", _u32), ("unused", _u32), ("kind", _u64), ("data", _u64))


class Device(ctypes.Structure):
    _fields_ = (
        ("present", _u32),
        ("error", _u32),
        ("hang", _u32),
        ("latency_us", _u32),
        ("minor", _u32),
        ("mig_mode", _u32),
        ("process_count", _u32),
        ("inside", _u32),
        ("overlaps", _u64),
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("bus_id", ctypes.c_char * 32),
        ("memory_total", _u64),
        ("memory_reserved", _u64),
        ("memory_free", _u64),
        ("memory_used", _u64),
        ("gpu_percent", _u32),
        ("memory_percent", _u32),
        ("temperature", ctypes.c_int32),
        ("power_mw", _u32),
        ("power_limit_mw", _u32),
        ("fan_percent", _u32),
        ("encoder_percent", _u32),
        ("decoder_percent", _u32),
        ("clock_mhz", _u32 * 4),
        ("pcie", _u32 * 4),
        ("pcie_replays", _u32),
        ("performance_state", _u32),
        ("architecture", _u32),
        ("gpm_supported", _u32),
        ("field_count", _u32),
        ("addressing_mode", _u32),
        ("links", _u32 * LINKS),
        ("clocks_event_reasons", _u64),
        ("bar1_total", _u64),
        ("bar1_used", _u64),
        ("errors", ((_u64 * 8) * 2) * 2),
        ("errors_told", ((_u32 * 8) * 2) * 2),
        ("serial", ctypes.c_char * 32),
        ("vbios", ctypes.c_char * 32),
        ("gpm", ctypes.c_double * 5),
        ("supported_reasons", _u64),
        ("protected_memory", _u64 * 3),
        ("encoder_stats", _u32 * 3),
        ("jpeg_percent", _u32),
        ("ofa_percent", _u32),
        ("margin", ctypes.c_int32),
        ("banks", _u32 * 5),
        ("fabric", _u32 * 2),
        ("capability", _u32 * 2),
        ("pci_ids", _u32 * 2),
        ("pci_class", _u32 * 2),
        ("gpu_pcie_generation", _u32),
        ("max_clock_mhz", _u32 * 4),
        ("limits_mw", _u32 * 4),
        ("accounting_buffer", _u32),
        ("persistence", _u32),
        ("accounting", _u32),
        ("compute_mode", _u32),
        ("display_attached", _u32),
        ("display_active", _u32),
        ("ecc_mode", _u32 * 2),
        ("mig_pending", _u32),
        ("gsp", _u32 * 2),
        ("c2c", _u32),
        ("driver_model", _u32 * 2),
        ("sram", _u64 * 10),
        ("inforom", (ctypes.c_char * 16) * 4),
        ("platform", ctypes.c_uint8 * 5),
        ("fabric_guid", ctypes.c_uint8 * 11),
        ("fields", Field * FIELDS),
        ("processes", Process * PROCESSES),
        ("knobs", Knobs),
    )


class State(ctypes.Structure):
    _fields_ = (
        ("magic", _u64),
        ("layout", _u32),
        ("size", _u32),
        ("init_error", _u32),
        ("system_error", _u32),
        ("shutdowns_while_busy", _u32),
        ("wait_error", _u32),
        ("cuda_version", _u32),
        ("event_step_ms", _u32),
        ("events_put", _u64),
        ("events_taken", _u64),
        ("driver_version", ctypes.c_char * 80),
        ("nvml_version", ctypes.c_char * 80),
        ("knobs", Knobs),
        ("devices", Device * DEVICES),
        ("slots", (Slot * SLOTS) * DEVICES),
        ("events", Event * EVENTS),
    )


class FakeDriver:
    """The state file, mapped. Values are written to ``state``; the knobs have methods, because they go by name."""

    def __init__(self, path: Path, *, fresh: bool = True) -> None:
        self.path = path
        if fresh:
            path.write_bytes(bytes(ctypes.sizeof(State)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state = State.from_buffer(self._map)
        if fresh:
            self.state.magic, self.state.layout, self.state.size = MAGIC, LAYOUT, ctypes.sizeof(State)
            self.state.cuda_version = 12040
            self.state.driver_version, self.state.nvml_version = b"550.54.15", b"12.550.54.15"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def knobs(self, device: int | None) -> Knobs:
        """Return the knobs of a device; None = of the driver as a whole."""
        return self.state.knobs if device is None else self.state.devices[device].knobs

    def event(self, device: int, data: int, kind: int = XID) -> None:
        """Let the driver report an event; by default an Xid."""
        entry = self.state.events[self.state.events_put % EVENTS]
        entry.device, entry.kind, entry.data = device, kind, data
        self.state.events_put += 1

    def field(self, device: int, number: int, value: int | None, scope: int = 0, kind: int = 3) -> None:
        """Let a field id answer with a value of a type (3 = unsigned long long); None = it is not supported."""
        held = self.state.devices[device]
        places = [
            at for at in range(held.field_count) if (held.fields[at].id, held.fields[at].scope) == (number, scope)
        ]
        at = places[0] if places else held.field_count
        held.fields[at] = Field(number, scope, kind, NOT_SUPPORTED if value is None else 0, value or 0)
        held.field_count = max(held.field_count, at + 1)

    def fail(self, device: int | None, function: str, code: int) -> None:
        """Let a function answer with an error; 0 ends that."""
        self.knobs(device).error[FUNCTIONS.index(function)] = code

    def hang(self, device: int | None, function: str) -> None:
        """Let a function not return until release()."""
        self.knobs(device).hang[FUNCTIONS.index(function)] = 1

    def too_small(self, device: int, function: str, times: int) -> None:
        """Let the next calls with a buffer find more entries than the buffer holds."""
        self.knobs(device).too_small[FUNCTIONS.index(function)] = times

    def latency(self, device: int | None, function: str, microseconds: int) -> None:
        """Let a function take its time."""
        self.knobs(device).latency_us[FUNCTIONS.index(function)] = microseconds

    def release(self) -> None:
        """Let every hanging call return."""
        for knobs in (self.state.knobs, *(device.knobs for device in self.state.devices)):
            ctypes.memset(ctypes.addressof(knobs.hang), 0, ctypes.sizeof(knobs.hang))
        for device in self.state.devices:
            device.hang = 0

    def calls(self, device: int | None, function: str) -> int:
        """Return how often a function was called since the last reset."""
        return int(self.knobs(device).calls[FUNCTIONS.index(function)])

    def all_calls(self, device: int | None) -> dict[str, int]:
        """Return every function that was called, with how often."""
        counts = self.knobs(device).calls
        return {name: int(counts[at]) for at, name in enumerate(FUNCTIONS) if counts[at]}

    def reset_calls(self) -> None:
        """Start the call counters at 0."""
        for knobs in (self.state.knobs, *(device.knobs for device in self.state.devices)):
            ctypes.memset(ctypes.addressof(knobs.calls), 0, ctypes.sizeof(knobs.calls))

    @property
    def overlaps(self) -> int:
        """How often a call began on a handle while another was under way on it."""
        return sum(int(device.overlaps) for device in self.state.devices)

    @contextmanager
    def hanging(self, device: int | None, function: str) -> Iterator[None]:
        """Let a function hang inside the block."""
        self.hang(device, function)
        try:
            yield
        finally:
            self.release()
