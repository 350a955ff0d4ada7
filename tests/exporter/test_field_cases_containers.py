"""Public bug reports about sharing, partitions and processes, each as the exporter must answer it.

The ids are those of the catalogue of field cases; each test names the kind of fault that its report is one of.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from controller.sources.series import Fact, Holder, read_page
from exporter.exposition import Renderer
from exporter.holdings import held_at
from exporter.owners import SCAN_POLLS
from exporter.readings import GpuReading, MigReading, Snapshot
from exporter.samples import collect
from exporter.samples_processes import process_samples
from exporter.simulated import parse
from tests.exporter.build import MIB, Series, gpu, holds, names, process, published, read, snapshot, values
from tests.exporter.host import Host, pod_uid
from tests.exporter.test_owners import Node
from tests.fakenvml.captures import form, section

USAGE = "aom_container_gpu_usage"
USED = "aom_container_gpu_memory_used_megabytes"
CAPACITY = "aom_container_gpu_memory_capacity_megabytes"
NODE_USAGE = "aom_node_gpu_usage"
POWER = "aom_node_gpu_power_watts"
ATTRIBUTION = "gpuscale_container_attribution"
UNRESOLVED = "gpuscale_unresolved_processes"
A, B = pod_uid(1), pod_uid(2)
PROFILES = {
    (2, 0): "1c.4g.71gb",
    (2, 1): "2c.4g.71gb",
    (3, 0): "2g.35gb",
    (9, 0): "1g.18gb",
    (10, 0): "1g.18gb",
}


def split_h200(shared_data: Path) -> GpuReading:
    """The board of the report: five compute instances in four GPU instances, three processes."""
    text = (shared_data / "gpu-smi-captures" / "linux-x86_64__nvidia-h200-mig__590.48.01.txt").read_text()
    world = form(section(text, "load :: query (-q)"))
    for instance in world["devices"][0]["mig"]:  # the query tells all but the profiles
        instance["profile"] = PROFILES[instance["gpu_instance"], instance["compute_instance"]]
    (board,) = parse(json.dumps(world).encode()).gpus
    return board


def raw(of: Snapshot) -> Series:
    return read(Renderer().render(process_samples(of, "n1")).plain)


# ---- X13: a pid that means something else where it is looked up ----

LISTED = (process(4211, mib=100, busy=30), process(4212, mib=300, busy=50))


async def test_x13_a_pid_of_another_namespace_blames_no_container(tmp_path: Path) -> None:
    """Kind: a name that is looked up where it means somebody else."""
    host = Host(tmp_path, with_init=False)
    host.runs(4211, B, "foreign")
    host.named("foreign", B, "foreign")
    series = await Node(host, gpu(processes=LISTED), held=(holds("a", "GPU-a"),)).scrape()
    assert values(series, UNRESOLVED) == values(series, UNRESOLVED, reason="no_host_proc") == [2]
    assert {dict(labels).get("pod") for _, labels in series} == {None, "a"}  # by the kubelet alone
    assert values(series, USED, pod="a") == [400]
    shared = await Node(host, gpu(processes=LISTED), held=(holds("a", "GPU-a::0"), holds("b", "GPU-a::1"))).scrape()
    assert values(shared, USED) == values(shared, USAGE) == []
    assert values(shared, ATTRIBUTION, reason="shared_gpu") == [0, 0]


async def test_x13_with_the_hosts_proc_a_pid_is_its_pods_by_cgroup(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.runs(4211, A, "a")
    host.named("a", A, "a")
    series = await Node(host, gpu(processes=LISTED), held=(holds("a", "GPU-a::0"),)).scrape()
    assert values(series, USED, pod="a") == [100]
    assert values(series, USAGE, pod="a") == [30]
    assert values(series, UNRESOLVED) == [1]  # of 4212 nothing is known


# ---- X14, X15, X16, X28: a board in parts ----


def test_x14_utilisation_that_a_partition_has_not_is_absent_so_that_an_autoscaler_holds(shared_data: Path) -> None:
    """Kind: what is not known, published as 0."""
    of = snapshot(split_h200(shared_data), allocations=(holds("p", split_h200(shared_data).mig[2].uuid),))
    series = published(of)
    assert {name for name in names(series) if name.endswith("gpu_usage")} == set()
    reason = values(series, "gpuscale_gpu_capability", field="utilization_percent")
    assert reason == [0]
    memory = "aom_mig_gpu_memory_used_megabytes"
    assert {dict(labels)["gi"] for name, labels in series if name == memory} == {"2", "3", "9", "10"}
    assert values(series, memory, gi="3", profile="2g.35gb") == [17]
    health, told = collect(of, held_at(of), "n1")
    page = Renderer().render({**told, **health}).plain.encode()
    (uuid,) = {gpu.uuid for gpu in of.gpus}
    # the operator finds the container, and no utilisation of it: its answer to that is to hold
    assert Fact.UTILIZATION not in read_page(page, at=0.0)[Holder("ml", "p", "main", uuid)].values


def test_x15_a_boards_power_is_there_once_however_many_slices_it_has(shared_data: Path) -> None:
    """Kind: a value of the board, repeated for each of its parts."""
    board = dataclasses.replace(split_h200(shared_data), power_watts=295.01)
    series = published(snapshot(board, allocations=tuple(holds(f"p{n}", m.uuid) for n, m in enumerate(board.mig))))
    assert len(board.mig) == 5
    assert values(series, POWER) == [295.01]
    of_board = {name for name in names(series) if "power" in name or "temperature" in name}
    for name in of_board - {"aom_node_gpu_power_limit_watts"}:
        assert len(values(series, name)) == 1, name


def test_x16_every_slice_is_in_every_family_of_slices() -> None:
    """Kind: a list that ends at its first gap. The gaps themselves are made by the fake driver's tests."""
    sizes = {"memory_total_bytes": 16384 * MIB, "memory_used_bytes": 9 * MIB, "memory_free_bytes": 16375 * MIB}
    boards = (
        gpu(
            f"GPU-{n}",
            index=n,
            mig_enabled=True,
            mig=tuple(MigReading(f"MIG-{n}-{gi}", gi, 0, "1g.18gb", sm_active_ratio=0.5, **sizes) for gi in (7, 11)),
        )
        for n in range(8)
    )
    series = published(snapshot(*boards))
    families = {name for name in names(series) if name.startswith("aom_mig_")}
    assert len(families) >= 6
    assert {name: len(values(series, name)) for name in families} == dict.fromkeys(families, 16)


def test_x28_memory_of_a_gpu_instance_counts_once_for_all_compute_instances_within(shared_data: Path) -> None:
    """Kind: a shared value, counted for each who shares it."""
    board = split_h200(shared_data)
    series = published(snapshot(board))
    assert sum(values(series, "aom_mig_gpu_memory_used_megabytes")) == 16960  # 33885 if 2/0 and 2/1 both had it
    assert sum(values(series, "aom_mig_gpu_memory_capacity_megabytes")) == 137472
    assert values(series, "aom_mig_gpu_memory_used_megabytes", gi="2") == [16925]


def test_x28_the_processes_belong_to_the_compute_instance_that_they_run_in(shared_data: Path) -> None:
    board = split_h200(shared_data)
    uuids = {(m.gpu_instance, m.compute_instance): m.uuid for m in board.mig}
    held = (holds("idle", uuids[2, 0]), holds("busy", uuids[2, 1]), holds("other", uuids[3, 0]))
    of = snapshot(board, allocations=held)
    series = published(of)
    assert values(series, USED, pod="busy") == [2194 + 1170 + 13526]
    assert values(series, USED, pod="idle") == []  # the list does not prove that nothing runs there
    assert values(series, USED, pod="other") == [17]
    assert values(series, CAPACITY) == [33280]
    memory = "aom_process_gpu_memory_used_megabytes"
    assert sorted(values(raw(of), memory, gi="2", ci="1")) == [1170, 2194, 13526]
    assert len(values(raw(of), memory)) == 3


# ---- X20, X24: what has ended ----


async def test_x20_a_finished_pod_that_the_kubelet_lists_on_owns_nothing(tmp_path: Path) -> None:
    """Kind: what has ended, kept because a list still names it."""
    host = Host(tmp_path)
    host.runs(4211, A, "x")
    host.named("x", A, "x")
    node = Node(host, gpu(), held=(holds("x", "GPU-a"),))
    assert values(await node.scrape(), USAGE, pod="x") == [55]
    host.ends(4211)  # its cgroup goes with its last process; no API server is asked
    for _ in range(SCAN_POLLS):  # all processes are looked at once in so many polls
        series = await node.scrape()
    assert {dict(labels).get("pod") for _, labels in series} == {None}
    assert values(series, NODE_USAGE, uuid="GPU-a") == [55]
    assert values(series, ATTRIBUTION) == []


def test_x24_memory_of_ended_processes_is_zero_for_who_holds_the_gpu_and_absent_for_who_does_not() -> None:
    """Kind: a last value that outlives its cause."""
    running = gpu(processes=(process(9, mib=8192),), memory_used_bytes=8192 * MIB)
    ended = gpu(processes=(), memory_used_bytes=0)
    held = (holds("p", "GPU-a", pids=(9,)),)
    assert values(published(snapshot(running, allocations=held)), USED) == [8192]
    assert values(published(snapshot(ended, allocations=held)), USED) == [0]
    assert values(published(snapshot(ended, allocations=(holds("p", "GPU-a"),))), USED) == [0]
    gone = published(snapshot(ended))
    assert values(gone, USED) == []
    assert 8192 not in gone.values()


# ---- X17, X18, X23: who shares what ----


def test_x17_gpus_that_nobody_holds_stay_when_one_is_allocated() -> None:
    """Kind: what is not named by one source, dropped although another tells it."""
    gpus = [gpu(f"GPU-{n}", index=n) for n in range(8)]
    series = published(snapshot(*gpus, allocations=(holds("p", "GPU-3"),)))
    assert len(values(series, NODE_USAGE)) == 8
    assert len(values(series, USAGE)) == len(values(series, USAGE, uuid="GPU-3", pod="p")) == 1
    owned = {dict(labels)["uuid"] for _, labels in series if dict(labels).get("pod")}
    assert owned == {"GPU-3"}


@pytest.mark.parametrize("known", ["", "with the hosts processes"])
def test_x18_three_pods_on_one_time_sliced_gpu_are_three_owners_of_one_gpu(known: str) -> None:
    """Kind: one thing, counted once for each of its names."""
    listed = tuple(process(n + 1, busy=30, mib=100) for n in range(3))
    held = tuple(holds(f"p{n + 1}", f"GPU-a::{n}", pids=(n + 1,) if known else None) for n in range(3))
    shared = tuple(dataclasses.replace(a, resource="nvidia.com/gpu.shared") for a in held)
    series = published(snapshot(gpu(utilization_percent=90, processes=listed), allocations=shared))
    assert values(series, NODE_USAGE) == [90]  # so that avg by(node) is 90 too
    assert values(series, "gpuscale_gpus_seen") == [1]
    owners = [dict(labels)["pod"] for name, labels in series if name == ATTRIBUTION]
    assert sorted(owners) == ["p1", "p2", "p3"]
    assert values(series, USAGE) == ([30, 30, 30] if known else [])  # 90 would be counted three times
    assert values(series, CAPACITY) == []


def both_gpus() -> Snapshot:
    a = gpu("GPU-a", processes=(process(1, "GPU-a", busy=70), process(2, "GPU-a", busy=65)))
    b = gpu("GPU-b", index=1, processes=(process(2, "GPU-b", busy=40),))
    return snapshot(a, b, allocations=(holds("p", "GPU-a", "GPU-b", pids=(1, 2)),))


def test_x23_a_containers_utilisation_is_at_most_100_on_each_gpu_and_on_average() -> None:
    """Kind: a sum of parts that overlap in time, taken for a share of the whole."""
    series = published(both_gpus())
    assert values(series, USAGE, uuid="GPU-a") == [100]
    assert values(series, USAGE, uuid="GPU-b") == [40]
    of_pod = values(series, USAGE, pod="p")
    assert sum(of_pod) / len(of_pod) == 70  # avg by(pod), 87.5 if it were not clamped


def test_x23_the_raw_figures_of_the_processes_are_there_and_not_clamped() -> None:
    series = raw(both_gpus())
    usage = "aom_process_gpu_usage"
    owner: dict[str, Any] = {"namespace": "ml", "pod": "p", "container": "main"}
    assert values(series, usage, uuid="GPU-a", **owner) == [70, 65]
    assert values(series, usage, uuid="GPU-b", pid="2", **owner) == [40]
