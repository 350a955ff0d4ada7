"""Which of the rights that a chart grants were ever used, as the API server's audit log has it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]
ANY = "*"


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource. ``name`` "*" = any; ``resource`` has its subresource: ``pods``, ``*/scale``."""

    role: str
    group: str
    resource: str
    name: str
    verb: str

    def __str__(self) -> str:
        where = self.resource if not self.group else f"{self.resource}.{self.group}"
        return f"{self.role}: {self.verb} {where}" + ("" if self.name == ANY else f" {self.name}")


@dataclass(frozen=True, slots=True)
class Use:
    """One request of the account: what it was about, and whether it was allowed."""

    group: str
    resource: str
    name: str
    verb: str
    allowed: bool

    def needs(self, right: Right) -> bool:
        """Tell whether this request is covered by a right."""
        main, _, subresource = right.resource.partition("/")
        mine, _, sub = self.resource.partition("/")
        return (
            right.verb == self.verb
            and right.group in (ANY, self.group)
            and main in (ANY, mine)
            and subresource == sub
            and right.name in (ANY, self.name)
        )


def granted(objects: Iterable[Object]) -> list[Right]:
    """List every right of the roles among these objects: rule by rule, verb by verb."""
    roles = [one for one in objects if one["kind"] in {"ClusterRole", "Role"}]
    return [right for role in roles for rule in role["rules"] for right in _rights(role["metadata"]["name"], rule)]


def _rights(role: str, rule: Object) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for name in rule.get("resourceNames") or [ANY]:
                for verb in rule["verbs"]:
                    yield Right(role, group, resource, name, verb)


def uses(audit: Iterable[Object], user: str) -> list[Use]:
    """List what a user asked of resources."""
    mine = [event for event in audit if event["user"].get("username") == user and "objectRef" in event]
    return [_use(event) for event in mine if event["objectRef"].get("resource")]


def _use(event: Object) -> Use:
    ref = event["objectRef"]
    resource = "/".join(part for part in (ref["resource"], ref.get("subresource", "")) if part)
    decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
    return Use(ref.get("apiGroup", ""), resource, ref.get("name", ""), event["verb"], decision == "allow")


def unused(rights: Iterable[Right], used: Iterable[Use]) -> list[Right]:
    """List the rights that no allowed request needed."""
    allowed = {use for use in used if use.allowed}
    return [right for right in rights if not any(use.needs(right) for use in allowed)]
