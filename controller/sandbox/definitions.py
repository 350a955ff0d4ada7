"""Custom resource definitions: storing one serves its kind, with its schema, columns and subresources."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from controller.sandbox import errors, schemas, strategy
from controller.sandbox.admission import Admit, WriteOptions
from controller.sandbox.errors import Cause
from controller.sandbox.history import Change, History
from controller.sandbox.kinds import BUILT_IN, DEFINITIONS, Resource
from controller.sandbox.ownership import Lists, Path
from controller.sandbox.predicates import PREDICATES

Object = dict[str, Any]

_BLOCKING = {
    "FieldValueNotSupported",
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
}
_RULES_UNCHECKED = Cause(
    "FieldValueInvalid",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
    "<nil>",
)
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_BUILT_IN_NAMES = {resource.qualified for resource in BUILT_IN}


class Registry(Protocol):
    """What the definitions need of the store."""

    clock: Callable[[], float]

    def register(self, resource: Resource, admit: Admit | None = None) -> None:
        """Serve a kind."""

    def unregister(self, resource: Resource) -> None:
        """Serve a kind no longer."""

    def history(self, resource: Resource) -> History:
        """Tell what happens to a kind."""


@dataclass(frozen=True)
class Definition:
    """One kind as its definition describes it: the schema (a mapping in OpenAPI v3) and the columns of tables."""

    resource: Resource
    schema: Mapping[str, Any]
    columns: tuple[Mapping[str, Any], ...]
    check: schemas.SchemaCheck

    def lists(self) -> Lists:
        """Tell how lists are merged by an apply."""
        return lambda path: _list_keys(self.schema, path)


class Definitions:
    """The custom kinds of one store."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[str, Definition] = {}
        registry.register(DEFINITIONS, self._admit_definition)
        registry.history(DEFINITIONS).listeners.append(self._changed)

    def of(self, resource: Resource) -> Definition | None:
        """Give the definition of a custom kind; None for a built-in one."""
        return self._known.get(resource.qualified)

    def _changed(self, change: Change) -> None:
        obj = change.entry.obj
        name = obj["metadata"]["name"]
        if change.type == "DELETED":
            if known := self._known.pop(name, None):
                self._registry.unregister(known.resource)
            return
        if change.previous is not None and change.previous.obj["spec"] == obj["spec"]:
            return
        definition = _read(obj)
        self._known[name] = definition
        self._registry.register(definition.resource, self._admit_custom(definition))

    def _admit_definition(self, new: Object, old: Object | None, subresource: str, _options: WriteOptions) -> None:
        spec = new.get("spec") or {}
        if faults := _definition_faults(new["metadata"]["name"], spec):
            raise errors.invalid(DEFINITIONS.group, DEFINITIONS.kind, new["metadata"]["name"], faults)
        names = spec["names"]
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
        spec.setdefault("conversion", {"strategy": "None"})
        if subresource != "status":
            new["status"] = _established(spec, old, strategy.timestamp(self._registry.clock()))

    def _admit_custom(self, definition: Definition) -> Admit:
        def admit(new: Object, _old: Object | None, subresource: str, options: WriteOptions) -> None:
            unknown = schemas.prune(new, definition.schema)
            _report_unknown(definition.resource, unknown, options)
            schemas.fill_defaults(new, definition.schema)
            only = "status" if subresource == "status" else ""
            faults = definition.check.faults(new, only) + _scale_faults(definition.resource, new)
            faults += _rule_faults(definition.resource, new, faults)
            if faults:
                resource = definition.resource
                raise errors.invalid(resource.group, resource.kind, new["metadata"]["name"], faults)

        return admit


def _rule_faults(resource: Resource, obj: Object, found: list[Cause]) -> list[Cause]:
    """Check the rules across fields, unless a fault of the schema keeps a server from it."""
    predicate = PREDICATES.get(resource.qualified)
    if predicate is None:
        return []
    if any(cause.reason in _BLOCKING for cause in found):
        return [_RULES_UNCHECKED]
    return predicate(obj)


def _report_unknown(resource: Resource, unknown: list[str], options: WriteOptions) -> None:
    told = [f'unknown field "{path}"' for path in sorted(unknown)]
    if not told or options.strictness == "Ignore":
        return
    if options.strictness == "Warn":
        options.warnings += told
        return
    sentence = f"strict decoding error: {', '.join(told)}"
    if options.patching:
        raise errors.invalid("", "", "", [Cause("FieldValueInvalid", f"Invalid value: {{}}: {sentence}", "patch")])
    raise errors.bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {sentence}'
    )


def _scale_faults(resource: Resource, obj: Object) -> list[Cause]:
    if resource.scale is None:
        return []
    path = resource.scale[0]
    value = strategy.at_path(obj, path)
    if isinstance(value, int) and value < 0:
        return [Cause("FieldValueInvalid", f"Invalid value: {value}: should be a non-negative integer", f".{path}")]
    return []


def _definition_faults(name: str, spec: Mapping[str, Any]) -> list[Cause]:
    names, group, versions = spec.get("names") or {}, spec.get("group", ""), spec.get("versions") or []
    faults = [
        Cause("FieldValueRequired", "Required value", path)
        for path, value in (
            ("spec.group", group),
            ("spec.scope", spec.get("scope")),
            ("spec.names.plural", names.get("plural")),
            ("spec.names.kind", names.get("kind")),
            ("spec.versions", versions),
        )
        if not value
    ]
    expected = f"{names.get('plural')}.{group}"
    if not faults and name != expected:
        told = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        faults.append(Cause("FieldValueInvalid", told, "metadata.name"))
    if versions and sum(bool(version.get("storage")) for version in versions) != 1:
        told = f"Invalid value: {errors.shown(versions)}: must have exactly one version marked as storage version"
        faults.append(Cause("FieldValueInvalid", told, "spec.versions"))
    faults += [
        Cause(
            "FieldValueRequired", "Required value: schemas are required", f"spec.versions[{i}].schema.openAPIV3Schema"
        )
        for i, version in enumerate(versions)
        if not (version.get("schema") or {}).get("openAPIV3Schema")
    ]
    if expected in _BUILT_IN_NAMES:
        faults.append(Cause("FieldValueInvalid", f'Invalid value: "{expected}": is a built-in kind', "metadata.name"))
    return faults


def _established(spec: Mapping[str, Any], old: Object | None, moment: str) -> Object:
    held = {c["type"]: c for c in ((old or {}).get("status") or {}).get("conditions") or []}
    told = {
        "NamesAccepted": ("NoConflicts", "no conflicts found"),
        "Established": ("InitialNamesAccepted", "the initial names have been accepted"),
    }
    conditions = [
        held.get(kind)
        or {"type": kind, "status": "True", "lastTransitionTime": moment, "reason": reason, "message": message}
        for kind, (reason, message) in told.items()
    ]
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    return {"conditions": conditions, "acceptedNames": strategy.clone(spec["names"]), "storedVersions": [stored]}


def _read(obj: Object) -> Definition:
    spec = obj["spec"]
    served = [version for version in spec["versions"] if version.get("served")]
    version = next((v for v in served if v.get("storage")), served[0] if served else spec["versions"][0])
    names = spec["names"]
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    resource = Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        singular=names["singular"],
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        namespaced=spec["scope"] == "Namespaced",
        subresources=tuple(name for name in ("status", "scale") if name in subresources),
        counts_generation=True,
        unconditional_update=False,
        fields=tuple(field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or []),
        scale=_scale_paths(scale) if scale else None,
        custom=True,
    )
    schema = version["schema"]["openAPIV3Schema"]
    columns = tuple(version.get("additionalPrinterColumns") or [_AGE])
    return Definition(resource, schema, columns, schemas.SchemaCheck(schema))


def _scale_paths(scale: Mapping[str, str]) -> tuple[str, str, str]:
    paths = (scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath", ""))
    return (paths[0].lstrip("."), paths[1].lstrip("."), paths[2].lstrip("."))


def _list_keys(schema: Mapping[str, Any], path: Path) -> tuple[str, ...] | None:
    if path == ("metadata", "finalizers"):
        return ()
    if path == ("metadata", "ownerReferences"):
        return ("uid",)
    node: Mapping[str, Any] = schema
    for name in path:
        node = node.get("items") or node
        node = (node.get("properties") or {}).get(name) or node.get("additionalProperties") or {}
        if not isinstance(node, Mapping):
            return None
    kind = node.get("x-kubernetes-list-type")
    return () if kind == "set" else tuple(node.get("x-kubernetes-list-map-keys") or ()) if kind == "map" else None
