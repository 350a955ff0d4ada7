"""What is written, in which order, and what is not: the actor, the status desk, ownership."""

from collections.abc import Callable
from typing import Any

import pytest

from controller.act import Actor, Subject, Wrote
from controller.cluster import Conflict, Kind, Object, Scale, Unreachable
from controller.core.model import Reason
from controller.facts import HpaFacts
from controller.ownership import Claim, hpa_owners, rivals
from controller.pool_spec import PoolRef, VictimMark
from controller.pools.known import known_providers
from controller.pools.scale import ScaleProvider
from controller.status import Document
from controller.status_desk import StatusDesk
from controller.victim_marks import is_our_cost
from controller.view import WORKLOADS

SUBJECT = Subject(WORKLOADS, "ml", "llm", "uid-1")
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", namespaced=True)


class FakeCluster:
    """Holds one size and notes every write; ``fails`` raises at each write."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.calls: list[str] = []
        self.bodies: list[Any] = []
        self.fails: Exception | None = None
        self.between: Callable[[], None] = lambda: None

    async def resolve(self, _api_version: str, _kind: str) -> Kind:
        return DEPLOYMENT

    async def get_scale(self, _kind: Kind, _name: str, _namespace: str | None) -> Scale:
        scale = Scale(self.size, self.size, "app=x", "7")
        self.between()
        return scale

    async def patch_scale(self, _kind: Kind, name: str, _ns: str | None, replicas: int, version: str) -> Scale:
        self._write(f"scale {name} {replicas} at {version}", None)
        self.size = replicas
        return Scale(replicas, replicas, "", "8")

    async def patch(self, kind: Kind, name: str, body: object, namespace: str | None = None, **more: str) -> Object:
        self._write(f"patch {kind.plural} {name} {more.get('subresource', '')}".strip(), body)
        return {}

    async def create(self, kind: Kind, obj: Object, namespace: str | None = None) -> Object:
        self._write(f"create {kind.plural} in {namespace}", obj)
        return obj

    def _write(self, call: str, body: object) -> None:
        if self.fails is not None:
            raise self.fails
        self.calls.append(call)
        self.bodies.append(body)


def actor(cluster: FakeCluster, leads: Callable[[], bool] = lambda: True) -> Actor:
    return Actor(cluster, leads, clock=lambda: 1000.0, monotonic=lambda: 0.0)  # type: ignore[arg-type]


async def resize(made: Actor, before: int = 4, after: int = 6) -> Wrote:
    return (await made.resize_workload("apps/v1", "Deployment", "ml", "llm", before, after)).wrote


async def test_a_size_is_sent_in_full_with_the_version_that_was_read() -> None:
    cluster = FakeCluster()
    assert await resize(actor(cluster)) is Wrote.DONE
    assert cluster.calls == ["scale llm 6 at 7"]


async def test_a_size_that_changed_meanwhile_is_not_written() -> None:
    cluster = FakeCluster(size=9)
    assert await resize(actor(cluster)) is Wrote.CHANGED_MEANWHILE
    cluster = FakeCluster()
    cluster.fails = Conflict(409, "Conflict", "changed")
    assert await resize(actor(cluster)) is Wrote.CHANGED_MEANWHILE
    assert cluster.calls == []


async def test_an_error_is_an_outcome_with_its_sentence() -> None:
    cluster = FakeCluster()
    cluster.fails = Unreachable(0, "Unreachable", "no answer")
    result = await actor(cluster).resize_workload("apps/v1", "Deployment", "ml", "llm", 4, 6)
    assert (result.wrote, result.message) == (Wrote.FAILED, "Unreachable: no answer")


async def test_without_the_lead_nothing_is_written_at_all() -> None:
    cluster = FakeCluster()
    made = actor(cluster, lambda: False)
    mark = VictimMark(annotation="x/remove")
    provider = ScaleProvider(cluster, PoolRef(api_version="apps/v1", kind="Deployment", name="p"))  # type: ignore[arg-type]
    results = [
        await made.resize_workload("apps/v1", "Deployment", "ml", "llm", 4, 6),
        await made.resize_pool(provider, "p", 4, 6),
        await made.mark_victims("ml", ["a"]),
        await made.clear_victims("ml", ["a"]),
        await made.mark_node("n", mark, "p"),
        await made.release_node("n", mark),
        await made.write_status(SUBJECT, {}),
        await made.tell(SUBJECT, Reason.NO_ATTRIBUTION, "x"),
    ]
    assert {result.wrote for result in results} == {Wrote.NOT_LEADER}
    assert cluster.calls == []


@pytest.mark.parametrize("what", ["workload", "pool"])
async def test_a_lead_lost_between_read_and_write_stops_the_write(what: str) -> None:
    cluster, leads = FakeCluster(), [True]
    cluster.between = lambda: leads.clear()
    made = actor(cluster, lambda: bool(leads))
    provider = ScaleProvider(cluster, PoolRef(api_version="apps/v1", kind="Deployment", name="p"))  # type: ignore[arg-type]
    wrote = await resize(made) if what == "workload" else (await made.resize_pool(provider, "p", 4, 6)).wrote
    assert wrote is Wrote.NOT_LEADER
    assert cluster.calls == []


async def test_a_pool_is_resized_only_from_the_size_it_was_decided_from() -> None:
    cluster = FakeCluster(size=5)
    provider = known_providers()["scale"](cluster, PoolRef(api_version="apps/v1", kind="Deployment", name="p"))  # type: ignore[arg-type]
    assert (await provider.describe()).size == 5
    assert (await actor(cluster).resize_pool(provider, "p", 4, 6)).wrote is Wrote.CHANGED_MEANWHILE
    assert (await actor(cluster).resize_pool(provider, "p", 5, 6)).wrote is Wrote.DONE
    assert cluster.calls == ["scale p 6 at 7"]


async def test_victims_are_ordered_by_their_cost_and_a_users_own_cost_is_not_ours() -> None:
    cluster = FakeCluster()
    await actor(cluster).mark_victims("ml", ["a", "b"])
    costs = [body["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] for body in cluster.bodies]
    assert int(costs[0]) < int(costs[1]) < 0
    assert all(is_our_cost(cost) for cost in costs)
    assert not any(is_our_cost(cost) for cost in ("", "0", "-10", "1000", "lots"))


async def test_events_of_a_cluster_scoped_scaler_go_to_default_and_too_many_are_dropped() -> None:
    cluster = FakeCluster()
    made = actor(cluster)
    results = [await made.tell(Subject(WORKLOADS, "", "p", "u"), Reason.NO_ATTRIBUTION, str(n)) for n in range(60)]
    assert [result.wrote for result in results].count(Wrote.DONE) == 50
    assert cluster.calls[0] == "create events in default"
    assert len({body["metadata"]["name"] for body in cluster.bodies}) == 50


class Desk:
    """A desk on a fake cluster with a clock that a test turns."""

    def __init__(self, **limits: float) -> None:
        self.now = 0.0
        self.cluster = FakeCluster()
        self.desk = StatusDesk(actor(self.cluster), lambda: self.now, **limits)

    def offer(self, uid: str, value: float, reason: str = "A") -> None:
        subject = Subject(WORKLOADS, "ml", uid, uid)
        self.desk.latest(subject, {})
        self.desk.offer(subject, {"decision": {"reason": reason, "sentence": f"value {value}"}})

    async def written(self) -> list[str]:
        self.cluster.calls.clear()
        await self.desk.flush()
        return [call.split()[2] for call in self.cluster.calls]


async def test_what_matters_is_written_at_once_and_values_as_there_is_room_oldest_first() -> None:
    desk = Desk(values_per_second=1.0, burst=2.0)
    for uid in "abcd":
        desk.offer(uid, 1)
    assert await desk.written() == ["a", "b", "c", "d"]
    for moment, uid in enumerate("dcba"):
        desk.now = moment / 100
        desk.offer(uid, 2)
    assert await desk.written() == ["d", "c"]
    desk.offer("d", 3)
    desk.now = 1.5
    assert await desk.written() == ["b"]
    desk.offer("d", 3, reason="B")
    assert await desk.written() == ["d"]


async def test_a_value_that_came_back_is_not_written() -> None:
    desk = Desk(values_per_second=0.001, burst=1.0)
    desk.offer("a", 1)
    await desk.written()
    desk.offer("a", 9)
    desk.offer("a", 1)
    assert await desk.written() == []


async def test_a_postponed_document_is_made_only_when_there_is_room_and_never_displaces_what_matters() -> None:
    desk = Desk(values_per_second=1.0, burst=1.0)
    made: list[str] = []

    def maker(uid: str) -> Callable[[], Document]:
        def make() -> Document:
            made.append(uid)
            return {"decision": {"reason": "A", "sentence": f"{uid} made"}}

        return make

    for uid in "ab":
        desk.offer(uid, 1)
    await desk.written()
    for uid in "ab":
        desk.desk.postpone(Subject(WORKLOADS, "ml", uid, uid), maker(uid))
    desk.offer("c", 1)
    desk.desk.postpone(Subject(WORKLOADS, "ml", "c", "c"), maker("c"))
    assert await desk.written() == ["c", "a"]
    assert made == ["a"]


async def test_a_status_that_was_refused_is_sent_again_later_and_not_at_every_tick() -> None:
    desk = Desk()
    desk.offer("a", 1)
    desk.cluster.fails = Unreachable(0, "Unreachable", "down")
    assert await desk.written() == []
    desk.cluster.fails = None
    desk.offer("a", 1)
    assert await desk.written() == []
    desk.now = 5.1
    assert await desk.written() == ["a"]


def test_c07_the_older_scaler_owns_the_target_and_an_hpa_before_all() -> None:
    old, new = Claim("2", "old", "2026-01-01T00:00:00Z", "x"), Claim("1", "new", "2026-01-02T00:00:00Z", "x")
    other = Claim("3", "other", "2026-01-03T00:00:00Z", "y")
    assert rivals([new, old, other], {}) == {"1": "old"}
    assert rivals([new, old, other], {"x": "HPA"}) == {"1": "HPA", "2": "HPA"}


def test_an_hpa_of_another_api_version_of_the_group_is_the_same_target() -> None:
    assert hpa_owners([HpaFacts("ml", "h", "apps/v1beta1", "Deployment", "llm")]) == {
        ("ml", "apps", "Deployment", "llm"): "HorizontalPodAutoscaler ml/h"
    }
