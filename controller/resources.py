"""The custom resources: a manifest in, a typed value out, or everything that is wrong with it.

Why it exists: the door between Kubernetes' dictionaries and the rest of the controller. The words of the specs
stand in workload_spec.py and pool_spec.py, the rules between them in validation.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from controller.pool_spec import PoolSpec
from controller.quantity import milli
from controller.resource_status import PoolStatus, WorkloadStatus
from controller.schema import Fault, Invalid, parse
from controller.validation import RULES
from controller.workload_spec import WorkloadSpec

__all__ = [
    "API_VERSION",
    "GROUP",
    "VERSION",
    "Fault",
    "GPUNodePoolScaler",
    "GPUWorkloadScaler",
    "Invalid",
    "PoolSpec",
    "PoolStatus",
    "WorkloadSpec",
    "WorkloadStatus",
    "milli",
    "parse_pool_scaler",
    "parse_workload_scaler",
]

GROUP = "gpuscale.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
WORKLOAD_KIND = "GPUWorkloadScaler"
POOL_KIND = "GPUNodePoolScaler"
HPA_KIND = "HorizontalPodAutoscaler"
HPA_API_VERSION = "autoscaling/v2"

Manifest = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GPUWorkloadScaler:
    """One workload scaler; ``status`` is the raw mapping, ``created`` the creationTimestamp or empty.

    ``is_hpa``: the manifest was a HorizontalPodAutoscaler.
    """

    name: str
    namespace: str
    spec: WorkloadSpec
    uid: str = ""
    generation: int = 0
    created: str = ""
    status: Manifest = field(default_factory=dict)
    is_hpa: bool = False


@dataclass(frozen=True, slots=True)
class GPUNodePoolScaler:
    """One node-pool scaler; ``status`` is the raw mapping, ``created`` the creationTimestamp or empty."""

    name: str
    spec: PoolSpec
    uid: str = ""
    generation: int = 0
    created: str = ""
    status: Manifest = field(default_factory=dict)


def parse_workload_scaler(manifest: Manifest) -> GPUWorkloadScaler:
    """Read a GPUWorkloadScaler, or a HorizontalPodAutoscaler of autoscaling/v2. Raises Invalid with all faults."""
    faults = _head(manifest, {WORKLOAD_KIND: API_VERSION, HPA_KIND: HPA_API_VERSION})
    spec = _spec(WorkloadSpec, manifest, faults)
    meta = _metadata(manifest)
    return GPUWorkloadScaler(
        name=str(meta["name"]),
        namespace=str(meta.get("namespace") or "default"),
        spec=spec,
        uid=str(meta.get("uid") or ""),
        generation=_generation(meta),
        created=str(meta.get("creationTimestamp") or ""),
        status=_mapping(manifest.get("status")),
        is_hpa=manifest.get("kind") == HPA_KIND,
    )


def parse_pool_scaler(manifest: Manifest) -> GPUNodePoolScaler:
    """Read a GPUNodePoolScaler. Raises Invalid with all faults."""
    faults = _head(manifest, {POOL_KIND: API_VERSION})
    spec = _spec(PoolSpec, manifest, faults)
    meta = _metadata(manifest)
    return GPUNodePoolScaler(
        name=str(meta["name"]),
        spec=spec,
        uid=str(meta.get("uid") or ""),
        generation=_generation(meta),
        created=str(meta.get("creationTimestamp") or ""),
        status=_mapping(manifest.get("status")),
    )


def _head(manifest: Manifest, allowed: Mapping[str, str]) -> list[Fault]:
    """Faults of kind, apiVersion and metadata.name."""
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    faults = []
    if not isinstance(kind, str) or kind not in allowed:
        faults.append(Fault("kind", f'must be {" or ".join(allowed)}; here it is "{kind}"'))
    elif version != allowed[kind]:
        faults.append(Fault("apiVersion", f'must be {allowed[kind]} for {kind}; here it is "{version}"'))
    if not _metadata(manifest).get("name"):
        faults.append(Fault("metadata.name", "is required"))
    return faults


def _spec(cls: type[T], manifest: Manifest, faults: list[Fault]) -> T:
    try:
        spec = parse(cls, manifest.get("spec"), RULES, "spec")
    except Invalid as invalid:
        raise Invalid([*faults, *invalid.faults]) from None
    if faults:
        raise Invalid(faults)
    return spec


def _generation(meta: Manifest) -> int:
    """Give the generation; an API server always writes one, a file may bear anything."""
    written = meta.get("generation")
    return written if isinstance(written, int) else 0


def _metadata(manifest: Manifest) -> Manifest:
    return _mapping(manifest.get("metadata"))


def _mapping(value: object) -> Manifest:
    return value if isinstance(value, Mapping) else {}
