"""What can be said of the chart without Helm: its schema, its copies, the names it shares with the programs."""

import copy
import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from controller.resources import parse_pool_scaler, parse_workload_scaler
from controller.settings import Settings as ControllerSettings
from exporter.settings import Settings as ExporterSettings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/gpuscale"
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
VALIDATOR = Draft7Validator(SCHEMA)
FREE_MAPS = {"stringMap", "quantities"}
EXAMPLES = ROOT / "docs/examples"


def template(name: str) -> str:
    return (CHART / "templates" / name).read_text(encoding="utf-8")


def maps(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield (*path, key)
            yield from maps(value, (*path, key))


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    values: dict[str, Any] = copy.deepcopy(VALUES)
    part = values
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return values


def complaints(values: dict[str, Any]) -> list[str]:
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in VALIDATOR.iter_errors(values)]


def test_the_schema_is_a_schema_and_accepts_the_defaults() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert complaints(VALUES) == []


def test_every_map_of_the_schema_is_closed_or_meant_to_be_free() -> None:
    opened = [
        name
        for name, schema in SCHEMA["definitions"].items()
        if "object" in schema.get("type", []) and schema.get("additionalProperties") is not False
    ]
    assert set(opened) == FREE_MAPS

    def closed(schema: dict[str, Any]) -> bool:
        children = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        return ("properties" not in schema or schema["additionalProperties"] is False) and all(map(closed, children))

    assert closed(SCHEMA)
    assert all(closed(schema) for schema in SCHEMA["definitions"].values())


@pytest.mark.parametrize("path", [(), *maps(VALUES)], ids=".".join)
def test_an_unknown_key_is_refused_by_its_name(path: tuple[str, ...]) -> None:
    found = complaints(changed((*path, "surprise"), {"a": 1}))
    assert len(found) == 1
    assert "surprise" in found[0] or found[0].startswith(".".join((*path, "surprise")))


@pytest.mark.parametrize("path", list(maps(VALUES)), ids=".".join)
def test_a_map_may_be_null_but_not_a_text(path: tuple[str, ...]) -> None:
    assert complaints(changed(path, None)) == []
    assert [line for line in complaints(changed(path, "text")) if line.startswith(".".join(path))]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("controller", "replicas"), "two"),
        (("exporter", "enabled"), "yes"),
        (("exporter", "pollSeconds"), 0),
        (("exporter", "tolerations"), {"key": "a"}),
        (("controller", "prometheus"), [{"name": "default", "url": "prometheus:9090"}]),
        (("controller", "exporterNamespaces"), "gpus"),
        (("controller", "exporterNamespaces"), ["--tick=1"]),
        (("exporter", "webConfig", "tls"), "yes"),
        (("exporter", "webConfig", "key"), "../web.yaml"),
        (("serviceMonitor", "exporter", "basicAuth"), {"username": {"name": "web"}}),
        (("serviceMonitor", "exporter", "tlsConfig"), {"serverNme": "x"}),
        (("image", "repository"), ""),
        (("image", "digest"), "sha256:short"),
        (("rbac", "scale"), [{"apiGroups": ["apps"], "resources": ["deployments"]}]),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_at_its_place(path: tuple[str, ...], value: Any) -> None:
    found = complaints(changed(path, value))
    assert found
    assert all(line.startswith(".".join(path)) for line in found)


def test_every_key_of_the_schema_has_a_default() -> None:
    def keys(schema: dict[str, Any]) -> set[str]:
        return set(schema.get("properties", {}))

    assert keys(SCHEMA) - {"global"} == set(VALUES)
    for name, schema in SCHEMA["properties"].items():
        if "properties" in schema:
            assert keys(schema) == set(VALUES[name]), name


def test_the_chart_carries_the_rules_as_they_are() -> None:
    copies = {path.name: path.read_bytes() for path in (CHART / "files/rules").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in (ROOT / "rules").glob("*.yaml")}, "run: make chart"


def test_the_version_of_the_chart_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    package = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert package is not None
    assert chart["appVersion"] == chart["version"] == package[1]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("exporter-daemonset.yaml", ExporterSettings), ("controller-deployment.yaml", ControllerSettings)],
)
def test_every_flag_of_a_template_is_one_of_the_program(name: str, settings: type[Any]) -> None:
    known = {field.name.replace("_", "-") for field in dataclasses.fields(settings)}
    text = template(name)
    given = set(re.findall(r"--([a-z-]+)=", text)) | set(re.findall(r'^ +"([a-z-]+)" [($]', text, re.MULTILINE))
    assert len(given) >= 5
    assert given <= known


def test_the_containers_run_commands_that_the_package_installs() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    commands = [template(name) for name in ("exporter-daemonset.yaml", "controller-deployment.yaml")]
    found = [re.findall(r"command: \[([a-z-]+)", text) for text in commands]
    assert found == [["gpuscale-exporter"], ["gpuscale"]]
    image = re.search(r'^CMD \["([a-z-]+)"', (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert image is not None
    assert {name for names in found for name in names} | {image[1]} <= set(scripts)


def test_the_controller_finds_the_charts_exporters_by_its_defaults() -> None:
    defaults = ControllerSettings()
    key, _, value = defaults.exporter_selector.partition("=")
    helper = (CHART / "templates/_helpers.tpl").read_text(encoding="utf-8")
    assert f"{key}: {value}\n" in helper
    exporter = template("exporter-daemonset.yaml")
    assert (
        f"- name: {defaults.exporter_port}\n              containerPort: {ExporterSettings().listen.port}" in exporter
    )
    assert f"containerPort: {defaults.listen[1]}" in template("controller-deployment.yaml")


def test_the_mounted_socket_is_the_one_that_the_exporter_opens() -> None:
    assert ExporterSettings().kubelet_socket == VALUES["exporter"]["podResources"]["hostPath"] + "/kubelet.sock"


def test_the_image_is_a_plain_name_that_the_user_replaces() -> None:
    assert re.fullmatch(r"[a-z]+", VALUES["image"]["repository"])


def test_the_definitions_are_no_helm_crds_which_are_never_upgraded() -> None:
    assert not (CHART / "crds").exists()
    assert "helm.sh/resource-policy: keep" in template("crds.yaml")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_is_valid_and_leaves_the_size_to_the_scaler(file: Path) -> None:
    parsers = {"GPUWorkloadScaler": parse_workload_scaler, "GPUNodePoolScaler": parse_pool_scaler}
    objects = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    scalers = [parsers[obj["kind"]](obj) for obj in objects if obj["kind"] in parsers]
    assert [scaler.spec.mode for scaler in scalers] == ["Preview"]
    targets = [obj for obj in objects if obj["kind"] not in parsers]
    assert all("replicas" not in target["spec"] for target in targets)
