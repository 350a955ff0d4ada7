"""Whether the API server knows every field that this version reads: compares its definitions with ours.

Why it exists: Helm leaves definitions alone that it does not own, and an API server drops a field that its definition
lacks without a word. A scaler would then do less than its author wrote. So the operator looks, and says what is
missing and how to cure it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from controller.cluster import ApiError, Cluster, Kind, NotFound
from controller.crds import Document, definitions

DEFINITION = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
LOOK_SECONDS = 600.0
_SHOWN = 5
CURE = (
    "cure: gpuscale crds | kubectl apply --server-side --force-conflicts -f -, "
    "or helm upgrade with --set crds.render=always --take-ownership"
)

log = logging.getLogger(__name__)


def missing_fields(served: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """List the fields of ``ours`` that ``served`` lacks, by path; of a field that is missing whole only its name.

    Both are CustomResourceDefinition manifests. A version that is not served lacks everything: [""].
    """
    [wanted] = ours["spec"]["versions"]
    versions = {row["name"]: row for row in served["spec"]["versions"] if row.get("served")}
    if wanted["name"] not in versions:
        return [""]
    return list(_missing(_schema(versions[wanted["name"]]), _schema(wanted), ""))


def sentence(name: str, missing: list[str]) -> str:
    """Say what is missing from a definition, and the cure."""
    if missing == [""]:
        return f"{name} does not serve the version that this controller reads; {CURE}"
    shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
    return f"{name} is older than this controller: the API server drops {shown} without a word; {CURE}"


async def compare(cluster: Cluster) -> dict[str, list[str]]:
    """Read both definitions; what each lacks, by its name. One that is not there is left out. Raises ApiError."""
    found = {}
    for ours in definitions():
        name = ours["metadata"]["name"]
        try:
            served = await cluster.get(DEFINITION, name)
        except NotFound:
            continue
        found[name] = missing_fields(served, ours)
    return found


async def keep_comparing(cluster: Cluster, show: Callable[[str, int], None], every: float = LOOK_SECONDS) -> None:
    """Compare now and again until cancelled: tell of changes in the log, and ``show(definition, number missing)``."""
    told: dict[str, list[str]] = {}
    while True:
        try:
            for name, missing in (await compare(cluster)).items():
                show(name, len(missing))
                if missing and missing != told.get(name):
                    log.warning("%s", sentence(name, missing))
                elif told.get(name) and not missing:
                    log.info("%s now has every field", name)
                told[name] = missing
        except ApiError as error:
            log.info("the definitions can't be compared: %s", error)
        await asyncio.sleep(every)


def _schema(version: Mapping[str, Any]) -> Document:
    schema: Document = version.get("schema", {}).get("openAPIV3Schema", {})
    return schema


def _missing(served: Mapping[str, Any], ours: Mapping[str, Any], path: str) -> Iterator[str]:
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = served.get("properties", {})
    for name, schema in ours.get("properties", {}).items():
        field = f"{path}.{name}" if path else name
        if name in known:
            yield from _missing(known[name], schema, field)
        else:
            yield field
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(ours.get(word), Mapping) and isinstance(served.get(word), Mapping):
            yield from _missing(served[word], ours[word], path + mark)
