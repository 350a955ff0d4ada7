"""Bad objects are refused by the real API server, by schema or CEL, with the field and our message; good ones pass."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.resources import parse_pool_scaler, parse_workload_scaler
from controller.schema import Invalid
from controller.validation import RULES
from tests.cluster.kubectl import Kubectl, RefusedError

TESTS = Path(__file__).resolve().parents[1]
PARSERS = {"GPUWorkloadScaler": parse_workload_scaler, "GPUNodePoolScaler": parse_pool_scaler}
MESSAGES = {rule.message for rule in RULES}
Entry = dict[str, Any]


def entries(folder: str) -> list[Entry]:
    return [entry for path in sorted((TESTS / folder).glob("*.yaml")) for entry in yaml.safe_load(path.read_text())]


def named(entry: Entry) -> str:
    return str(entry["name"]).replace(" ", "-")


def tried(kubectl: Kubectl, entry: Entry) -> None:
    """Create it for show, in a namespace that is there."""
    manifest = dict(entry["manifest"])
    if "namespace" in (manifest.get("metadata") or {}):
        manifest["metadata"] = manifest["metadata"] | {"namespace": "default"}
    kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(manifest))


@pytest.mark.parametrize("entry", entries("bad_objects"), ids=named)
def test_a_bad_object_is_refused_with_its_field_and_where_a_rule_refuses_it_with_our_words(
    entry: Entry, kubectl: Kubectl
) -> None:
    with pytest.raises(Invalid) as caught:
        PARSERS[entry["manifest"]["kind"]](entry["manifest"])
    with pytest.raises(RefusedError) as refused:
        tried(kubectl, entry)
    said = str(refused.value)
    assert any(path in said for path in entry["faults"]), said
    across = [fault.message for fault in caught.value.faults if fault.message in MESSAGES]
    if len(across) == len(caught.value.faults):  # else the API server tells faults of the schema, and those only
        assert all(message in said for message in across), said


@pytest.mark.parametrize("entry", entries("good_objects"), ids=named)
def test_a_good_object_is_accepted(entry: Entry, kubectl: Kubectl) -> None:
    tried(kubectl, entry)
