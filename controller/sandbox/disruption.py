"""Disruption budgets: their status is kept current, as the disruption controller does it, and evictions obey it."""

import math
from collections.abc import Callable
from typing import Any, Protocol

from controller.sandbox import errors
from controller.sandbox.admission import WriteOptions
from controller.sandbox.garbage import Deletion
from controller.sandbox.history import Change, Entry, History, Object
from controller.sandbox.kinds import DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, REPLICA_SETS, STATEFUL_SETS, Resource
from controller.sandbox.selection import selector_match

Objects = list[Object]

_EVICTED = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
_OWNERS = {resource.kind: resource for resource in (REPLICA_SETS, STATEFUL_SETS, DEPLOYMENTS)}


class Shelf(Protocol):
    """What budgets need of the store."""

    def history(self, resource: Resource) -> History:
        """Tell what happens to a kind."""

    def at(self, resource: Resource, key: str) -> Entry | None:
        """Give one object by its key, or None."""

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Give one object."""

    def list(self, resource: Resource, namespace: str | None = None) -> Objects:
        """Give the objects of a kind."""

    def patch(
        self, resource: Resource, namespace: str | None, name: str, merge_patch: Object, subresource: str
    ) -> Object:
        """Change one object."""

    def delete(self, resource: Resource, namespace: str | None, name: str, how: Deletion | None) -> tuple[Object, bool]:
        """Delete one object."""


class DisruptionBudgets:
    """Keeps the status of every budget as its pods come, go and become ready."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        for resource in (DISRUPTION_BUDGETS, PODS):
            shelf.history(resource).listeners.append(self._changed)

    def _changed(self, change: Change) -> None:
        obj = change.entry.obj
        if obj["kind"] == DISRUPTION_BUDGETS.kind:
            if change.type != "DELETED":
                self._refresh(obj)
            return
        for budget in self._shelf.list(DISRUPTION_BUDGETS, obj["metadata"]["namespace"]):
            if selector_match((budget.get("spec") or {}).get("selector"))(obj):
                self._refresh(budget)

    def _refresh(self, budget: Object) -> None:
        namespace, name = budget["metadata"]["namespace"], budget["metadata"]["name"]
        status = _status(self._shelf, budget)
        if status != {key: value for key, value in (budget.get("status") or {}).items() if key in status}:
            self._shelf.patch(DISRUPTION_BUDGETS, namespace, name, {"status": status}, "status")


def _status(shelf: Shelf, budget: Object) -> Object:
    matches = selector_match(budget["spec"].get("selector"))
    pods = [pod for pod in shelf.list(PODS, budget["metadata"]["namespace"]) if matches(pod)]
    healthy = sum(_is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
    expected = _expected(shelf, pods)
    desired = _desired(budget["spec"], expected)
    return {
        "observedGeneration": budget["metadata"]["generation"],
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": max(0, healthy - desired) if expected else 0,
    }


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _expected(shelf: Shelf, pods: Objects) -> int:
    """Count the pods that their controllers want; a pod without one counts as itself."""
    wanted: dict[str, int] = {}
    for pod in pods:
        owner = next((o for o in pod["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
        kind = _OWNERS.get(owner["kind"]) if owner else None
        found = shelf.at(kind, f"{pod['metadata']['namespace']}/{owner['name']}") if owner and kind else None
        if owner is not None and found is not None:
            wanted[owner["uid"]] = int(found.obj["spec"].get("replicas", 1))
        else:
            wanted[pod["metadata"]["uid"]] = 1
    return sum(wanted.values())


def _desired(spec: Object, expected: int) -> int:
    if spec.get("maxUnavailable") is not None:
        return max(0, expected - _count(spec["maxUnavailable"], expected))
    return _count(spec.get("minAvailable") or 0, expected)


def _count(value: Any, whole: int) -> int:
    """Read a number or a percentage of ``whole``, rounded up."""
    return math.ceil(whole * int(value.rstrip("%")) / 100) if isinstance(value, str) else int(value)


def evict(shelf: Shelf, namespace: str, name: str, body: Object, options: WriteOptions) -> None:
    """Delete a pod unless a budget forbids it: 429 with the cause ``DisruptionBudget``."""
    if (body.get("metadata") or {}).get("name", name) != name:
        raise errors.bad_request("name in URL does not match name in Eviction object")
    pod = shelf.get(PODS, namespace, name)
    how = deletion(body.get("deleteOptions") or {}, dry_run=options.dry_run)
    phase = (pod.get("status") or {}).get("phase")
    if phase not in {"Succeeded", "Failed", "Pending"} and "deletionTimestamp" not in pod["metadata"]:
        _check_budgets(shelf, namespace, pod)
    if not options.dry_run:
        condition = {"type": "DisruptionTarget", "status": "True", **_EVICTED}
        held = [c for c in (pod.get("status") or {}).get("conditions") or [] if c["type"] != "DisruptionTarget"]
        shelf.patch(PODS, namespace, name, {"status": {"conditions": [*held, condition]}}, "status")
    shelf.delete(PODS, namespace, name, how)


def _check_budgets(shelf: Shelf, namespace: str, pod: Object) -> None:
    found = [b for b in shelf.list(DISRUPTION_BUDGETS, namespace) if selector_match(b["spec"].get("selector"))(pod)]
    if len(found) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise errors.StatusError(500, "", message)
    for budget in found:
        _check_budget(budget, pod)


def _check_budget(budget: Object, pod: Object) -> None:
    status, name = budget.get("status") or {}, budget["metadata"]["name"]
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if not _is_ready(pod):
        always = budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
        if always or (healthy >= desired and desired > 0):
            return
    if status.get("disruptionsAllowed", 0) > 0:
        return
    told = f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
    cause = errors.Cause("DisruptionBudget", told)
    raise errors.too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", causes=[cause])


def deletion(options: Object, *, dry_run: bool = False) -> Deletion:
    """Read the API's ``DeleteOptions``. Raises 400 for a propagation policy that is none."""
    conditions = options.get("preconditions") or {}
    propagation = options.get("propagationPolicy") or ("Orphan" if options.get("orphanDependents") else "Background")
    if propagation not in {"Background", "Foreground", "Orphan"}:
        raise errors.bad_request(f"invalid propagation policy {propagation!r}")
    return Deletion(
        grace_seconds=options.get("gracePeriodSeconds"),
        propagation=propagation,
        uid=conditions.get("uid"),
        version=conditions.get("resourceVersion"),
        dry_run=dry_run or bool(options.get("dryRun")),
    )


def bind(change: Callable[[Callable[[Object], Object]], Object], body: Object, moment: str) -> None:
    """Assign a pod to the node that a ``Binding`` names, as the scheduler does; 409 if it has one."""
    node = (body.get("target") or {}).get("name")
    if not node:
        cause = errors.Cause("FieldValueRequired", "Required value", "target.name")
        raise errors.invalid("", "Binding", (body.get("metadata") or {}).get("name", ""), [cause])

    def assigned(pod: Object) -> Object:
        if pod["spec"].get("nodeName"):
            name = pod["metadata"]["name"]
            raise errors.conflict("", "pods/binding", name, f"pod {name} is already assigned to node {node!r}")
        pod["spec"]["nodeName"] = node
        condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": moment}
        held = [c for c in pod["status"].get("conditions") or [] if c["type"] != "PodScheduled"]
        pod["status"]["conditions"] = [*held, condition]
        return pod

    change(assigned)
