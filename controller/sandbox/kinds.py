"""The kinds that the embedded API serves from the start, each with the traits that decide how it is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

_WORKLOAD = ("status", "scale")
_WORKLOAD_SCALE = ("spec.replicas", "status.replicas", "spec.selector")


@dataclass(frozen=True)
class Resource:
    """One kind under one group and version.

    ``counts_generation``: ``metadata.generation`` follows the spec. ``unconditional_update``: a PUT may leave out the
    resourceVersion. ``create_on_update``: a PUT to a free name creates. ``returns_deleted``: a
    DELETE gives the object, not a Status. ``fields``: selectable beside name and
    namespace. ``selectable_defaults`` is what an absent field counts as. ``custom``: comes from a definition.
    """

    group: str
    version: str
    plural: str
    kind: str
    singular: str = ""
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    counts_generation: bool = False
    unconditional_update: bool = True
    create_on_update: bool = False
    keeps_status: bool = False
    returns_deleted: bool = False
    fields: tuple[str, ...] = ()
    scale: tuple[str, str, str] | None = None
    custom: bool = False

    @cached_property
    def qualified(self) -> str:
        """``deployments.apps``; ``pods`` for the core group. One per stored collection."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @cached_property
    def api_version(self) -> str:
        """``apps/v1``; ``v1`` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def list_kind(self) -> str:
        """The kind of a list of these."""
        return f"{self.kind}List"

    @cached_property
    def singular_name(self) -> str:
        """The word for one object."""
        return self.singular or self.kind.lower()

    @property
    def has_status(self) -> bool:
        """Whether status is written through a path of its own."""
        return "status" in self.subresources


_POD_FIELDS = (
    "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork "
    "status.phase status.podIP status.nominatedNodeName"
)
_EVENT_FIELDS = (
    "involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid involvedObject.apiVersion "
    "involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent source type"
)

NAMESPACES = Resource(
    "",
    "v1",
    "namespaces",
    "Namespace",
    short_names=("ns",),
    namespaced=False,
    subresources=("status",),
    fields=("status.phase",),
    returns_deleted=True,
)
PODS = Resource(
    "",
    "v1",
    "pods",
    "Pod",
    short_names=("po",),
    subresources=("status", "binding", "eviction"),
    categories=("all",),
    counts_generation=True,
    fields=tuple(_POD_FIELDS.split()),
    returns_deleted=True,
)
NODES = Resource(
    "",
    "v1",
    "nodes",
    "Node",
    short_names=("no",),
    namespaced=False,
    subresources=("status",),
    keeps_status=True,
    fields=("spec.unschedulable",),
)
EVENTS = Resource(
    "", "v1", "events", "Event", short_names=("ev",), create_on_update=True, fields=tuple(_EVENT_FIELDS.split())
)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",), returns_deleted=True)
DEPLOYMENTS = Resource(
    "apps",
    "v1",
    "deployments",
    "Deployment",
    short_names=("deploy",),
    subresources=_WORKLOAD,
    scale=_WORKLOAD_SCALE,
    categories=("all",),
    counts_generation=True,
)
REPLICA_SETS = Resource(
    "apps",
    "v1",
    "replicasets",
    "ReplicaSet",
    short_names=("rs",),
    subresources=_WORKLOAD,
    scale=_WORKLOAD_SCALE,
    categories=("all",),
    counts_generation=True,
    fields=("status.replicas",),
)
STATEFUL_SETS = Resource(
    "apps",
    "v1",
    "statefulsets",
    "StatefulSet",
    short_names=("sts",),
    subresources=_WORKLOAD,
    scale=_WORKLOAD_SCALE,
    categories=("all",),
    counts_generation=True,
)
DAEMON_SETS = Resource(
    "apps",
    "v1",
    "daemonsets",
    "DaemonSet",
    short_names=("ds",),
    subresources=("status",),
    categories=("all",),
    counts_generation=True,
)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", unconditional_update=False, create_on_update=True)
DISRUPTION_BUDGETS = Resource(
    "policy",
    "v1",
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    short_names=("pdb",),
    subresources=("status",),
    counts_generation=True,
    unconditional_update=False,
)
AUTOSCALERS = Resource(
    "autoscaling",
    "v2",
    "horizontalpodautoscalers",
    "HorizontalPodAutoscaler",
    short_names=("hpa",),
    subresources=("status",),
    categories=("all",),
)
DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    short_names=("crd", "crds"),
    namespaced=False,
    subresources=("status",),
    categories=("api-extensions",),
    counts_generation=True,
    unconditional_update=False,
)

BUILT_IN: tuple[Resource, ...] = (
    NAMESPACES,
    PODS,
    NODES,
    EVENTS,
    SERVICE_ACCOUNTS,
    Resource("", "v1", "configmaps", "ConfigMap", short_names=("cm",)),
    Resource("", "v1", "secrets", "Secret", fields=("type",)),
    Resource(
        "",
        "v1",
        "services",
        "Service",
        short_names=("svc",),
        subresources=("status",),
        categories=("all",),
        fields=("spec.clusterIP", "spec.type"),
    ),
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    DAEMON_SETS,
    LEASES,
    DISRUPTION_BUDGETS,
    AUTOSCALERS,
    DEFINITIONS,
)

# what a field counts as in a selector while the object does not have it
FIELD_DEFAULTS: Mapping[str, str] = {"spec.unschedulable": "false", "spec.hostNetwork": "false", "status.replicas": "0"}
