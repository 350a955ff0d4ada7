"""The shipped custom resource definitions are the typed resources, whole, and within what an API server accepts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller import crds
from controller.schema import Rule
from controller.shapes import plan_of, word_of
from controller.validation import RULES

CHART = Path(__file__).resolve().parents[2] / "charts/gpuscale/files/crds"
DEFINITIONS = {d["spec"]["names"]["kind"]: d for d in crds.definitions()}


def schemas(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in node:
            yield from schemas(node[word], f"{path}[]")


def spec_schemas(kind: str) -> list[tuple[str, dict[str, Any]]]:
    version = DEFINITIONS[kind]["spec"]["versions"][0]
    return list(schemas(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec"))


def names_of(kind: str, priority: int) -> list[str]:
    columns = DEFINITIONS[kind]["spec"]["versions"][0]["additionalPrinterColumns"]
    return [column["name"].upper() for column in columns if column.get("priority", 0) == priority]


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_the_chart_ships_what_the_code_generates(kind: str) -> None:
    shipped = (CHART / crds.file_name(DEFINITIONS[kind])).read_text(encoding="utf-8")
    assert shipped == crds.render(DEFINITIONS[kind]), "run: make crds"


def test_the_chart_ships_no_other_definition() -> None:
    assert {p.name for p in CHART.glob("*.yaml")} == {crds.file_name(d) for d in DEFINITIONS.values()}


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_everything_that_can_grow_has_a_limit_so_that_cel_costs_are_bounded(kind: str) -> None:
    limits = {"string": "maxLength", "array": "maxItems"}
    endless = [
        path
        for path, schema in spec_schemas(kind)
        if (schema.get("type") in limits and limits[schema["type"]] not in schema and "enum" not in schema)
        or ("additionalProperties" in schema and "maxProperties" not in schema)
    ]
    assert endless == []


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_every_field_has_one_type_as_a_structural_schema_demands(kind: str) -> None:
    for path, schema in spec_schemas(kind):
        assert ("type" in schema) != schema.get("x-kubernetes-int-or-string", False), path
        assert not {"$ref", "oneOf", "allOf", "not", "nullable"} & set(schema), path


def test_every_rule_stands_in_a_definition() -> None:
    shipped = {
        validation["rule"]
        for kind in DEFINITIONS
        for _, schema in spec_schemas(kind)
        for validation in schema.get("x-kubernetes-validations", [])
    }
    assert shipped == {rule.cel for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.owner.__name__}.{rule.fields[0]}")
def test_a_rule_names_fields_that_its_owner_has_and_that_its_cel_reads(rule: Rule[Any]) -> None:
    names = {plan.name for plan in plan_of(rule.owner)}
    assert set(rule.fields) <= names
    assert all(f"self.{word_of(name)}" in rule.cel for name in rule.fields)


def test_defaults_stand_only_where_an_hpa_has_them_or_has_no_such_field() -> None:
    found = {path for path, schema in spec_schemas("GPUWorkloadScaler") if "default" in schema}
    ours = (".mode", ".source.server", ".missingData.", ".warmup.", ".victimSelection.", ".apiVersion")
    assert {path for path in found if not any(word in path for word in ours)} == {"spec.minReplicas"}


def test_the_table_of_kubectl_has_the_columns_of_an_hpa_and_ours() -> None:
    shared = ["MODE", "REASON", "AGE"]
    columns = {kind: names_of(kind, priority=0) for kind in DEFINITIONS}
    assert columns == {
        "GPUWorkloadScaler": ["REFERENCE", "TARGETS", "MINPODS", "MAXPODS", "REPLICAS", "DESIRED", *shared],
        "GPUNodePoolScaler": ["POOL", "MIN", "MAX", "NODES", "DESIRED", *shared],
    }


def test_what_a_platform_engineer_asks_next_is_in_the_wide_table() -> None:
    assert names_of("GPUWorkloadScaler", priority=1) == ["READY", "WARMING"]
    assert names_of("GPUNodePoolScaler", priority=1) == ["COMING", "GPUS", "REQUESTED", "WAITING"]


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_every_column_shows_a_field_of_the_schema(kind: str) -> None:
    version = DEFINITIONS[kind]["spec"]["versions"][0]
    known = {path for path, _ in schemas(version["schema"]["openAPIV3Schema"], "")}
    paths = {column["jsonPath"] for column in version["additionalPrinterColumns"]} - {".metadata.creationTimestamp"}
    assert paths <= known


def test_the_verb_writes_the_same_files_that_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from controller.__main__ import main

    assert main(["crds"]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert main(["crds", "--out", str(tmp_path / "new")]) == 0
    written = [yaml.safe_load(Path(line).read_text()) for line in capsys.readouterr().out.split()]
    assert printed == written == list(DEFINITIONS.values())
