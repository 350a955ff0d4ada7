"""One call to the driver -> a value, or the reason why there is none.

Why it exists: the binding answers in five ways (a value, an error object, an exception outside its own hierarchy, a
sentinel such as 2**64-1, garbage). Everybody above this module sees two: a value in base units, or Absent.
"""

import ctypes
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import pynvml

from exporter.readings import AbsentReason

T = TypeVar("T")
Handle = Any
"""What the binding hands out for one GPU; only passed back to it."""

log = logging.getLogger(__name__)

_REASONS: Mapping[int, AbsentReason] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: AbsentReason.NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: AbsentReason.NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: AbsentReason.NOT_SUPPORTED,
    pynvml.NVML_ERROR_DEPRECATED: AbsentReason.NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: AbsentReason.NO_PERMISSION,
    pynvml.NVML_ERROR_TIMEOUT: AbsentReason.TIMEOUT,
    pynvml.NVML_ERROR_GPU_IS_LOST: AbsentReason.LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: AbsentReason.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: AbsentReason.RESET_REQUIRED,
}
DRIVER_WIDE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Codes that say something about the driver, whichever GPU was asked."""
GPU_WIDE = frozenset({AbsentReason.LOST, AbsentReason.RESET_REQUIRED})
"""Reasons that say something about the GPU, whichever value was asked for."""
NO_SUCH_DEVICE = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND})
"""Codes by which the driver says that there is no GPU at an index."""

_UNKNOWN_64 = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_MOST_MEMORY = 2**50
_MOST_MILLIWATTS = 20_000_000
_SENSOR = pynvml.NVML_TEMPERATURE_GPU
_SIZE_RETRIES = 3
_NOTHING = frozenset({"", "n/a", "not supported", "not available", "unknown error"})
_NO_INSTANCE = 2**32 - 1
_NO_PIDS = frozenset({0, 2**32 - 1})


@dataclass(frozen=True, slots=True)
class Absent:
    """No value. ``code`` is the driver's own number, 0 where it answered something unbelievable."""

    reason: AbsentReason
    code: int = 0


class DriverError(Exception):
    """The driver as a whole does not answer; ``code`` is its own number."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


class GpuError(Exception):
    """The GPU as a whole does not answer."""

    def __init__(self, reason: AbsentReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Listed:
    """What a list of processes says of one: bytes, and the instances (MIG) it runs in. None = not told, or in none."""

    memory: int | None
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. reserved None: this driver counts what it reserves as used."""

    total: int
    used: int
    free: int
    reserved: int | None


def absent(code: int) -> Absent:
    """Return what an error code of the driver says about the value that was asked for."""
    return Absent(_REASONS.get(code, AbsentReason.DRIVER_ERROR), code)


def ask(function: Callable[..., T], *arguments: object) -> T | Absent:
    """Make one call; every way in which the binding can fail becomes Absent."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        return absent(error.value)
    except pynvml.NVMLLibraryMismatchError:
        return Absent(AbsentReason.NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    except UnicodeDecodeError:
        return Absent(AbsentReason.OUT_OF_RANGE)


def told(text: str) -> str:
    """Return a text of the driver, "" where it only says that there is none, as ``N/A`` and ``[Not Supported]`` do."""
    return "" if text.strip().strip("[]").lower() in _NOTHING else text


def start() -> int:
    """Load the library and open the driver; 0 or its error code. A broken GPU does not make it fail."""
    answer = ask(pynvml.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)
    return answer.code if isinstance(answer, Absent) else 0


def stop() -> None:
    """Close the driver. Only while no call is under way: the driver does not survive it."""
    ask(pynvml.nvmlShutdown)


def driver_version() -> str:
    """Return the driver's version, "" where it does not tell."""
    answer = ask(pynvml.nvmlSystemGetDriverVersion)
    return "" if isinstance(answer, Absent) else told(str(answer))


def device_count() -> int | Absent:
    """Return how many GPUs the driver lists."""
    return ask(pynvml.nvmlDeviceGetCount)


def handle_at(index: int) -> Handle | Absent:
    """Return the handle at an index; a GPU's first one may take seconds, because the driver then wakes it."""
    return ask(pynvml.nvmlDeviceGetHandleByIndex, index)


def address(handle: Handle) -> int:
    """Return what tells two handles apart."""
    # not by ctypes.cast: each of its results is a cycle that waits for the garbage collector
    return ctypes.addressof(handle.contents) if handle else 0


class GpuCalls:
    """The calls to one GPU. Remembers what it does not support, and never asks for that again."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.handle: Handle = None
        self.memory_unified = False
        """Whether it was once seen to work in the machine's memory."""
        self._unsupported: dict[str, Absent] = {}
        self._mig: bool | None = None
        self._sampled = (0, 0)
        self.drawing: frozenset[int] = frozenset()
        """Pids of the last list that draw and do not compute."""

    def name(self) -> str:
        """Return the model's name, "" where it is not told."""
        answer = self.first(("nvmlDeviceGetName", pynvml.nvmlDeviceGetName))
        return "" if isinstance(answer, Absent) else told(str(answer))

    def mig_enabled(self) -> bool | None:
        """Whether the GPU is split; None: it cannot be.

        A change makes everything be asked for again: a split GPU supports less.
        """
        answer = self.first(("nvmlDeviceGetMigMode", pynvml.nvmlDeviceGetMigMode))
        if isinstance(answer, Absent):
            return self._mig
        enabled = bool(answer[0])
        if self._mig is not None and self._mig != enabled:
            self._unsupported.clear()
        self._mig = enabled
        return enabled

    def memory(self) -> Memory | Absent:
        """Return the board's memory: with the driver's own share apart where the driver can tell."""
        return _believed(
            self.first(("nvmlDeviceGetMemoryInfo_v2", _memory_v2), ("nvmlDeviceGetMemoryInfo", _memory_v1))
        )

    def memory_of(self, instance: Handle) -> Memory | Absent:
        """Return the memory of a GPU instance (MIG), by the handle of any of its compute instances."""
        newer = ("instance memory v2", lambda _: _memory_v2(instance))
        return _believed(self.first(newer, ("instance memory", lambda _: _memory_v1(instance))))

    def utilization(self) -> tuple[float | Absent, float | Absent]:
        """Return the part of time, in percent, in which the GPU and its memory interface were busy."""
        answer = self.first(("nvmlDeviceGetUtilizationRates", pynvml.nvmlDeviceGetUtilizationRates))
        if isinstance(answer, Absent):
            return answer, answer
        return _percent(answer.gpu), _percent(answer.memory)

    def temperature(self) -> float | Absent:
        """Return degrees C."""
        answer = self.first(
            *((name, _temperature_by(name)) for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"))
        )
        return answer if isinstance(answer, Absent) else _within(float(answer), -60, 250)

    def power(self) -> float | Absent:
        """Return watts; the driver counts in milliwatts."""
        answer = self.first(("nvmlDeviceGetPowerUsage", pynvml.nvmlDeviceGetPowerUsage))
        if isinstance(answer, Absent):
            return answer
        milliwatts = _within(float(answer), 0, _MOST_MILLIWATTS)
        return milliwatts if isinstance(milliwatts, Absent) else milliwatts / 1000

    def processes(self) -> dict[int, Listed] | Absent:
        """Return what is listed by pid. A process that computes and draws counts once."""
        compute = self._listed("Compute")
        graphics = self._listed("Graphics")
        if isinstance(compute, Absent):
            return compute
        self.drawing = frozenset(() if isinstance(graphics, Absent) else graphics.keys() - compute.keys())
        return compute if isinstance(graphics, Absent) else {**graphics, **compute}

    def process_utilization(self) -> dict[int, float] | Absent:
        """Return pid -> percent, for the processes that were busy in the last two periods.

        Two, because the driver takes its samples in its own rhythm: one period may end just before a sample.
        """
        since, last = self._sampled
        samples = self.first(("nvmlDeviceGetProcessUtilization", lambda handle: _samples(handle, since)))
        if isinstance(samples, Absent):
            return samples
        newest: dict[int, Any] = {}
        for sample in samples:
            if sample.pid not in newest or newest[sample.pid].timeStamp < sample.timeStamp:
                newest[sample.pid] = sample
        self._sampled = (last, max([last, *(int(sample.timeStamp) for sample in samples)]))
        found = {pid: _percent(sample.smUtil) for pid, sample in newest.items()}
        return {pid: value for pid, value in found.items() if not isinstance(value, Absent)}

    def _listed(self, kind: str) -> dict[int, Listed] | Absent:
        newer, older = (f"nvmlDeviceGet{kind}RunningProcesses_{version}" for version in ("v3", "v2"))
        answer = self.first((newer, _plausible(_resized(binding(newer)))), (older, _resized(binding(older))))
        if isinstance(answer, Absent):
            return answer
        return {int(entry.pid): _entry(entry) for entry in answer if entry.pid not in _NO_PIDS}

    def first(self, *ways: tuple[str, Callable[[Handle], T]]) -> T | Absent:
        """Ask in the first way that this GPU supports. Raises GpuError, DriverError."""
        answer: T | Absent = Absent(AbsentReason.NOT_SUPPORTED)
        for name, function in ways:
            known = self._unsupported.get(name)
            answer = ask(function, self.handle) if known is None else known
            if not isinstance(answer, Absent):
                return answer
            self._judge(name, answer)
            if answer.reason is not AbsentReason.NOT_SUPPORTED:
                return answer
        return answer

    def _judge(self, name: str, answer: Absent) -> None:
        if answer.code in DRIVER_WIDE:
            raise DriverError(answer.code)
        if answer.reason in GPU_WIDE:
            raise GpuError(answer.reason)
        if answer.reason is AbsentReason.NOT_SUPPORTED and name not in self._unsupported:
            self._unsupported[name] = answer
            log.debug("%s: %s is not supported (NVML code %d)", self.uuid, name, answer.code)


def read_uuid(handle: Handle) -> str:
    """Return the GPU's identity. Raises GpuError, DriverError."""
    answer = ask(pynvml.nvmlDeviceGetUUID, handle)
    if not isinstance(answer, Absent):
        if not told(str(answer)):
            raise GpuError(AbsentReason.OUT_OF_RANGE)
        return str(answer)
    if answer.code in DRIVER_WIDE:
        raise DriverError(answer.code)
    raise GpuError(answer.reason)


def insist(function: Callable[..., T], *arguments: object) -> T | Absent:
    """Make one call about a part of a GPU. Raises GpuError, DriverError where the answer says more than that."""
    answer = ask(function, *arguments)
    if isinstance(answer, Absent):
        if answer.code in DRIVER_WIDE:
            raise DriverError(answer.code)
        if answer.reason in GPU_WIDE:
            raise GpuError(answer.reason)
    return answer


def _believed(answer: Memory | Absent) -> Memory | Absent:
    if isinstance(answer, Absent):
        return answer
    figures = (answer.used, answer.free, answer.reserved or 0)
    believable = 0 < answer.total <= _MOST_MEMORY and all(0 <= figure <= answer.total for figure in figures)
    return answer if believable else Absent(AbsentReason.OUT_OF_RANGE)


def _memory_v2(handle: Handle) -> Memory:
    answer = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return Memory(answer.total, answer.used, answer.free, answer.reserved)


def _memory_v1(handle: Handle) -> Memory:
    answer = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Memory(answer.total, answer.used, answer.free, None)


def binding(name: str) -> Callable[..., Any]:
    """Return a function of the binding; an older binding lacks newer ones, as an older driver does."""
    found: Callable[..., Any] | None = getattr(pynvml, name, None)
    return found or _missing


def structure(*names: str) -> Any:
    """Return an empty struct of the binding, to be filled by a call, by its newest name; older bindings lack some."""
    found: Callable[[], Any] = next((getattr(pynvml, name) for name in names if hasattr(pynvml, name)), _missing)
    return found()


def _missing(*_: object) -> NoReturn:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _temperature_by(name: str) -> Callable[[Handle], int]:
    return lambda handle: int(binding(name)(handle, _SENSOR))


def _plausible(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Refuse the wider entries that early 535 drivers give without saying so: read by the usual width, pids are off."""

    def call(*arguments: object) -> list[Any]:
        entries = function(*arguments)
        if any(entry.pid in _NO_PIDS for entry in entries):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        return entries

    return call


def _samples(handle: Handle, since: int) -> list[Any]:
    """Return the samples taken after ``since`` (the driver's microseconds); no new ones is an answer, not an error."""
    try:
        return list(_resized(pynvml.nvmlDeviceGetProcessUtilization)(handle, since))
    except pynvml.NVMLError as error:
        if error.value in {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND}:
            return []
        raise


def _resized(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Ask again where a process started between the binding's question for the size and the one for the list."""

    def call(*arguments: object) -> list[Any]:
        for _ in range(_SIZE_RETRIES):
            try:
                return function(*arguments)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                    raise
        return function(*arguments)

    return call


def _entry(entry: Any) -> Listed:
    places = (getattr(entry, name, None) for name in ("gpuInstanceId", "computeInstanceId"))
    instances = (None if place is None or place == _NO_INSTANCE else int(place) for place in places)
    return Listed(_known_bytes(entry.usedGpuMemory), *instances)


def _known_bytes(value: int | None) -> int | None:
    return None if value is None or value == _UNKNOWN_64 or value > _MOST_MEMORY else int(value)


def _percent(value: int) -> float | Absent:
    return _within(float(value), 0, 100)


def _within(value: float, low: float, high: float) -> float | Absent:
    return value if low <= value <= high else Absent(AbsentReason.OUT_OF_RANGE)
