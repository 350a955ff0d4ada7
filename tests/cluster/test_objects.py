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


def placed(manifest: Entry, namespace: str) -> Entry:
    """Move a namespaced object into the namespace of the test."""
    metadata = dict(manifest.get("metadata") or {})
    return manifest | {"metadata": metadata | ({"namespace": namespace} if metadata.get("namespace") else {})}


@pytest.fixture(scope="module")
def quiet(kubectl: Kubectl) -> str:
    """A namespace for objects that are only tried."""
    return "default"


@pytest.mark.parametrize("entry", entries("bad_objects"), ids=named)
def test_a_bad_object_is_refused_with_its_field(entry: Entry, kubectl: Kubectl, quiet: str) -> None:
    with pytest.raises(RefusedError) as refused:
        kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(placed(entry["manifest"], quiet)))
    said = str(refused.value)
    assert any(path in said for path in entry["faults"]), said


@pytest.mark.parametrize("entry", entries("bad_objects"), ids=named)
def test_a_rule_across_fields_speaks_with_the_same_words(entry: Entry, kubectl: Kubectl, quiet: str) -> None:
    with pytest.raises(Invalid) as caught:
        PARSERS[entry["manifest"]["kind"]](entry["manifest"])
    across = [fault for fault in caught.value.faults if fault.message in MESSAGES]
    if len(across) < len(caught.value.faults):
        return  # the API server tells faults of the schema first, and CEL only where there are none
    with pytest.raises(RefusedError) as refused:
        kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(placed(entry["manifest"], quiet)))
    for fault in across:
        assert fault.message in str(refused.value)


@pytest.mark.parametrize("entry", entries("good_objects"), ids=named)
def test_a_good_object_is_accepted(entry: Entry, kubectl: Kubectl, quiet: str) -> None:
    kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(placed(entry["manifest"], quiet)))
