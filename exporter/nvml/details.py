"""What only other exporters' names ask for of one board: the draw at each poll, all else on the longer period.

Why it exists: two dozen calls of which most nodes want none. Whoever speaks no dialect that has them pays nothing.
"""

import ctypes
import dataclasses
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import pynvml

from exporter.believable import within
from exporter.details import (
    DetailReading,
    EccDetails,
    EngineDetails,
    FabricDetails,
    PowerDetails,
    ProtectedMemoryDetails,
    RowDetails,
    SwitchDetails,
)
from exporter.nvml.calls import Absent, GpuCalls, Handle, binding, structure
from exporter.nvml.fields import FieldBatch, Fields, keys, value_of
from exporter.readings import AbsentReason

Facts = Mapping[str, float]
Read = Callable[[Handle], Facts]
"""One call -> what it tells of a subject. Raises NVMLError."""

DRAW = {"instant_watts": "POWER_INSTANT", "average_watts": "POWER_AVERAGE"}
"""The fields of NVML that belong into each poll, in milliwatts."""
_EDPP = "EDPP_MULTIPLIER"
_INACTIVE = {
    "inactive_corrected": "REMAPPED_ROWS_COR_INACTIVE",
    "inactive_uncorrected": "REMAPPED_ROWS_UNC_INACTIVE",
}
_LIVES = {"volatile": pynvml.NVML_VOLATILE_ECC, "aggregate": pynvml.NVML_AGGREGATE_ECC}
_KINDS = {
    "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}
# by number: the oldest binding that we allow has no name for SRAM
_PLACES = {"dram": 2, "sram": 7}
_SRAM = {
    "volatile_sram_parity": "volatileUncParity",
    "volatile_sram_secded": "volatileUncSecDed",
    "aggregate_sram_parity": "aggregateUncParity",
    "aggregate_sram_secded": "aggregateUncSecDed",
    "aggregate_sram_l2": "aggregateUncBucketL2",
    "aggregate_sram_sm": "aggregateUncBucketSm",
    "aggregate_sram_mcu": "aggregateUncBucketMcu",
    "aggregate_sram_pcie": "aggregateUncBucketPcie",
    "aggregate_sram_other": "aggregateUncBucketOther",
    "sram_threshold_exceeded": "bThresholdExceeded",
}


def _told(field: str, name: str, pick: Callable[[Any], float] = float) -> Read:
    """Return the call that tells this one field."""
    return lambda handle: {field: pick(binding(name)(handle))}


def _errors(life: str, kind: str, place: str) -> Read:
    arguments = _KINDS[kind], _LIVES[life], _PLACES[place]
    return lambda handle: {
        f"{life}_{kind}_{place}": binding("nvmlDeviceGetMemoryErrorCounter")(handle, *arguments),
    }


def _sram(handle: Handle) -> Facts:
    status = structure("c_nvmlEccSramErrorStatus_v1_t")
    binding("nvmlDeviceGetSramEccErrorStatus")(handle, ctypes.byref(status))
    return {field: getattr(status, name) for field, name in _SRAM.items()}


def _encoder(handle: Handle) -> Facts:
    names = ("encoder_sessions", "encoder_frames_per_second", "encoder_latency_microseconds")
    return dict(zip(names, binding("nvmlDeviceGetEncoderStats")(handle), strict=True))


def _banks(handle: Handle) -> Facts:
    told = binding("nvmlDeviceGetRowRemapperHistogram")(handle)
    return {f"banks_{mark}": getattr(told, mark) for mark in ("max", "high", "partial", "low", "none")}


def _protected(handle: Handle) -> Facts:
    told = binding("nvmlDeviceGetConfComputeProtectedMemoryUsage")(handle)
    return {f"{part}_bytes": getattr(told, part) for part in ("total", "used", "free")}


def _fabric(handle: Handle) -> Facts:
    told = structure("c_nvmlGpuFabricInfo_v2_t", "c_nvmlGpuFabricInfoV_t")
    binding("nvmlDeviceGetGpuFabricInfoV")(handle, ctypes.byref(told))
    # state 0: the board is made for no fabric, and its clique 0 means nothing
    return {"state": told.state, "clique_id": told.cliqueId} if told.state else {}


def _watts(milliwatts: float) -> float:
    return milliwatts / 1000


_SUBJECTS: Mapping[str, tuple[type[Any], Mapping[str, Read]]] = {
    "power": (
        PowerDetails,
        {"requested limit": _told("requested_limit_watts", "nvmlDeviceGetPowerManagementLimit", _watts)},
    ),
    "engines": (
        EngineDetails,
        {
            "jpeg": _told("jpeg_utilization_percent", "nvmlDeviceGetJpgUtilization", itemgetter(0)),
            "ofa": _told("ofa_utilization_percent", "nvmlDeviceGetOfaUtilization", itemgetter(0)),
            "encoder stats": _encoder,
        },
    ),
    "ecc": (
        EccDetails,
        {
            **{
                f"errors {life} {kind} {place}": _errors(life, kind, place)
                for life in _LIVES
                for kind in _KINDS
                for place in _PLACES
            },
            "sram status": _sram,
        },
    ),
    "rows": (RowDetails, {"row histogram": _banks}),
    "protected_memory": (ProtectedMemoryDetails, {"protected memory": _protected}),
    "fabric": (FabricDetails, {"fabric": _fabric}),
    "switches": (
        SwitchDetails,
        {
            "persistence": _told("persistence", "nvmlDeviceGetPersistenceMode"),
            "accounting": _told("accounting", "nvmlDeviceGetAccountingMode"),
            "compute mode": _told("compute_mode", "nvmlDeviceGetComputeMode"),
            "display attached": _told("display_attached", "nvmlDeviceGetDisplayMode"),
            "display active": _told("display_active", "nvmlDeviceGetDisplayActive"),
            "ecc pending": _told("ecc_pending", "nvmlDeviceGetEccMode", itemgetter(1)),
            "mig pending": _told("mig_pending", "nvmlDeviceGetMigMode", itemgetter(1)),
        },
    ),
}


class Details:
    """The details of one board. For the thread of its GPU."""

    def __init__(self, gpu: GpuCalls) -> None:
        self._gpu = gpu
        self.absent: dict[str, Absent] = {}
        """Subject of which nothing was told -> why."""
        self._fields = FieldBatch(keys(_EDPP, *_INACTIVE.values()))

    def read(self) -> DetailReading:
        """Return what changes slowly; a subject of which nothing is told is None. Raises GpuError, DriverError."""
        fields = self._gpu.first(("fields of details", self._fields.read))
        beside = {
            "power": {"edpp_multiplier_percent": value_of(fields, _EDPP)},
            "rows": {field: value_of(fields, name) for field, name in _INACTIVE.items()},
        }
        self.absent = {}
        return DetailReading(
            **{
                subject: self._subject(subject, cls, ways, _known(beside.get(subject, {})))
                for subject, (cls, ways) in _SUBJECTS.items()
            }
        )

    def _subject(self, subject: str, cls: type[Any], ways: Mapping[str, Read], beside: Facts) -> Any:
        answers = [self._gpu.first(way) for way in ways.items()]
        told: dict[str, float] = {**beside}
        for answer in answers:
            told |= {} if isinstance(answer, Absent) else answer
        part = _part(cls, told)
        if part is None:
            why = next((answer for answer in answers if isinstance(answer, Absent)), None)
            nothing = Absent(AbsentReason.OUT_OF_RANGE if told else AbsentReason.NOT_SUPPORTED)
            self.absent[subject] = why or nothing
        return part


def with_draw(slow: DetailReading, fields: Fields | Absent) -> DetailReading:
    """Return it with the power that a poll just read."""
    draw = {field: value / 1000 for field, value in _known({f: value_of(fields, n) for f, n in DRAW.items()}).items()}
    if not draw:
        return slow
    known = {} if slow.power is None else dataclasses.asdict(slow.power)
    return dataclasses.replace(slow, power=_part(PowerDetails, {**known, **draw}))


def _known(answers: Mapping[str, float | Absent]) -> dict[str, float]:
    return {field: value for field, value in answers.items() if not isinstance(value, Absent)}


def _part(cls: type[Any], told: Mapping[str, float | None]) -> Any:
    """Make the subject of what can be true; None where that is nothing."""
    kinds = {field.name: field.type for field in dataclasses.fields(cls)}
    good = {field: value for field, value in told.items() if value is not None and within(field, value)}
    return cls(**{field: _as(kinds[field], value) for field, value in good.items()}) if good else None


def _as(kind: object, value: float) -> float:
    return bool(value) if kind == bool | None else int(value) if kind == int | None else value
