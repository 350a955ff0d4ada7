"""Packing: every pod is placed or named, never worse than pod-by-pod first fit, and shares stay on their device."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core import packing
from controller.core.packing import Bin, Packing, lower_bound, pack, tolerates
from controller.core.pool_model import NodeTemplate, PodClass, Taint, Toleration

GPU, CPU = "nvidia.com/gpu", "cpu"
TEMPLATE = NodeTemplate({GPU: 8000, CPU: 96_000, "memory": 512_000, "pods": 110_000})
State = dict[str, int]


def pods(gpus: int, cpu: int, count: int, name: str = "p") -> PodClass:
    return PodClass({GPU: gpus, CPU: cpu}, count, (name,))


classes_of_pods = st.lists(
    st.builds(
        lambda gpus, cpu, memory, count: PodClass({GPU: gpus * 1000, CPU: cpu * 1000, "memory": memory}, count),
        st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5, 8, 9]),
        st.integers(0, 100),
        st.integers(0, 300_000),
        st.integers(1, 40),
    ),
    max_size=8,
)
live_bins = st.lists(
    st.builds(
        lambda gpus, cpu: Bin("", {GPU: gpus * 1000, CPU: cpu * 1000, "memory": 400_000}),
        st.integers(0, 8),
        st.integers(0, 96),
    ),
    max_size=6,
).map(lambda bins: [Bin(f"n{i}", b.free) for i, b in enumerate(bins)])


def first_fit(classes: Sequence[PodClass], bins: Sequence[Bin]) -> tuple[int, list[int], int]:
    """The plainest thing: pod by pod, the first node with room; returns new nodes, pods per bin, pods that fit none."""
    nodes: list[State] = [dict(b.free) for b in bins]
    counts = [0] * len(bins)
    unfit = 0
    merged = packing._merge(list(classes))
    for kind in packing._gpu_first(merged, TEMPLATE):
        requests = {"pods": 1000, **kind.requests}
        for _ in range(kind.count):
            at = next((i for i, free in enumerate(nodes) if takes(free, requests)), None)
            if at is None and takes(dict(TEMPLATE.allocatable), requests):
                nodes.append(dict(TEMPLATE.allocatable))
                at = len(nodes) - 1
            if at is None:
                unfit += 1
                continue
            for name, amount in requests.items():
                if name in nodes[at]:
                    nodes[at][name] -= amount
            if at < len(bins):
                counts[at] += 1
    return len(nodes) - len(bins), counts, unfit


def takes(free: State, requests: State) -> bool:
    return all(free.get(name, 0 if name == GPU else amount) >= amount for name, amount in requests.items())


def unfit_count(result: Packing) -> int:
    return sum(fault.pods.count for fault in result.never_fit)


@settings(max_examples=100, deadline=None)
@given(classes_of_pods, live_bins)
def test_it_is_never_worse_than_first_fit_pod_by_pod_and_fills_the_same_bins(
    classes: list[PodClass], bins: list[Bin]
) -> None:
    nodes, counts, unfit = first_fit(classes, bins)
    result = pack(classes, TEMPLATE, bins)
    assert result.new_nodes <= nodes
    assert [result.placed.get(b.name, 0) for b in bins] == counts
    assert unfit_count(result) == unfit


@settings(max_examples=100, deadline=None)
@given(classes_of_pods)
def test_placing_by_class_gives_the_very_nodes_of_first_fit(classes: list[PodClass]) -> None:
    nodes, _, _ = first_fit(classes, [])
    order = packing._gpu_first(packing._merge(classes), TEMPLATE)
    layout = packing._Layout(TEMPLATE, order)
    groups: list[packing._Group] = []
    for kind in order:
        need = layout.need(kind)
        if not layout.never(kind, need):
            groups = packing._onto(groups, need, kind.count, layout.empty)
    assert sum(group.count for group in groups) == nodes


@settings(max_examples=100, deadline=None)
@given(classes_of_pods)
def test_new_nodes_hold_all_that_is_asked_for_and_none_is_overfull(classes: list[PodClass]) -> None:
    order = packing._gpu_first(packing._merge(classes), TEMPLATE)
    layout = packing._Layout(TEMPLATE, order)
    waiting = [(layout.need(kind), kind.count) for kind in order if not layout.never(kind, layout.need(kind))]
    asked = [0] * len(layout.empty)
    for need, count in waiting:
        for at, amount in need.whole:
            asked[at] += amount * count
    plans = [packing._new_nodes(waiting, layout), packing._node_by_node(waiting, layout.empty)]
    for plan in plans:
        used = [sum((e - g.free[at]) * g.count for g in plan) for at, e in enumerate(layout.empty)]
        assert used == asked
        assert all(amount >= 0 for group in plan for amount in group.free)


@settings(max_examples=100, deadline=None)
@given(classes_of_pods, live_bins)
def test_it_never_goes_below_the_lower_bound_and_counts_the_gpus_that_stay_free(
    classes: list[PodClass], bins: list[Bin]
) -> None:
    result = pack(classes, TEMPLATE, bins)
    asked = sum(kind.requests[GPU] * kind.count for kind in classes)
    asked -= sum(fault.pods.requests[GPU] * fault.pods.count for fault in result.never_fit)
    offered = sum(b.free[GPU] for b in bins) + result.new_nodes * 8000
    assert (sum(result.spare_gpus.values()) + result.spare_gpus_on_new) * 1000 == offered - asked
    if not bins and not result.never_fit:
        assert result.new_nodes >= lower_bound(classes, TEMPLATE)


@settings(max_examples=100, deadline=None)
@given(classes_of_pods, st.randoms(use_true_random=False))
def test_the_order_in_which_classes_are_named_does_not_matter(classes: list[PodClass], rng: object) -> None:
    shuffled = list(classes)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert pack(shuffled, TEMPLATE).new_nodes == pack(classes, TEMPLATE).new_nodes


def test_pods_with_many_gpus_are_not_locked_out_by_cpu_heavy_ones() -> None:
    mixed = [pods(1000, 40_000, 16), pods(8000, 8000, 4), pods(4000, 8000, 4)]
    assert pack(mixed, TEMPLATE).new_nodes == lower_bound(mixed, TEMPLATE) + 4


def test_nodes_are_filled_one_by_one_where_that_needs_fewer() -> None:
    mixed = [pods(4000, 8000, 4), pods(3000, 72_000, 4), pods(1000, 16_000, 4)]
    order = packing._gpu_first(packing._merge(mixed), TEMPLATE)
    assert first_fit(order, [])[0] > pack(mixed, TEMPLATE).new_nodes == 4


def test_first_fit_wins_where_filling_nodes_one_by_one_needs_more() -> None:
    mixed = [pods(5000, 16_000, 3), pods(3000, 48_000, 3)]
    needs = [packing._Layout(TEMPLATE, mixed).need(kind) for kind in mixed]
    by_node = packing._node_by_node([(need, 3) for need in needs], packing._Layout(TEMPLATE, mixed).empty)
    assert sum(group.count for group in by_node) > pack(mixed, TEMPLATE).new_nodes == first_fit(mixed, [])[0] == 3


@pytest.mark.parametrize(("share", "count", "nodes"), [(300, 5, 2), (600, 3, 3), (500, 4, 2), (250, 9, 3), (999, 2, 2)])
def test_shares_of_a_gpu_are_never_summed_across_devices(share: int, count: int, nodes: int) -> None:
    single = NodeTemplate({GPU: 1000})
    assert pack([PodClass({GPU: share}, count)], single).new_nodes == nodes


def test_shares_and_whole_gpus_live_on_one_node_but_not_on_one_device() -> None:
    double = NodeTemplate({GPU: 2000})
    assert pack([PodClass({GPU: 1000}, 1), PodClass({GPU: 400}, 2)], double).new_nodes == 1
    assert pack([PodClass({GPU: 1000}, 1), PodClass({GPU: 400}, 3)], double).new_nodes == 2


def test_small_shares_fill_the_rest_of_devices_in_use() -> None:
    single = NodeTemplate({GPU: 1000})
    assert pack([PodClass({GPU: 600}, 2), PodClass({GPU: 400}, 2)], single).new_nodes == 2


def test_a_device_in_part_use_on_a_live_node_counts_as_used() -> None:
    live = [Bin("n1", {GPU: 1700})]
    result = pack([PodClass({GPU: 500}, 3)], NodeTemplate({GPU: 2000}), live)
    assert (result.placed, result.new_nodes) == ({"n1": 2}, 1)


def test_the_pods_that_a_node_may_run_limit_it() -> None:
    few = NodeTemplate({GPU: 8000, "pods": 3000})
    assert pack([PodClass({CPU: 100}, 7)], few).new_nodes == 3


def test_what_the_offer_does_not_name_limits_only_where_it_is_a_device() -> None:
    result = pack([PodClass({GPU: 1000, CPU: 500_000, "memory": 10**15}, 8)], NodeTemplate({GPU: 8000}))
    assert result.new_nodes == 1
    unfit = pack([PodClass({"rdma/hca": 1000}, 2, ("ml/a",))], TEMPLATE)
    assert (unfit.new_nodes, unfit.never_fit[0].reason) == (0, "needs 1 rdma/hca, a node has 0")


def test_memory_that_is_missing_is_named_in_gibibytes() -> None:
    small = NodeTemplate({GPU: 8000, "memory": 512 * 2**30 * 1000})
    unfit = pack([PodClass({"memory": 600 * 2**30 * 1000}, 1)], small)
    assert unfit.never_fit[0].reason == "needs 600Gi memory, a node has 512Gi"


def test_selectors_and_taints_decide_per_class_which_bins_are_open() -> None:
    bins = [
        Bin("a", {GPU: 8000}, {"zone": "a"}),
        Bin("b", {GPU: 8000}, {"zone": "b"}, (Taint("x", "y"),)),
    ]
    picky = PodClass({GPU: 8000}, 1, ("b-only",), {"zone": "b"}, (Toleration("x", "Equal", "y"),))
    barred = PodClass({GPU: 8000}, 1, ("no-taints",), {"zone": "b"})
    result = pack([barred, picky, PodClass({GPU: 4000}, 2, ("any",))], NodeTemplate({GPU: 8000}, {"zone": "a"}), bins)
    assert result.placed == {"a": 2, "b": 1}
    assert [fault.pods.names for fault in result.never_fit] == [("no-taints",)]


@pytest.mark.parametrize(
    ("toleration", "want"),
    [
        (Toleration(), False),
        (Toleration(operator="Exists"), True),
        (Toleration("k", "Exists"), True),
        (Toleration("k", "Equal", "v"), True),
        (Toleration("k", "Equal", "w"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("k", "Exists", effect="NoSchedule"), True),
        (Toleration("k", "Exists", effect="NoExecute"), False),
        (Toleration("k", "Exists", effect=""), True),
    ],
)
def test_tolerations_match_as_in_kubernetes(toleration: Toleration, *, want: bool) -> None:
    assert tolerates(toleration, Taint("k", "v", "NoSchedule")) is want


def test_a_preference_bars_nobody() -> None:
    soft = NodeTemplate({GPU: 8000}, taints=(Taint("k", "v", "PreferNoSchedule"),))
    assert pack([PodClass({GPU: 1000}, 1)], soft).new_nodes == 1


def test_nothing_to_place_needs_nothing() -> None:
    assert pack([], TEMPLATE) == Packing()
    assert pack([PodClass({GPU: 1000}, 0)], TEMPLATE).new_nodes == 0
