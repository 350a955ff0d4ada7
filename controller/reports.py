"""What is said about scalers, in all three places: status, the operator's metrics, Events.

Why it exists: workloads and pools are decided on differently but reported alike, and the same word must stand in
condition, Event and metric.
"""

from collections.abc import Callable
from dataclasses import dataclass

from controller.act import Actor, Result, Subject, Wrote
from controller.core.model import Condition, Reason
from controller.status import Document, Moment, faults_of, held_document, new_faults
from controller.status_desk import StatusDesk
from controller.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision and what became of it. ``refresh_seconds``: how old the kept memory may get."""

    reason: Reason
    sentence: str
    before: int
    desired: int
    written: bool
    refresh_seconds: float = 60.0


class Reports:
    """The reports about all scalers of one kind."""

    def __init__(
        self, kind: str, actor: Actor, desk: StatusDesk, telemetry: Telemetry, clock: Callable[[], float]
    ) -> None:
        self._kind = kind
        self._actor = actor
        self._desk = desk
        self._telemetry = telemetry
        self._clock = clock
        self._subjects: dict[str, Subject] = {}
        self._news: list[tuple[Subject, str, str]] = []

    def latest(self, subject: Subject, on_server: Document) -> Document:
        """Give the newest status of a scaler; that of the server where this process has made none yet."""
        self._subjects[subject.uid] = subject
        return self._desk.latest(subject, on_server)

    def moment(self, generation: int) -> Moment:
        """Give the present moment for a document."""
        return Moment(self._clock(), generation)

    def hold(self, subject: Subject, on_server: Document, generation: int, condition: Condition) -> None:
        """Report that nothing could be decided, and why."""
        old = self.latest(subject, on_server)
        document = held_document(old, [condition], condition.reason, condition.message, self.moment(generation))
        self._telemetry.held(self._kind, condition.reason.value)
        self._offer(subject, old, document)

    def fault(self, subject: Subject, on_server: Document, generation: int, fault: Exception) -> None:
        """Report that the evaluation of one object failed unexpectedly."""
        self._telemetry.fault(self._kind)
        message = f"{type(fault).__name__}: {fault}"
        self.hold(subject, on_server, generation, inactive(Reason.DECISION_FAILED, message))

    def decided(self, subject: Subject, old: Document, document: Document, outcome: Outcome) -> None:
        """Report a decision; a change that was written gets an Event."""
        self._telemetry.decided(
            self._kind, subject.namespace, subject.name, outcome.reason.value, outcome.before, outcome.desired
        )
        self._offer(subject, old, document, outcome.refresh_seconds)
        if outcome.written:
            message = f"{outcome.before} -> {outcome.desired}: {outcome.sentence}"
            self._actor.tell_soon(subject, outcome.reason, message)

    def repeated(self, subject: Subject, outcome: Outcome, make: Callable[[], Document] | None) -> None:
        """Report a decision that says what the last one said; ``make`` gives its document where values moved."""
        self._telemetry.decided(
            self._kind, subject.namespace, subject.name, outcome.reason.value, outcome.before, outcome.desired
        )
        if make is not None:
            self._desk.postpone(subject, make)

    def tell_news(self) -> None:
        """Post a warning for each condition that has just become bad."""
        news, self._news = self._news, []
        for subject, reason, message in news:
            self._actor.tell_soon(subject, Reason(reason), message, warning=True)

    def forget_gone(self, present: set[str]) -> list[str]:
        """End the reports about scalers that are gone; gives their uids."""
        gone = [uid for uid in self._subjects if uid not in present]
        for uid in gone:
            subject = self._subjects.pop(uid)
            self._desk.forget(uid)
            self._telemetry.forget(self._kind, subject.namespace, subject.name)
        return gone

    def _offer(self, subject: Subject, old: Document, document: Document, refresh_seconds: float = 60.0) -> None:
        self._desk.offer(subject, document, refresh_seconds)
        faults = [(fault.condition, fault.reason) for fault in faults_of(document)]
        self._telemetry.held_back(self._kind, subject.namespace, subject.name, faults)
        self._news += [(subject, fault.reason, fault.message) for fault in new_faults(old, document)]


def inactive(reason: Reason, message: str) -> Condition:
    """Give ScalingActive=False."""
    return Condition("ScalingActive", "False", reason, message)


def after_write(result: Result | None, desired: int) -> list[Condition]:
    """Say what became of the write of a size; nothing where none was tried."""
    if result is None:
        return []
    if result.wrote is Wrote.DONE:
        text = f"the size was set to {desired}" + (f"; {result.message}" if result.message else "")
        return [Condition("AbleToScale", "True", Reason.SUCCEEDED_RESCALE, text)]
    return [Condition("AbleToScale", "False", Reason.FAILED_UPDATE_SCALE, result.message)]
