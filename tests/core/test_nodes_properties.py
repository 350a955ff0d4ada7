"""What holds of every pool decision, whatever is observed, and of a pool that lives by them."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.nodes import decide_pool
from controller.core.pool_model import (
    Node,
    NodeTemplate,
    PodClass,
    PoolDecision,
    PoolMemory,
    PoolObservation,
    PoolPolicy,
)

GPU = "nvidia.com/gpu"
NOW = 50_000.0
TEMPLATE = NodeTemplate({GPU: 8000}, {"pool": "a"})

times = st.integers(0, 3000).map(lambda ago: NOW - ago)
pod_classes = st.lists(
    st.builds(lambda g, n: PodClass({GPU: g}, n, (f"ml/p{g}",)), st.sampled_from([500, 1000, 2000, 8000, 16_000]),
              st.integers(1, 12)),
    max_size=3,
).map(tuple)  # fmt: skip
nodes_of_pool = st.lists(
    st.builds(
        lambda gpus, used, created, ready, cordoned, marked, protected: Node(
            "", {GPU: gpus * 1000}, {GPU: min(used, gpus) * 1000}, 1 if used else 0, created, ready, cordoned, marked,
            protected, {"pool": "a"},
        ),
        st.sampled_from([8, 8, 8, 7, 0]), st.sampled_from([0, 0, 0, 1, 8]), times, st.sampled_from([True, True, False]),
        st.booleans(), st.booleans(), st.sampled_from([False, False, True]),
    ),
    max_size=7,
).map(lambda nodes: tuple(replace(node, name=f"n{i}") for i, node in enumerate(nodes)))  # fmt: skip
names = st.dictionaries(st.sampled_from([f"n{i}" for i in range(8)]), times, max_size=4)
policies = st.builds(
    lambda low, more, headroom, step, down, nameable: PoolPolicy(
        low, low + more, TEMPLATE, headroom, step, down, 600, 300, 900, nameable
    ),
    st.integers(0, 3), st.integers(0, 9), st.integers(0, 12), st.integers(0, 3), st.booleans(), st.booleans(),
)  # fmt: skip
observations = st.builds(
    lambda nodes, off, pending, planned: PoolObservation(max(0, len(nodes) + off), nodes, pending, planned),
    nodes_of_pool, st.sampled_from([0, 0, 0, -2, -1, 1, 3]), pod_classes, pod_classes,
)  # fmt: skip
memories = st.one_of(
    st.none(),
    st.builds(PoolMemory, names, names, names, st.one_of(st.none(), st.integers(0, 8)), st.one_of(st.none(), times)),
)

for_any_decision = settings(max_examples=100, deadline=None)


def is_idle(node: Node) -> bool:
    return node.pods == 0 and node.cordoned and node.marked and not node.protected


def by_name(observation: PoolObservation) -> dict[str, Node]:
    return {node.name: node for node in observation.nodes}


@for_any_decision
@given(policies, observations, memories)
def test_the_size_is_lowered_only_by_cordoned_empty_nodes_that_the_provider_will_take(
    policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory | None
) -> None:
    decision = decide_pool(policy, observation, memory, NOW)
    if decision.desired >= observation.size:
        return
    leaving = [n for n in observation.nodes if n.cordoned and n.pods == 0 and not n.protected]
    marked = [n for n in leaving if n.marked]
    assert len(observation.nodes) - decision.desired <= len(leaving)
    assert len(leaving) == len(observation.nodes) or len(marked) >= len(observation.nodes) - decision.desired
    assert all(n.pods == 0 and n.cordoned for n in observation.nodes if n.marked), (
        "the provider may take any marked one"
    )
    assert policy.scale_down_enabled
    assert decision.desired >= policy.min_nodes


@for_any_decision
@given(policies, observations, memories)
def test_the_size_is_never_lowered_nor_a_node_marked_while_pods_wait_that_fit(
    policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory | None
) -> None:
    decision = decide_pool(policy, observation, memory, NOW)
    if any(pods.requests[GPU] <= 8000 for pods in (*observation.pending, *observation.planned)):
        assert decision.desired >= observation.size
        assert decision.mark == ()


@for_any_decision
@given(policies, observations, memories)
def test_the_provider_never_finds_fewer_marked_nodes_than_it_is_to_remove(
    policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory | None
) -> None:
    decision = decide_pool(policy, observation, memory, NOW)
    to_remove = len(observation.nodes) - observation.size
    marked = {node.name for node in observation.nodes if node.marked}
    assert len(marked - set(decision.release)) >= min(to_remove, len(marked))


@for_any_decision
@given(policies, observations, memories)
def test_the_size_never_passes_the_maximum_by_growing(
    policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory | None
) -> None:
    decision = decide_pool(policy, observation, memory, NOW)
    in_use = [n for n in observation.nodes if n.name in decision.memory.lowered_at and not is_idle(n)]
    assert decision.desired <= max(policy.max_nodes, observation.size + len(in_use))


@for_any_decision
@given(policies, observations, memories)
def test_only_empty_unprotected_uncordoned_nodes_are_marked_and_only_where_that_helps(
    policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory | None
) -> None:
    decision = decide_pool(policy, observation, memory, NOW)
    nodes = by_name(observation)
    for name in decision.mark:
        node = nodes[name]
        assert (node.pods, node.protected, node.cordoned, node.marked) == (0, False, False, False)
        assert NOW - node.created_at >= policy.min_node_age_seconds
    if decision.mark:
        assert policy.nameable
        assert observation.size - len(decision.mark) >= policy.min_nodes
        assert decision.desired == observation.size


@for_any_decision
@given(policies, observations, memories)
def test_what_fits_is_never_below_what_is_asked_for_unless_a_limit_is_named(
    policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory | None
) -> None:
    decision = decide_pool(policy, observation, memory, NOW)
    limited = next(c for c in decision.conditions if c.type == "ScalingLimited")
    if limited.status == "True":
        return
    asked = sum(
        p.requests[GPU] * p.count for p in (*observation.pending, *observation.planned) if p.requests[GPU] <= 8000
    )
    room = sum(max(0, 8000 - n.requested.get(GPU, 0)) for n in observation.nodes)
    new = max(0, decision.desired - len(observation.nodes)) + len(observation.nodes)
    assert room + new * 8000 >= asked


@for_any_decision
@given(policies, observations, memories)
def test_every_pod_that_never_fits_is_named_and_no_other(
    policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory | None
) -> None:
    decision = decide_pool(policy, observation, memory, NOW)
    unfit = {p.names[0] for p in (*observation.pending, *observation.planned) if p.requests[GPU] > 8000}
    assert set(decision.trace.never_fit) == unfit


@for_any_decision
@given(policies, observations, memories)
def test_the_same_inputs_give_the_same_decision_with_a_sentence_and_a_memory_of_present_nodes(
    policy: PoolPolicy, observation: PoolObservation, memory: PoolMemory | None
) -> None:
    decision = decide_pool(policy, observation, memory, NOW)
    again = decide_pool(policy, replace(observation, nodes=tuple(reversed(observation.nodes))), memory, NOW)
    assert decision == again
    assert decision.sentence
    present = set(by_name(observation))
    kept = decision.memory
    assert {*kept.unneeded_since, *kept.marked_at, *kept.lowered_at} <= present
    assert not set(decision.release) & {*kept.marked_at, *kept.lowered_at}
    assert not set(decision.release) & set(decision.mark)


# --- a pool that lives by these decisions -------------------------------------------------------------------------


class Plant:
    """A provider that honours marks and orders nodes late, a scheduler, and pods that come and go."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  a repeatable one
        self.now = 0.0
        self.size = 0
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, list[int]] = {}
        self.pending: list[int] = []
        self.made = 0
        self.killed = 0

    def observe(self) -> PoolObservation:
        pending = tuple(PodClass({GPU: g}, self.pending.count(g), (f"ml/p{g}",)) for g in sorted(set(self.pending)))
        nodes = tuple(
            replace(node, requested={GPU: sum(self.pods[name])}, pods=len(self.pods[name]))
            for name, node in self.nodes.items()
        )
        return PoolObservation(self.size, nodes, pending)

    def apply(self, decision: PoolDecision) -> None:
        self.size = decision.desired
        for name in decision.release:
            self.nodes[name] = replace(self.nodes[name], cordoned=False, marked=False)
        for name in decision.mark:
            self.nodes[name] = replace(self.nodes[name], cordoned=True, marked=True)

    def live(self) -> None:
        self.now += 2
        self._load()
        self._schedule()
        self._provide()

    def _load(self) -> None:
        busy = self.now % 4000 < 2000
        if busy and self.rng.random() < 0.05:
            self.pending.append(self.rng.choice([1000, 2000, 4000, 8000]))
        for name in self.pods:
            if self.rng.random() < (0.001 if busy else 0.02):
                self.pods[name] = self.pods[name][1:]

    def _schedule(self) -> None:
        for gpus in list(self.pending):
            fits = [
                name
                for name, node in self.nodes.items()
                if node.allocatable[GPU] - sum(self.pods[name]) >= gpus and self._open(name)
            ]
            if fits:
                self.pending.remove(gpus)
                self.pods[self.rng.choice(fits)].append(gpus)

    def _open(self, name: str) -> bool:
        # now and then a bind that was under way lands on a node that has just been cordoned
        return not self.nodes[name].cordoned or self.rng.random() < 0.02

    def _provide(self) -> None:
        for name, node in self.nodes.items():
            if self.now - node.created_at > 60:
                self.nodes[name] = replace(node, allocatable={GPU: 8000})
        if len(self.nodes) < self.size and self.rng.random() < 0.1:
            self.made += 1
            name = f"n{self.made}"
            self.nodes[name] = Node(name, {GPU: 0}, {}, 0, self.now, labels={"pool": "a"})
            self.pods[name] = []
        if len(self.nodes) > self.size and self.rng.random() < 0.2:
            name = next((n for n, node in self.nodes.items() if node.marked), next(iter(self.nodes)))
            self.killed += len(self.pods[name])
            del self.nodes[name], self.pods[name]


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_follows_its_load_within_bounds_kills_no_pod_and_comes_to_rest(seed: int) -> None:
    plant = Plant(seed)
    policy = PoolPolicy(1, 12, TEMPLATE, 0, 4, True, 60, 120, 300, True)
    memory: PoolMemory | None = None
    largest, grew = 0, 0
    for _ in range(4000):
        decision = decide_pool(policy, plant.observe(), memory, plant.now)
        grew += decision.desired > plant.size
        memory = decision.memory
        plant.apply(decision)
        largest = max(largest, plant.size)
        plant.live()
    assert 1 < largest <= 12
    assert grew > 2
    assert plant.killed <= 1, "only a bind that races with the provider may be lost"
    assert (plant.size, plant.pending) == (1, [])


def restarts_at_random(rng: Random) -> Callable[[PoolMemory], PoolMemory | None]:
    return lambda memory: None if rng.random() < 0.02 else memory


@pytest.mark.parametrize("seed", range(3))
def test_a_controller_that_forgets_everything_now_and_then_still_removes_no_busy_node(seed: int) -> None:
    plant = Plant(100 + seed)
    forget = restarts_at_random(plant.rng)
    policy = PoolPolicy(0, 12, TEMPLATE, 4, 0, True, 20, 60, 300, True)
    memory: PoolMemory | None = None
    for _ in range(4000):
        decision = decide_pool(policy, plant.observe(), memory, plant.now)
        memory = forget(decision.memory)
        plant.apply(decision)
        plant.live()
    assert plant.killed <= 1
    assert plant.size >= 1
