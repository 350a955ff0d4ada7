"""The objects that the checks create."""

from typing import Any

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 0, "maximum": 100},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "word": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8, "minLength": 2},
        "ratio": {"type": "number", "minimum": 0},
        "parts": {
            "type": "array",
            "maxItems": 3,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["id"],
            "items": {
                "type": "object",
                "required": ["id"],
                "properties": {
                    "id": {"type": "string"},
                    "weight": {"type": "integer", "default": 1},
                    "percent": {"x-kubernetes-int-or-string": True},
                },
            },
        },
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "order": {"type": "array", "items": {"type": "string"}},
        "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
        "note": {"type": "string", "nullable": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
_STATUS = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "selector": {"type": "string"},
        "phase": {"type": "string"},
        "conditions": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status"],
                "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
            },
        },
    },
}


def widget_definition(group: str, plural: str = "widgets", kind: str = "Widget") -> dict[str, Any]:
    """A definition of a namespaced kind with status, scale, columns, a short name and a category."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "shortNames": [f"x{plural[:3]}"], "categories": ["toys"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.size",
                            "statusReplicasPath": ".status.size",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                        {
                            "name": "Ready",
                            "type": "string",
                            "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
                        },
                        {"name": "Born", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                        {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
                    ],
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC, "status": _STATUS}}},
                }
            ],
        },
    }


def widget(group: str, name: str = "one", **spec: Any) -> dict[str, Any]:
    """A widget; its group is the second part of the path that it is sent to."""
    return {
        "apiVersion": f"{group}/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": 3, **spec},
    }


def config_map(name: str = "one", data: dict[str, str] | None = None, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": data or {"key": "value"}}


def pod_spec() -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "registry.invalid/none:1"}]}


def pod(name: str = "one", node: str = "", **labels: str) -> dict[str, Any]:
    placed = {"nodeName": node} if node else {}
    return {"metadata": {"name": name, "labels": labels}, "spec": {**pod_spec(), **placed}}


def deployment(name: str = "one", replicas: int = 0) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec()},
        },
    }


def lease(name: str = "one", holder: str = "a") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.123456Z",
            "leaseTransitions": 0,
        },
    }
