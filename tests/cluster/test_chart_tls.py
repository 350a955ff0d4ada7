"""TLS and users of the exporter, as the chart renders them: the Secret, the probes, what Prometheus is told."""

import json
from pathlib import Path

import pytest

from exporter.guard import OPEN_PATHS
from tests.cluster.helm import Helm, RefusedError, container, values


@pytest.fixture
def helm(programs: Path, tmp_path: Path) -> Helm:
    """Helm without a cluster."""
    return Helm(programs / "helm", tmp_path)


@pytest.mark.parametrize("tls", [True, False])
def test_a_web_config_comes_from_a_secret_and_probes_speak_as_it_serves(helm: Helm, *, tls: bool) -> None:
    given = (
        f"exporter.webConfig.existingSecret=web,exporter.webConfig.key=w.yaml,exporter.webConfig.tls={json.dumps(tls)}"
    )
    rendered = helm.render("--set", f"{given},exporter.podResources.enabled=false")
    only = container(rendered, "DaemonSet")
    [file] = [arg.partition("=")[2] for arg in only["args"] if arg.startswith("--web-config-file=")]
    [mount] = only["volumeMounts"]
    assert file == f"{mount['mountPath']}/w.yaml"
    assert mount["readOnly"] is True
    [volume] = rendered["DaemonSet", "gs-gpuscale-exporter"]["spec"]["template"]["spec"]["volumes"]
    assert volume == {"name": mount["name"], "secret": {"secretName": "web"}}
    for probe in ("readinessProbe", "livenessProbe"):
        assert only[probe]["httpGet"].get("scheme") == ("HTTPS" if tls else None)
        assert only[probe]["httpGet"]["path"] in OPEN_PATHS


def test_without_a_web_config_nothing_of_it_is_rendered(helm: Helm, tmp_path: Path) -> None:
    plain = helm.render("--set", "serviceMonitor.enabled=true")
    for given in ({"exporter": {"webConfig": None}}, {"serviceMonitor": {"exporter": None}}):
        assert helm.render("--set", "serviceMonitor.enabled=true", "-f", values(tmp_path, given)) == plain
    assert "web" not in json.dumps(plain["DaemonSet", "gs-gpuscale-exporter"])
    for name in ("gs-gpuscale-exporter", "gs-gpuscale"):
        [endpoint] = plain["ServiceMonitor", name]["spec"]["endpoints"]
        assert not {"scheme", "tlsConfig", "basicAuth"} & set(endpoint)


def test_prometheus_is_told_how_to_ask_the_exporter_and_only_the_exporter(helm: Helm, tmp_path: Path) -> None:
    ask = {
        "tlsConfig": {"ca": {"secret": {"name": "web", "key": "ca.crt"}}, "serverName": "exporter"},
        "basicAuth": {part: {"name": "user", "key": part} for part in ("username", "password")},
    }
    given = {
        "exporter": {"webConfig": {"existingSecret": "web", "tls": True}},
        "serviceMonitor": {"enabled": True, "exporter": ask},
    }
    rendered = helm.render("-f", values(tmp_path, given))
    [exporter] = rendered["ServiceMonitor", "gs-gpuscale-exporter"]["spec"]["endpoints"]
    assert {key: exporter[key] for key in ask} == ask
    assert exporter["scheme"] == "https"
    [controller] = rendered["ServiceMonitor", "gs-gpuscale"]["spec"]["endpoints"]
    assert not {"scheme", "tlsConfig", "basicAuth"} & set(controller)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("exporter.webConfig.tls=true", r"exporter\.webConfig\.existingSecret"),
        ("controller.exporterAccess.caKey=ca.crt", r"controller\.exporterAccess\.existingSecret"),
        ("serviceMonitor.enabled=true,serviceMonitor.exporter.tlsConfig.serverName=x", r"exporter\.webConfig\.tls"),
    ],
)
def test_tls_that_the_exporter_would_not_serve_is_refused(helm: Helm, given: str, named: str) -> None:
    with pytest.raises(RefusedError, match=named):
        helm.render("--set", given)


def test_the_controller_asks_as_the_exporter_serves_with_files_of_a_mounted_secret(helm: Helm, tmp_path: Path) -> None:
    access = {"existingSecret": "access", "caKey": "ca.crt", "basicAuthKey": "user", "serverName": "exporter"}
    given = {
        "exporter": {"webConfig": {"existingSecret": "web", "tls": True}},
        "controller": {"exporterAccess": access, "prometheusSecret": "servers"},
    }
    rendered = helm.render("-f", values(tmp_path, given))
    only = container(rendered, "Deployment")
    mounts = {mount["name"]: mount for mount in only["volumeMounts"]}
    where = mounts["exporters"]["mountPath"]
    assert mounts["exporters"]["readOnly"] is True
    assert {arg for arg in only["args"] if arg.startswith("--exporter-")} == {
        "--exporter-namespace=gpus", "--exporter-scheme=https", "--exporter-server-name=exporter",
        f"--exporter-ca-file={where}/ca.crt", f"--exporter-basic-auth-file={where}/user",
    }  # fmt: skip
    volumes = rendered["Deployment", "gs-gpuscale"]["spec"]["template"]["spec"]["volumes"]
    assert {row["name"]: row["secret"]["secretName"] for row in volumes} == {
        "prometheus": "servers",
        "exporters": "access",
    }


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_exporters_of_another_release_are_asked_by_the_scheme_that_is_given(helm: Helm, scheme: str) -> None:
    given = f"exporter.enabled=false,controller.exporterAccess.scheme={scheme}"
    assert f"--exporter-scheme={scheme}" in container(helm.render("--set", given), "Deployment")["args"]


def test_without_access_the_controller_asks_by_plain_http_and_mounts_nothing(helm: Helm) -> None:
    for more in ([], ["--set", "controller.exporterAccess=null"]):
        only = container(helm.render(*more), "Deployment")
        assert "volumeMounts" not in only
        assert [arg for arg in only["args"] if arg.startswith("--exporter-")] == ["--exporter-namespace=gpus"]
