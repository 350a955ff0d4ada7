"""Defaults and the most important checks of the built-in kinds."""

import re
from collections.abc import Mapping
from typing import Any

from controller.sandbox import errors
from controller.sandbox.admission import Admit, WriteOptions
from controller.sandbox.errors import Cause
from controller.sandbox.selection import selector_match
from controller.sandbox.strategy import clone

Object = dict[str, Any]

_POD_SPEC = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
_CONTAINER = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
_DEPLOYMENT = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "strategy": _ROLLING}
_STATEFUL = {
    "replicas": 1,
    "revisionHistoryLimit": 10,
    "podManagementPolicy": "OrderedReady",
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
}
_DAEMON = {
    "revisionHistoryLimit": 10,
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
}
_CPU_80 = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]


def _fill(target: Object, defaults: Mapping[str, Any]) -> None:
    for key, value in defaults.items():
        if target.get(key) is None:
            target[key] = clone(value)


def _part(obj: Object, key: str) -> Object:
    """Give an object's part, made where it is absent or null."""
    if obj.get(key) is None:
        obj[key] = {}
    part: Object = obj[key]
    return part


def _pod_spec(spec: Object) -> None:
    _fill(spec, _POD_SPEC)
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        image = str(container.get("image", ""))
        latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
        _fill(container, {**_CONTAINER, "imagePullPolicy": "Always" if latest else "IfNotPresent"})
        for port in container.get("ports") or []:
            _fill(port, {"protocol": "TCP"})
        _limits_as_requests(container.get("resources") or {})


def _limits_as_requests(resources: Object) -> None:
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **(resources.get("requests") or {})}


def _pod(new: Object, old: Object | None, subresource: str, _options: WriteOptions) -> None:
    spec = _part(new, "spec")
    _pod_spec(spec)
    _fill(spec, {"serviceAccountName": "default", "serviceAccount": "default", "enableServiceLinks": True})
    if old is None:
        new["status"] = {"phase": "Pending", "qosClass": _quality(spec)}
    elif (
        subresource != "status" and old["spec"].get("nodeName") != spec.get("nodeName") and old["spec"].get("nodeName")
    ):
        _refuse("", "Pod", new, [Cause("FieldValueForbidden", "Forbidden: node is already assigned", "spec.nodeName")])
    _refuse("", "Pod", new, _container_faults(spec, "spec"))


def _quality(spec: Object) -> str:
    wanted = [container.get("resources") or {} for container in spec.get("containers") or []]
    if not any(r.get("requests") or r.get("limits") for r in wanted):
        return "BestEffort"
    full = all({"cpu", "memory"} <= set(r.get("limits") or {}) and r["requests"] == r["limits"] for r in wanted)
    return "Guaranteed" if full else "Burstable"


def _container_faults(spec: Object, path: str) -> list[Cause]:
    containers = spec.get("containers")
    if not containers:
        return [Cause("FieldValueRequired", "Required value", f"{path}.containers")]
    return [
        Cause("FieldValueRequired", "Required value", f"{path}.containers[{i}].{key}")
        for i, container in enumerate(containers)
        for key in ("name", "image")
        if not container.get(key)
    ]


def _workload(kind: str, defaults: Mapping[str, Any]) -> Admit:
    def admit(new: Object, old: Object | None, _subresource: str, _options: WriteOptions) -> None:
        spec = _part(new, "spec")
        _fill(spec, defaults)
        template = _part(spec, "template")
        _pod_spec(_part(template, "spec"))
        _refuse("apps", kind, new, _workload_faults(spec, old))

    return admit


def _workload_faults(spec: Object, old: Object | None) -> list[Cause]:
    faults = []
    replicas = spec.get("replicas", 0)
    if replicas < 0:
        told = f"Invalid value: {replicas}: must be greater than or equal to 0"
        faults.append(Cause("FieldValueInvalid", told, "spec.replicas"))
    selector, template = spec.get("selector"), spec["template"]
    if wrong := _selector_faults(selector or {}):
        return faults + wrong
    if not selector:
        faults.append(Cause("FieldValueRequired", "Required value", "spec.selector"))
    elif old is not None and selector != old["spec"].get("selector"):
        told = f"Invalid value: {errors.shown(selector)}: field is immutable"
        faults.append(Cause("FieldValueInvalid", told, "spec.selector"))
    elif not selector_match(selector)({"metadata": template.get("metadata") or {}}):
        labels = errors.shown((template.get("metadata") or {}).get("labels") or {})
        told = f"Invalid value: {labels}: `selector` does not match template `labels`"
        faults.append(Cause("FieldValueInvalid", told, "spec.template.metadata.labels"))
    return faults + _container_faults(template["spec"], "spec.template.spec")


def _selector_faults(selector: Object) -> list[Cause]:
    faults = []
    for place, rule in enumerate(selector.get("matchExpressions") or []):
        path, word, values = f"spec.selector.matchExpressions[{place}]", rule.get("operator"), rule.get("values")
        if not rule.get("key"):
            faults.append(Cause("FieldValueRequired", "Required value", f"{path}.key"))
        if word not in {"In", "NotIn", "Exists", "DoesNotExist"}:
            told = f"Invalid value: {errors.shown(word)}: not a valid selector operator"
            faults.append(Cause("FieldValueInvalid", told, f"{path}.operator"))
        elif (word in {"In", "NotIn"}) is not bool(values):
            faults.append(
                Cause("FieldValueRequired", f"Required value: must fit the operator {word}", f"{path}.values")
            )
    return faults


def _budget(new: Object, _old: Object | None, _subresource: str, _options: WriteOptions) -> None:
    spec = _part(new, "spec")
    faults = _selector_faults(spec.get("selector") or {})
    given = [key for key in ("minAvailable", "maxUnavailable") if spec.get(key) is not None]
    if len(given) > 1:
        told = f"Invalid value: {errors.shown(spec)}: minAvailable and maxUnavailable cannot be both set"
        faults.append(Cause("FieldValueInvalid", told, "spec"))
    for key in given:
        if not _is_count(spec[key]):
            told = f"Invalid value: {errors.shown(spec[key])}: must be a non-negative number or a percentage"
            faults.append(Cause("FieldValueInvalid", told, f"spec.{key}"))
    _refuse("policy", "PodDisruptionBudget", new, faults)


def _is_count(value: Any) -> bool:
    if isinstance(value, str):
        return bool(re.fullmatch(r"[0-9]+%", value)) and int(value[:-1]) <= 100
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _refuse(group: str, kind: str, obj: Object, faults: list[Cause]) -> None:
    if faults:
        raise errors.invalid(group, kind, obj["metadata"]["name"], faults)


def _namespace(new: Object, old: Object | None, _subresource: str, _options: WriteOptions) -> None:
    labels = new["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = new["metadata"]["name"]
    if old is None:
        new["spec"] = {"finalizers": ["kubernetes"]}
        new["status"] = {"phase": "Active"}


def _event(new: Object, old: Object | None, _subresource: str, _options: WriteOptions) -> None:
    about, place = new.get("involvedObject") or {}, new["metadata"]["namespace"]
    named = about.get("namespace", "")
    allowed = {"default", *(["kube-system"] if new.get("eventTime") else [])} if not named else {named}
    faults = []
    if old is None and place not in allowed:
        told = f'Invalid value: "{named}": does not match event.namespace'
        faults.append(Cause("FieldValueInvalid", told, "involvedObject.namespace"))
    if old is None and new.get("eventTime"):
        needed = ("reportingComponent", "reportingInstance", "action", "reason")
        faults += [Cause("FieldValueRequired", "Required value", key) for key in needed if not new.get(key)]
    _refuse("", "Event", new, faults)


def _autoscaler(new: Object, _old: Object | None, _subresource: str, _options: WriteOptions) -> None:
    spec = _part(new, "spec")
    _fill(spec, {"minReplicas": 1})
    if not spec.get("metrics"):
        spec["metrics"] = clone(_CPU_80)


def _lease(new: Object, _old: Object | None, _subresource: str, _options: WriteOptions) -> None:
    spec = new.get("spec") or {}
    faults = [
        Cause("FieldValueInvalid", f"Invalid value: {spec[key]}: must be greater than {told}", f"spec.{key}")
        for key, least, told in (("leaseDurationSeconds", 1, "0"), ("leaseTransitions", 0, "or equal to 0"))
        if isinstance(spec.get(key), int) and spec[key] < least
    ]
    _refuse("coordination.k8s.io", "Lease", new, faults)


def _secret(new: Object, _old: Object | None, _subresource: str, _options: WriteOptions) -> None:
    _fill(new, {"type": "Opaque"})


ADMIT: Mapping[str, Admit] = {
    "namespaces": _namespace,
    "pods": _pod,
    "events": _event,
    "secrets": _secret,
    "deployments.apps": _workload("Deployment", _DEPLOYMENT),
    "replicasets.apps": _workload("ReplicaSet", {"replicas": 1}),
    "statefulsets.apps": _workload("StatefulSet", _STATEFUL),
    "daemonsets.apps": _workload("DaemonSet", _DAEMON),
    "poddisruptionbudgets.policy": _budget,
    "horizontalpodautoscalers.autoscaling": _autoscaler,
    "leases.coordination.k8s.io": _lease,
}
