"""The node-pool half of one pass: each pool is observed, decided on and resized, apart from all others.

Why it exists beside workload_round.py: a pool is resized through a provider, node by node; what is kept of it and how
a fault ends is the same.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.act import WRITE_SECONDS, Actor, Result, Subject, Wrote
from controller.cluster import POD, ApiError, Cluster
from controller.core.model import Condition, Reason
from controller.core.nodes import decide_pool
from controller.core.pool_model import NodeTemplate, PoolDecision, PoolMemory, PoolObservation
from controller.facts import NodeFacts, PodFacts, Shape, pod_facts
from controller.labels import PodIndex
from controller.observe_pool import Planned, fits_pool, learn_template, observe_pool, pool_nodes
from controller.ownership import Claim, contested, hpa_owners, owned, rivals, shares_node
from controller.policy import pool_policy
from controller.pool_spec import PoolRef
from controller.pools.known import known_providers
from controller.pools.scale import ScaleProvider
from controller.registry import Entry
from controller.reports import Outcome, Reports, after_write, inactive
from controller.resources import GPUNodePoolScaler, Invalid, parse_pool_scaler
from controller.status_pool import load_pool_memory, load_template, pool_document
from controller.telemetry import Telemetry
from controller.view import POOLS, READ_SECONDS, TargetKey, View

log = logging.getLogger(__name__)

KIND = POOLS.kind


@dataclass(slots=True)
class _Kept:
    """What is kept of one scaler between passes."""

    generation: int
    scaler: GPUNodePoolScaler | Invalid
    memory: PoolMemory | None = None
    learned: NodeTemplate | None = None
    loaded: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """One valid scaler in this pass, with its provider."""

    subject: Subject
    scaler: GPUNodePoolScaler
    kept: _Kept
    provider: ScaleProvider

    @property
    def acts(self) -> bool:
        """Whether it may write."""
        return self.scaler.spec.mode == "Active"


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What is to be done about one pool in this pass."""

    pool: Pool
    decision: PoolDecision
    observation: PoolObservation


@dataclass(frozen=True, slots=True)
class _Seen:
    """One pool as the plan begins: its size, nodes, template."""

    pool: Pool
    size: int
    nodes: list[NodeFacts]
    template: NodeTemplate | None


class PoolRound:
    """All GPUNodePoolScalers."""

    def __init__(
        self,
        view: View,
        cluster: Cluster,
        actor: Actor,
        reports: Reports,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._view = view
        self._cluster = cluster
        self._actor = actor
        self._reports = reports
        self._telemetry = telemetry
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._providers = known_providers()

    def forget_all(self) -> None:
        """Drop all memory: another process leads, and its memory, kept in status, counts."""
        self._kept.clear()
        self._reports.forget_gone(set())

    def begin(self) -> list[Pool]:
        """Take the scalers of this pass that are valid and not off; the faults of the others go to their status."""
        entries = self._view.registry.scalers[KIND].entries
        for uid in self._reports.forget_gone({entry.uid for entry in entries.values()}):
            self._kept.pop(uid, None)
        found = []
        for (_namespace, name), entry in sorted(entries.items()):
            if not entry.deleting:
                pool = self._taken(Subject(POOLS, "", name, entry.uid), entry)
                if pool is not None and pool.scaler.spec.mode != "Off":
                    found.append(pool)
        return found

    async def sizes(self, pools: Sequence[Pool]) -> dict[str, int | str]:
        """Read the size of every pool by uid, or why it can't be read."""
        found = await asyncio.gather(*(self._size(pool) for pool in pools))
        return {pool.subject.uid: size for pool, size in zip(pools, found, strict=True)}

    def plan(
        self, pools: Sequence[Pool], sizes: Mapping[str, int | str], index: PodIndex, planned: Sequence[Planned]
    ) -> list[PoolPlan]:
        """Decide on every pool. One that can't be decided on gets its condition and no plan."""
        in_the_way = self._rivals(pools)
        seen = []
        for pool in pools:
            size, rival = sizes[pool.subject.uid], in_the_way.get(pool.subject.uid)
            if rival is not None:
                self._hold(pool, contested(rival))
            elif isinstance(size, str):
                self._hold(pool, Condition("AbleToScale", "False", Reason.FAILED_GET_SCALE, size))
            elif (one := self._seen(pool, size, index)) is not None:
                seen.append(one)
        seen = self._apart(seen)
        self._telemetry.nodes(self._view.nodes(), {node.name: s.pool.subject.name for s in seen for node in s.nodes})
        shares = _shares(seen, index.waiting, planned)
        return [plan for one in seen if (plan := self._plan(one, index, *shares[one.pool.subject.uid])) is not None]

    async def perform(self, plans: Sequence[PoolPlan]) -> None:
        """Write marks and sizes, then hand the status over to the desk and tell of new holds."""
        await asyncio.gather(*(self._performed(plan) for plan in plans))
        self._reports.tell_news()

    def _taken(self, subject: Subject, entry: Entry) -> Pool | None:
        try:
            return self._pool(subject, entry)
        except Exception as fault:  # a spec or status that nothing here was made for must not stop the others
            log.exception("%s could not be read", subject)
            self._reports.fault(subject, entry.manifest["status"], entry.generation, fault)
            return None

    def _pool(self, subject: Subject, entry: Entry) -> Pool | None:
        kept = self._kept.get(entry.uid)
        if kept is None or kept.generation != entry.generation:
            kept = self._kept[entry.uid] = self._parsed(entry, kept)
        if isinstance(kept.scaler, Invalid):
            faults = "; ".join(f"{fault.path}: {fault.message}" for fault in kept.scaler.faults)
            invalid = inactive(Reason.INVALID_SPEC, faults)
            self._reports.hold(subject, entry.manifest["status"], entry.generation, invalid)
            return None
        if not kept.loaded:
            document = self._reports.latest(subject, entry.manifest["status"])
            kept.memory, kept.learned, kept.loaded = load_pool_memory(document), load_template(document), True
        return self._with_provider(subject, kept, kept.scaler)

    def _with_provider(self, subject: Subject, kept: _Kept, scaler: GPUNodePoolScaler) -> Pool | None:
        make = self._providers.get(scaler.spec.pool.provider)
        if make is None:
            known = ", ".join(sorted(self._providers)) or "none"
            why = f"spec.pool.provider: {scaler.spec.pool.provider!r} is not installed; known are: {known}"
            invalid = inactive(Reason.INVALID_SPEC, why)
            self._reports.hold(subject, scaler.status, scaler.generation, invalid)
            return None
        return Pool(subject, scaler, kept, make(self._cluster, scaler.spec.pool.ref))

    def _parsed(self, entry: Entry, before: _Kept | None) -> _Kept:
        try:
            scaler: GPUNodePoolScaler | Invalid = parse_pool_scaler(entry.manifest)
        except Invalid as invalid:
            scaler = invalid
        if before is None:
            return _Kept(entry.generation, scaler)
        return replace(before, generation=entry.generation, scaler=scaler)

    async def _size(self, pool: Pool) -> int | str:
        ref = pool.scaler.spec.pool.ref
        try:
            async with asyncio.timeout(READ_SECONDS):
                return (await pool.provider.describe()).size
        except TimeoutError:
            return f"{ref.kind} {ref.name} of {ref.api_version}: no answer within {READ_SECONDS:g} s"
        except ApiError as error:
            return f"{ref.kind} {ref.name} of {ref.api_version}: {error}"
        except Exception as fault:  # a provider can come from anybody, and its fault must stay its pool's
            log.exception("%s: its provider failed", pool.subject)
            return f"the provider failed: {type(fault).__name__}: {fault}"

    def _rivals(self, pools: Sequence[Pool]) -> dict[str, str]:
        claims = [
            Claim(pool.subject.uid, str(pool.subject), pool.scaler.created, _target(pool.scaler.spec.pool.ref))
            for pool in pools
            if pool.acts
        ]
        return rivals(claims, hpa_owners(self._view.hpas()))

    def _apart(self, seen: Sequence[_Seen]) -> list[_Seen]:
        """Hold every pool that shares nodes with an older one: each would take the other's nodes for its own."""
        apart, owners = [], dict[str, str]()
        for one in sorted(seen, key=lambda one: (one.pool.scaler.created, one.pool.subject.name)):
            shared = next((node.name for node in one.nodes if node.name in owners), None)
            if shared is not None and one.pool.acts:
                self._hold(one.pool, shares_node(owners[shared], shared))
                continue
            apart.append(one)
            if one.pool.acts:
                owners |= {node.name: str(one.pool.subject) for node in one.nodes}
        return sorted(apart, key=lambda one: one.pool.subject.name)

    def _seen(self, pool: Pool, size: int, index: PodIndex) -> _Seen | None:
        try:
            return self._look(pool, size, index)
        except Exception as fault:  # one object's fault, whatever it is, must stay that object's
            log.exception("%s could not be evaluated", pool.subject)
            self._fault(pool, fault)
            return None

    def _fault(self, pool: Pool, fault: Exception) -> None:
        self._reports.fault(pool.subject, pool.scaler.status, pool.scaler.generation, fault)

    def _look(self, pool: Pool, size: int, index: PodIndex) -> _Seen:
        nodes = pool_nodes(pool.scaler.spec, self._view.nodes())
        pool.kept.learned = learn_template(nodes, index) or pool.kept.learned
        return _Seen(pool, size, nodes, pool_policy(pool.scaler.spec, pool.kept.learned).template)

    def _plan(
        self, seen: _Seen, index: PodIndex, pending: Sequence[PodFacts], planned: Sequence[Planned]
    ) -> PoolPlan | None:
        pool = seen.pool
        try:
            observation = observe_pool(pool.scaler.spec, seen.size, seen.nodes, index, pending, planned)
            policy = pool_policy(pool.scaler.spec, pool.kept.learned)
            decision = decide_pool(policy, observation, pool.kept.memory, self._clock())
        except Exception as fault:  # as in _seen
            log.exception("%s could not be evaluated", pool.subject)
            self._fault(pool, fault)
            return None
        return PoolPlan(pool, decision, observation)

    async def _performed(self, plan: PoolPlan) -> None:
        try:
            await self._perform(plan)
        except Exception as fault:  # as in _seen
            log.exception("%s could not be acted on", plan.pool.subject)
            self._fault(plan.pool, fault)

    async def _perform(self, plan: PoolPlan) -> None:
        if not plan.pool.acts:
            await self._conclude(plan, None, marked=False)
            return
        marks = await self._mark_and_release(plan)
        if any(result.wrote is Wrote.NOT_LEADER for result in marks):
            return
        failed = next((result for result in marks if result.wrote is not Wrote.DONE), None)
        result = failed or await self._resize(plan)
        if result is not None and result.wrote in (Wrote.NOT_LEADER, Wrote.CHANGED_MEANWHILE):
            return
        await self._conclude(plan, result, marked=failed is None)

    async def _mark_and_release(self, plan: PoolPlan) -> list[Result]:
        mark, pool = plan.pool.scaler.spec.pool.victim_mark, plan.pool.subject.name
        if mark is None:
            return []
        released = await asyncio.gather(*(self._actor.release_node(name, mark) for name in plan.decision.release))
        marked = await asyncio.gather(*(self._actor.mark_node(name, mark, pool) for name in plan.decision.mark))
        return [*released, *marked]

    async def _resize(self, plan: PoolPlan) -> Result | None:
        before, after = plan.observation.size, plan.decision.desired
        if before == after:
            return None
        if after < before and (held := await self._still_held(plan)):
            return Result(Wrote.FAILED, held)
        return await self._actor.resize_pool(plan.pool.provider, plan.pool.subject.name, before, after)

    async def _still_held(self, plan: PoolPlan) -> str:
        """Say which pods are on the nodes that go, asked of the server itself: a copy can be behind, a node is gone."""
        marked = {node.name for node in plan.observation.nodes if node.marked}
        named = set(plan.decision.remove) <= marked
        nodes = plan.decision.remove if named else [node.name for node in plan.observation.nodes]
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                lists = await asyncio.gather(
                    *(self._cluster.list(POD, field_selector=f"spec.nodeName={node}") for node in nodes)
                )
        except (ApiError, TimeoutError) as error:
            return f"whether pods are on {', '.join(nodes)} can't be read: {error}"
        pods = (pod_facts(pod) for listing in lists for pod in listing.items)
        held = [f"{pod.namespace}/{pod.name} on {pod.node}" for pod in pods if pod.keeps_node and not pod.ended]
        return f"not empty any more: {', '.join(held[:3])}" if held else ""

    async def _conclude(self, plan: PoolPlan, result: Result | None, *, marked: bool) -> None:
        """Keep what the next decision needs, and report what was decided and what became of it."""
        pool, decision, before = plan.pool, plan.decision, plan.observation.size
        written = result is not None and result.wrote is Wrote.DONE
        sized = written or decision.desired == before
        pool.kept.memory = _memory(pool.kept.memory, decision, sized=sized, marked=marked)
        old = self._reports.latest(pool.subject, pool.scaler.status)
        document = pool_document(
            old,
            decision,
            plan.observation,
            pool.kept.memory,
            pool.kept.learned,
            self._reports.moment(pool.scaler.generation),
            changed=written,
            more=[owned(), *after_write(result, decision.desired)],
        )
        outcome = Outcome(decision.reason, decision.sentence, before, decision.desired, written)
        self._reports.decided(pool.subject, old, document, outcome)

    def _hold(self, pool: Pool, condition: Condition) -> None:
        self._reports.hold(pool.subject, pool.scaler.status, pool.scaler.generation, condition)


def _target(ref: PoolRef) -> TargetKey:
    """Name a pool's object so that two references to it are equal whatever version they use."""
    return ref.namespace or "", ref.api_version.rpartition("/")[0], ref.kind, ref.name


_Share = tuple[list[PodFacts], list[Planned]]


def _shares(seen: Sequence[_Seen], waiting: Sequence[PodFacts], planned: Sequence[Planned]) -> dict[str, _Share]:
    """Give each waiting or planned pod to one pool: two pools that could take it must not both grow for it."""
    shares: dict[str, _Share] = {one.pool.subject.uid: ([], []) for one in seen}
    chosen: dict[Shape, str | None] = {}
    for pod in waiting:
        if pod.shape not in chosen:
            chosen[pod.shape] = _home(seen, pod.shape)
        uid = chosen[pod.shape]
        if uid is not None:
            shares[uid][0].append(pod)
    for plan in planned:
        uid = _home(seen, plan.shape)
        if uid is not None:
            shares[uid][1].append(plan)
    return shares


def _home(seen: Sequence[_Seen], shape: Shape) -> str | None:
    """Choose the first pool by name that could take the shape and may still grow; else the first that could."""
    able = [one for one in seen if fits_pool(shape, one.pool.scaler.spec, one.template)]
    growing = [one for one in able if one.size < one.pool.scaler.spec.bounds.max]
    return next((one.pool.subject.uid for one in growing + able), None)


def _memory(old: PoolMemory | None, decision: PoolDecision, *, sized: bool, marked: bool) -> PoolMemory:
    """Remember only what was done: a size or marks that were not written are not there."""
    before = old or PoolMemory()
    memory = decision.memory
    if not sized:
        memory = replace(
            memory,
            size_changed_at=before.size_changed_at,
            lowered_at=before.lowered_at,
            lowered_to=before.lowered_to,
        )
    if not marked:
        memory = replace(memory, marked_at=before.marked_at)
    return memory
