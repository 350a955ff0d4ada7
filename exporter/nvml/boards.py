"""The further facts of one board: quick ones at every poll, slow ones on a longer period, fixed ones once.

Why it exists: a poll has to stay cheap, and some calls read a board's own memory or walk its links.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pynvml

from exporter.details import DetailReading
from exporter.nvml.activity import Activities
from exporter.nvml.calls import Absent, GpuCalls, Handle, address, binding, told
from exporter.nvml.clocks_events import KEYS as CLOCKS_EVENT_KEYS
from exporter.nvml.clocks_events import clocks_event
from exporter.nvml.details import DRAW, Details, with_draw
from exporter.nvml.facts import ASKED
from exporter.nvml.fields import FieldBatch, Fields, keys, value_of
from exporter.nvml.mig import Places, because_split, instances
from exporter.nvml.names import ProcessNames
from exporter.readings import AbsentReason, EccReading, NvlinkReading, ProcessReading, RepairReading

R = TypeVar("R")
Values = dict[str, object]
"""field of GpuReading -> value or Absent"""
_Way = tuple[str, tuple[int, ...], float, float]  # function, arguments, factor, largest value before it

_HERTZ = 1e6
_UNKNOWN_32 = 2**32 - 1
_ENGINES: Mapping[str, _Way] = {
    "encoder_utilization_percent": ("nvmlDeviceGetEncoderUtilization", (), 1, 100),
    "decoder_utilization_percent": ("nvmlDeviceGetDecoderUtilization", (), 1, 100),
}
_QUICK: Mapping[str, _Way] = {
    "sm_clock_hertz": ("nvmlDeviceGetClockInfo", (pynvml.NVML_CLOCK_SM,), _HERTZ, 100_000),
    "memory_clock_hertz": ("nvmlDeviceGetClockInfo", (pynvml.NVML_CLOCK_MEM,), _HERTZ, 100_000),
}
_SLOW: Mapping[str, _Way] = {
    "graphics_clock_hertz": ("nvmlDeviceGetClockInfo", (pynvml.NVML_CLOCK_GRAPHICS,), _HERTZ, 100_000),
    "video_clock_hertz": ("nvmlDeviceGetClockInfo", (pynvml.NVML_CLOCK_VIDEO,), _HERTZ, 100_000),
    "fan_percent": ("nvmlDeviceGetFanSpeed", (), 1, 200),
    "power_limit_watts": ("nvmlDeviceGetEnforcedPowerLimit", (), 0.001, 20_000_000),
    "performance_state": ("nvmlDeviceGetPerformanceState", (), 1, 15),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", (), 1, 32),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", (), 1, 64),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter", (), 1, _UNKNOWN_32 - 1),
}
_FIXED: Mapping[str, _Way] = {
    "pcie_generation_max": ("nvmlDeviceGetMaxPcieLinkGeneration", (), 1, 32),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth", (), 1, 64),
}
_ECC = {
    "volatile_corrected": "ECC_SBE_VOL_TOTAL",
    "volatile_uncorrected": "ECC_DBE_VOL_TOTAL",
    "aggregate_corrected": "ECC_SBE_AGG_TOTAL",
    "aggregate_uncorrected": "ECC_DBE_AGG_TOTAL",
}
_REPAIRS = {
    "retired_pages_corrected": "RETIRED_SBE",
    "retired_pages_uncorrected": "RETIRED_DBE",
    "retired_pages_pending": "RETIRED_PENDING",
    "remapped_rows_corrected": "REMAPPED_COR",
    "remapped_rows_uncorrected": "REMAPPED_UNC",
    "remapped_rows_pending": "REMAPPED_PENDING",
    "remapped_rows_failed": "REMAPPED_FAILURE",
}
_YES_NO = frozenset({"retired_pages_pending", "remapped_rows_pending", "remapped_rows_failed"})
# newer drivers count bytes; the older field counts KiB of data
_RECEIVED = (("NVLINK_COUNT_RCV_BYTES", 1), ("NVLINK_THROUGHPUT_DATA_RX", 1024))
_TRANSMITTED = (("NVLINK_COUNT_XMIT_BYTES", 1), ("NVLINK_THROUGHPUT_DATA_TX", 1024))
_LINK_ERRORS = (
    "NVLINK_ERROR_DL_REPLAY",
    "NVLINK_ERROR_DL_RECOVERY",
    "NVLINK_ERROR_DL_CRC",
    "NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
    "NVLINK_COUNT_RCV_ERRORS",
    "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
)
_MOST_LINKS = getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18)
_SRAM = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC, 7)
_ARCHITECTURES = {
    getattr(pynvml, f"NVML_DEVICE_ARCH_{name.upper()}", None): name
    for name in ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell")
}


class Board:
    """What is read of one board beside memory, utilisation, power and processes. For the thread of its GPU."""

    def __init__(self, gpu: GpuCalls, slow_seconds: float, activity_seconds: float, *, detailed: bool) -> None:
        self._gpu = gpu
        self._activities = Activities(gpu, activity_seconds)
        self._slow_seconds = slow_seconds
        self._detailed = detailed
        self._names = ProcessNames()
        self._slow: Values = {}
        self._slow_due = 0.0
        self._fixed: Values = {}
        self._fixed_of: tuple[int, bool] | None = None
        self._links: tuple[int, ...] = ()
        self._places = Places()
        self._forget()

    def read(self, *, split: bool) -> Values:
        """Return every further fact, or why it is absent. Raises GpuError, DriverError."""
        known_as = (address(self._gpu.handle), split)
        if known_as != self._fixed_of:
            self._forget()
            self._fixed, self._fixed_of = self._read_fixed(), known_as
        now = time.monotonic()
        if now >= self._slow_due:
            self._slow = self._read_slow()
            self._slow_due = now + self._slow_seconds
        return self._fixed | self._slow | self._read_quick(split=split) | self._read_activity(split=split)

    def named(self, processes: tuple[ProcessReading, ...] | Absent) -> tuple[ProcessReading, ...] | Absent:
        """Return the processes with their names, where details are read."""
        if isinstance(processes, Absent) or not self._detailed:
            return processes
        names = self._names.of(process.pid for process in processes)
        return tuple(dataclasses.replace(process, name=names[process.pid]) for process in processes)

    def _forget(self) -> None:
        """Ask for everything again: it is another handle, or the GPU was split or joined."""
        self._slow_due = 0.0
        draw = DRAW.values() if self._detailed else ()
        self._quick_fields = FieldBatch(keys("MEMORY_TEMP", "TOTAL_ENERGY_CONSUMPTION", *draw))
        self._slow_fields = FieldBatch(
            [*keys(*_ECC.values(), *_REPAIRS.values(), "GET_GPU_RECOVERY_ACTION"), *CLOCKS_EVENT_KEYS]
        )
        self._details = Details(self._gpu)
        self._detail_reading = DetailReading()
        self._link_fields = FieldBatch(())
        self._links = ()
        self._places = Places()

    def _read_quick(self, *, split: bool) -> Values:
        fields = self._fields(self._quick_fields)
        energy = value_of(fields, "TOTAL_ENERGY_CONSUMPTION")
        engines = _all(self._gpu, _ENGINES)
        return {
            **_all(self._gpu, _QUICK),
            **({name: because_split(value) for name, value in engines.items()} if split else engines),
            "clocks_event_reasons": self._event_reasons(),
            "memory_temperature_celsius": _within(value_of(fields, "MEMORY_TEMP"), 1, 250),
            "energy_joules": energy if isinstance(energy, Absent) else energy / 1000,
            "details": with_draw(self._detail_reading, fields) if self._detailed else None,
        }

    def _read_activity(self, *, split: bool) -> Values:
        ratios = self._activities.board()
        values: Values = {field: because_split(ratio) if split else ratio for field, ratio in ratios.items()}
        if split:
            values["mig"] = instances(self._gpu, self._activities.sm_active, self._places)
        self._activities.end_poll()
        return values

    def _read_slow(self) -> Values:
        fields = self._fields(self._slow_fields)
        if self._detailed:
            self._detail_reading = self._details.read()
        return {
            **_all(self._gpu, _SLOW),
            **{f"details.{subject}": why for subject, why in self._details.absent.items()},
            **self._bar1(),
            "ecc": self._ecc(fields),
            "repair": _whole(RepairReading, _REPAIRS, fields),
            "clocks_event": clocks_event(fields),
            "recovery_action": _within(value_of(fields, "GET_GPU_RECOVERY_ACTION"), 0, 255),
            "temperature_margin_celsius": self._margin(),
            "nvlinks": self._nvlinks(),
        }

    def _read_fixed(self) -> Values:
        return {**_all(self._gpu, _FIXED), "facts": self._facts()}

    def _fields(self, batch: FieldBatch) -> Fields | Absent:
        return self._gpu.first(("nvmlDeviceGetFieldValues", batch.read))

    def _event_reasons(self) -> int | Absent:
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return self._gpu.first(*((name, binding(name)) for name in names))

    def _margin(self) -> float | Absent:
        name = "nvmlDeviceGetMarginTemperature"
        answer: int | Absent = self._gpu.first((name, binding(name)))
        return _within(answer, -250, 250)

    def _bar1(self) -> Values:
        answer = self._gpu.first(("nvmlDeviceGetBAR1MemoryInfo", pynvml.nvmlDeviceGetBAR1MemoryInfo))
        if isinstance(answer, Absent):
            return {"bar1_total_bytes": answer, "bar1_used_bytes": answer}
        total, used = int(answer.bar1Total), int(answer.bar1Used)
        if not 0 < total <= 2**50 or used > total:
            wrong = Absent(AbsentReason.OUT_OF_RANGE)
            return {"bar1_total_bytes": wrong, "bar1_used_bytes": wrong}
        return {"bar1_total_bytes": total, "bar1_used_bytes": used}

    def _ecc(self, fields: Fields | Absent) -> EccReading | Absent:
        sram = self._gpu.first(("sram errors", lambda handle: pynvml.nvmlDeviceGetMemoryErrorCounter(handle, *_SRAM)))
        totals = _whole(EccReading, _ECC, fields)
        known = None if isinstance(sram, Absent) or sram >= 2**63 else int(sram)
        if isinstance(totals, Absent):
            return totals if known is None else EccReading(aggregate_sram_uncorrected=known)
        return EccReading(
            totals.volatile_corrected,
            totals.volatile_uncorrected,
            totals.aggregate_corrected,
            totals.aggregate_uncorrected,
            known,
        )

    def _nvlinks(self) -> tuple[NvlinkReading, ...] | Absent:
        up = self._links_up()
        if isinstance(up, Absent):
            return up
        if up != self._links:
            self._links = up
            names = [name for name, _ in (*_RECEIVED, *_TRANSMITTED)] + list(_LINK_ERRORS)
            self._link_fields = FieldBatch([(key[0], link) for link in up for key in keys(*names)])
        fields = self._fields(self._link_fields)
        return fields if isinstance(fields, Absent) else tuple(_link(link, fields) for link in up)

    def _links_up(self) -> tuple[int, ...] | Absent:
        up: list[int] = []
        for link in range(_MOST_LINKS):
            state = self._gpu.first((f"link {link}", _state_of(link)))
            if isinstance(state, Absent):
                return state if not link else tuple(up)
            if state:
                up.append(link)
        return tuple(up)

    def _facts(self) -> Mapping[str, str]:
        asked: dict[str, Callable[[Handle], object]] = {
            "serial": pynvml.nvmlDeviceGetSerial,
            "minor_number": pynvml.nvmlDeviceGetMinorNumber,
            "vbios_version": pynvml.nvmlDeviceGetVbiosVersion,
            "pci_bus_id": lambda handle: pynvml.nvmlDeviceGetPciInfo(handle).busId,
            "architecture": lambda handle: _ARCHITECTURES.get(pynvml.nvmlDeviceGetArchitecture(handle), ""),
            **ASKED,
        }
        answers = {name: self._gpu.first((name, function)) for name, function in asked.items()}
        texts = {name: told(_text(answer)) for name, answer in answers.items() if not isinstance(answer, Absent)}
        return {name: text for name, text in texts.items() if text}


def _all(gpu: GpuCalls, ways: Mapping[str, _Way]) -> Values:
    return {field: _number(gpu, *way) for field, way in ways.items()}


def _number(gpu: GpuCalls, name: str, arguments: tuple[int, ...], factor: float, largest: float) -> float | Absent:
    function = binding(name)
    answer: Any = gpu.first((f"{name}{arguments or ''}", lambda handle: function(handle, *arguments)))
    if isinstance(answer, Absent):
        return answer
    value: float = answer[0] if isinstance(answer, list) else answer
    if not 0 <= value <= largest:
        return Absent(AbsentReason.OUT_OF_RANGE)
    return value if factor == 1 else value * factor if factor > 1 else value / round(1 / factor)


def _within(value: float | Absent, low: float, high: float) -> float | Absent:
    return value if isinstance(value, Absent) or low <= value <= high else Absent(AbsentReason.OUT_OF_RANGE)


def _whole(cls: type[R], names: Mapping[str, str], fields: Fields | Absent) -> R | Absent:
    """Return a part of the reading, or the first reason where nothing of it is known."""
    answers = {field: value_of(fields, name) for field, name in names.items()}
    known = {field: value for field, value in answers.items() if not isinstance(value, Absent)}
    if not known:
        return next(value for value in answers.values() if isinstance(value, Absent))
    return cls(**{field: bool(value) if field in _YES_NO else int(value) for field, value in known.items()})


def _link(link: int, fields: Fields) -> NvlinkReading:
    errors = [value for name in _LINK_ERRORS if not isinstance(value := value_of(fields, name, link), Absent)]
    return NvlinkReading(
        link,
        received_bytes=_bytes(fields, _RECEIVED, link),
        transmitted_bytes=_bytes(fields, _TRANSMITTED, link),
        errors=int(sum(errors)) if errors else None,
    )


def _bytes(fields: Fields, ways: tuple[tuple[str, int], ...], link: int) -> int | None:
    for name, unit in ways:
        value = value_of(fields, name, link)
        if not isinstance(value, Absent):
            return int(value) * unit
    return None


def _state_of(link: int) -> Callable[[Handle], int]:
    return lambda handle: int(pynvml.nvmlDeviceGetNvLinkState(handle, link))


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
