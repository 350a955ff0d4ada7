"""Facts of a board that only other exporters' names ask for, as plain values in base units. None = not told.

Why it exists: they are many, and read only where a dialect that has them is spoken. Apart from readings.py, so that
the facts that everybody gets stay in sight there.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PowerDetails:
    """Power beside the draw and the limit in force: at this instant, over the last second, and as it was asked for."""

    instant_watts: float | None = None
    average_watts: float | None = None
    requested_limit_watts: float | None = None
    edpp_multiplier_percent: float | None = None
    """How far peaks of current may go, of what the board is made for."""


@dataclass(frozen=True, slots=True)
class EngineDetails:
    """Engines beside the video encoder and decoder, and what the encoder's sessions get."""

    jpeg_utilization_percent: float | None = None
    ofa_utilization_percent: float | None = None
    encoder_sessions: int | None = None
    encoder_frames_per_second: int | None = None
    encoder_latency_microseconds: int | None = None


@dataclass(frozen=True, slots=True)
class EccDetails:
    """ECC errors by place: in DRAM and in SRAM, and uncorrected ones in SRAM by kind and by part of the chip."""

    volatile_corrected_dram: int | None = None
    volatile_corrected_sram: int | None = None
    volatile_uncorrected_dram: int | None = None
    volatile_uncorrected_sram: int | None = None
    aggregate_corrected_dram: int | None = None
    aggregate_corrected_sram: int | None = None
    aggregate_uncorrected_dram: int | None = None
    aggregate_uncorrected_sram: int | None = None
    volatile_sram_parity: int | None = None
    volatile_sram_secded: int | None = None
    aggregate_sram_parity: int | None = None
    aggregate_sram_secded: int | None = None
    aggregate_sram_l2: int | None = None
    aggregate_sram_sm: int | None = None
    aggregate_sram_mcu: int | None = None
    aggregate_sram_pcie: int | None = None
    aggregate_sram_other: int | None = None
    sram_threshold_exceeded: bool | None = None


@dataclass(frozen=True, slots=True)
class RowDetails:
    """Spare rows: how many banks have all, most, some, few and none of theirs left; remappings not in force yet."""

    banks_max: int | None = None
    banks_high: int | None = None
    banks_partial: int | None = None
    banks_low: int | None = None
    banks_none: int | None = None
    inactive_corrected: int | None = None
    inactive_uncorrected: int | None = None


@dataclass(frozen=True, slots=True)
class ProtectedMemoryDetails:
    """Memory under confidential computing."""

    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FabricDetails:
    """The NVLink fabric: 1 not started, 2 in progress, 3 completed; a board that is in none has no values."""

    state: int | None = None
    clique_id: int | None = None


@dataclass(frozen=True, slots=True)
class SwitchDetails:
    """What an administrator may turn while the driver runs. compute_mode: 0 default, 2 prohibited, 3 one process."""

    persistence: bool | None = None
    accounting: bool | None = None
    compute_mode: int | None = None
    display_attached: bool | None = None
    display_active: bool | None = None
    ecc_pending: bool | None = None
    mig_pending: bool | None = None


@dataclass(frozen=True, slots=True)
class DetailReading:
    """All of it, by subject. A subject of which nothing is told is None."""

    power: PowerDetails | None = None
    engines: EngineDetails | None = None
    ecc: EccDetails | None = None
    rows: RowDetails | None = None
    protected_memory: ProtectedMemoryDetails | None = None
    fabric: FabricDetails | None = None
    switches: SwitchDetails | None = None
