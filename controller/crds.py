"""The verb ``crds``: prints or writes the CustomResourceDefinitions, generated from the typed resources.

Why it exists: the chart ships these files; a contract test generates them again and fails on a difference.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from controller.pool_spec import PoolSpec
from controller.resource_status import PoolStatus, WorkloadStatus
from controller.resources import GROUP, POOL_KIND, VERSION, WORKLOAD_KIND
from controller.schema import openapi
from controller.validation import RULES
from controller.workload_spec import WorkloadSpec

Document = dict[str, Any]
Column = tuple[str, str, str, str]

_AGE: Column = ("Age", "date", ".metadata.creationTimestamp", "")
_WORKLOAD_COLUMNS: tuple[Column, ...] = (
    ("Reference", "string", ".spec.scaleTargetRef.name", "What is scaled."),
    ("Targets", "string", ".status.targets", "Current/target of the first two metrics, as an HPA shows them."),
    ("MinPods", "integer", ".spec.minReplicas", "Fewest replicas."),
    ("MaxPods", "integer", ".spec.maxReplicas", "Most replicas."),
    ("Replicas", "integer", ".status.currentReplicas", "Size now."),
    ("Desired", "integer", ".status.desiredReplicas", "Size decided."),
    ("Mode", "string", ".spec.mode", "Active, Preview or Off."),
    ("Reason", "string", ".status.decision.reason", "Why the size is what it is."),
    _AGE,
)
_WIDE_WORKLOAD_COLUMNS: tuple[Column, ...] = (
    ("Ready", "integer", ".status.readyReplicas", "Pods that serve."),
    ("Warming", "integer", ".status.warmingReplicas", "Pods that start: capacity on its way."),
)
_POOL_COLUMNS: tuple[Column, ...] = (
    ("Pool", "string", ".spec.pool.ref.name", "The object that holds the size."),
    ("Min", "integer", ".spec.bounds.min", "Fewest nodes."),
    ("Max", "integer", ".spec.bounds.max", "Most nodes."),
    ("Nodes", "integer", ".status.nodes.ready", "Nodes with all their GPUs."),
    ("Desired", "integer", ".status.nodes.desired", "Size decided."),
    ("Mode", "string", ".spec.mode", "Active, Preview or Off."),
    ("Reason", "string", ".status.decision.reason", "Why the size is what it is."),
    _AGE,
)
_WIDE_POOL_COLUMNS: tuple[Column, ...] = (
    ("Coming", "integer", ".status.nodes.coming", "Nodes on their way."),
    ("GPUs", "integer", ".status.gpus.total", "GPUs of the nodes."),
    ("Requested", "number", ".status.gpus.requested", "GPUs asked for by pods on the nodes."),
    ("Waiting", "number", ".status.gpus.waiting", "GPUs asked for by pods that wait or are planned."),
)


def definitions() -> tuple[Document, ...]:
    """Both CustomResourceDefinitions, as manifests."""
    return (
        _definition(
            WORKLOAD_KIND,
            "gws",
            "Namespaced",
            "Scales a workload by what its GPUs do, or by any metric of a HorizontalPodAutoscaler.",
            (WorkloadSpec, WorkloadStatus),
            _columns(_WORKLOAD_COLUMNS, _WIDE_WORKLOAD_COLUMNS),
        ),
        _definition(
            POOL_KIND,
            "gnps",
            "Cluster",
            "Resizes a pool of GPU nodes by what pods ask for.",
            (PoolSpec, PoolStatus),
            _columns(_POOL_COLUMNS, _WIDE_POOL_COLUMNS),
        ),
    )


def _definition(
    kind: str, short: str, scope: str, doc: str, types: tuple[type[Any], type[Any]], columns: list[Document]
) -> Document:
    plural = f"{kind.lower()}s"
    spec, status = types
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(doc, openapi(spec, RULES), openapi(status))},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["gpuscale"],
            },
            "scope": scope,
            "versions": [version],
        },
    }


def _root(doc: str, spec: Document, status: Document) -> Document:
    return {
        "description": doc,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def _columns(always: tuple[Column, ...], wide: tuple[Column, ...]) -> list[Document]:
    """Make the columns that a table always has, then those that only ``-o wide`` shows."""
    return [*map(_column, always), *(_column(column) | {"priority": 1} for column in wide)]


def _column(column: Column) -> Document:
    name, kind, path, doc = column
    found = {"name": name, "type": kind, "jsonPath": path, "description": doc}
    return {word: value for word, value in found.items() if value}


def render(definition: Document) -> str:
    """Return one definition as YAML, the same text for the same definition."""
    return yaml.safe_dump(definition, sort_keys=False, width=120, allow_unicode=True)


def file_name(definition: Document) -> str:
    """Return the name of its file in the chart: ``gpuscale.dev_gpuworkloadscalers.yaml``."""
    return f"{GROUP}_{definition['spec']['names']['plural']}.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's one flag."""
    parser.add_argument("--out", metavar="DIR", type=Path, help="write one file each into DIR instead of printing")


def main(args: argparse.Namespace) -> int:
    """Print the definitions, or write them into ``--out``."""
    out: Path | None = args.out
    if out is None:
        sys.stdout.write("---\n".join(render(definition) for definition in definitions()))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    for definition in definitions():
        path = out / file_name(definition)
        path.write_text(render(definition), encoding="utf-8")
        print(path)
    return 0
