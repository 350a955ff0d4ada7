"""One HTTP request as the API understands it: which kind, which object, which options."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from controller.sandbox import errors, protobuf
from controller.sandbox.admission import WriteOptions
from controller.sandbox.kinds import Resource

Object = dict[str, Any]

_READABLE = ("application/json", "application/yaml", protobuf.MEDIA_TYPE, "application/apply-patch+yaml")


class _PlainLoader(yaml.SafeLoader):
    """YAML as JSON reads it: a date stays the text that it is."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Place:
    """What a path names; ``name`` is empty for a collection, ``namespace`` None for all of them."""

    resource: Resource
    namespace: str | None
    name: str
    subresource: str


def place_of(resources: Mapping[str, Resource], parts: list[str]) -> Place:
    """Read the parts of a path below ``/``: ``api/v1/...`` or ``apis/G/V/...``. Raises 404."""
    group, version, rest = _group_version(parts)
    namespace = None
    if len(rest) > 2 and rest[0] == "namespaces" and not (len(rest) == 3 and rest[2] == "status"):
        namespace, rest = rest[1], rest[2:]
    resource = resources.get(errors.qualified(group, rest[0])) if rest else None
    if resource is None or resource.version != version or len(rest) > 3 or (namespace and not resource.namespaced):
        raise errors.no_such_path()
    name, subresource = (*rest[1:], "", "")[:2]
    if subresource and subresource not in resource.subresources:
        raise errors.no_such_path()
    if name and resource.namespaced and namespace is None:
        raise errors.no_such_path()
    return Place(resource, namespace, name, subresource)


def _group_version(parts: list[str]) -> tuple[str, str, list[str]]:
    if parts[0] == "api" and len(parts) >= 2:
        return "", parts[1], parts[2:]
    if parts[0] == "apis" and len(parts) >= 3:
        return parts[1], parts[2], parts[3:]
    raise errors.no_such_path()


class Call:
    """A request to one place, with its options read on demand."""

    def __init__(self, request: web.Request, place: Place) -> None:
        self.request = request
        self.place = place
        self.query: Mapping[str, str] = request.query if request.query_string else {}
        self.options = WriteOptions()

    @property
    def content_type(self) -> str:
        """The media type of the body, without parameters."""
        return self.request.headers.get("Content-Type", "application/json").partition(";")[0].strip()

    @property
    def manager(self) -> str:
        """Who writes: the field manager named in the query, else the program named by the user agent."""
        return self.query.get("fieldManager") or self.request.headers.get("User-Agent", "unknown").partition("/")[0]

    def flag(self, name: str) -> bool:
        """Whether a query parameter is set to true."""
        return self.query.get(name, "").lower() in {"true", "1"}

    def number(self, name: str) -> int:
        """Give a query parameter as a whole number, 0 when it is absent. Raises 400."""
        text = self.query.get(name) or "0"
        if not text.isdigit():
            raise errors.bad_request(f'Invalid value: "{text}": {name} must be a whole number')
        return int(text)

    def write_options(self) -> WriteOptions:
        """Give the options of a write. Raises 422 for values that the API does not know."""
        strictness = self.query.get("fieldValidation") or "Warn"
        dry_run = self.query.get("dryRun", "")
        for path, value, known in (
            ("fieldValidation", strictness, ("Ignore", "Warn", "Strict")),
            ("dryRun", dry_run, ("", "All")),
        ):
            if value not in known:
                told = ", ".join(f'"{word}"' for word in known if word)
                message = f'Unsupported value: "{value}": supported values: {told}'
                cause = errors.Cause("FieldValueNotSupported", message, path)
                raise errors.invalid("meta.k8s.io", "CreateOptions", "", [cause])
        self.options = WriteOptions(dry_run=bool(dry_run), strictness=strictness)
        return self.options

    def view(self) -> str:
        """Give the form that the caller wants: ``Table``, ``PartialObjectMetadata`` or "" for the object itself."""
        accept = self.request.headers.get("Accept", "")
        for media in accept.split(","):
            parameters = dict(part.strip().partition("=")[::2] for part in media.split(";")[1:])
            if "json" in media and parameters.get("v", "v1") == "v1" and "as" in parameters:
                return parameters["as"].removesuffix("List")
            if media.strip().startswith(("application/json", "*/*")):
                return ""
        return ""

    async def body(self) -> Any:
        """Give the decoded body, None when there is none. Raises 400, and 415 for a format that is not read."""
        raw = await self.request.read()
        if not raw:
            return None
        if self.content_type == protobuf.MEDIA_TYPE:
            return _from_protobuf(raw)
        try:
            return json.loads(raw)
        except ValueError as exc:
            if "json" in self.content_type:
                raise errors.bad_request(f"error decoding the body of the request: {exc}") from exc
        try:
            return yaml.load(raw, Loader=_PlainLoader)  # noqa: S506 - a safe loader that only leaves dates alone
        except yaml.YAMLError as exc:
            raise errors.bad_request(f"error decoding the body of the request: {exc}") from exc

    async def object(self) -> Object:
        """Give the body as an object. Raises 400 and 415."""
        if self.content_type not in _READABLE:
            raise errors.unsupported_media(_READABLE[:3])
        body = await self.body()
        if not isinstance(body, dict):
            kind = self.place.resource.kind
            raise errors.bad_request(f"the object provided is unrecognized (must be of type {kind}): it is no object")
        return body


def _from_protobuf(raw: bytes) -> Object:
    try:
        return protobuf.decode(raw)
    except protobuf.UnreadableError as exc:
        raise errors.StatusError(415, "UnsupportedMediaType", str(exc)) from exc
