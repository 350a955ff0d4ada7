"""PURE: the slim facts that the stores keep of pods, nodes, HPAs and scale targets.

Why it exists: a pod is 5-20 kB of JSON and a cluster has 30,000 of them; a decision looks at two dozen fields. Every
function here takes a manifest as the API server sends it and survives absent fields.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller.core.pool_model import Taint, Toleration
from controller.quantity import milli

Manifest = Mapping[str, Any]

GPU_RESOURCE_MARKS = ("/gpu", "/mig-", "gpu.")
_CANNOT_START = {
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}
_KEEPS_NO_NODE = {"DaemonSet", "Node"}
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
MARKED_BY = "gpuscale.dev/marked-by"
"""Beside a pool's victimMark it says that the mark, and the cordon, are ours to take back."""
PROTECTED = ("gpuscale.dev/protect", "cluster-autoscaler.kubernetes.io/scale-down-disabled")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One row of a node affinity: key, operator (In, NotIn, Exists, DoesNotExist, Gt, Lt), values."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def met_by(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a node with these labels meets it; an unknown operator is never met."""
        value = labels.get(self.key)
        if self.operator in ("Gt", "Lt"):
            return _compares(self.operator, value, self.values)
        return {
            "In": value is not None and value in self.values,
            "NotIn": value not in self.values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }.get(self.operator, False)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod asks of a node. Equal shapes are one class for packing, so all of it is hashable."""

    requests: tuple[tuple[str, int], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    """Required node affinity: any row whose requirements are all met is enough; empty = no wish."""

    @property
    def gpus(self) -> int:
        """Milli-GPUs asked for, over all GPU resources."""
        return sum(amount for name, amount in self.requests if is_gpu(name))

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Tell whether node selector and required affinity allow a node with these labels."""
        if any(labels.get(key) != value for key, value in self.node_selector):
            return False
        return not self.affinity or any(all(r.met_by(labels) for r in row) for row in self.affinity)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    node: str
    phase: str
    deleting: bool
    ready: bool | None
    ready_changed_at: float | None
    started_at: float | None
    created_at: float | None
    crashing: bool
    unschedulable: bool
    keeps_node: bool
    shape: Shape
    requests: Mapping[str, Mapping[str, int]]
    deletion_cost: str = ""

    @property
    def ended(self) -> bool:
        """It holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def waits_for_gpu(self) -> bool:
        """It is a GPU pod that the scheduler could not place."""
        return self.unschedulable and not self.node and not self.deleting and not self.ended and self.shape.gpus > 0


@dataclass(frozen=True, slots=True)
class ExporterFacts:
    """Where an exporter is scraped, and the one node that it may speak of; "" = any, nobody knows where it runs."""

    url: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, int]
    ready: bool
    cordoned: bool
    created_at: float

    @property
    def protected(self) -> bool:
        """An annotation says that no autoscaler may take it."""
        return any(self.annotations.get(key, "").lower() == "true" for key in PROTECTED)


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """A scale target of a built-in kind."""

    replicas: int
    status_replicas: int
    selector: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class HpaFacts:
    """Whose size an HPA drives."""

    namespace: str
    name: str
    target_api_version: str
    target_kind: str
    target_name: str
    owner: str = ""
    """What made it, such as "ScaledObject llm" of KEDA."""


@dataclass(frozen=True, slots=True)
class _Requests:
    by_container: dict[str, dict[str, int]] = field(default_factory=dict)
    effective: dict[str, int] = field(default_factory=dict)


def is_gpu(resource: str) -> bool:
    """Tell whether an extended resource's name means a GPU or a part of one."""
    return "/" in resource and any(mark in resource for mark in GPU_RESOURCE_MARKS)


def seconds(timestamp: object) -> float | None:
    """Unix seconds of a Kubernetes time (RFC 3339), None where there is none or it is unreadable."""
    if not isinstance(timestamp, str):
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def pod_facts(manifest: Manifest) -> PodFacts:
    """Keep a pod's facts."""
    meta, spec, status = _part(manifest, "metadata"), _part(manifest, "spec"), _part(manifest, "status")
    ready = _condition(status, "Ready")
    scheduled = _condition(status, "PodScheduled")
    requests = _requests(spec)
    return PodFacts(
        namespace=meta.get("namespace", ""),
        name=meta.get("name", ""),
        labels=dict(_part(meta, "labels")),
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        deleting=bool(meta.get("deletionTimestamp")),
        ready=ready.get("status") == "True" if ready else None,
        ready_changed_at=seconds(ready.get("lastTransitionTime")),
        started_at=seconds(status.get("startTime")),
        created_at=seconds(meta.get("creationTimestamp")),
        crashing=_crashing(status),
        unschedulable=scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable",
        keeps_node=not any(owner.get("kind") in _KEEPS_NO_NODE for owner in _rows(meta, "ownerReferences")),
        shape=_shape(spec, requests.effective),
        requests=requests.by_container,
        deletion_cost=str(_part(meta, "annotations").get(DELETION_COST, "")),
    )


def exporter_facts(manifest: Manifest, port: str, scheme: str = "http") -> ExporterFacts | None:
    """Find where an exporter's pod serves: ``port`` is a containerPort's name or a number. None = it does not, yet."""
    spec, status = _part(manifest, "spec"), _part(manifest, "status")
    address = status.get("podIP") or ""
    number = port if port.isdecimal() else dict(_ports(spec)).get(port)
    if not address or not number or status.get("phase") != "Running":
        return None
    host = f"[{address}]" if ":" in address else address
    return ExporterFacts(f"{scheme}://{host}:{number}/metrics/native", spec.get("nodeName") or "")


def node_facts(manifest: Manifest) -> NodeFacts:
    """Keep a node's facts."""
    meta, spec, status = _part(manifest, "metadata"), _part(manifest, "spec"), _part(manifest, "status")
    return NodeFacts(
        name=meta.get("name", ""),
        labels=dict(_part(meta, "labels")),
        annotations=dict(_part(meta, "annotations")),
        taints=tuple(
            Taint(row.get("key", ""), row.get("value") or "", row.get("effect") or "") for row in _rows(spec, "taints")
        ),
        allocatable=_quantities(_part(status, "allocatable")),
        ready=_condition(status, "Ready").get("status") == "True",
        cordoned=bool(spec.get("unschedulable")),
        created_at=seconds(meta.get("creationTimestamp")) or 0.0,
    )


def target_facts(manifest: Manifest) -> TargetFacts:
    """Keep what a Deployment, StatefulSet or ReplicaSet says about its size."""
    spec, status = _part(manifest, "spec"), _part(manifest, "status")
    replicas = spec.get("replicas")
    pod_spec = _part(_part(spec, "template"), "spec")
    return TargetFacts(
        replicas=1 if replicas is None else int(replicas),
        status_replicas=int(status.get("replicas") or 0),
        selector=selector_text(_part(spec, "selector")),
        shape=_shape(pod_spec, _requests(pod_spec).effective),
    )


def hpa_facts(manifest: Manifest) -> HpaFacts:
    """Keep whose size an HPA drives."""
    meta, ref = _part(manifest, "metadata"), _part(_part(manifest, "spec"), "scaleTargetRef")
    return HpaFacts(
        meta.get("namespace", ""),
        meta.get("name", ""),
        ref.get("apiVersion", ""),
        ref.get("kind", ""),
        ref.get("name", ""),
        next((f"{row.get('kind')} {row.get('name')}" for row in _rows(meta, "ownerReferences")), ""),
    )


def selector_text(selector: Manifest) -> str:
    """Write a ``LabelSelector`` object as the text form that the API server uses."""
    parts = [f"{key}={value}" for key, value in sorted(_part(selector, "matchLabels").items())]
    for row in _rows(selector, "matchExpressions"):
        key, operator, values = row.get("key", ""), row.get("operator", ""), ",".join(row.get("values") or ())
        parts.append(
            {"Exists": key, "DoesNotExist": f"!{key}", "In": f"{key} in ({values})"}.get(
                operator, f"{key} notin ({values})"
            )
        )
    return ",".join(parts)


def _part(manifest: Manifest, key: str) -> Manifest:
    value = manifest.get(key)
    return value if isinstance(value, Mapping) else {}


def _rows(manifest: Manifest, key: str) -> list[Manifest]:
    value = manifest.get(key)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _condition(status: Manifest, kind: str) -> Manifest:
    return next((row for row in _rows(status, "conditions") if row.get("type") == kind), {})


def _crashing(status: Manifest) -> bool:
    states = _rows(status, "containerStatuses") + _rows(status, "initContainerStatuses")
    return any(_part(_part(state, "state"), "waiting").get("reason") in _CANNOT_START for state in states)


def _ports(spec: Manifest) -> Iterable[tuple[str, int]]:
    for container in _rows(spec, "containers"):
        for port in _rows(container, "ports"):
            if isinstance(port.get("containerPort"), int):
                yield port.get("name") or "", port["containerPort"]


def _quantities(quantities: Manifest) -> dict[str, int]:
    """Read resource -> milli-units; a quantity that can't be read is left out."""
    found: dict[str, int] = {}
    for name, text in quantities.items():
        try:
            found[name] = milli(str(text))
        except ValueError:
            continue
    return found


def _container_requests(container: Manifest) -> dict[str, int]:
    resources = _part(container, "resources")
    # a limit without a request is the request, as the API server defaults it
    return {**_quantities(_part(resources, "limits")), **_quantities(_part(resources, "requests"))}


def _requests(spec: Manifest) -> _Requests:
    """Sum containers and sidecars, take the largest init container where it is more, add the overhead."""
    result = _Requests()
    total = result.effective
    init = _rows(spec, "initContainers")
    for container in _rows(spec, "containers") + [row for row in init if row.get("restartPolicy") == "Always"]:
        asked = result.by_container[container.get("name", "")] = _container_requests(container)
        _add(total, asked)
    for container in init:
        for name, amount in _container_requests(container).items():
            total[name] = max(total.get(name, 0), amount)
    whole = _container_requests(spec)
    if whole:
        result.by_container[""] = whole
        total.update(whole)
    _add(total, _quantities(_part(spec, "overhead")))
    return result


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _shape(spec: Manifest, requests: Mapping[str, int]) -> Shape:
    required = _part(_part(_part(spec, "affinity"), "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
    return Shape(
        requests=tuple(sorted(requests.items())),
        node_selector=tuple(sorted(_part(spec, "nodeSelector").items())),
        tolerations=tuple(
            Toleration(row.get("key"), row.get("operator") or "Equal", row.get("value") or "", row.get("effect"))
            for row in _rows(spec, "tolerations")
        ),
        affinity=tuple(
            tuple(
                Requirement(row.get("key", ""), row.get("operator", ""), tuple(row.get("values") or ()))
                for row in _rows(term, "matchExpressions")
            )
            for term in _rows(required, "nodeSelectorTerms")
        ),
    )


def _compares(operator: str, value: str | None, bounds: tuple[str, ...]) -> bool:
    try:
        number, bound = int(value or ""), int(bounds[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound
