"""A series for each process of a GPU: raw, named, with its container, and only where asked for."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from exporter.filters import select
from exporter.owners import ProcessOwners
from exporter.poller import Poller, Publication
from exporter.readings import GpuReading
from exporter.simulated import SimulatedSource
from tests.exporter.build import gpu, names, process, read, read_openmetrics, values
from tests.exporter.host import Host, pod_uid
from tests.exporter.test_command import once
from tests.exporter.test_owners import Node

USAGE = "aom_process_gpu_usage"
MEMORY = "aom_process_gpu_memory_used_megabytes"
PROCESSES = [
    {"pid": 1, "gpu_uuid": "GPU-a", "memory_used_bytes": 100 << 20, "utilization_percent": 70, "name": "python"},
    {"pid": 2, "gpu_uuid": "GPU-a", "memory_used_bytes": 200 << 20, "utilization_percent": 65, "name": "triton"},
    {"pid": 3, "gpu_uuid": "GPU-a", "memory_used_bytes": 2**64 - 1, "utilization_percent": 2**32 - 1},
    {"pid": 4, "gpu_uuid": "GPU-a"},
]
ALLOCATION = {"namespace": "ml", "pod": "p", "container": "main", "device_ids": ["GPU-a"], "pids": [1, 2]}
DEVICE = {"uuid": "GPU-a", "memory_total_bytes": 1000 << 20}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    file = tmp_path / "world.json"
    file.write_text(json.dumps({"devices": [DEVICE], "processes": PROCESSES, "allocations": [ALLOCATION]}))
    return file


async def publish(world: Path, **settings: Any) -> Publication:
    source = SimulatedSource(str(world))
    return await Poller(source, source, "n1", 1, **settings).poll()


def test_processes_have_no_series_unless_a_setting_asks_for_them(world: Path) -> None:
    assert "aom_process_gpu" not in once("--simulate", str(world), "--once").stdout
    series = read(once("--simulate", str(world), "--once", "--node", "n1", "--process-series").stdout)
    owner = {"node": "n1", "uuid": "GPU-a", "namespace": "ml", "pod": "p", "container": "main"}
    assert values(series, USAGE, pid="1", process_name="python", **owner) == [70]
    assert values(series, USAGE, pid="2", process_name="triton", **owner) == [65]
    assert values(series, MEMORY, **owner) == [100, 200]


async def test_a_figure_that_cannot_be_true_or_is_not_told_is_left_out(world: Path) -> None:
    page = (await publish(world, process_series=True)).fresh
    series = read(page.plain.decode())
    assert series == read_openmetrics(page.openmetrics.decode())
    assert {dict(labels)["pid"] for name, labels in series if name in {USAGE, MEMORY}} == {"1", "2"}


async def test_a_query_takes_them_alone_or_leaves_them_out(world: Path) -> None:
    publication = await publish(world, process_series=True)
    alone = read(select(publication.fresh, ("process",), (), ()).plain.decode())
    assert names(alone) == {USAGE, MEMORY}
    assert not names(read(select(publication.fresh, ("container",), (), ()).plain.decode())) & {USAGE, MEMORY}


async def test_they_are_the_first_that_a_budget_leaves_out(world: Path) -> None:
    without = await publish(world)
    full = await publish(world, process_series=True)
    assert full.series == without.series + 4
    short = await publish(world, process_series=True, most_series=full.series - 1)
    assert names(read(short.fresh.plain.decode())) == names(read(full.fresh.plain.decode())) - {MEMORY}


def nameless(*pids: int) -> GpuReading:
    """A GPU as the driver tells it: pids without names."""
    return gpu(processes=tuple(dataclasses.replace(process(pid), name="") for pid in pids))


class HostNode(Node):
    """A node whose exporter publishes processes and sees their names."""

    def __init__(self, host: Host, *gpus: GpuReading, held: Any = ()) -> None:
        super().__init__(host, *gpus, held=held)
        matching = ProcessOwners(host.proc, host.logs, 20, names_wanted=True)
        self.poller = Poller(self, self, "n1", 1, owners=matching, process_series=True)


async def test_a_process_is_called_as_the_kernel_calls_it_and_a_stowaways_pod_is_named(tmp_path: Path) -> None:
    """The pod was given no GPU by the kubelet; it uses one all the same."""
    host = Host(tmp_path)
    host.runs(4211, pod_uid(1), "main")
    (host.proc / "4211" / "comm").write_bytes(b"python3\n")
    host.named("stowaway", pod_uid(1), "main")
    series = await HostNode(host, nameless(4211, 4999)).scrape()
    assert values(series, USAGE, pid="4211", process_name="python3", pod="stowaway", namespace="ml") == [40]
    assert values(series, USAGE, pid="4999", process_name="", pod="", container="") == [40]


async def test_in_a_foreign_pid_namespace_a_process_gets_neither_name_nor_pod(tmp_path: Path) -> None:
    host = Host(tmp_path, with_init=False)
    host.runs(4211, pod_uid(1), "main")
    host.named("other", pod_uid(1), "main")
    series = await HostNode(host, nameless(4211)).scrape()
    assert values(series, USAGE) == values(series, USAGE, pid="4211", process_name="", pod="") == [40]


async def test_x13_the_drivers_own_name_of_a_pid_is_believed_only_where_the_pid_is_the_hosts(tmp_path: Path) -> None:
    named = gpu(processes=(dataclasses.replace(process(9), name="/usr/bin/other"),))
    here = await HostNode(Host(tmp_path / "host"), named).scrape()
    assert values(here, USAGE, process_name="/usr/bin/other") == [40]
    foreign = await HostNode(Host(tmp_path / "foreign", with_init=False), named).scrape()
    assert values(foreign, USAGE, process_name="") == values(foreign, USAGE) == [40]


async def test_a_name_of_any_bytes_is_read_as_it_is(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.process(7, "0::/\n")
    (host.proc / "7" / "comm").write_bytes(b'a"\\\nb\xff\n')
    series = await HostNode(host, nameless(7)).scrape()
    assert values(series, USAGE, pid="7", process_name='a"\\\nb�') == [40]
