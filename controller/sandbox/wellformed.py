"""Whether a body has the shape of its kind, where the code behind relies on it; the rest is left as it was sent."""

from collections.abc import Mapping
from typing import Any

from controller.sandbox import errors
from controller.sandbox.kinds import Resource

_Steps = tuple[tuple[str, str], ...]

# a path, with [] for each item of a list and {} for each value of a map -> the type that has to be there
_METADATA: Mapping[str, type] = {
    "metadata": dict,
    "metadata.name": str,
    "metadata.namespace": str,
    "metadata.generateName": str,
    "metadata.resourceVersion": str,
    "metadata.labels": dict,
    "metadata.labels{}": str,
    "metadata.annotations": dict,
    "metadata.annotations{}": str,
    "metadata.finalizers": list,
    "metadata.finalizers[]": str,
    "metadata.ownerReferences": list,
    "metadata.ownerReferences[]": dict,
    "metadata.managedFields": list,
    "metadata.managedFields[]": dict,
}
_POD_SPEC: Mapping[str, type] = {
    "containers": list,
    "containers[]": dict,
    "containers[].name": str,
    "containers[].image": str,
    "containers[].ports": list,
    "containers[].ports[]": dict,
    "containers[].env": list,
    "containers[].env[]": dict,
    "containers[].resources": dict,
    "containers[].resources.limits": dict,
    "containers[].resources.requests": dict,
    "initContainers": list,
    "initContainers[]": dict,
    "nodeName": str,
    "terminationGracePeriodSeconds": int,
}
_STATUS: Mapping[str, type] = {
    "spec": dict,
    "status": dict,
    "status.conditions": list,
    "status.conditions[]": dict,
}
_POD: Mapping[str, type] = {**_STATUS, **{f"spec.{path}": kind for path, kind in _POD_SPEC.items()}}
_SELECTOR: Mapping[str, type] = {
    "spec.selector": dict,
    "spec.selector.matchLabels": dict,
    "spec.selector.matchLabels{}": str,
    "spec.selector.matchExpressions": list,
    "spec.selector.matchExpressions[]": dict,
    "spec.selector.matchExpressions[].key": str,
    "spec.selector.matchExpressions[].operator": str,
    "spec.selector.matchExpressions[].values": list,
    "spec.selector.matchExpressions[].values[]": str,
}
_WORKLOAD: Mapping[str, type] = {
    **_STATUS,
    **_SELECTOR,
    "spec.replicas": int,
    "spec.template": dict,
    **{f"spec.template.{path}": kind for path, kind in _METADATA.items()},
    "spec.template.spec": dict,
    **{f"spec.template.spec.{path}": kind for path, kind in _POD_SPEC.items()},
}
_EVENT: Mapping[str, type] = {
    "involvedObject": dict,
    **{f"involvedObject.{name}": str for name in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")},
    "source": dict,
    "source.component": str,
    "series": dict,
    "reason": str,
    "message": str,
    "type": str,
    "count": int,
    "eventTime": str,
    "firstTimestamp": str,
    "lastTimestamp": str,
}
_LEASE: Mapping[str, type] = {"spec": dict, "spec.leaseDurationSeconds": int, "spec.leaseTransitions": int}
_KINDS: Mapping[str, Mapping[str, type]] = {
    "pods": _POD,
    "nodes": _STATUS,
    "namespaces": _STATUS,
    "events": _EVENT,
    "deployments.apps": _WORKLOAD,
    "replicasets.apps": _WORKLOAD,
    "statefulsets.apps": _WORKLOAD,
    "daemonsets.apps": _WORKLOAD,
    "leases.coordination.k8s.io": _LEASE,
    "poddisruptionbudgets.policy": {**_STATUS, **_SELECTOR},
    "horizontalpodautoscalers.autoscaling": {**_STATUS, "spec.metrics": list, "spec.scaleTargetRef": dict},
    "customresourcedefinitions.apiextensions.k8s.io": {
        **_STATUS,
        "spec.names": dict,
        "spec.group": str,
        "spec.versions": list,
        "spec.versions[]": dict,
        "spec.versions[].name": str,
        "spec.versions[].schema": dict,
        "spec.versions[].schema.openAPIV3Schema": dict,
        "spec.versions[].subresources": dict,
        "spec.versions[].additionalPrinterColumns": list,
        "spec.versions[].additionalPrinterColumns[]": dict,
    },
}
_WORDS = {dict: "object", list: "array", str: "string", int: "int64"}


def check(resource: Resource, obj: Mapping[str, Any]) -> None:
    """Refuse, with 400 and the field, a body that the kind cannot be read from. Absent and null are fine."""
    for path, steps, wanted in _COMPILED.get(resource.qualified, _COMPILED_METADATA):
        for value in _values(obj, steps):
            absent = value is None and steps[-1][1] != "[]"
            if not absent and (not isinstance(value, wanted) or isinstance(value, bool)):
                raise errors.bad_request(
                    f"{resource.kind} in version {resource.version!r} cannot be handled as a {resource.kind}: json: "
                    f"cannot unmarshal {errors.shown(value)} into field {path} of type {_WORDS[wanted]}"
                )


def _values(value: Any, steps: _Steps) -> list[Any]:
    """Give what stands at a path; nothing where the way to it is missing or of another shape."""
    found = [value]
    for name, each in steps:
        found = [item[name] for item in found if isinstance(item, dict) and name in item]
        if each == "[]":
            found = [item for held in found if isinstance(held, list) for item in held]
        elif each == "{}":
            found = [item for held in found if isinstance(held, dict) for item in held.values()]
        if not found:
            break
    return found


def _compiled(paths: Mapping[str, type]) -> list[tuple[str, _Steps, type]]:
    return [
        (path, tuple((part.rstrip("[]{}"), part[-2:]) for part in path.split(".")), wanted)
        for path, wanted in paths.items()
    ]


_COMPILED_METADATA = _compiled(_METADATA)
_COMPILED = {kind: _compiled({**_METADATA, **paths}) for kind, paths in _KINDS.items()}
