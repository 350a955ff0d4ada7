"""What the SMs, the tensor cores and the memory did between two samples (GPM; boards since Hopper).

Why it exists: these say how busy a GPU is, where utilisation only says that something ran; and they exist under MIG.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from exporter.nvml.calls import Absent, GpuCalls, ask
from exporter.readings import AbsentReason

METRICS: Mapping[str, int | None] = {
    "graphics_active_ratio": getattr(pynvml, "NVML_GPM_METRIC_GRAPHICS_UTIL", None),
    "sm_active_ratio": getattr(pynvml, "NVML_GPM_METRIC_SM_UTIL", None),
    "sm_occupancy_ratio": getattr(pynvml, "NVML_GPM_METRIC_SM_OCCUPANCY", None),
    "tensor_active_ratio": getattr(pynvml, "NVML_GPM_METRIC_ANY_TENSOR_UTIL", None),
    "dram_active_ratio": getattr(pynvml, "NVML_GPM_METRIC_DRAM_BW_UTIL", None),
}
_ASKED = {field: number for field, number in METRICS.items() if number is not None}
LONGEST_SECONDS = 600.0
"""Two samples further apart than this say nothing about now."""
_SLACK_SECONDS = 0.1
"""By how much two polls may be closer than the spacing: a timer is never exact."""

Ratios = dict[str, float | Absent]


class Activity:
    """The samples of one board, or of one GPU instance of it (MIG). For the thread of its GPU."""

    def __init__(self, gpu: GpuCalls, spacing_seconds: float, gpu_instance: int | None = None) -> None:
        self._gpu = gpu
        self._spacing_seconds = spacing_seconds - _SLACK_SECONDS
        self._gpu_instance = gpu_instance
        self._supported: bool | None = None
        self._before: Any = None
        self._spare: Any = None
        self._question: Any = None
        self._at = 0.0
        self._last: Ratios = {}

    def read(self) -> Ratios:
        """Return what happened since the sample before; nothing at the first sample. Raises GpuError, DriverError."""
        now = time.monotonic()
        if self._before is not None and now - self._at < self._spacing_seconds:
            return self._last
        sample = self._gpu.first((f"gpm {self._gpu_instance}", self._take))
        if isinstance(sample, Absent):
            self.free()
            self._last = dict.fromkeys(METRICS, sample)
            return self._last
        fresh = self._before is not None and now - self._at <= LONGEST_SECONDS
        self._last = self._between(self._before, sample) if fresh else {}
        self._spare, self._before, self._at = self._before, sample, now
        return self._last

    def free(self) -> None:
        """Give the samples back to the driver, which has to be open; the next reading begins anew."""
        held = [sample for sample in (self._before, self._spare) if sample is not None]
        self._before = self._spare = None
        for sample in held:
            ask(pynvml.nvmlGpmSampleFree, sample)

    def _take(self, handle: Any) -> Any:
        if self._supported is None:
            self._supported = bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        if not self._supported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        sample = pynvml.nvmlGpmSampleAlloc() if self._spare is None else self._spare
        self._spare = sample
        if self._gpu_instance is None:
            pynvml.nvmlGpmSampleGet(handle, sample)
        else:
            pynvml.nvmlGpmMigSampleGet(handle, self._gpu_instance, sample)
        self._spare = None
        return sample

    def _between(self, before: Any, after: Any) -> Ratios:
        asked = self._question = self._question or _question()
        asked.sample1, asked.sample2 = before, after
        answer = self._gpu.first(("nvmlGpmMetricsGet", lambda _: pynvml.nvmlGpmMetricsGet(asked)))
        if isinstance(answer, Absent):
            return dict.fromkeys(METRICS, answer)
        return {field: _ratio(asked.metrics[place]) for place, field in enumerate(_ASKED)}


class Activities:
    """The activity of a board and of its GPU instances, whichever there are at present."""

    def __init__(self, gpu: GpuCalls, spacing_seconds: float) -> None:
        self._open: Callable[[int | None], Activity] = lambda instance: Activity(gpu, spacing_seconds, instance)
        self._board = self._open(None)
        self._instances: dict[tuple[int, str], Activity] = {}
        self._asked: dict[tuple[int, str], float | None] = {}

    def board(self) -> Ratios:
        """Return the board's ratios, or why they are absent."""
        return self._board.read()

    def sm_active(self, gpu_instance: int, profile: str) -> float | None:
        """Return a GPU instance's ratio. An id that comes back with another profile begins anew."""
        key = gpu_instance, profile.rpartition("c.")[2]
        if key not in self._asked:
            value = self._instances.setdefault(key, self._open(gpu_instance)).read().get("sm_active_ratio")
            self._asked[key] = None if isinstance(value, Absent) else value
        return self._asked[key]

    def end_poll(self) -> None:
        """Forget the instances that were not asked for in this poll: they are gone.

        Right after their board was read the driver is open, so what they held can be freed.
        """
        for key in self._instances.keys() - self._asked.keys():
            self._instances.pop(key).free()
        self._asked = {}


def _question() -> Any:
    # it has room for some hundred metrics: made for each poll, it costs more than the answer
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(_ASKED)
    for place, number in enumerate(_ASKED.values()):
        asked.metrics[place].metricId = number
    return asked


def _ratio(metric: Any) -> float | Absent:
    if metric.nvmlReturn:
        return Absent(AbsentReason.NOT_SUPPORTED, metric.nvmlReturn)
    ratio = metric.value / 100
    return ratio if 0 <= ratio <= 1 else Absent(AbsentReason.OUT_OF_RANGE)
