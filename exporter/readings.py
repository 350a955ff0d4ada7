"""Raw facts as plain values, in base units: what a source reads and a Snapshot holds.

Why it exists: NVML, the simulation and the kubelet meet the publishing side only here. A field that is not
known is None with its reason in ``absent``; it is never 0, NaN or text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.details import DetailReading


class AbsentReason(StrEnum):
    """Why a value, or a whole GPU, is not there. The label value of the series that says so."""

    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    LOST = "lost"
    TIMEOUT = "timeout"
    RESET_REQUIRED = "reset_required"
    DRIVER_ERROR = "driver_error"
    OUT_OF_RANGE = "out_of_range"
    MIG_ENABLED = "mig_enabled"
    UNIFIED_MEMORY = "unified_memory"
    DUPLICATE_UUID = "duplicate_uuid"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process on one GPU. memory_used_bytes None = the driver does not tell."""

    pid: int
    gpu_uuid: str
    memory_used_bytes: int | None
    utilization_percent: float | None = None
    name: str = ""
    computes: bool = True
    """Whether it may run kernels; else it only draws."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    """The instances of a split GPU (MIG) that it runs in; None = in none, or not told."""


@dataclass(frozen=True, slots=True)
class NvlinkReading:
    """One active NVLink: counters since the driver was loaded. None = not told."""

    link: int
    received_bytes: int | None = None
    transmitted_bytes: int | None = None
    errors: int | None = None


@dataclass(frozen=True, slots=True)
class MigReading:
    """One compute instance of a GPU in MIG mode; the memory figures are its GPU instance's, shared by all within."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    sm_active_ratio: float | None = None
    profile_id: int | None = None
    placement_start: int | None = None
    """With profile_id what the GPU instance was made from: NVML's id of the profile, its first memory slice."""


@dataclass(frozen=True, slots=True)
class EccReading:
    """ECC errors: ``volatile`` since the driver was loaded, ``aggregate`` over the board's life. None = not told."""

    volatile_corrected: int | None = None
    volatile_uncorrected: int | None = None
    aggregate_corrected: int | None = None
    aggregate_uncorrected: int | None = None
    aggregate_sram_uncorrected: int | None = None


@dataclass(frozen=True, slots=True)
class RepairReading:
    """What a board has repaired or could not: retired pages (before Ampere), remapped rows (since)."""

    retired_pages_corrected: int | None = None
    retired_pages_uncorrected: int | None = None
    retired_pages_pending: bool | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remapped_rows_pending: bool | None = None
    remapped_rows_failed: bool | None = None


@dataclass(frozen=True, slots=True)
class ClocksEventReading:
    """For how long each reason has held the clocks down, in seconds since the driver was loaded. None = not told."""

    sw_power_cap_seconds: float | None = None
    sync_boost_seconds: float | None = None
    sw_thermal_slowdown_seconds: float | None = None
    hw_thermal_slowdown_seconds: float | None = None
    hw_power_brake_slowdown_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class XidReading:
    """How often one Xid came since this process watches, and when it came last (Unix seconds)."""

    xid: int
    count: int
    last_at: float


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one poll. ``fault`` set = the GPU as a whole could not be read; the values are then None.

    uuid is the identity; index is a fact that may change. power_watts in W, temperature in degrees C,
    utilisation in percent 0-100, memory in bytes (free is the driver's own figure, not capacity - used).
    """

    uuid: str
    index: int
    name: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_unified: bool | None = None
    """Whether the GPU has no memory of its own and works in the machine's; None = not known."""
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    processes: tuple[ProcessReading, ...] | None = None
    memory_temperature_celsius: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """A counter since the driver was loaded."""
    fan_percent: float | None = None
    bar1_total_bytes: int | None = None
    bar1_used_bytes: int | None = None
    encoder_utilization_percent: float | None = None
    decoder_utilization_percent: float | None = None
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    graphics_clock_hertz: float | None = None
    video_clock_hertz: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    clocks_event_reasons: int | None = None
    """NVML's bit mask of why clocks are held down."""
    temperature_margin_celsius: float | None = None
    """How much warmer it may get before its clocks are held down; below 0 where it is already too warm."""
    recovery_action: int | None = None
    """What the driver says the GPU needs, by NVML's number: 0 nothing, 1 a reset, 2 a restart of the node ..."""
    performance_state: int | None = None
    graphics_active_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    ecc: EccReading | None = None
    repair: RepairReading | None = None
    clocks_event: ClocksEventReading | None = None
    nvlinks: tuple[NvlinkReading, ...] | None = None
    xids: tuple[XidReading, ...] | None = None
    mig_enabled: bool | None = None
    mig: tuple[MigReading, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """What does not change while the driver runs, under NVML's words in snake case.

    serial, minor_number, pci_bus_id, vbios_version, architecture, brand, and what only other dialects ask for.
    """
    details: DetailReading | None = None
    """What only other dialects ask for and what may change; None = it was not asked for."""
    fault: AbsentReason | None = None
    absent: Mapping[str, AbsentReason] = field(default_factory=dict)
    """field name above, or ``details.SUBJECT`` -> why it is None."""
    read_seconds: float = 0.0
    """How long this GPU's reading took."""


MEMORY_FIELDS = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
"""The amounts of memory that a GPU has, by their fields."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container holds: ids as the kubelet lists them (GPU-..., MIG-..., GPU-...::2).

    ``pids`` is known only from the simulation; None = not known.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    pids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SourceState:
    """Whether a source (the driver, the kubelet) answers, and if not, why, as a reason and a sentence with the cure."""

    up: bool
    reason: str = ""
    message: str = ""


PROCESSES_OFF = SourceState(up=False, reason="off", message="processes are not matched to containers")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The node at one moment. taken_at: Unix seconds. allocations None = the kubelet was not read."""

    taken_at: float
    gpus: tuple[GpuReading, ...]
    allocations: tuple[Allocation, ...] | None
    driver: SourceState
    kubelet: SourceState
    driver_version: str = ""
    poll_seconds: float = 0.0
    polls: int = 0
    """Polls since the start, this one included."""
    driver_failures: int = 0
    """Polls since the start at which the driver did not answer."""
    processes: SourceState = PROCESSES_OFF
    """Whether the GPUs' processes can be told by container."""
    unresolved_processes: Mapping[str, int] = field(default_factory=dict)
    """Why processes are no container's -> how many."""
    process_owners: Mapping[int, tuple[str, str, str]] = field(default_factory=dict)
    """pid -> namespace, pod and container that it runs in, for those of which that is known."""
