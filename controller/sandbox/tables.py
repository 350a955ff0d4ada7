"""Tables: the columns that ``kubectl get`` prints, made by the server as the real one makes them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.sandbox.definitions import Definition
from controller.sandbox.kinds import Resource
from controller.sandbox.selection import selector_text

Object = Mapping[str, Any]
Cell = Callable[[Object, float], Any]


@dataclass(frozen=True)
class Column:
    """One column: its head, type and how its cell is made from an object and the time; ``wide`` is for ``-o wide``."""

    name: str
    cell: Cell
    type: str = "string"
    wide: bool = False
    format: str = ""

    def document(self) -> dict[str, Any]:
        """Give the entry of ``columnDefinitions``."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": "",
            "priority": 1 if self.wide else 0,
        }


def table(
    columns: Sequence[Column], objects: Sequence[Object], meta: Object, now: float, include: str
) -> dict[str, Any]:
    """Make the Table of a list. ``include``: ``None``, ``Metadata`` or ``Object``; ``meta`` is the list's metadata."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(meta),
        "columnDefinitions": [column.document() for column in columns],
        "rows": [_row(columns, obj, now, include) for obj in objects],
    }


def _row(columns: Sequence[Column], obj: Object, now: float, include: str) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": [column.cell(obj, now) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include != "None":
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": obj["metadata"],
        }
    return row


def columns_of(resource: Resource, definition: Definition | None) -> Sequence[Column]:
    """Give the columns of a kind: its definition's, the built-in ones, or name and age."""
    if definition is None:
        return _BUILT_IN.get(resource.qualified, (_NAME, _AGE))
    return (_NAME, *(_defined(column) for column in definition.columns))


# cells


def since(moment: Any, now: float) -> str:
    """Write how long ago an RFC 3339 moment was, as the API server does: ``3m4s``, ``2d5h``, ``<unknown>``."""
    try:
        seconds = int(now - datetime.fromisoformat(moment).timestamp())
    except (TypeError, ValueError):
        return "<unknown>"
    return _duration(max(seconds, 0))


def _duration(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    steps = (
        (seconds < 120, f"{seconds}s"),
        (minutes < 10, _two(minutes, "m", seconds % 60, "s")),
        (minutes < 180, f"{minutes}m"),
        (hours < 8, _two(hours, "h", minutes % 60, "m")),
        (hours < 48, f"{hours}h"),
        (days < 8, _two(days, "d", hours % 24, "h")),
        (days < 730, f"{days}d"),
    )
    return next((text for fits, text in steps if fits), _two(days // 365, "y", days % 365, "d"))


def _two(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"


def _get(path: str, absent: Any = "") -> Cell:
    keys = path.split(".")

    def cell(obj: Object, _now: float) -> Any:
        value: Any = obj
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return absent if value is None else value

    return cell


def _age(path: str) -> Cell:
    read = _get(path)
    return lambda obj, now: since(read(obj, now), now)


_NAME = Column("Name", _get("metadata.name"), format="name")
_AGE = Column("Age", _age("metadata.creationTimestamp"))
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]|\[\?\(@\.(\w+)==['\"]([^'\"]*)['\"]\)\]")


def json_path(obj: Any, path: str) -> Any:
    """Read a printer column's path: names, indices and ``[?(@.type=="X")]``; None when it leads nowhere."""
    value = obj
    for name, index, key, wanted in _STEP.findall(path.replace("\\.", "\0")):
        if name:
            value = value.get(name.replace("\0", ".")) if isinstance(value, Mapping) else None
        elif not isinstance(value, list):
            return None
        elif index:
            value = value[int(index)] if int(index) < len(value) else None
        else:
            value = next((item for item in value if item.get(key) == wanted), None)
    return value


def _defined(column: Mapping[str, Any]) -> Column:
    kind, path = column["type"], column["jsonPath"]

    def cell(obj: Object, now: float) -> Any:
        value = json_path(obj, path)
        if value is None or kind in {"integer", "number", "boolean"}:
            return value
        return since(value, now) if kind == "date" else _text(value)

    return Column(column["name"], cell, kind, bool(column.get("priority")), column.get("format", ""))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# pods and nodes


def _statuses(pod: Object) -> list[Any]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _pod_ready(pod: Object, _now: float) -> str:
    ready = sum(bool(status.get("ready")) for status in _statuses(pod))
    return f"{ready}/{len(pod['spec'].get('containers') or [])}"


def _pod_status(pod: Object, _now: float) -> str:
    status = pod.get("status") or {}
    phase = status.get("phase", "Unknown")
    if "deletionTimestamp" in pod["metadata"] and phase not in {"Succeeded", "Failed"}:
        return "Terminating"
    reason = status.get("reason") or phase
    for container in reversed(_statuses(pod)):
        state = container.get("state") or {}
        for name in ("waiting", "terminated"):
            reason = (state.get(name) or {}).get("reason") or reason
    return str(reason)


def _pod_restarts(pod: Object, _now: float) -> str:
    return str(sum(status.get("restartCount", 0) for status in _statuses(pod)))


def _node_status(node: Object, _now: float) -> str:
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = next((condition["status"] for condition in conditions if condition["type"] == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    if (node.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Object, _now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [key[len(prefix) :] for key in node["metadata"].get("labels") or {} if key.startswith(prefix)]
    return ",".join(sorted(roles)) or "<none>"


def _node_address(kind: str) -> Cell:
    def cell(node: Object, _now: float) -> str:
        addresses = (node.get("status") or {}).get("addresses") or []
        return next((str(a["address"]) for a in addresses if a["type"] == kind), "<none>")

    return cell


# workloads and the rest


def _of(count: str, whole: str) -> Cell:
    some, every = _get(count, 0), _get(whole, 0)
    return lambda obj, now: f"{some(obj, now)}/{every(obj, now)}"


def _containers(key: str) -> Cell:
    def cell(obj: Object, _now: float) -> str:
        containers = obj["spec"]["template"]["spec"].get("containers") or []
        return ",".join(str(container.get(key, "")) for container in containers)

    return cell


def _selector(obj: Object, _now: float) -> str:
    return selector_text(obj["spec"].get("selector") or {})


def _event_object(event: Object, _now: float) -> str:
    about = event.get("involvedObject") or {}
    kind, name = str(about.get("kind", "")).lower(), about.get("name", "")
    return f"{kind}/{name}" if name else kind


def _event_seen(event: Object, now: float) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    moments = (series, event.get("lastTimestamp"), event.get("firstTimestamp"), event.get("eventTime"))
    return since(next((moment for moment in moments if moment), None), now)


def _event_source(event: Object, _now: float) -> str:
    return str((event.get("source") or {}).get("component") or event.get("reportingComponent") or "")


def _hpa_reference(hpa: Object, _now: float) -> str:
    target = hpa["spec"].get("scaleTargetRef") or {}
    return f"{target.get('kind')}/{target.get('name')}"


_WIDE_TEMPLATE = (
    Column("Containers", _containers("name"), wide=True),
    Column("Images", _containers("image"), wide=True),
    Column("Selector", _selector, wide=True),
)
_BUILT_IN: Mapping[str, Sequence[Column]] = {
    "pods": (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        _AGE,
        Column("IP", _get("status.podIP", "<none>"), wide=True),
        Column("Node", _get("spec.nodeName", "<none>"), wide=True),
        Column("Nominated Node", _get("status.nominatedNodeName", "<none>"), wide=True),
        Column("Readiness Gates", lambda _obj, _now: "<none>", wide=True),
    ),
    "nodes": (
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _get("status.nodeInfo.kubeletVersion")),
        Column("Internal-IP", _node_address("InternalIP"), wide=True),
        Column("External-IP", _node_address("ExternalIP"), wide=True),
        Column("OS-Image", _get("status.nodeInfo.osImage", "<unknown>"), wide=True),
        Column("Kernel-Version", _get("status.nodeInfo.kernelVersion", "<unknown>"), wide=True),
        Column("Container-Runtime", _get("status.nodeInfo.containerRuntimeVersion", "<unknown>"), wide=True),
    ),
    "namespaces": (_NAME, Column("Status", _get("status.phase")), _AGE),
    "configmaps": (_NAME, Column("Data", lambda obj, _now: len(obj.get("data") or {}), "integer"), _AGE),
    "secrets": (
        _NAME,
        Column("Type", _get("type")),
        Column("Data", lambda obj, _now: len(obj.get("data") or {}), "integer"),
        _AGE,
    ),
    "events": (
        Column("Last Seen", _event_seen),
        Column("Type", _get("type")),
        Column("Reason", _get("reason")),
        Column("Object", _event_object),
        Column("Subobject", _get("involvedObject.fieldPath"), wide=True),
        Column("Source", _event_source, wide=True),
        Column("Message", lambda obj, _now: str(obj.get("message", "")).strip()),
        Column("First Seen", _age("firstTimestamp"), wide=True),
        Column("Count", _get("count", 1), "integer", wide=True),
        Column("Name", _get("metadata.name"), wide=True, format="name"),
    ),
    "deployments.apps": (
        _NAME,
        Column("Ready", _of("status.readyReplicas", "spec.replicas")),
        Column("Up-to-date", _get("status.updatedReplicas", 0), "integer"),
        Column("Available", _get("status.availableReplicas", 0), "integer"),
        _AGE,
        *_WIDE_TEMPLATE,
    ),
    "replicasets.apps": (
        _NAME,
        Column("Desired", _get("spec.replicas", 0), "integer"),
        Column("Current", _get("status.replicas", 0), "integer"),
        Column("Ready", _get("status.readyReplicas", 0), "integer"),
        _AGE,
        *_WIDE_TEMPLATE,
    ),
    "statefulsets.apps": (
        _NAME,
        Column("Ready", _of("status.readyReplicas", "spec.replicas")),
        _AGE,
        *_WIDE_TEMPLATE[:2],
    ),
    "daemonsets.apps": (
        _NAME,
        Column("Desired", _get("status.desiredNumberScheduled", 0), "integer"),
        Column("Current", _get("status.currentNumberScheduled", 0), "integer"),
        Column("Ready", _get("status.numberReady", 0), "integer"),
        Column("Up-to-date", _get("status.updatedNumberScheduled", 0), "integer"),
        Column("Available", _get("status.numberAvailable", 0), "integer"),
        _AGE,
        *_WIDE_TEMPLATE,
    ),
    "leases.coordination.k8s.io": (_NAME, Column("Holder", _get("spec.holderIdentity")), _AGE),
    "poddisruptionbudgets.policy": (
        _NAME,
        Column("Min Available", lambda obj, _now: str(obj["spec"].get("minAvailable", "N/A"))),
        Column("Max Unavailable", lambda obj, _now: str(obj["spec"].get("maxUnavailable", "N/A"))),
        Column("Allowed Disruptions", _get("status.disruptionsAllowed", 0), "integer"),
        _AGE,
    ),
    "horizontalpodautoscalers.autoscaling": (
        _NAME,
        Column("Reference", _hpa_reference),
        Column("MinPods", lambda obj, _now: str(obj["spec"].get("minReplicas", "<unset>"))),
        Column("MaxPods", _get("spec.maxReplicas", 0), "integer"),
        Column("Replicas", _get("status.currentReplicas", 0), "integer"),
        _AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (_NAME, Column("Created At", _get("metadata.creationTimestamp"))),
}
