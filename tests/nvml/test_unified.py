"""A chip without memory of its own (X09), from the driver's refusals through the program to every name of a page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.readings import AbsentReason
from tests.exporter.build import Series, read, values
from tests.exporter.host import Host, pod_uid
from tests.exporter.podresources import container, devices, pod, serving
from tests.fakenvml.reader import Reader
from tests.fakenvml.scenario import MEMORY, gpus, load, uuid
from tests.fakenvml.state import NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, UNKNOWN_BYTES, FakeDriver

MIB = 2**20
ATS = 2
MEMINFO = "MemTotal:       127600748 kB\nMemFree:         1000000 kB\nMemAvailable:   118566368 kB\n"
FIELDS = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
FALLBACK = "--unified-memory-from-system"
DIALECTS = ("--dialect", "dcgm,nvidia_smi,cce")


def gb10(*memories: int | None) -> dict[str, Any]:
    """The form of one chip whose processes hold so many MiB."""
    untold = dict.fromkeys(("memory_total_bytes", "memory_used_bytes", "bar1_total_bytes", "mig_enabled"))
    form = gpus(1, name="NVIDIA GB10", utilization_percent=35, details={}, **untold)
    form["processes"] = [
        {"pid": 4211 + k, "gpu_uuid": uuid(0), "memory_used_bytes": None if mib is None else mib * MIB}
        for k, mib in enumerate(memories)
    ]
    return form


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """The host's /proc, with the memory of the reported machine."""
    made = Host(tmp_path)
    (made.proc / "meminfo").write_text(MEMINFO)
    return made


@pytest.fixture
def page(exporter: Any, host: Host, tmp_path: Path) -> Iterator[Any]:
    """Start the program beside a kubelet that gave the chip to a pod; returns one page."""
    held = pod("ml", "llm", container("main", devices("nvidia.com/gpu", uuid(0))))
    with serving(tmp_path / "k.sock", lambda *_: held):

        def start(*more: str) -> Series:
            program = exporter(
                *("--poll-seconds", "0.1", "--stale-polls", "100", "--proc", str(host.proc)),
                *("--container-logs", str(host.logs), "--kubelet-socket", str(tmp_path / "k.sock"), *more),
            )
            return read(program.text())

        yield start


def megabytes(series: Series, level: str) -> dict[str, float]:
    """Every series of memory of one level, without what it is of."""
    start = f"aom_{level}_gpu_memory_"
    told = {name.removeprefix(start): value for (name, _), value in series.items() if name.startswith(start)}
    return {name: value for name, value in told.items() if name.split("_")[0] in {"free", "capacity", "used", "usage"}}


def test_x09_memory_that_is_not_told_is_absent_and_never_zero_nor_the_hosts(fake: FakeDriver, page: Any) -> None:
    """Kind: a value that the driver does not tell, shown as 0 or as somebody else's."""
    load(fake, gb10(700, 500))
    series = page(*DIALECTS)
    assert all(fake.calls(0, function) == 1 for function in MEMORY)  # both were asked, and refused
    assert megabytes(series, "node") == {}
    assert values(series, "aom_node_gpu_info", unified="true", uuid=uuid(0)) == [1]
    assert megabytes(series, "container") == {"used_megabytes": 1200}
    assert values(series, "gpuscale_container_attribution", pod="llm", reason="") == [1]
    for field in FIELDS:
        assert values(series, "gpuscale_gpu_capability", field=field, reason="unified_memory") == [0]
    assert values(series, "aom_node_gpu_usage") == [35]


def test_x09_no_dialect_says_zero_for_memory_that_is_not_told(fake: FakeDriver, page: Any) -> None:
    load(fake, gb10(700, 500))
    series = page("--dialect", "aom,dcgm,nvidia_smi,cce")
    spoken = {name for name, _ in series}
    memory = {name for name in spoken if "FB_" in name or "mem" in name.lower()} - {
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
    }
    about_boards = {name for name in memory if not name.startswith(("aom_container", "gpu_pod", "nvidia_smi_compute"))}
    # how busy the memory's interface is, and how fast and warm it is, is told
    assert {name for name in about_boards if "FB_" in name or "usage" in name or "used" in name or "total" in name} == {
        "aom_node_gpu_memory_controller_usage"
    }
    assert values(series, "gpu_pod_memory_used") == [1200 * MIB]
    assert values(series, "aom_container_gpu_memory_used_megabytes") == [1200]
    assert values(series, "aom_container_gpu_memory_free_megabytes") == []  # the capacity, in this dialect


def test_x09_with_the_fallback_the_capacity_is_the_machines_and_use_is_the_processes(
    fake: FakeDriver, page: Any
) -> None:
    """Kind: the host's use sold as the GPU's. MemTotal - MemAvailable would be 8822.6."""
    load(fake, gb10(700, 500))
    series = page(FALLBACK, *DIALECTS)
    expected = {
        "capacity_megabytes": pytest.approx(124610.1, abs=0.05),
        "used_megabytes": 1200,
        "usage": pytest.approx(100 * 1200 / 124610.1, abs=1e-3),
        "free_megabytes": pytest.approx(115787.5, abs=0.05),  # MemAvailable: less than capacity - used
    }
    assert megabytes(series, "node") == expected
    assert megabytes(series, "container") == expected
    assert values(series, "aom_node_gpu_info", unified="true") == [1]
    assert values(series, "DCGM_FI_DEV_FB_USED") == [1200]
    assert values(series, "DCGM_FI_DEV_FB_TOTAL") == [124610]
    assert values(series, "nvidia_smi_memory_used_bytes") == values(series, "cce_gpu_memory_used") == [1200 * MIB]
    untold = {dict(labels)["field"] for name, labels in series if name == "gpuscale_gpu_capability"}
    assert untold & set(FIELDS) == {"memory_reserved_bytes"}


def test_x09_the_fallback_changes_nothing_on_a_board_with_memory_of_its_own(fake: FakeDriver, page: Any) -> None:
    load(fake, gpus(1))
    series = page(FALLBACK)
    assert values(series, "aom_node_gpu_memory_capacity_megabytes") == [81559]
    assert values(series, "aom_node_gpu_info", unified="false") == [1]


@pytest.mark.parametrize(("second", "used"), [("kthreadd", [0]), ("bash", [])])
def test_x09_an_empty_list_of_processes_is_no_use_only_where_the_hosts_processes_are_seen(
    second: str, used: list[float], fake: FakeDriver, page: Any, host: Host
) -> None:
    load(fake, gb10())
    fake.state.devices[0].addressing_mode = ATS
    host.process(2, "0::/\n", comm=second)
    series = page(FALLBACK)
    assert values(series, "aom_node_gpu_memory_used_megabytes") == used
    assert len(values(series, "aom_node_gpu_memory_capacity_megabytes")) == 1


def test_x09_one_process_of_unknown_memory_makes_the_use_unknown(fake: FakeDriver, page: Any) -> None:
    load(fake, gb10(700, None))
    series = page(FALLBACK)
    assert "used_megabytes" not in megabytes(series, "node")
    assert values(series, "gpuscale_gpu_capability", field="memory_used_bytes", reason="unified_memory") == [0]


def test_x09_with_the_hosts_processes_each_container_has_its_own_part(fake: FakeDriver, page: Any, host: Host) -> None:
    host.runs(4211, pod_uid(1), "main")
    host.named("llm", pod_uid(1), "main")
    load(fake, gb10(1200))
    assert megabytes(page(), "container") == {"used_megabytes": 1200}


def test_x09_a_driver_that_sells_the_machines_memory_as_the_chips_is_not_believed(fake: FakeDriver, page: Any) -> None:
    """Kind: the host's use sold as the GPU's, here by the driver itself: MemTotal, and what everybody uses of it."""
    total, available = 127600748 * 1024, 118566368 * 1024
    sold = {"memory_total_bytes": total, "memory_used_bytes": total - available, "memory_reserved_bytes": 0}
    load(fake, gpus(1, name="NVIDIA GB10", **sold) | {"processes": gb10(700, 500)["processes"]})
    series = page()
    assert megabytes(series, "node") == {}
    assert megabytes(series, "container") == {"used_megabytes": 1200}
    assert values(series, "aom_node_gpu_info", unified="true") == [1]
    assert values(series, "gpuscale_gpu_capability", field="memory_used_bytes", reason="unified_memory") == [0]


class TestWhoIsCalledUnified:
    """Several facts must agree, and one against it decides."""

    def test_a_process_with_memory_shows_it_and_it_stays_when_the_process_ended(
        self, fake: FakeDriver, reader: Any
    ) -> None:
        load(fake, gb10(1200))
        process: Reader = reader("r535")  # older than the call for the way of addressing
        assert process.read()[0][uuid(0)].memory_unified is True
        fake.state.devices[0].process_count = 0
        assert process.read()[0][uuid(0)].memory_unified is True

    def test_an_idle_chip_is_known_by_the_addresses_that_it_shares(self, fake: FakeDriver, reader: Any) -> None:
        load(fake, gb10())
        fake.state.devices[0].addressing_mode = ATS
        reading = reader().read()[0][uuid(0)]
        assert reading.memory_unified is True
        assert {reading.absent[field] for field in FIELDS} == {AbsentReason.UNIFIED_MEMORY}

    def test_shared_addresses_alone_are_no_proof(self, fake: FakeDriver, reader: Any) -> None:
        load(fake, gpus(1))
        fake.state.devices[0].addressing_mode = ATS
        assert reader().read()[0][uuid(0)].memory_unified is None
        assert fake.calls(0, "nvmlDeviceGetAddressingMode") == 0

    @pytest.mark.parametrize("function", MEMORY)
    def test_one_of_both_calls_that_answers_speaks_against_it(
        self, function: str, fake: FakeDriver, reader: Any
    ) -> None:
        load(fake, gpus(1) | {"processes": gb10(1200)["processes"]})
        fake.fail(0, function, NOT_SUPPORTED)
        fake.fail(0, "nvmlDeviceGetBAR1MemoryInfo", NOT_SUPPORTED)
        reading = reader().read()[0][uuid(0)]
        assert (reading.memory_unified, reading.memory_total_bytes) == (None, 81559 * MIB)

    @pytest.mark.parametrize("code", [UNKNOWN, NO_PERMISSION])
    def test_memory_that_fails_is_not_memory_that_is_not_supported(
        self, code: int, fake: FakeDriver, reader: Any
    ) -> None:
        load(fake, gb10(1200))
        for function in MEMORY:
            fake.fail(0, function, code)
        assert reader().read()[0][uuid(0)].memory_unified is None

    def test_a_board_with_a_window_to_its_memory_has_memory(self, fake: FakeDriver, reader: Any) -> None:
        load(fake, gb10(1200))
        fake.state.devices[0].bar1_total = 2**30
        fake.fail(0, "nvmlDeviceGetBAR1MemoryInfo", 0)
        reading = reader().read()[0][uuid(0)]
        assert reading.memory_unified is None
        assert reading.absent["memory_total_bytes"] is AbsentReason.NOT_SUPPORTED

    def test_a_split_board_is_not_unified_however_little_it_tells(self, fake: FakeDriver, reader: Any) -> None:
        load(fake, gb10(1200))
        fake.fail(0, "nvmlDeviceGetMigMode", 0)
        fake.state.devices[0].mig_mode = 1
        assert reader().read()[0][uuid(0)].memory_unified is None

    def test_a_board_that_is_not_seen_to_use_memory_is_not_guessed_about(self, fake: FakeDriver, reader: Any) -> None:
        load(fake, gb10())
        assert reader().read()[0][uuid(0)].memory_unified is None
        load(fake, gb10(1))
        fake.state.devices[0].processes[0].memory_used = UNKNOWN_BYTES
        assert reader().read()[0][uuid(0)].memory_unified is None
