import asyncio
import dataclasses
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from exporter import owners
from exporter.holdings import holdings
from exporter.owners import SCAN_POLLS, Matched, ProcessOwners
from exporter.poller import Poller
from exporter.readings import AbsentReason, Allocation, GpuReading, MigReading, SourceState
from tests.exporter.build import UP, Series, gpu, holds, names, process, read, values
from tests.exporter.host import Host, container_id, pod_uid

USAGE = "aom_container_gpu_usage"
USED = "aom_container_gpu_memory_used_megabytes"
UNRESOLVED = "gpuscale_unresolved_processes"
ONE, TWO = pod_uid(1), pod_uid(2)


class Node:
    """The driver and the kubelet of the fake host."""

    driver_version = "1"
    needs_restart: str | None = None

    def __init__(self, host: Host, *gpus: GpuReading, held: tuple[Allocation, ...]) -> None:
        self.gpus = gpus
        self.held = held
        self.poller = Poller(self, self, "n1", 1, owners=ProcessOwners(host.proc, host.logs, 20))

    async def read(self, now: float) -> tuple[tuple[GpuReading, ...], SourceState]:
        return self.gpus, UP

    async def allocations(self) -> tuple[tuple[Allocation, ...], SourceState]:
        return self.held, UP

    async def close(self) -> None:
        pass

    async def scrape(self) -> Series:
        return read((await self.poller.poll()).fresh.plain.decode())


def two_pods(host: Host) -> None:
    for pid, uid, pod in ((4211, ONE, "a"), (4212, TWO, "b")):
        host.runs(pid, uid, pod)
        host.named(pod, uid, pod)


SHARED = (holds("a", "GPU-a::0"), holds("b", "GPU-a::1"))
LISTED = (process(4211, mib=100, busy=30), process(4212, mib=300, busy=50))


async def test_processes_of_a_shared_gpu_are_told_by_their_cgroups(tmp_path: Path) -> None:
    host = Host(tmp_path)
    two_pods(host)
    series = await Node(host, gpu(processes=LISTED), held=SHARED).scrape()
    assert values(series, USAGE, pod="a") == [30]
    assert values(series, USED, pod="b") == [300]
    assert values(series, UNRESOLVED) == []
    assert values(series, "gpuscale_process_attribution_up", reason="") == [1]


async def test_x13_in_a_foreign_pid_namespace_nobody_is_blamed(tmp_path: Path) -> None:
    host = Host(tmp_path, with_init=False)
    host.runs(4211, TWO, "b")
    host.named("b", TWO, "b")
    series = await Node(host, gpu(processes=LISTED), held=SHARED).scrape()
    assert [name for name in names(series) if name.startswith((USAGE, USED))] == []
    assert values(series, UNRESOLVED) == values(series, UNRESOLVED, reason="no_host_proc") == [2]
    assert values(series, "gpuscale_process_attribution_up", reason="no_host_proc") == [0]
    alone = await Node(host, gpu(processes=LISTED), held=(holds("a", "GPU-a"),)).scrape()
    assert values(alone, USED, pod="a") == [400]


async def test_x13_with_the_hosts_proc_the_same_pid_is_its_pods(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.runs(4211, ONE, "a")
    host.named("a", ONE, "a")
    series = await Node(host, gpu(processes=LISTED), held=(SHARED[0],)).scrape()
    assert values(series, USED, pod="a") == [100]
    assert values(series, UNRESOLVED) == values(series, UNRESOLVED, reason="gone") == [1]


async def test_host_processes_and_unknown_containers_are_counted_by_reason(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.process(1000, "0::/system.slice/daemon.service\n")
    host.runs(1001, ONE, "nameless")
    listed = (process(1000), process(1001), process(1002))
    series = await Node(host, gpu(processes=listed), held=()).scrape()
    assert {r: values(series, UNRESOLVED, reason=r) for r in ("no_container", "unknown_container", "gone")} == {
        "no_container": [1],
        "unknown_container": [1],
        "gone": [1],
    }


async def test_x20_a_pod_that_ended_has_no_series_though_the_kubelet_lists_it(tmp_path: Path) -> None:
    host = Host(tmp_path)
    two_pods(host)
    host.ends(4211)
    held = (holds("a", "GPU-a"), holds("b", "GPU-b"))
    series = await Node(host, gpu("GPU-a"), gpu("GPU-b"), held=held).scrape()
    assert {dict(labels).get("pod") for _, labels in series} == {None, "b"}
    assert len(values(series, "aom_node_gpu_usage")) == 2


async def test_an_idle_pod_and_one_that_restarts_its_container_have_zeros_while_their_sandbox_lives(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    host.runs(50, ONE, "pause")
    host.named("a", ONE, "crashed")
    series = await Node(host, gpu(processes=(), utilization_percent=0), held=(holds("a", "GPU-a"),)).scrape()
    assert values(series, USED, pod="a") == values(series, USAGE, pod="a") == [0]


async def test_a_pod_of_which_no_name_is_known_yet_is_not_called_ended(tmp_path: Path) -> None:
    series = await Node(Host(tmp_path), gpu(), held=(holds("new", "GPU-a"),)).scrape()
    assert values(series, USAGE, pod="new") == [55]


async def test_a_pod_that_begins_between_two_looks_is_seen_at_once_and_an_ended_one_costs_no_further_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    two_pods(host)
    host.ends(4211)
    looks: list[Path] = []
    look = owners.live_pods
    monkeypatch.setattr(owners, "live_pods", lambda proc: looks.append(proc) or look(proc))
    node = Node(host, gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c"), held=(holds("a", "GPU-a"), holds("b", "GPU-b")))
    await node.scrape()
    await node.scrape()
    assert len(looks) == 1
    host.runs(60, pod_uid(3), "c")
    host.named("c", pod_uid(3), "c")
    node.held += (holds("c", "GPU-c"),)
    assert values(await node.scrape(), USAGE, pod="c") == [55]
    assert len(looks) == 2
    for _ in range(SCAN_POLLS):
        await node.scrape()
    assert len(looks) == 3


async def test_a_pod_made_anew_under_its_old_name_follows_its_new_uid(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.named("a", ONE, "old")
    host.named("a", TWO, "new")
    host.runs(70, TWO, "new")
    series = await Node(host, gpu(processes=(process(70, mib=5),)), held=(holds("a", "GPU-a::0"),)).scrape()
    assert values(series, USED, pod="a") == [5]


async def test_work_through_anothers_process_is_not_called_idleness(tmp_path: Path) -> None:
    host = Host(tmp_path)
    two_pods(host)
    host.runs(80, pod_uid(3), "mps-daemon")
    host.named("mps", pod_uid(3), "mps-daemon")
    listed = (process(80, mib=5000, busy=90),)
    shared = await Node(host, gpu(processes=listed), held=SHARED).scrape()
    assert values(shared, USED) == values(shared, USAGE) == []
    alone = await Node(host, gpu(processes=listed), held=(holds("a", "GPU-a"),)).scrape()
    assert values(alone, USAGE, pod="a") == [55]


async def test_x23_a_containers_utilisation_never_exceeds_100(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.runs(1, ONE, "a")
    host.runs(3, ONE, "a")
    host.named("a", ONE, "a")
    listed = (process(1, busy=70), process(3, busy=65))
    series = await Node(host, gpu(processes=listed), held=(SHARED[0],)).scrape()
    assert values(series, USAGE, pod="a") == [100]


async def test_x24_memory_of_processes_that_ended_is_zero_while_the_container_holds_the_gpu(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.runs(9, ONE, "a")
    host.runs(8, ONE, "pause")
    host.named("a", ONE, "a")
    node = Node(host, gpu(processes=(process(9, mib=8192),)), held=(holds("a", "GPU-a"),))
    assert values(await node.scrape(), USED, pod="a") == [8192]
    node.gpus = (gpu(processes=()),)
    host.ends(9)
    assert values(await node.scrape(), USED, pod="a") == [0]
    node.held = ()
    assert values(await node.scrape(), USED) == []


async def test_without_names_attribution_is_by_the_kubelet_alone_and_the_cure_is_named(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.runs(4211, ONE, "a")
    found = await ProcessOwners(host.proc, tmp_path / "missing", 20).match((gpu(processes=LISTED),), SHARED)
    assert found.allocations == SHARED
    assert found.unresolved == {"unknown_container": 1, "gone": 1}
    assert found.state.reason == "no_container_names"
    assert "mount it" in found.state.message


async def test_idle_pods_that_live_are_looked_at_one_by_one_and_all_processes_only_when_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    two_pods(host)
    looks: list[Path] = []
    look = owners.live_pods
    monkeypatch.setattr(owners, "live_pods", lambda proc: looks.append(proc) or look(proc))
    node = Node(host, gpu("GPU-a"), gpu("GPU-b"), held=(holds("a", "GPU-a"), holds("b", "GPU-b")))
    for _ in range(2 * SCAN_POLLS):
        assert len(values(await node.scrape(), USAGE, pod="a")) == 1
    assert len(looks) == 1
    # the pid is given again, to another pod
    host.runs(4211, pod_uid(9), "other")
    for _ in range(SCAN_POLLS):
        series = await node.scrape()
    assert values(series, USAGE, pod="a") == []
    assert values(series, USAGE, pod="b") == [55]
    assert len(looks) == 2


async def test_what_changes_with_containers_and_processes_is_told_and_nothing_where_they_are_not_seen(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path / "host")
    two_pods(host)
    source = ProcessOwners(host.proc, host.logs, 20)
    signs = [source.signs()]
    for gpus in ((gpu(processes=LISTED),), (gpu(processes=LISTED),), (gpu(processes=LISTED[:1]),)):
        await source.match(gpus, SHARED)
        signs.append(source.signs())
    host.named("c", pod_uid(3), "c")
    await source.match((gpu(processes=LISTED[:1]),), SHARED)
    signs.append(source.signs())
    assert signs[0] is None
    assert [one == other for one, other in pairwise(signs[1:])] == [True, False, False]
    foreign = Host(tmp_path / "foreign", with_init=False).proc
    without_processes = ProcessOwners(foreign, host.logs, 20)
    without_names = ProcessOwners(host.proc, tmp_path / "missing", 20)
    for blind in (without_processes, without_names):
        await blind.match((gpu(processes=LISTED),), SHARED)
    assert without_processes.signs() is not None, "containers come and go all the same"
    assert without_names.signs() is None


def test_holdings_follow_every_change_that_they_depend_on(tmp_path: Path) -> None:
    host = Host(tmp_path)
    source = ProcessOwners(host.proc, host.logs, 20)
    split = MigReading("MIG-1", 1, 0, "1g.10gb", memory_total_bytes=2**30)
    worlds: list[tuple[tuple[Allocation, ...], GpuReading]] = [
        (SHARED, gpu()),
        (SHARED, gpu(processes=LISTED)),
        (SHARED[:1], gpu()),
        (SHARED[:1], gpu(fault=AbsentReason.LOST)),
        (SHARED[:1], gpu(mig=(split,))),
        ((holds("a", "MIG-1"),), gpu(mig=(split,))),
        ((holds("a", "MIG-1"),), gpu(mig=(dataclasses.replace(split, memory_total_bytes=2**31),))),
        ((holds("a", "nvidia0"),), gpu(index=0)),
        ((holds("a", "nvidia0"),), gpu(index=1)),
        ((holds("a", "nvidia0"),), gpu(index=1, facts={"minor_number": "0"})),
    ]
    for allocations, one in [*worlds, *worlds[::-1]]:
        assert source._holdings(allocations, (one,)) == holdings(allocations, (one,))


async def test_a_proc_that_breaks_or_hangs_never_fails_a_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path)
    two_pods(host)
    go = threading.Event()

    def broken(proc: Path) -> dict[str, int]:
        raise PermissionError("denied")

    monkeypatch.setattr(owners, "live_pods", broken)
    failed = await ProcessOwners(host.proc, host.logs, 20).match((gpu(),), SHARED)
    assert (failed.allocations, failed.state.up, failed.state.reason) == (SHARED, False, "failed")

    def hangs(proc: Path) -> dict[str, int]:
        assert go.wait(20)
        return {ONE: 1, TWO: 2}

    monkeypatch.setattr(owners, "live_pods", hangs)
    source = ProcessOwners(host.proc, host.logs, 0.01)
    for _ in range(2):
        hung = await source.match((gpu(),), SHARED)
        assert (hung.allocations, hung.state.reason) == (SHARED, "timeout")
    go.set()
    assert source._running is not None
    assert isinstance(await asyncio.wait_for(source._running, 20), Matched)


async def test_no_allocations_stay_none(tmp_path: Path) -> None:
    host = Host(tmp_path)
    found = await ProcessOwners(host.proc, host.logs, 20).match((gpu(processes=LISTED),), None)
    assert found.allocations is None
    assert found.unresolved == {"gone": 2}
    assert container_id("a") not in found.unresolved
