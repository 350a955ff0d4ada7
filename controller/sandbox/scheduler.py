"""Which node a pending pod goes to, or the sentence why none will do.

Why it exists: the pool decision starts from what this writes (PodScheduled=False, reason Unschedulable, the message in
the words of the real scheduler), and a marked node is only safe because a cordon keeps new pods off it here too.
GPUs are packed: of the nodes that fit, the one with the fewest GPUs left wins.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.quantity import milli
from controller.sandbox.conditions import condition, conditions, holds, with_conditions
from controller.sandbox.kinds import NODES, PODS
from controller.sandbox.store import Store

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
UNREADABLE = 2**63 - 1
_REPELLING = {"NoSchedule", "NoExecute"}


@dataclass
class _Room:
    """A node and what is still free on it, in milli-units."""

    node: Object
    free: dict[str, int]

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])


@dataclass
class Scheduler:
    """Binds the pending pods of a store, oldest first."""

    store: Store

    def step(self, now: float) -> None:
        """Bind what fits, say of the rest why not."""
        pods = self.store.list(PODS)
        waiting = [pod for pod in pods if is_waiting(pod)]
        if not waiting:
            return
        rooms = [_room(node, pods) for node in self.store.list(NODES)]
        for pod in sorted(waiting, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"])):
            self._place(pod, rooms, now)

    def _place(self, pod: Object, rooms: Sequence[_Room], now: float) -> None:
        asked = requests(pod)
        obstacles = {room.name: obstacle(pod, asked, room.node, room.free) for room in rooms}
        fitting = [room for room in rooms if obstacles[room.name] is None]
        if not fitting:
            self._report(pod, explanation([o for o in obstacles.values() if o is not None]), now)
            return
        chosen = min(fitting, key=lambda room: (room.free.get(GPU, 0), room.name))
        for resource, amount in asked.items():
            chosen.free[resource] = chosen.free.get(resource, 0) - amount
        self._bind(pod, chosen.name, now)

    def _bind(self, pod: Object, node: str, now: float) -> None:
        meta = pod["metadata"]
        self.store.patch(PODS, meta["namespace"], meta["name"], {"spec": {"nodeName": node}})
        self._write(pod, condition("PodScheduled", status=True), now)

    def _report(self, pod: Object, message: str, now: float) -> None:
        self._write(pod, condition("PodScheduled", status=False, reason="Unschedulable", message=message), now)

    def _write(self, pod: Object, scheduled: Object, now: float) -> None:
        meta = pod["metadata"]
        status = {"phase": "Pending", "conditions": with_conditions(conditions(pod), now, scheduled)}
        self.store.patch(PODS, meta["namespace"], meta["name"], {"status": status}, "status")


def is_waiting(pod: Object) -> bool:
    """Whether the scheduler has still to place this pod."""
    bound = pod["spec"].get("nodeName")
    return not bound and "deletionTimestamp" not in pod["metadata"] and not _ended(pod)


def requests(pod: Object) -> dict[str, int]:
    """Add up what the pod's containers ask for together, and one place for a pod; milli-units per resource name."""
    found: Counter[str] = Counter({"pods": 1000})
    for container in pod["spec"].get("containers") or []:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in asked.items():
            found[name] += _amount(amount)
    return dict(found)


def _amount(text: object) -> int:
    """Read a quantity; one that the real API would have refused asks for more than there is."""
    try:
        return milli(str(text))
    except ValueError:
        return UNREADABLE


def _room(node: Object, pods: Iterable[Object]) -> _Room:
    free = {name: _offered(value) for name, value in ((node.get("status") or {}).get("allocatable") or {}).items()}
    for pod in pods:
        if pod["spec"].get("nodeName") == node["metadata"]["name"] and not _ended(pod):
            for name, amount in requests(pod).items():
                free[name] = free.get(name, 0) - amount
    return _Room(node, free)


def _offered(text: object) -> int:
    amount = _amount(text)
    return 0 if amount == UNREADABLE else amount


def _ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def obstacle(pod: Object, asked: Mapping[str, int], node: Object, free: Mapping[str, int]) -> str | None:
    """Why the pod cannot go to the node, in the scheduler's words; None = it can."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return "node(s) were unschedulable"
    repelling = [taint for taint in _taints(node) if not _tolerated(taint, pod["spec"].get("tolerations") or [])]
    if repelling:
        return f"node(s) had untolerated taint(s) {{{repelling[0]['key']}: {repelling[0].get('value', '')}}}"
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    short = sorted(name for name, amount in asked.items() if amount > free.get(name, 0))
    if short:
        return "Too many pods" if short[0] == "pods" else f"Insufficient {short[0]}"
    return None


def _taints(node: Object) -> list[Object]:
    taints = [t for t in (node.get("spec") or {}).get("taints") or [] if t.get("effect") in _REPELLING]
    if not holds(node, "Ready"):
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    return taints


def _tolerated(taint: Object, tolerations: Sequence[Object]) -> bool:
    return any(_matches(toleration, taint) for toleration in tolerations)


def _matches(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not toleration.get("key") or toleration["key"] == taint["key"]
    same_value = toleration.get("value", "") == taint.get("value", "")
    return bool(toleration.get("key") == taint["key"] and same_value)


def explanation(obstacles: Sequence[str]) -> str:
    """Say why no node will do, as the real scheduler does."""
    total = len(obstacles)
    if not total:
        return "no nodes available to schedule pods"
    counted = ", ".join(f"{count} {what}" for what, count in sorted(Counter(obstacles).items()))
    return (
        f"0/{total} nodes are available: {counted}. "
        f"preemption: 0/{total} nodes are available: {total} Preemption is not helpful for scheduling."
    )
