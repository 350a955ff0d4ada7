from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.accounts import Accounts
from exporter.exposition import Renderer
from exporter.holdings import held_at
from exporter.readings import AbsentReason, GpuReading, MigReading, Snapshot
from tests.exporter.build import MIB, Series, gpu, holds, process, read, snapshot, values

BUSY = "aom_node_gpu_busy_seconds_total"
REST = "aom_node_gpu_unattributed_busy_seconds_total"
ALLOCATED = "aom_container_gpu_allocated_seconds_total"
CONTAINER_BUSY = "aom_container_gpu_busy_seconds_total"
SM_ACTIVE = "aom_container_gpu_sm_active_seconds_total"


def added(*polls: Snapshot, step: float = 2.0, longest: float = 10.0) -> Series:
    """The counters after these polls, ``step`` seconds apart; the first only starts the clock."""
    accounts = Accounts(longest)
    found: Series = {}
    for number, poll in enumerate(polls):
        found = read(Renderer().render(accounts.add(poll, held_at(poll), 100 + number * step, "n1")).plain)
    return found


def test_a_container_alone_on_a_gpu_has_all_its_busy_seconds() -> None:
    poll = snapshot(gpu(utilization_percent=50, sm_active_ratio=0.25), allocations=(holds("p", "GPU-a"),))
    series = added(poll, poll, poll)
    assert values(series, ALLOCATED, pod="p", uuid="GPU-a") == [4]
    assert values(series, CONTAINER_BUSY, pod="p") == values(series, BUSY) == [2]
    assert values(series, SM_ACTIVE, pod="p") == [1]
    assert values(series, REST) == [0]


def test_an_allocated_idle_pod_has_zeros_from_its_first_poll() -> None:
    series = added(snapshot(gpu(utilization_percent=0), allocations=(holds("p", "GPU-a"),)))
    assert values(series, CONTAINER_BUSY, pod="p") == values(series, ALLOCATED, pod="p") == [0]


def test_a_gpu_without_a_holder_is_busy_for_nobody() -> None:
    poll = snapshot(gpu(utilization_percent=50))
    assert values(added(poll, poll), REST) == values(added(poll, poll), BUSY) == [1]


def test_a_shared_gpu_without_pids_is_allocated_evenly_and_busy_for_nobody() -> None:
    held = (holds("p", "GPU-a::0"), holds("q", "GPU-a::1"))
    poll = snapshot(gpu(utilization_percent=50, sm_active_ratio=0.5), allocations=held)
    series = added(poll, poll)
    assert values(series, ALLOCATED) == [1, 1]
    assert values(series, CONTAINER_BUSY) == values(series, SM_ACTIVE) == []
    assert values(series, REST) == [1]


def test_processes_split_the_busy_seconds_and_the_rest_is_explicit() -> None:
    listed = (process(1, busy=30), process(2, busy=10), process(3, busy=40))
    held = (holds("p", "GPU-a::0", pids=(1,)), holds("q", "GPU-a::1", pids=(2,)))
    poll = snapshot(gpu(utilization_percent=100, processes=listed), allocations=held)
    series = added(poll, poll)
    assert values(series, CONTAINER_BUSY, pod="p") == [pytest.approx(2 * 30 / 80)]
    assert values(series, CONTAINER_BUSY, pod="q") == [pytest.approx(2 * 10 / 80)]
    assert values(series, REST) == [pytest.approx(2 * 40 / 80)]


def test_a_known_holder_without_processes_is_not_busy_with_anothers_work() -> None:
    listed = (process(9, busy=70),)
    poll = snapshot(gpu(utilization_percent=70, processes=listed), allocations=(holds("p", "GPU-a", pids=()),))
    series = added(poll, poll)
    assert values(series, CONTAINER_BUSY, pod="p") == [0]
    assert values(series, REST) == values(series, BUSY)


@given(
    busy=st.lists(st.floats(0, 100), min_size=1, max_size=6),
    owners=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    device=st.floats(0, 100),
)
def test_busy_seconds_of_containers_and_the_rest_sum_to_the_device(
    busy: list[float], owners: list[int], device: float
) -> None:
    listed = tuple(process(pid, busy=one) for pid, one in enumerate(busy))
    held = tuple(
        holds(f"p{n}", f"GPU-a::{n}", pids=tuple(pid for pid in range(6) if owners[pid] == n)) for n in range(3)
    )
    poll = snapshot(gpu(utilization_percent=device, processes=listed), allocations=held)
    series = added(poll, poll)
    assert sum(values(series, CONTAINER_BUSY)) + values(series, REST)[0] == pytest.approx(values(series, BUSY)[0])


def test_instances_are_allocated_by_their_memory_and_sm_active_counts_per_instance() -> None:
    sizes: dict[str, Any] = {"memory_total_bytes": 20000 * MIB}
    mig = (
        MigReading("MIG-x", 3, 0, "2g.20gb", sm_active_ratio=0.8, **sizes),
        MigReading("MIG-y", 5, 0, "2g.20gb", sm_active_ratio=None, **sizes),
    )
    board = gpu(mig_enabled=True, mig=mig, utilization_percent=None)
    poll = snapshot(board, allocations=(holds("p", "MIG-x"), holds("q", "MIG-y")))
    series = added(poll, poll)
    assert values(series, ALLOCATED) == [0.5, 0.5]
    assert values(series, SM_ACTIVE, pod="p") == [pytest.approx(0.8 * 0.25 * 2)]
    assert values(series, SM_ACTIVE, pod="q") == []
    assert values(series, BUSY) == values(series, REST) == values(series, CONTAINER_BUSY) == []


def test_a_gap_that_nobody_saw_counts_no_longer_than_the_limit() -> None:
    poll = snapshot(gpu(utilization_percent=100), allocations=(holds("p", "GPU-a"),))
    assert values(added(poll, poll, step=3600, longest=3), BUSY) == [3]


def test_a_clock_that_stands_still_adds_nothing() -> None:
    poll = snapshot(gpu(utilization_percent=100))
    assert values(added(poll, poll, step=0), BUSY) == [0]


def test_a_lost_gpu_withdraws_its_counters_and_they_go_on_when_it_is_back() -> None:
    held = (holds("p", "GPU-a"),)
    good = snapshot(gpu(utilization_percent=100), allocations=held)
    lost = snapshot(GpuReading("GPU-a", 0, "H100", fault=AbsentReason.LOST), allocations=held)
    assert added(good, good, lost) == {}
    series = added(good, good, lost, good)
    assert values(series, CONTAINER_BUSY, pod="p") == values(series, BUSY) == [4]


def test_a_pod_that_ended_starts_again_from_zero_and_leaves_nothing_behind() -> None:
    held = snapshot(gpu(utilization_percent=100), allocations=(holds("p", "GPU-a"),))
    free = snapshot(gpu(utilization_percent=100))
    assert values(added(held, held, free), CONTAINER_BUSY) == []
    assert values(added(held, held, free, held), CONTAINER_BUSY) == [2]
    accounts = Accounts(10)
    for number in range(1000):
        poll = snapshot(gpu(), allocations=(holds(f"p{number}", "GPU-a"),))
        accounts.add(poll, held_at(poll), number, "n1")
    assert len(accounts._containers) == len(accounts._gpus) == 1


def test_a_silent_kubelet_ends_no_counter() -> None:
    held = snapshot(gpu(utilization_percent=100), allocations=(holds("p", "GPU-a"),))
    silent = snapshot(gpu(utilization_percent=100), allocations=None)
    series = added(held, held, silent, held)
    assert values(series, CONTAINER_BUSY) == [4]
    assert values(series, BUSY) == [6]
    assert values(series, REST) == [2]


@pytest.mark.parametrize("wrong", [None, -1, 101, float("nan")])
def test_a_utilisation_that_cannot_be_true_adds_to_no_counter(wrong: float | None) -> None:
    poll = snapshot(gpu(utilization_percent=wrong), allocations=(holds("p", "GPU-a"),))
    series = added(poll, poll)
    assert values(series, BUSY) == values(series, CONTAINER_BUSY) == []
    assert values(series, ALLOCATED) == [2]
