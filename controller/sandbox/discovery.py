"""Discovery and OpenAPI: what kubectl and clients read to learn which kinds are served."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from controller.sandbox import errors
from controller.sandbox.definitions import Definitions
from controller.sandbox.history import encode
from controller.sandbox.kinds import Resource

Object = dict[str, Any]

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+gpuscale-sandbox",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": "linux/amd64",
}
_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_SUBRESOURCES: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
    # name -> kind, group, version ("" = those of the parent), verbs
    "status": ("", "", "", ("get", "patch", "update")),
    "scale": ("Scale", "autoscaling", "v1", ("get", "patch", "update")),
    "eviction": ("Eviction", "policy", "v1", ("create",)),
    "binding": ("Binding", "", "v1", ("create",)),
}


def document(parts: tuple[str, ...], resources: Iterable[Resource]) -> Object:
    """Give the discovery document at a path below ``/``: ``api``, ``apis``, ``api/v1``, ``apis/G`` or ``apis/G/V``."""
    served = list(resources)
    match parts:
        case ("api",):
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ("apis",):
            groups = [_group(name, served) for name in dict.fromkeys(r.group for r in served if r.group)]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ("apis", group) if any(r.group == group for r in served):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, served)}
        case ("api", version) | ("apis", _, version):
            group = parts[1] if len(parts) == 3 else ""
            found = [r for r in served if (r.group, r.version) == (group, version)]
            if found:
                return _resource_list(found)
    raise errors.no_such_path()


def _group(name: str, served: list[Resource]) -> Object:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version}
        for version in dict.fromkeys(r.version for r in served if r.group == name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resource_list(found: list[Resource]) -> Object:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": found[0].api_version,
        "resources": [entry for resource in found for entry in _entries(resource)],
    }


def _entries(resource: Resource) -> Iterable[Object]:
    main: Object = {
        "name": resource.plural,
        "singularName": resource.singular_name,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(_VERBS),
        "storageVersionHash": hashlib.sha256(resource.qualified.encode()).hexdigest()[:12],
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.categories:
        main["categories"] = list(resource.categories)
    yield main
    for name in resource.subresources:
        kind, group, version, verbs = _SUBRESOURCES[name]
        entry: Object = {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind or resource.kind,
            "verbs": list(verbs),
        }
        if kind:
            entry |= {"group": group, "version": version}
        yield entry


def open_api_index(resources: Iterable[Resource], definitions: Definitions) -> Object:
    """Give the list of OpenAPI v3 documents, one a group and version, each with a hash of what is in it."""
    paths: dict[str, str] = {}
    for resource in resources:
        place = f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"
        definition = definitions.of(resource)
        seen = paths.get(place, "") + resource.kind + ("" if definition is None else encode(definition.schema).decode())
        paths[place] = seen
    return {
        "paths": {
            place: {"serverRelativeURL": f"/openapi/v3/{place}?hash={hashlib.sha256(seen.encode()).hexdigest()[:32]}"}
            for place, seen in paths.items()
        }
    }


def open_api(api_version: str, resources: Iterable[Resource], definitions: Definitions) -> Object:
    """Give the OpenAPI v3 document of one group and version: enough for validation by the server and ``explain``."""
    found = [resource for resource in resources if resource.api_version == api_version]
    if not found:
        raise errors.no_such_path()
    schemas = {_schema_name(resource): _schema(resource, definitions) for resource in found}
    return {
        "openapi": "3.0.0",
        "info": {"title": "gpuscale sandbox", "version": VERSION["gitVersion"]},
        "paths": {path: item for resource in found for path, item in _paths(resource)},
        "components": {"schemas": schemas},
    }


def _schema_name(resource: Resource) -> str:
    domain = ".".join(reversed((resource.group or "core").split(".")))
    return f"{domain}.{resource.version}.{resource.kind}"


def _identity(resource: Resource) -> Object:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _schema(resource: Resource, definitions: Definitions) -> Object:
    definition = definitions.of(resource)
    given: Mapping[str, Any] = {} if definition is None else definition.schema
    text, loose = {"type": "string"}, {"type": "object"}
    known = given.get("properties") or {"spec": loose, "status": loose}
    return {
        **given,
        "type": "object",
        "description": given.get("description") or f"{resource.kind} of the embedded cluster.",
        "properties": {"apiVersion": text, "kind": text, "metadata": loose, **known},
        "x-kubernetes-group-version-kind": [_identity(resource)],
    }


def _paths(resource: Resource) -> Iterable[tuple[str, Object]]:
    root = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
    place = f"{root}/namespaces/{{namespace}}" if resource.namespaced else root
    reference = {"$ref": f"#/components/schemas/{_schema_name(resource)}"}
    answer = {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}}

    def operation(*parameters: str) -> Object:
        given = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in parameters]
        return {"parameters": given, "responses": answer, "x-kubernetes-group-version-kind": _identity(resource)}

    writing = ("dryRun", "fieldManager", "fieldValidation")
    yield f"{place}/{resource.plural}", {"get": operation(), "post": operation(*writing)}
    yield (
        f"{place}/{resource.plural}/{{name}}",
        {
            "get": operation(),
            "put": operation(*writing),
            "patch": operation(*writing, "force"),
            "delete": operation("dryRun"),
        },
    )
