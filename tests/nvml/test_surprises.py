"""What happens on an exception that nobody thought of: it is told, and costs as little as a fault of the driver."""

import gc
import threading

import pynvml
import pytest

from exporter.nvml import calls, crew
from exporter.nvml.device import NvmlSource
from exporter.readings import AbsentReason


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver made of plain functions: no library is loaded into this process."""
    for name, answer in {"start": 0, "stop": None, "device_count": 2, "driver_version": "1"}.items():
        monkeypatch.setattr(calls, name, lambda answer=answer: answer)
    monkeypatch.setattr(calls, "handle_at", lambda index: index)
    monkeypatch.setattr(calls, "address", lambda handle: handle)


def surprise(*_: object) -> None:
    raise RuntimeError("nobody thought of this")


@pytest.mark.usefixtures("two_gpus")
async def test_at_one_gpu_it_is_that_gpus_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_uuid(handle: int) -> str:
        if handle == 1:
            raise RuntimeError("nobody thought of this")
        raise calls.GpuError(AbsentReason.LOST)

    monkeypatch.setattr(calls, "read_uuid", read_uuid)
    source = NvmlSource(30.0)
    readings, state = await source.read(0.0)
    assert state.up
    assert [reading.fault for reading in readings] == [AbsentReason.LOST, AbsentReason.DRIVER_ERROR]
    assert "nobody thought of this" in caplog.text
    await source.close()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("place", ["start", "device_count"])
async def test_at_the_driver_it_is_down_and_says_whose_fault_it_is(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, place, surprise)
    source = NvmlSource(30.0)
    for _ in range(2):
        readings, state = await source.read(0.0)
        assert readings == ()
        assert (state.up, state.reason) == (False, "internal_error")
    assert "nobody thought of this" in caplog.text
    await source.close()


def test_handles_are_told_apart_without_leaving_work_to_the_garbage_collector() -> None:
    first, second = (pynvml.c_nvmlDevice_t(pynvml.struct_c_nvmlDevice_t()) for _ in range(2))
    gc.collect()
    assert len({calls.address(first), calls.address(first), calls.address(second)}) == 2
    assert calls.address(pynvml.c_nvmlDevice_t()) == 0
    assert gc.collect() == 0


@pytest.mark.usefixtures("two_gpus")
async def test_gpus_that_answer_are_read_one_after_the_other_and_one_that_hangs_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Together, their threads fight for the interpreter; the second GPU frees the first, which would hang for ever."""

    def alone(handle: int) -> str:
        inside.append(handle)
        together.append(len(inside))
        inside.remove(handle)
        raise calls.GpuError(AbsentReason.LOST)

    def second_frees_first(handle: int) -> str:
        if handle == 0:
            assert freed.wait(30)
        freed.set()
        raise calls.GpuError(AbsentReason.LOST)

    inside: list[int] = []
    together: list[int] = []
    freed = threading.Event()
    source = NvmlSource(60.0)
    monkeypatch.setattr(crew, "_HEAD_START_SECONDS", 60)
    monkeypatch.setattr(calls, "read_uuid", alone)
    await source.read(0.0)
    assert together == [1, 1]
    monkeypatch.setattr(crew, "_HEAD_START_SECONDS", 0.001)
    monkeypatch.setattr(calls, "read_uuid", second_frees_first)
    readings, _ = await source.read(0.0)
    assert [reading.fault for reading in readings] == [AbsentReason.LOST] * 2
    await source.close()
