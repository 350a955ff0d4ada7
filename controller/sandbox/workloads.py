"""Deployments and their ReplicaSets: the size that somebody asked for becomes pods, and a shrink chooses who goes.

Why it exists: the choice is the point. It is made in the order of Kubernetes' own ReplicaSet controller, so that a
pod-deletion-cost that the operator wrote, or forgot, decides which pod dies here as it would in a real cluster.
A changed pod template replaces all pods at once: rolling updates are not simulated.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.sandbox.conditions import condition, conditions, holds, with_conditions
from controller.sandbox.kinds import DEPLOYMENTS, PODS, REPLICA_SETS
from controller.sandbox.store import Deletion, Store

Object = dict[str, Any]
Shrunk = Callable[[Sequence[Object], Sequence[Object], float], None]
"""(the pods that go, the pods that stay, now)"""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
HASH_LABEL = "pod-template-hash"
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def _ignore(_going: Sequence[Object], _staying: Sequence[Object], _now: float) -> None:
    return


@dataclass
class Workloads:
    """The controllers of Deployments and ReplicaSets over a store. ``shrunk`` is told of each choice."""

    store: Store
    shrunk: Shrunk = _ignore
    ready_since: dict[str, float] = field(default_factory=dict)
    """pod uid -> when it became ready, finer than the seconds in its status; kept by the kubelet."""

    def step(self, now: float) -> None:
        """Bring ReplicaSets and pods to what the Deployments ask for."""
        for deployment in self.store.list(DEPLOYMENTS):
            self._settle_replica_sets(deployment)
        for replica_set in self.store.list(REPLICA_SETS):
            self._settle_pods(replica_set, now)

    def report(self, now: float) -> None:
        """Write the status of every ReplicaSet and Deployment as it now is."""
        for replica_set in self.store.list(REPLICA_SETS):
            self._report_replica_set(replica_set)
        for deployment in self.store.list(DEPLOYMENTS):
            self._report_deployment(deployment, now)

    def _settle_replica_sets(self, deployment: Object) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        wanted = f"{meta['name']}-{template_hash(spec['template'])}"
        owned = self._owned_replica_sets(deployment)
        if wanted not in {r["metadata"]["name"] for r in owned}:
            self.store.create(REPLICA_SETS, replica_set_for(deployment, wanted))
        for replica_set in owned:
            name = replica_set["metadata"]["name"]
            size = replicas(deployment) if name == wanted else 0
            if replicas(replica_set) != size:
                self.store.patch(REPLICA_SETS, meta["namespace"], name, {"spec": {"replicas": size}})

    def _owned_replica_sets(self, deployment: Object) -> list[Object]:
        found = self.store.list(REPLICA_SETS, deployment["metadata"]["namespace"])
        return [r for r in found if owned_by(r, deployment)]

    def active_pods(self, replica_set: Object) -> list[Object]:
        """Give the pods of a ReplicaSet that count: not ended, not on their way out."""
        found = self.store.list(PODS, replica_set["metadata"]["namespace"])
        return [p for p in found if owned_by(p, replica_set) and is_active(p)]

    def _settle_pods(self, replica_set: Object, now: float) -> None:
        pods = self.active_pods(replica_set)
        missing = replicas(replica_set) - len(pods)
        for _ in range(missing):
            self.store.create(PODS, pod_for(replica_set))
        if missing < 0:
            self._shrink(pods, -missing, now)

    def _shrink(self, pods: list[Object], count: int, now: float) -> None:
        order = in_deletion_order(pods, now, self.ready_since)
        going, staying = order[:count], order[count:]
        self.shrunk(going, staying, now)
        for pod in going:
            meta = pod["metadata"]
            self.store.delete(PODS, meta["namespace"], meta["name"], Deletion())

    def _report_replica_set(self, replica_set: Object) -> None:
        pods = self.active_pods(replica_set)
        ready = sum(holds(pod, "Ready") for pod in pods)
        meta = replica_set["metadata"]
        status = {
            "replicas": len(pods),
            "fullyLabeledReplicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": meta["generation"],
        }
        self.store.patch(REPLICA_SETS, meta["namespace"], meta["name"], {"status": status}, "status")

    def _report_deployment(self, deployment: Object, now: float) -> None:
        meta = deployment["metadata"]
        statuses = [r.get("status") or {} for r in self._owned_replica_sets(deployment)]
        there = sum(s.get("replicas", 0) for s in statuses)
        ready = sum(s.get("readyReplicas", 0) for s in statuses)
        status = {
            "observedGeneration": meta["generation"],
            "replicas": there,
            "updatedReplicas": there,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, replicas(deployment) - ready) or None,
            "conditions": with_conditions(conditions(deployment), now, *_health(deployment, there, ready)),
        }
        self.store.patch(DEPLOYMENTS, meta["namespace"], meta["name"], {"status": status}, "status")


def _health(deployment: Object, there: int, ready: int) -> tuple[Object, Object]:
    """Available as with the default maxUnavailable of 25 %, Progressing until every pod is ready."""
    wanted = replicas(deployment)
    available = ready >= wanted - wanted // 4
    complete = there == wanted == ready
    name = deployment["metadata"]["name"]
    return (
        condition(
            "Available",
            status=available,
            reason=f"MinimumReplicas{'A' if available else 'Una'}vailable",
            message=f"Deployment {'has' if available else 'does not have'} minimum availability.",
        ),
        condition(
            "Progressing",
            status=True,
            reason="NewReplicaSetAvailable" if complete else "ReplicaSetUpdated",
            message=f'ReplicaSet "{name}-{template_hash(deployment["spec"]["template"])}" '
            + ("has successfully progressed." if complete else "is progressing."),
        ),
    )


def replicas(obj: Object) -> int:
    """``spec.replicas`` with Kubernetes' default of 1."""
    found = obj["spec"].get("replicas")
    return 1 if found is None else int(found)


def template_hash(template: Object) -> str:
    """Ten letters and digits that change with the pod template."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def owned_by(obj: Object, owner: Object) -> bool:
    """Whether the object names this owner (by uid)."""
    uid = owner["metadata"]["uid"]
    return any(reference.get("uid") == uid for reference in obj["metadata"].get("ownerReferences") or [])


def owner_reference(owner: Object) -> Object:
    """Make the reference by which a controller's child names it."""
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_active(pod: Object) -> bool:
    """Whether a pod still counts for its owner."""
    ended = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
    return not ended and "deletionTimestamp" not in pod["metadata"]


def replica_set_for(deployment: Object, name: str) -> Object:
    """Make the ReplicaSet of a Deployment's present template."""
    meta, spec = deployment["metadata"], deployment["spec"]
    labels = {HASH_LABEL: template_hash(spec["template"])}
    template = json.loads(json.dumps(spec["template"]))
    template.setdefault("metadata", {}).setdefault("labels", {}).update(labels)
    selector = dict((spec.get("selector") or {}).get("matchLabels") or {})
    return {
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner_reference(deployment)],
        },
        "spec": {
            "replicas": replicas(deployment),
            "selector": {"matchLabels": selector | labels},
            "template": template,
        },
    }


def pod_for(replica_set: Object) -> Object:
    """Make one more pod of a ReplicaSet; the store completes its name."""
    meta, template = replica_set["metadata"], replica_set["spec"]["template"]
    inner = template.get("metadata") or {}
    return {
        "metadata": {
            "generateName": f"{meta['name']}-",
            "namespace": meta["namespace"],
            "labels": dict(inner.get("labels") or {}),
            "annotations": dict(inner.get("annotations") or {}),
            "ownerReferences": [owner_reference(replica_set)],
        },
        "spec": json.loads(json.dumps(template["spec"])),
        "status": {"phase": "Pending"},
    }


def in_deletion_order(pods: Sequence[Object], now: float, ready_since: dict[str, float]) -> list[Object]:
    """Sort pods as the ReplicaSet controller does when it must delete some: the first one goes first.

    Unassigned, then pending, then not ready, then the lower deletion cost, then more siblings on the same node,
    then ready for less time, which counts by its order of magnitude (log2); ties go by uid.
    """
    crowd = Counter((pod["spec"].get("nodeName") or "") for pod in pods)

    def key(pod: Object) -> tuple[Any, ...]:
        node, ready = pod["spec"].get("nodeName") or "", holds(pod, "Ready")
        phase = (pod.get("status") or {}).get("phase", "Pending")
        since = ready_since.get(pod["metadata"]["uid"], now)
        return (
            bool(node),
            _PHASES.get(phase, 2),
            ready,
            deletion_cost(pod),
            -crowd[node] if node else 0,
            _magnitude(now - since) if ready else 0,
            pod["metadata"]["uid"],
        )

    return sorted(pods, key=key)


def deletion_cost(pod: Object) -> int:
    """Read the pod's deletion cost; 0 when it is absent or not a number, as Kubernetes does."""
    text = str((pod["metadata"].get("annotations") or {}).get(DELETION_COST, "0"))
    try:
        return int(text)
    except ValueError:
        return 0


def _magnitude(seconds: float) -> int:
    return int(math.log2(seconds * 1e9)) if seconds > 0 else -1
