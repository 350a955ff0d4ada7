"""The product's own kinds: what its schema and rules refuse is refused by a server, with the field that is wrong."""

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller import crds
from controller.validation import RULES
from tests.conformance_api.client import APPLY, Answer, Api, Server
from tests.conformance_api.conftest import established
from tests.conformance_api.objects import CRDS

TESTS = Path(__file__).resolve().parents[1]
PATHS = {"GPUWorkloadScaler": "gpuworkloadscalers", "GPUNodePoolScaler": "gpunodepoolscalers"}


def rows(folder: str) -> list[dict[str, Any]]:
    return [row for file in sorted((TESTS / folder).glob("*.yaml")) for row in yaml.safe_load(file.read_text())]


BAD, GOOD = rows("bad_objects"), rows("good_objects")


@pytest.fixture(scope="module", autouse=True)
def installed(server: Server) -> Iterator[None]:
    """The definitions, newest; those that were there before stay there afterwards."""
    added: list[str] = []

    async def install() -> None:
        async with server.connect() as session:
            api = Api(server, session)
            for definition in crds.definitions():
                path = f"{CRDS}/{definition['metadata']['name']}"
                answer = await api.patch(path, definition, APPLY, fieldManager="conformance", force="true")
                if answer.status == 201:
                    added.append(path)
                answer.object()
                await established(api, definition)

    async def remove() -> None:
        async with server.connect() as session:
            for path in added:
                await Api(server, session).delete(path)

    asyncio.run(install())
    yield
    asyncio.run(remove())


async def tried(api: Api, space: str, manifest: dict[str, Any], **query: str) -> Answer:
    sent = copy.deepcopy(manifest)
    root = "/apis/gpuscale.dev/v1alpha1"
    if sent["kind"] == "GPUWorkloadScaler":
        sent["metadata"]["namespace"] = space
        root += f"/namespaces/{space}"
    return await api.post(f"{root}/{PATHS[sent['kind']]}", sent, dryRun="All", **query)


@pytest.mark.parametrize("row", BAD, ids=[row["name"] for row in BAD])
async def test_a_bad_object_is_refused_and_a_wrong_field_named(api: Api, space: str, row: dict[str, Any]) -> None:
    query = {"fieldValidation": "Strict"} if row.get("strict") else {}
    answer = await tried(api, space, row["manifest"], **query)
    if answer.status == 400:
        assert any(f'"{path}"' in answer.body["message"] for path in row["faults"]), answer.body["message"]
        return
    causes = answer.refused(422, "Invalid")["details"]["causes"]
    named = {cause["field"] for cause in causes}
    assert named & set(row["faults"]), causes


@pytest.mark.parametrize("row", GOOD, ids=[row["name"] for row in GOOD])
async def test_a_good_object_is_taken_under_strict_eyes(api: Api, space: str, row: dict[str, Any]) -> None:
    assert (await tried(api, space, row["manifest"], fieldValidation="Strict")).status == 201


async def test_a_rule_across_fields_speaks_with_the_message_of_its_row(api: Api, space: str) -> None:
    manifest = next(row["manifest"] for row in GOOD if row["manifest"]["kind"] == "GPUWorkloadScaler")
    wrong = {**manifest, "spec": {**manifest["spec"], "minReplicas": 5, "maxReplicas": 3}}
    causes = (await tried(api, space, wrong)).refused(422, "Invalid")["details"]["causes"]
    rule = next(rule for rule in RULES if rule.fields == ("max_replicas", "min_replicas"))
    assert [(cause["field"], cause["message"]) for cause in causes] == [
        ("spec.maxReplicas", f"Invalid value: {rule.message}")
    ]


async def test_a_missing_field_keeps_a_server_from_checking_rules(api: Api, space: str) -> None:
    manifest = next(row["manifest"] for row in GOOD if row["manifest"]["kind"] == "GPUWorkloadScaler")
    spec = {**manifest["spec"], "minReplicas": 5, "maxReplicas": 3}
    del spec["scaleTargetRef"]
    causes = (await tried(api, space, {**manifest, "spec": spec})).refused(422, "Invalid")["details"]["causes"]
    assert {cause["field"] for cause in causes} == {"spec.scaleTargetRef", "<nil>"}
