"""The ``/scale`` view of workloads and custom resources."""

from collections.abc import Callable, Mapping
from typing import Any

from controller.sandbox import errors
from controller.sandbox.kinds import Resource
from controller.sandbox.selection import selector_text
from controller.sandbox.strategy import at_path, put_at_path

Object = dict[str, Any]


def scale_of(resource: Resource, obj: Object) -> Object:
    """Give the ``autoscaling/v1`` Scale of an object."""
    spec_path, status_path, selector_path = _paths(resource)
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    selector = at_path(obj, selector_path) if selector_path else None
    text = selector_text(selector) if isinstance(selector, Mapping) else selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": at_path(obj, spec_path) or 0},
        "status": {"replicas": at_path(obj, status_path) or 0, **({"selector": text} if text else {})},
    }


def rescaled(resource: Resource, change: Callable[[Object], Object]) -> Callable[[Object], Object]:
    """Turn a change of a Scale into the change of the object behind it."""

    def changed(obj: Object) -> Object:
        before = scale_of(resource, obj)
        after = change(scale_of(resource, obj))
        replicas = _replicas(resource, before, after)
        put_at_path(obj, _paths(resource)[0], replicas)
        obj["metadata"]["resourceVersion"] = after["metadata"].get(
            "resourceVersion", before["metadata"]["resourceVersion"]
        )
        return obj

    return changed


def _replicas(resource: Resource, before: Object, after: Object) -> int:
    name = before["metadata"]["name"]
    if (after.get("metadata") or {}).get("name", name) != name:
        raise errors.bad_request(f"the name of the object does not match the name on the URL ({name})")
    replicas = (after.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise errors.bad_request(f"cannot unmarshal {errors.shown(replicas)} into spec.replicas of type int32")
    if replicas < 0:
        told = f"Invalid value: {replicas}: must be greater than or equal to 0"
        cause = errors.Cause("FieldValueInvalid", told, "spec.replicas")
        raise errors.invalid("autoscaling", "Scale", name, [cause])
    return replicas


def _paths(resource: Resource) -> tuple[str, str, str]:
    if resource.scale is None:
        raise errors.no_such_path()
    return resource.scale
