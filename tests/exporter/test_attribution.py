import dataclasses
from typing import Any

from exporter.readings import AbsentReason, Allocation, GpuReading, MigReading
from tests.exporter.build import MIB, Series, gpu, holds, names, process, published, snapshot, values

USAGE = "aom_container_gpu_usage"
USED = "aom_container_gpu_memory_used_megabytes"
FREE = "aom_container_gpu_memory_free_megabytes"
CAPACITY = "aom_container_gpu_memory_capacity_megabytes"
PERCENT = "aom_container_gpu_memory_usage"
ATTRIBUTION = "gpuscale_container_attribution"


def container_names(series: Series) -> set[str]:
    return {name for name in names(series) if name.startswith("aom_container")}


def test_a_container_that_holds_a_gpu_alone_has_the_gpus_values() -> None:
    series = published(snapshot(gpu(), allocations=(holds("p", "GPU-a"),)))
    owner = {"namespace": "ml", "pod": "p", "container": "main", "uuid": "GPU-a", "node": "n1"}
    assert values(series, USAGE, **owner) == [55]
    assert values(series, USED, **owner) == [20000]
    assert values(series, CAPACITY, **owner) == [80000]
    assert values(series, FREE, **owner) == [80000 - 1000 - 20000]
    assert values(series, PERCENT, **owner) == [25]
    assert values(series, ATTRIBUTION, **owner, reason="") == [1]


def test_the_processes_memory_is_used_where_the_driver_tells_all_of_it() -> None:
    listed = (process(1, mib=100), process(2, mib=200))
    series = published(snapshot(gpu(processes=listed), allocations=(holds("p", "GPU-a"),)))
    assert values(series, USED) == [300]
    assert values(series, FREE) == [80000 - 1000 - 300]


def test_one_process_of_unknown_memory_makes_the_sum_unknown_and_the_gpus_figure_stands() -> None:
    listed = (process(1, mib=100), process(2, mib=None))
    assert values(published(snapshot(gpu(processes=listed), allocations=(holds("p", "GPU-a"),))), USED) == [20000]


def test_an_empty_process_list_does_not_prove_that_the_memory_is_free() -> None:
    series = published(snapshot(gpu(processes=()), allocations=(holds("p", "GPU-a"),)))
    assert values(series, USED) == [20000]


def test_memory_that_processes_share_never_exceeds_the_board() -> None:
    listed = (process(1, mib=50000), process(2, mib=50000))
    series = published(snapshot(gpu(processes=listed), allocations=(holds("p", "GPU-a"),)))
    assert values(series, USED) == [80000]
    assert values(series, PERCENT) == [100]
    assert values(series, FREE) == [0]


def test_each_gpu_of_a_container_has_its_own_series() -> None:
    both = snapshot(gpu("GPU-a"), gpu("GPU-b", utilization_percent=5), allocations=(holds("p", "GPU-a", "GPU-b"),))
    series = published(both)
    assert values(series, USAGE, pod="p", uuid="GPU-a") == [55]
    assert values(series, USAGE, pod="p", uuid="GPU-b") == [5]


def test_two_containers_of_one_pod_on_two_gpus_are_kept_apart() -> None:
    held = (holds("p", "GPU-a", container="one"), holds("p", "GPU-b", container="two"))
    series = published(snapshot(gpu("GPU-a"), gpu("GPU-b"), allocations=held))
    assert len(values(series, USAGE, pod="p", container="one", uuid="GPU-a")) == 1
    assert len(values(series, USAGE)) == 2


def test_a_gpu_without_a_holder_has_node_series_only() -> None:
    series = published(snapshot(gpu()))
    assert container_names(series) == set()
    assert values(series, ATTRIBUTION) == []


def test_a_shared_gpu_without_pids_says_that_it_cannot_be_told_apart() -> None:
    series = published(snapshot(gpu(), allocations=(holds("p", "GPU-a"), holds("q", "GPU-a"))))
    assert container_names(series) == set()
    assert values(series, ATTRIBUTION, uuid="GPU-a", reason="shared_gpu") == [0, 0]


def test_a_replica_is_a_shared_gpu_even_while_it_has_one_holder() -> None:
    series = published(snapshot(gpu(), allocations=(holds("p", "GPU-a::0", "GPU-a::1"),)))
    assert container_names(series) == set()
    assert values(series, ATTRIBUTION, uuid="GPU-a", pod="p", reason="shared_gpu") == [0]


def test_a_shared_gpu_with_pids_is_split_by_process_and_its_capacity_is_not_repeated() -> None:
    listed = (process(1, mib=100, busy=10), process(2, mib=200, busy=20), process(3, mib=400, busy=40))
    held = (holds("p", "GPU-a::0", pids=(1, 2)), holds("q", "GPU-a::1", pids=(3,)))
    series = published(snapshot(gpu(processes=listed), allocations=held))
    assert values(series, USAGE, pod="p") == [30]
    assert values(series, USED, pod="p") == [300]
    assert values(series, USED, pod="q") == [400]
    assert values(series, PERCENT, pod="q") == [0.5]
    assert values(series, CAPACITY) == values(series, FREE) == []
    assert values(series, ATTRIBUTION, reason="") == [1, 1]


def test_pids_count_only_on_the_gpu_they_run_on() -> None:
    a = gpu("GPU-a", processes=(process(1, "GPU-a", busy=10),))
    b = gpu("GPU-b", processes=(process(1, "GPU-b", busy=70),))
    series = published(snapshot(a, b, allocations=(holds("p", "GPU-a", "GPU-b", pids=(1,)),)))
    assert values(series, USAGE, uuid="GPU-a") == [10]
    assert values(series, USAGE, uuid="GPU-b") == [70]


def test_pids_without_a_process_list_fall_back_to_the_gpu_only_where_it_is_held_alone() -> None:
    alone = published(snapshot(gpu(), allocations=(holds("p", "GPU-a", pids=(1,)),)))
    shared = published(snapshot(gpu(), allocations=(holds("p", "GPU-a::0", pids=(1,)),)))
    assert values(alone, USAGE) == [55]
    assert values(shared, USAGE) == []


def test_a_mig_device_is_never_attributed_to_a_board() -> None:
    series = published(snapshot(gpu(), allocations=(holds("p", "MIG-0d1"),)))
    assert container_names(series) == set()
    assert values(series, ATTRIBUTION, uuid="MIG-0d1", reason="mig_device") == [0]


def test_a_holder_of_a_lost_gpu_has_no_values_and_the_reason() -> None:
    lost = GpuReading("GPU-a", 0, "Tesla T4", fault=AbsentReason.LOST)
    series = published(snapshot(lost, allocations=(holds("p", "GPU-a"),)))
    assert container_names(series) == set()
    assert values(series, ATTRIBUTION, pod="p", reason="gpu_absent") == [0]


def test_an_id_that_names_no_gpu_of_the_node_is_reported() -> None:
    series = published(snapshot(gpu(), allocations=(holds("p", "nvidia7"), holds("q", "GPU-z"))))
    assert values(series, ATTRIBUTION, uuid="nvidia7", reason="unknown_device") == [0]
    assert values(series, ATTRIBUTION, uuid="GPU-z", reason="unknown_device") == [0]


def test_other_vendors_devices_are_ignored() -> None:
    nic = Allocation("ml", "p", "main", "example.com/nic", ("eth7",))
    assert values(published(snapshot(gpu(), allocations=(nic,))), ATTRIBUTION) == []


def test_a_gpu_that_tells_nothing_gives_its_holder_the_reason() -> None:
    silent = gpu(utilization_percent=None, memory_used_bytes=None)
    series = published(snapshot(silent, allocations=(holds("p", "GPU-a"),)))
    assert container_names(series) == {CAPACITY}
    assert values(series, ATTRIBUTION, reason="no_data") == [0]


def test_sums_over_containers_never_exceed_the_boards() -> None:
    gpus = (gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c", processes=(process(9, "GPU-c", mib=500, busy=5),)))
    held = (
        holds("p", "GPU-a"),
        holds("q", "GPU-b::0"),
        holds("r", "GPU-b::1"),
        holds("s", "GPU-c::0", pids=(9,)),
        holds("t", "GPU-c::1", pids=()),
    )
    series = published(snapshot(*gpus, allocations=held))
    assert sum(values(series, CAPACITY)) == 80000
    assert sum(values(series, USED)) == 20000 + 500 <= sum(values(series, "aom_node_gpu_memory_used_megabytes"))


def test_a_process_figure_that_cannot_be_true_makes_the_use_unknown() -> None:
    sentinel = process(1, mib=None, busy=4294967295)
    huge = process(1, mib=2**44 // MIB, busy=3)
    for broken in (sentinel, huge):
        series = published(snapshot(gpu(processes=(broken,)), allocations=(holds("p", "GPU-a::0", pids=(1,)),)))
        assert values(series, USED) == []
    assert values(series, USAGE) == [3]


def instance(uuid: str, gi: int, ci: int = 0, used: int = 4000) -> MigReading:
    sizes: dict[str, Any] = {"memory_total_bytes": 20000 * MIB, "memory_used_bytes": used * MIB}
    return MigReading(uuid, gi, ci, "2g.20gb", memory_reserved_bytes=100 * MIB, **sizes)


def mig_gpu(*instances: MigReading, **changed: Any) -> GpuReading:
    return gpu(mig_enabled=True, mig=instances, utilization_percent=None, **changed)


def test_a_container_that_holds_a_gpu_instance_has_the_instances_memory() -> None:
    board = mig_gpu(instance("MIG-x", 3), instance("MIG-y", 5, used=9000))
    for ids in ("MIG-x", "MIG-GPU-a/3/0", "nvidia0/gi3"):
        series = published(snapshot(board, allocations=(holds("p", ids),)))
        assert values(series, USED, uuid="GPU-a", pod="p") == [4000]
        assert values(series, CAPACITY, uuid="GPU-a", pod="p") == [20000]
        assert values(series, FREE, uuid="GPU-a", pod="p") == [20000 - 100 - 4000]
        assert values(series, PERCENT) == [20]
        assert values(series, USAGE) == []
        assert values(series, ATTRIBUTION, uuid="GPU-a", pod="p", reason="") == [1]


def test_two_instances_of_one_container_are_one_series_of_their_sum() -> None:
    board = mig_gpu(instance("MIG-x", 3), instance("MIG-y", 5, used=9000))
    series = published(snapshot(board, allocations=(holds("p", "MIG-x", "MIG-y"),)))
    assert values(series, USED) == [13000]
    assert values(series, CAPACITY) == [40000]


def test_compute_instances_of_one_gpu_instance_share_its_memory_and_cannot_be_told_apart() -> None:
    board = mig_gpu(instance("MIG-x", 3, 0), instance("MIG-y", 3, 1))
    series = published(snapshot(board, allocations=(holds("p", "MIG-x"), holds("q", "MIG-y"))))
    assert container_names(series) == set()
    assert values(series, ATTRIBUTION, reason="shared_gpu") == [0, 0]
    half = published(snapshot(board, allocations=(holds("p", "MIG-x"),)))
    assert values(half, CAPACITY) == []
    both = published(snapshot(board, allocations=(holds("p", "MIG-x", "MIG-y"),)))
    assert values(both, USED) == [4000]


def test_a_board_that_lists_no_process_does_not_prove_its_instances_idle() -> None:
    for processes in ((), None, (process(1, mib=7),)):
        board = mig_gpu(instance("MIG-x", 3), processes=processes)
        for pids in ((), (1,)):
            series = published(snapshot(board, allocations=(holds("p", "MIG-x", pids=pids),)))
            assert values(series, USED) == [4000]
            assert values(series, USAGE) == []


def test_processes_tell_the_memory_of_containers_that_share_a_gpu_instance() -> None:
    board = mig_gpu(instance("MIG-x", 3, 0), instance("MIG-y", 3, 1), processes=(process(1, mib=7),))
    series = published(snapshot(board, allocations=(holds("p", "MIG-x", pids=(1,)), holds("q", "MIG-y", pids=()))))
    assert values(series, USED) == values(series, USED, pod="p") == [7]
    assert values(series, USAGE) == []
    assert values(series, ATTRIBUTION, pod="q", reason="shared_gpu") == [0]


def placed(uuid: str, gi: int, ci: int, profile: str, profile_id: int | None, start: int | None) -> MigReading:
    sizes: dict[str, Any] = {"memory_total_bytes": 20000 * MIB, "memory_used_bytes": gi * MIB}
    return MigReading(uuid, gi, ci, profile, profile_id=profile_id, placement_start=start, **sizes)


def test_a_claimed_instance_is_found_by_minor_profile_and_place() -> None:
    two = placed("MIG-x", 3, 0, "2g.20gb", 14, 0), placed("MIG-y", 5, 0, "2g.20gb", 14, 2)
    others = mig_gpu(*two, facts={"minor_number": "4"})
    same_place = mig_gpu(placed("MIG-z", 9, 0, "2g.20gb", 14, 2), facts={"minor_number": "0"}, index=1)
    board_z = dataclasses.replace(same_place, uuid="GPU-z")
    for name in ("gpu-4-mig-2g20gb-14-2", "gpu-4-mig-14-2-2"):
        series = published(snapshot(others, board_z, allocations=(holds("p", name),)))
        assert values(series, USED) == values(series, USED, uuid="GPU-a", pod="p") == [5]


def test_a_claimed_instance_that_is_not_certain_is_not_guessed_at() -> None:
    board = mig_gpu(
        placed("MIG-x", 3, 0, "2g.20gb", 14, 0),
        placed("MIG-y", 5, 0, "1c.2g.20gb", 14, 2),
        placed("MIG-z", 5, 1, "1c.2g.20gb", 14, 2),
    )
    for name in (
        "gpu-0-mig-2g20gb-14-4",  # nothing lies there
        "gpu-0-mig-3g40gb-9-0",  # another profile does
        "gpu-0-mig-1g10gb-14-0",  # name and id of the profile contradict each other
        "gpu-0-mig-2g20gb-14-2",  # two compute instances do
        "gpu-0-mig-of-tomorrow",
    ):
        series = published(snapshot(board, allocations=(holds("p", name),)))
        assert container_names(series) == set(), name
        assert values(series, ATTRIBUTION, uuid=name, pod="p", reason="mig_device") == [0]


def test_a_driver_that_does_not_tell_where_instances_lie_is_the_reason() -> None:
    series = published(snapshot(mig_gpu(instance("MIG-x", 3)), allocations=(holds("p", "gpu-0-mig-2g20gb-14-0"),)))
    assert container_names(series) == set()
    assert values(series, ATTRIBUTION, uuid="gpu-0-mig-2g20gb-14-0", reason="mig_place_unknown") == [0]


def test_a_claimed_instance_of_a_lost_gpu_has_the_gpus_reason() -> None:
    lost = GpuReading("GPU-a", 0, "NVIDIA H200", fault=AbsentReason.LOST)
    series = published(snapshot(lost, allocations=(holds("p", "gpu-0-mig-2g20gb-14-0"),)))
    assert values(series, ATTRIBUTION, uuid="GPU-a", pod="p", reason="gpu_absent") == [0]


def test_an_instance_that_was_removed_is_explained() -> None:
    series = published(snapshot(mig_gpu(instance("MIG-x", 3)), allocations=(holds("p", "MIG-gone"),)))
    assert container_names(series) == set()
    assert values(series, ATTRIBUTION, uuid="MIG-gone", reason="mig_device") == [0]


def test_ids_by_minor_number_follow_the_minor_and_not_the_index() -> None:
    a = gpu("GPU-a", index=0, facts={"minor_number": "1"}, utilization_percent=10)
    b = gpu("GPU-b", index=1, facts={"minor_number": "0"}, utilization_percent=70)
    series = published(snapshot(a, b, allocations=(holds("p", "nvidia0"), holds("q", "gpu-1"))))
    assert values(series, USAGE, pod="p", uuid="GPU-b") == [70]
    assert values(series, USAGE, pod="q", uuid="GPU-a") == [10]


def test_a_lost_gpu_whose_number_is_not_told_takes_no_other_gpus_place() -> None:
    lost = GpuReading("GPU-a", 1, "NVIDIA H200", fault=AbsentReason.LOST)
    there = gpu("GPU-b", index=0, facts={"minor_number": "1"}, utilization_percent=70)
    held = (holds("p", "gpu-1"), holds("q", "gpu-0"))
    for gpus in ((lost, there), (there, lost)):
        series = published(snapshot(*gpus, allocations=held))
        assert values(series, USAGE) == values(series, USAGE, pod="p", uuid="GPU-b") == [70]
        assert values(series, ATTRIBUTION, pod="q", uuid="gpu-0", reason="unknown_device") == [0]
    alone = dataclasses.replace(lost, index=0)
    series = published(snapshot(alone, there, allocations=held))
    assert values(series, ATTRIBUTION, pod="q", uuid="GPU-a", reason="gpu_absent") == [0]


def test_x18_time_sliced_pods_are_each_explained_and_the_gpu_is_counted_once() -> None:
    held = tuple(holds(f"p{n}", f"GPU-a::{n}") for n in range(3))
    listed = tuple(process(n + 1, busy=30) for n in range(3))
    series = published(snapshot(gpu(utilization_percent=90), allocations=held))
    assert values(series, "aom_node_gpu_usage") == [90]
    assert values(series, ATTRIBUTION, uuid="GPU-a") == [0, 0, 0]
    owned = tuple(holds(f"p{n}", f"GPU-a::{n}", pids=(n + 1,)) for n in range(3))
    split = published(snapshot(gpu(utilization_percent=90, processes=listed), allocations=owned))
    assert values(split, USAGE) == [30, 30, 30]
    assert values(split, "aom_node_gpu_usage") == [90]


def test_a_renamed_resource_is_matched_by_its_device_id() -> None:
    renamed = Allocation("ml", "p", "main", "example.com/fast-gpu", ("GPU-a",))
    assert values(published(snapshot(gpu(), allocations=(renamed,))), USAGE, pod="p") == [55]
