"""The machine's memory in place of a chip's: what is read, and when nothing is given."""

import os
from pathlib import Path

import pytest

from exporter.readings import AbsentReason, GpuReading
from exporter.simulated import parse
from exporter.system_memory import Memory, SystemMemory, of_machine, parse_meminfo
from tests.exporter.build import MIB, gpu, process

MEMINFO = "MemTotal:       127600748 kB\r\nMemAvailable:   118566368 kB\r\n"


def chip(uuid: str = "GPU-a", **changed: object) -> GpuReading:
    sizes = dict.fromkeys(("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"))
    absent = dict.fromkeys(sizes, AbsentReason.UNIFIED_MEMORY)
    return gpu(uuid, memory_unified=True, absent=absent, **(sizes | changed))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text(MEMINFO)
    return tmp_path


def test_total_and_available_are_read_in_bytes() -> None:
    assert parse_meminfo(MEMINFO) == Memory(127600748 * 1024, 118566368 * 1024)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MemTotal: 1 kB\n",
        "MemAvailable: 1 kB\n",
        "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
        "MemTotal: 5 kB\nMemAvailable: 6 kB\n",
        "MemTotal: 99999999999999 kB\nMemAvailable: 1 kB\n",
        "MemTotal: N/A kB\nMemAvailable: 1 kB\n",
    ],
)
def test_sizes_that_are_missing_or_cannot_be_true_are_none(text: str) -> None:
    assert parse_meminfo(text) is None


def test_more_than_the_machine_has_is_never_used() -> None:
    shared = (process(1, mib=600), process(2, mib=600))
    assert of_machine(chip(processes=shared), Memory(1000 * MIB, 0), all_seen=True).memory_used_bytes == 1000 * MIB


@pytest.mark.parametrize("text", [None, "nonsense"])
def test_without_a_readable_meminfo_the_chip_stays_as_it_was_and_that_is_told_once(
    text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    source = SystemMemory(tmp_path, fallback=True)
    for _ in range(3):
        assert source.fill((chip(),)) == (chip(),)
    assert len(caplog.records) == 1
    assert "meminfo" in caplog.text


def test_a_pipe_in_place_of_meminfo_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meminfo")
    assert SystemMemory(tmp_path, fallback=True).fill((chip(),)) == (chip(),)


def test_a_board_of_another_size_than_the_machine_is_left_alone(proc: Path) -> None:
    machine = 127600748 * 1024
    boards = tuple(gpu(f"GPU-{n}", memory_total_bytes=machine + n) for n in (-1024, 1024))
    assert SystemMemory(proc, fallback=True).fill(boards) == boards


def test_a_total_that_is_the_machines_is_no_total_of_a_gpu(proc: Path) -> None:
    board = gpu(memory_total_bytes=127600748 * 1024, memory_used_bytes=8822 * MIB)
    (withdrawn,) = SystemMemory(proc, fallback=False).fill((board,))
    assert withdrawn == chip()


def test_without_the_fallback_nothing_is_given_and_a_meminfo_that_is_not_there_is_no_complaint(
    proc: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert SystemMemory(proc, fallback=False).fill((chip(),)) == (chip(),)
    assert SystemMemory(proc / "nowhere", fallback=False).fill((gpu(),)) == (gpu(),)
    assert caplog.records == []


def test_two_chips_that_share_one_memory_get_none_of_it_so_that_sums_stay_true(
    proc: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = (chip("GPU-a"), chip("GPU-b"))
    assert SystemMemory(proc, fallback=True).fill(both) == both
    assert "2 GPUs share" in caplog.text


def test_a_chip_that_cannot_be_read_gets_no_values(proc: Path) -> None:
    lost = GpuReading("GPU-a", 0, "NVIDIA GB10", fault=AbsentReason.LOST, memory_unified=True)
    assert SystemMemory(proc, fallback=True).fill((lost,)) == (lost,)


def test_a_simulated_chip_says_why_its_memory_is_absent() -> None:
    (simulated,) = parse(b'{"devices": [{"uuid": "GPU-a", "memory_unified": true, "power_watts": null}]}').gpus
    assert simulated.absent["memory_total_bytes"] is AbsentReason.UNIFIED_MEMORY
    assert simulated.absent["power_watts"] is AbsentReason.NOT_SUPPORTED
