"""The GPUs' processes -> the containers they belong to, and containers that have ended -> gone.

Why it exists: the kubelet tells who was given a GPU, not who uses it; on a shared GPU only the processes tell that.
It also lists pods that have ended for a long time. Where the host's processes can't be seen, the allocations stay as
the kubelet gives them, and why is said.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from exporter.cgroups import Named, Place, container_names, is_host_proc, live_pods, places, process_names, runs_in
from exporter.holdings import Holder, Holdings, holdings
from exporter.readings import Allocation, GpuReading, SourceState

SCAN_POLLS = 10
"""Once in so many polls each pod is looked at: whether it still lives, or came back."""

NO_HOST_PROC = SourceState(
    up=False,
    reason="no_host_proc",
    message="the host's processes can't be seen, GPUs that are shared can't be told apart: set hostPID: true, or mount "
    "the host's /proc and name it by --proc",
)
_UP = SourceState(up=True)
Where = Mapping[int, tuple[Place, ...] | None]
"""pid -> where it runs, outermost first; () = in no pod, None = there is no such process."""

# why a process is nobody's: labels of gpuscale_unresolved_processes
GONE = "gone"
NO_CONTAINER = "no_container"
UNKNOWN_CONTAINER = "unknown_container"


@dataclass(frozen=True, slots=True)
class Matched:
    """The allocations with what the processes tell: pids where they are known, and without pods that have ended."""

    allocations: tuple[Allocation, ...] | None
    state: SourceState
    unresolved: Mapping[str, int] = field(default_factory=dict)
    owners: Mapping[int, Holder] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    """pid -> what the kernel calls the process."""
    who: Holdings | None = None
    """The holdings of these allocations, where matching had to find them."""


class ProcessOwners:
    """Matches by the cgroups in ``proc`` and the names in ``container_logs`` (/var/log/containers)."""

    def __init__(
        self, proc: Path, container_logs: Path, deadline_seconds: float, *, names_wanted: bool = False
    ) -> None:
        self._proc = proc
        self._logs = container_logs
        self._deadline = deadline_seconds
        self._names_wanted = names_wanted
        self._running: asyncio.Future[Matched] | None = None
        self._names: Mapping[str, Named] = {}
        self._signs: object | None = None
        self._held_of: object = None
        self._held = Holdings()
        self._live: dict[str, int] = {}
        self._ended: frozenset[str] = frozenset()
        self._polls_to_scan = 0

    def signs(self) -> object | None:
        """Return what is unequal to before whenever containers or their processes have changed; None = not known."""
        return self._signs

    async def match(self, gpus: tuple[GpuReading, ...], allocations: tuple[Allocation, ...] | None) -> Matched:
        """Never raises, never blocks the loop, ends within the deadline."""
        timeout = SourceState(up=False, reason="timeout", message=f"{self._proc} does not answer")
        if self._running and not self._running.done():
            return Matched(allocations, timeout)
        self._running = asyncio.ensure_future(asyncio.to_thread(self._match, gpus, allocations))
        done, _ = await asyncio.wait({self._running}, timeout=self._deadline)
        if not done:
            return Matched(allocations, timeout)
        error = self._running.exception()
        if error is None:
            return self._running.result()
        state = SourceState(up=False, reason="failed", message=f"the host's processes can't be matched: {error}")
        return Matched(allocations, state)

    def _match(self, gpus: tuple[GpuReading, ...], allocations: tuple[Allocation, ...] | None) -> Matched:
        pids = {process.pid for gpu in gpus for process in gpu.processes or ()}
        names, unnamed = self._look_up_names()
        # containers come and go before the eyes of who cannot see their processes, too
        self._signs = None if unnamed else (names, pids)
        if not is_host_proc(self._proc):
            return Matched(allocations, NO_HOST_PROC, {NO_HOST_PROC.reason: len(pids)} if pids else {})
        where = places(self._proc, pids)
        called = process_names(self._proc, pids) if self._names_wanted else {}
        if unnamed:
            return Matched(allocations, unnamed, _unresolved(where, {}), names=called)
        owner = owners(where, names)
        unresolved = _unresolved(where, owner)
        if allocations is None:
            return Matched(None, _UP, unresolved, owner, called)
        present = self._without_ended(allocations, names, where)
        current = {id_: name for id_, name in names.items() if name.pod_uid in self._live}
        who = self._holdings(present, gpus)
        told = pids_of(who, gpus, owner, current.values())
        return Matched(with_pids(present, told), _UP, unresolved, owner, called, who.with_pids(told))

    def _look_up_names(self) -> tuple[Mapping[str, Named], SourceState | None]:
        """Return the containers' names by id, or why there are none."""
        try:
            self._names = container_names(self._logs, self._names)
        except OSError as error:
            message = f"{self._logs}: {error.strerror}: mount it to tell processes by container, and pods that ended"
            return {}, SourceState(up=False, reason="no_container_names", message=message)
        return self._names, None

    def _holdings(self, allocations: tuple[Allocation, ...], gpus: tuple[GpuReading, ...]) -> Holdings:
        """Find who holds what, or say again what was found where nothing has changed that it follows from."""
        of = (
            allocations,
            tuple((gpu.uuid, gpu.index, gpu.fault, gpu.facts.get("minor_number"), gpu.mig) for gpu in gpus),
        )
        if of != self._held_of:
            self._held_of, self._held = of, holdings(allocations, gpus)
        self._held = self._held.told_of({gpu.uuid: gpu for gpu in gpus})
        return self._held

    def _without_ended(
        self, allocations: tuple[Allocation, ...], names: Mapping[str, Named], where: Where
    ) -> tuple[Allocation, ...]:
        uids: dict[tuple[str, str], set[str]] = {}
        for name in names.values():
            if name.pod_uid:
                uids.setdefault((name.namespace, name.pod), set()).add(name.pod_uid)
        held = {uid for a in allocations for uid in uids.get((a.namespace, a.pod), ())}
        self._look(held, {place.pod_uid: pid for pid, nested in where.items() for place in nested or ()})
        return tuple(a for a in allocations if not _has_ended(uids.get((a.namespace, a.pod)), self._live.keys()))

    def _look(self, held: set[str], seen: Mapping[str, int]) -> None:
        """Find which of these pods live. seen: those of which a process was just seen."""
        self._live |= seen
        self._polls_to_scan -= 1
        if self._polls_to_scan > 0 and not held - self._live.keys() - self._ended:
            return
        self._polls_to_scan = SCAN_POLLS
        still = {uid: pid for uid, pid in self._live.items() if uid in held and runs_in(self._proc, pid, uid)}
        # a pod may have begun since the last look: before one is called ended, all processes are looked at
        self._live = still if still.keys() >= held else live_pods(self._proc)
        self._ended = frozenset(held - self._live.keys())


def _has_ended(uids: set[str] | None, live: Set[str]) -> bool:
    return uids is not None and not uids & live


def owners(where: Where, names: Mapping[str, Named]) -> dict[int, Holder]:
    """PURE: pid -> the container it runs in, for those that run in a container with a name."""
    found: dict[int, Holder] = {}
    for pid, nested in where.items():
        named = next((names[place.container_id] for place in nested or () if place.container_id in names), None)
        if named:
            found[pid] = (named.namespace, named.pod, named.container)
    return found


def with_names(gpus: tuple[GpuReading, ...], matched: Matched) -> tuple[GpuReading, ...]:
    """PURE: give the processes that have no name the kernel's; from another pid namespace none has one.

    There the driver, too, looks a pid up that may belong to somebody else.
    """
    if matched.state.reason != NO_HOST_PROC.reason and not matched.names:
        return gpus
    foreign = matched.state.reason == NO_HOST_PROC.reason
    return tuple(_with_names(gpu, matched.names, keep=not foreign) for gpu in gpus)


def _with_names(gpu: GpuReading, names: Mapping[int, str], *, keep: bool) -> GpuReading:
    if not gpu.processes:
        return gpu
    called = (dataclasses.replace(p, name=(keep and p.name) or names.get(p.pid, "")) for p in gpu.processes)
    return dataclasses.replace(gpu, processes=tuple(called))


def pids_of(
    who: Holdings, gpus: tuple[GpuReading, ...], owner: Mapping[int, Holder], named: Iterable[Named]
) -> dict[Holder, tuple[int, ...]]:
    """PURE: the processes of each container of which it is certain that these are all.

    A container without a process of its own on a GPU where a process of nobody who holds it runs may be working
    through that one, as under MPS: of such a container nothing is said.
    """
    known = {(name.namespace, name.pod, name.container) for name in named} - _doubtful(who, gpus, owner)
    mine: dict[Holder, list[int]] = {holder: [] for holder in known}
    for pid, holder in owner.items():
        if holder in mine:
            mine[holder].append(pid)
    return {holder: tuple(pids) for holder, pids in mine.items()}


def with_pids(allocations: tuple[Allocation, ...], pids: Mapping[Holder, tuple[int, ...]]) -> tuple[Allocation, ...]:
    """PURE: tell each container its processes, where they are known."""
    return tuple(
        Allocation(*holder, a.resource, a.device_ids, pids[holder])
        if (holder := (a.namespace, a.pod, a.container)) in pids
        else a
        for a in allocations
    )


def _doubtful(who: Holdings, gpus: tuple[GpuReading, ...], owner: Mapping[int, Holder]) -> set[Holder]:
    holders: dict[str, set[Holder]] = {}
    for one in who.held:
        holders.setdefault(one.gpu.uuid, set()).add(one.holder)
    found: set[Holder] = set()
    for gpu in gpus:
        here = {owner.get(process.pid) for process in gpu.processes or ()}
        may_hold = holders.get(gpu.uuid, set())
        if here - may_hold:
            found |= may_hold - here
    return found


def _unresolved(where: Where, owner: Mapping[int, Holder]) -> dict[str, int]:
    return dict(Counter(_why(nested) for pid, nested in where.items() if pid not in owner))


def _why(nested: tuple[Place, ...] | None) -> str:
    if nested is None:
        return GONE
    return UNKNOWN_CONTAINER if nested else NO_CONTAINER
