"""The workload half of one pass: each scaler's target is observed, decided on and resized, apart from all others.

Why it exists: what belongs to one object (its parsed spec, its memory, its fault) is held here, so that the loop only
orders the steps and one object's fault ends as that object's condition.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from controller.act import Actor, Result, Subject, Wrote
from controller.core.behavior import resumed
from controller.core.decide import decide
from controller.core.model import Condition, Decision, Memory, Observation, Policy, Reason, VictimOrder
from controller.facts import PodFacts, TargetFacts
from controller.labels import PodIndex, Selector, parse_selector
from controller.observe import Sources, asks, observe_workload
from controller.observe_pool import Planned
from controller.ownership import Claim, contested, hpa_owners, owned, rivals
from controller.policy import PolicyDefaults, victim_order, workload_policy
from controller.registry import Entry
from controller.reports import Outcome, Reports, after_write, inactive
from controller.resources import GPUWorkloadScaler, Invalid, parse_workload_scaler
from controller.sources.prometheus import Ask
from controller.status import Document, load_memory, texts_alike, workload_document
from controller.victim_marks import NO_MARKS, VictimMarks, victim_marks
from controller.view import WORKLOADS, MissingTarget, TargetKey, View, target_key

log = logging.getLogger(__name__)

KIND = WORKLOADS.kind


@dataclass(frozen=True, slots=True)
class _Said:
    """What was last reported of a decision: its gist, its values as text, its newest recommendation's time.

    A document costs ten times what a decision costs, and most decisions say what the last one said.
    """

    gist: tuple[object, ...]
    values: str
    newest: float

    def alike(self, other: "_Said", refresh_seconds: float) -> bool:
        """Tell whether the values are close enough, and the memory young enough, to say nothing."""
        return texts_alike(self.values, other.values) and other.newest - self.newest <= refresh_seconds


@dataclass(slots=True)
class _Kept:
    """What is kept of one scaler between passes."""

    generation: int
    scaler: GPUWorkloadScaler | Invalid
    policy: Policy | None
    memory: Memory | None
    loaded: bool = False
    said: _Said | None = None
    blind: bool = False
    """No size could be told when it was last looked at, or nobody looked: that time counts in no window."""

    def remembered(self, now: float) -> Memory | None:
        """Give the memory to decide with."""
        return resumed(self.memory, now) if self.blind and self.memory is not None else self.memory


@dataclass(frozen=True, slots=True)
class Workload:
    """One valid scaler in this pass."""

    subject: Subject
    scaler: GPUWorkloadScaler
    policy: Policy
    kept: _Kept

    @property
    def target(self) -> TargetKey:
        """The object to scale."""
        return target_key(self.scaler.namespace, self.scaler.spec.scale_target_ref)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about one workload in this pass."""

    workload: Workload
    decision: Decision
    observation: Observation
    acts: bool
    marks: VictimMarks = NO_MARKS
    planned: Planned | None = None

    @property
    def resizes(self) -> bool:
        """The size is to be written."""
        return self.acts and self.decision.desired != self.observation.replicas


@dataclass(frozen=True, slots=True)
class _Held:
    """Why nothing could be decided: the condition that says so."""

    condition: Condition


class WorkloadRound:
    """All GPUWorkloadScalers."""

    def __init__(
        self,
        view: View,
        actor: Actor,
        reports: Reports,
        defaults: PolicyDefaults,
        clock: Callable[[], float],
    ) -> None:
        self._view = view
        self._actor = actor
        self._reports = reports
        self._defaults = defaults
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def forget_all(self) -> None:
        """Drop all memory: another process leads, and its memory, kept in status, counts."""
        self._kept.clear()
        self._reports.forget_gone(set())

    def missed(self) -> None:
        """Note that a pass decided nothing."""
        for kept in self._kept.values():
            kept.blind = True

    def begin(self) -> list[Workload]:
        """Take the scalers of this pass that are valid and not off; the faults of the others go to their status."""
        entries = self._view.registry.scalers[KIND].entries
        for uid in self._reports.forget_gone({entry.uid for entry in entries.values()}):
            self._kept.pop(uid, None)
        found = []
        for (namespace, name), entry in list(entries.items()):
            if not entry.deleting:
                workload = self._taken(Subject(WORKLOADS, namespace, name, entry.uid), entry)
                if workload is not None and workload.scaler.spec.mode != "Off":
                    found.append(workload)
                elif entry.uid in self._kept:
                    self._kept[entry.uid].blind = True
        return found

    def asks(self, workloads: Sequence[Workload]) -> list[Ask]:
        """List the queries that this pass needs."""
        return list(chain.from_iterable(asks(workload.scaler.spec) for workload in workloads))

    async def targets(self, workloads: Sequence[Workload]) -> dict[TargetKey, TargetFacts | MissingTarget]:
        """Read the size of every target."""
        return await self._view.targets(
            (workload.target, workload.scaler.spec.scale_target_ref.api_version) for workload in workloads
        )

    def plan(
        self,
        workloads: Sequence[Workload],
        targets: Mapping[TargetKey, TargetFacts | MissingTarget],
        sources: Sources,
        index: PodIndex,
    ) -> list[Plan]:
        """Decide on every workload. One that can't be decided on gets its condition and no plan."""
        in_the_way = self._rivals(workloads)
        plans = []
        for workload in workloads:
            rival = in_the_way.get(workload.subject.uid)
            try:
                plan = self._plan(workload, targets[workload.target], sources, index, rival)
            except Exception as fault:  # one object's fault, whatever it is, must stay that object's
                log.exception("%s could not be evaluated", workload.subject)
                self._fault(workload, fault)
                continue
            if isinstance(plan, _Held):
                self._hold(workload, plan.condition)
            else:
                plans.append(plan)
        return plans

    async def perform(self, plans: Sequence[Plan]) -> None:
        """Write the sizes, then hand the status over to the desk and tell of new holds."""
        await asyncio.gather(*(self._performed(plan) for plan in plans))
        self._reports.tell_news()

    def _hold(self, workload: Workload, condition: Condition) -> None:
        kept, scaler = workload.kept, workload.scaler
        kept.said, kept.blind = None, True
        self._reports.hold(workload.subject, scaler.status, scaler.generation, condition)

    def _fault(self, workload: Workload, fault: Exception) -> None:
        kept, scaler = workload.kept, workload.scaler
        kept.said, kept.blind = None, True
        self._reports.fault(workload.subject, scaler.status, scaler.generation, fault)

    def _taken(self, subject: Subject, entry: Entry) -> Workload | None:
        try:
            return self._workload(subject, entry)
        except Exception as fault:  # a spec or status that nothing here was made for must not stop the others
            log.exception("%s could not be read", subject)
            self._reports.fault(subject, entry.manifest["status"], entry.generation, fault)
            return None

    def _workload(self, subject: Subject, entry: Entry) -> Workload | None:
        kept = self._kept.get(entry.uid)
        if kept is None or kept.generation != entry.generation:
            kept = self._kept[entry.uid] = self._parsed(entry, kept)
        if isinstance(kept.scaler, Invalid) or kept.policy is None:
            faults = "; ".join(f"{fault.path}: {fault.message}" for fault in getattr(kept.scaler, "faults", ()))
            invalid = inactive(Reason.INVALID_SPEC, faults)
            self._reports.hold(subject, entry.manifest["status"], entry.generation, invalid)
            return None
        if not kept.loaded:
            document = self._reports.latest(subject, entry.manifest["status"])
            kept.memory, kept.loaded = load_memory(document, self._clock()), True
        return Workload(subject, kept.scaler, kept.policy, kept)

    def _parsed(self, entry: Entry, before: _Kept | None) -> _Kept:
        scaler: GPUWorkloadScaler | Invalid
        policy = None
        try:
            scaler = parse_workload_scaler(entry.manifest)
            policy = workload_policy(scaler.spec, self._defaults)
        except Invalid as invalid:
            scaler = invalid
        if before is None:
            return _Kept(entry.generation, scaler, policy, None)
        return replace(before, generation=entry.generation, scaler=scaler, policy=policy, said=None)

    def _rivals(self, workloads: Sequence[Workload]) -> dict[str, str]:
        claims = [
            Claim(workload.subject.uid, str(workload.subject), workload.scaler.created, workload.target)
            for workload in workloads
            if workload.scaler.spec.mode == "Active"
        ]
        return rivals(claims, hpa_owners(self._view.hpas()))

    def _plan(
        self,
        workload: Workload,
        target: TargetFacts | MissingTarget,
        sources: Sources,
        index: PodIndex,
        rival: str | None,
    ) -> Plan | _Held:
        if rival is not None:
            return _Held(contested(rival))
        if isinstance(target, MissingTarget):
            return _Held(Condition("AbleToScale", "False", Reason.FAILED_GET_SCALE, target.why))
        selector = _selector(target)
        if isinstance(selector, _Held):
            return selector
        pods = index.selected(workload.scaler.namespace, selector)
        now = self._clock()
        observation = observe_workload(workload.scaler.spec, workload.policy, target, pods, sources, now)
        decision = decide(workload.policy, observation, workload.kept.remembered(now), now)
        workload.kept.blind = decision.trace.proposal is None
        acts = workload.scaler.spec.mode == "Active"
        return Plan(
            workload,
            decision,
            observation,
            acts,
            marks=victim_marks(pods, decision, target) if acts else NO_MARKS,
            planned=_planned(workload, decision, target, pods) if acts else None,
        )

    async def _performed(self, plan: Plan) -> None:
        try:
            await self._perform(plan)
        except Exception as fault:  # as in plan(): the writes of the others, and the pools, go on
            log.exception("%s could not be acted on", plan.workload.subject)
            self._fault(plan.workload, fault)

    async def _perform(self, plan: Plan) -> None:
        marked = await self._mark(plan)
        result = await self._resize(plan, marked) if plan.resizes else None
        if result is not None and result.wrote in (Wrote.NOT_LEADER, Wrote.CHANGED_MEANWHILE):
            plan.workload.kept.memory = plan.decision.memory_if_unwritten
            return
        await self._conclude(plan, result)

    async def _mark(self, plan: Plan) -> Result:
        """Name the victims: old marks come off first, or they would be victims too."""
        if victim_order(plan.workload.scaler.spec.scale_target_ref.kind) is not VictimOrder.OURS:
            return Result(Wrote.DONE)
        namespace, marks = plan.workload.scaler.namespace, plan.marks
        cleared = await self._actor.clear_victims(namespace, marks.clear) if marks.clear else Result(Wrote.DONE)
        if cleared.wrote is not Wrote.DONE or not marks.victims:
            return cleared
        return await self._actor.mark_victims(namespace, marks.victims)

    async def _resize(self, plan: Plan, marked: Result) -> Result:
        """Write the size. Where victims can't be named, only a promise to protect pods keeps it from being written."""
        scaler, decision, rules = plan.workload.scaler, plan.decision, plan.workload.policy.gpu
        shrinks = decision.desired < plan.observation.replicas
        if marked.wrote is Wrote.NOT_LEADER:
            return marked
        unnamed = shrinks and marked.wrote is not Wrote.DONE
        if unnamed and rules is not None and rules.protect_above_utilization is not None:
            return Result(Wrote.FAILED, f"busy pods can't be protected, as victims can't be marked: {marked.message}")
        ref = scaler.spec.scale_target_ref
        result = await self._actor.resize_workload(
            ref.api_version, ref.kind, scaler.namespace, ref.name, plan.observation.replicas, decision.desired
        )
        if unnamed and result.wrote is Wrote.DONE:
            return replace(result, message=f"the least busy pods could not be marked to go first: {marked.message}")
        return result

    async def _conclude(self, plan: Plan, result: Result | None) -> None:
        """Keep what the next decision needs, and report what was decided and what became of it."""
        decision, kept, subject = plan.decision, plan.workload.kept, plan.workload.subject
        before = plan.observation.replicas
        written = result is not None and result.wrote is Wrote.DONE
        unwritten = decision.desired != before and not written
        kept.memory = decision.memory_if_unwritten if unwritten else decision.memory
        refresh_seconds = plan.workload.policy.downscale_stabilization_seconds / 2
        outcome = Outcome(decision.reason, decision.sentence, before, decision.desired, written, refresh_seconds)
        last, kept.said = kept.said, _said(plan)
        if result is None and last is not None and last.gist == kept.said.gist:
            quiet = last.alike(kept.said, refresh_seconds)
            kept.said = last if quiet else kept.said
            self._reports.repeated(subject, outcome, None if quiet else lambda: self._document(plan, result))
            return
        old = self._reports.latest(subject, plan.workload.scaler.status)
        self._reports.decided(subject, old, self._document(plan, result), outcome)

    def _document(self, plan: Plan, result: Result | None) -> Document:
        scaler, decision = plan.workload.scaler, plan.decision
        return workload_document(
            self._reports.latest(plan.workload.subject, scaler.status),
            decision,
            plan.observation,
            plan.workload.kept.memory or Memory(),
            self._reports.moment(scaler.generation),
            changed=result is not None and result.wrote is Wrote.DONE,
            more=[owned(), *after_write(result, decision.desired)],
        )


def _said(plan: Plan) -> _Said:
    decision, observation = plan.decision, plan.observation
    ready = sum(1 for pod in observation.pods if pod.ready and not pod.deleting)
    memory = plan.workload.kept.memory
    newest = memory.recommendations[-1][0] if memory is not None and memory.recommendations else 0.0
    gist = (
        plan.workload.scaler.generation,
        observation.replicas,
        decision.desired,
        decision.reason,
        decision.conditions,
    )
    traces = " ".join(f"{trace.current} {trace.proposal} {trace.error}" for trace in decision.trace.metrics)
    steps = " ".join(f"{step.stage} {step.before} {step.after}" for step in decision.trace.steps)
    return _Said(gist, f"{ready} {traces} {steps}", newest)


def _selector(target: TargetFacts) -> Selector | _Held:
    if not target.selector:
        return _Held(inactive(Reason.INVALID_SELECTOR, "the target's scale has no pod selector"))
    try:
        return parse_selector(target.selector)
    except ValueError as error:
        return _Held(inactive(Reason.INVALID_SELECTOR, str(error)))


def _planned(workload: Workload, decision: Decision, target: TargetFacts, pods: Sequence[PodFacts]) -> Planned | None:
    """Say which pods this decision adds that don't exist yet. A target without a template is like its pods."""
    alive = [pod for pod in pods if not pod.ended and not pod.deleting]
    count = decision.desired - len(alive)
    shape = target.shape if target.shape.requests else next((pod.shape for pod in alive), target.shape)
    if count <= 0 or not shape.gpus:
        return None
    return Planned(f"{workload.target[2]} {workload.scaler.namespace}/{workload.target[3]}", shape, count)
