"""Public bug reports, each as the exporter must answer it. The ids are those of the catalogue of field cases."""

import json
from pathlib import Path

import pytest

from exporter.poller import Poller
from exporter.readings import AbsentReason, SourceState
from exporter.simulated import SimulatedSource
from tests.exporter.build import gpu, holds, names, process, published, read, snapshot, values

USAGE = "aom_container_gpu_usage"
NODE_USAGE = "aom_node_gpu_usage"


async def test_x04_a_driver_upgrade_withdraws_all_values_and_the_same_process_recovers(tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    world = {"driver": "550.54.15", "devices": [{"uuid": "GPU-a", "name": "Tesla T4", "utilization_percent": 40}]}
    file.write_text(json.dumps(world))
    source = SimulatedSource(str(file))
    mismatch = SourceState(up=False, reason="lib_rm_version_mismatch", message="reboot the node")
    working = source.read
    poller = Poller(source, source, "n1", 1)
    before = read((await poller.poll()).fresh.plain.decode())
    source.read = lambda now: _answer(((), mismatch))  # type: ignore[method-assign]
    during = read((await poller.poll()).fresh.plain.decode())
    source.read = working  # type: ignore[method-assign]
    after = read((await poller.poll()).fresh.plain.decode())

    assert values(before, NODE_USAGE) == values(after, NODE_USAGE) == [40]
    assert not [name for name in names(during) if name.startswith("aom_")]
    assert values(during, "gpuscale_driver_up", reason="lib_rm_version_mismatch") == [0]
    assert values(during, "gpuscale_gpu_absent", uuid="GPU-a", model="Tesla T4", reason="driver_error") == [1]
    assert values(after, "gpuscale_driver_up", reason="") == [1]
    assert values(after, "gpuscale_driver_failures_total") == [1]


async def _answer(value: object) -> object:
    return value


async def test_x08_a_gpu_without_power_reading_loses_that_series_alone_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "world.json"
    device = {"uuid": "GPU-a", "utilization_percent": 40, "temperature_celsius": 60, "power_watts": None}
    file.write_text(json.dumps({"devices": [device]}))
    source = SimulatedSource(str(file))
    poller = Poller(source, source, "n1", 1)
    caplog.set_level("INFO")
    for _ in range(3):
        text = (await poller.poll()).fresh.plain.decode()
    series = read(text)
    assert "aom_node_gpu_power_watts" not in text
    assert values(series, NODE_USAGE) == [40]
    assert values(series, "aom_node_gpu_temperature_centigrade") == [60]
    assert values(series, "gpuscale_gpu_capability", field="power_watts", reason="not_supported") == [0]
    assert values(series, "gpuscale_driver_failures_total") == [0]
    assert len([r for r in caplog.records if "power_watts" in r.getMessage()]) == 1


def test_x17_unallocated_gpus_stay_when_one_is_allocated() -> None:
    gpus = [gpu(f"GPU-{n}", index=n) for n in range(8)]
    series = published(snapshot(*gpus, allocations=(holds("p", "GPU-3"),)))
    assert len(values(series, NODE_USAGE)) == 8
    assert len(values(series, USAGE)) == 1
    assert len(values(series, USAGE, uuid="GPU-3", pod="p")) == 1


def test_x18_replicas_of_a_time_sliced_gpu_give_three_owners_and_one_gpu() -> None:
    held = tuple(holds(f"p{n}", f"GPU-a::{n}") for n in range(3))
    series = published(snapshot(gpu(utilization_percent=90), allocations=held))
    assert values(series, NODE_USAGE) == [90]
    assert values(series, "gpuscale_gpus_seen") == [1]
    owners = [dict(labels)["pod"] for name, labels in series if name == "gpuscale_container_attribution"]
    assert sorted(owners) == ["p0", "p1", "p2"]
    assert values(series, USAGE) == [], "90 % of one card must not be counted three times"


def test_x22_a_new_order_of_the_cards_changes_only_the_info_series() -> None:
    idle, busy = {"utilization_percent": 0}, {"utilization_percent": 80}
    first = published(snapshot(gpu("GPU-a", index=0, **idle), gpu("GPU-b", index=1, **busy)))
    second = published(snapshot(gpu("GPU-b", index=0, **busy), gpu("GPU-a", index=1, **idle)))
    changed = {name for (name, _), _ in first.items() ^ second.items()}
    assert changed == {"aom_node_gpu_info"}
    assert values(first, NODE_USAGE, uuid="GPU-b") == values(second, NODE_USAGE, uuid="GPU-b") == [80]


def test_x23_a_containers_utilisation_is_at_most_100() -> None:
    listed = (process(1, busy=70), process(2, busy=65))
    series = published(snapshot(gpu(processes=listed), allocations=(holds("p", "GPU-a", pids=(1, 2)),)))
    assert values(series, USAGE) == [100]


def test_x24_memory_falls_to_zero_with_the_process_and_ends_with_the_allocation() -> None:
    pids = (9,)
    running = gpu(processes=(process(9, mib=8192),), memory_used_bytes=8192 * 2**20)
    ended = gpu(processes=(), memory_used_bytes=0)
    used = "aom_container_gpu_memory_used_megabytes"
    assert values(published(snapshot(running, allocations=(holds("p", "GPU-a", pids=pids),))), used) == [8192]
    assert values(published(snapshot(ended, allocations=(holds("p", "GPU-a", pids=pids),))), used) == [0]
    assert values(published(snapshot(ended, allocations=(holds("p", "GPU-a"),))), used) == [0]
    assert values(published(snapshot(ended)), used) == []


async def test_x27_carriage_returns_end_nowhere_and_odd_label_values_round_trip(tmp_path: Path) -> None:
    name = 'C:\\Windows\\x.exe "quoted"\nnext'
    file = tmp_path / "world.json"
    text = json.dumps({"devices": [{"uuid": "GPU-a", "name": name + "\r", "utilization_percent": 1}]}, indent=1)
    file.write_bytes(text.replace("\n", "\r\n").encode())
    source = SimulatedSource(str(file))
    exposition = (await Poller(source, source, "n1", 1).poll()).fresh.plain
    assert b"\r" not in exposition
    assert values(read(exposition.decode()), NODE_USAGE, model=name) == [1]


def test_a_gpu_with_a_fault_never_has_an_out_of_range_value() -> None:
    series = published(snapshot(gpu(fault=AbsentReason.TIMEOUT, utilization_percent=400)))
    assert values(series, "gpuscale_gpu_capability") == []
