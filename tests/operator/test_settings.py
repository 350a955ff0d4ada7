import argparse
import dataclasses
from pathlib import Path

import pytest

from controller.__main__ import main
from controller.settings import Settings, SettingsError, add_arguments, settings_from


def settings(*argv: str, **environment: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return settings_from(parser.parse_args(list(argv)), environment)


def faults(*argv: str, **environment: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        settings(*argv, **environment)
    return caught.value.faults


def test_flag_wins_over_variable_and_variable_over_default() -> None:
    assert settings().tick == 2.0
    assert settings(GPUSCALE_TICK="3").tick == 3.0
    assert settings("--tick", "4", GPUSCALE_TICK="3").tick == 4.0


def test_repeatable_flags_are_lists_and_their_variables_have_blanks_between_entries() -> None:
    urls = settings("--exporter-url", "http://a:1/metrics", "--exporter-url", "http://b:2/metrics").exporter_url
    assert urls == ("http://a:1/metrics", "http://b:2/metrics")
    assert settings(GPUSCALE_EXPORTER_NAMESPACE="gpu operators").exporter_namespace == ("gpu", "operators")
    servers = settings(GPUSCALE_PROMETHEUS="default=http://p:9090 long=https://t/prefix").prometheus
    assert [(server.name, server.url) for server in servers] == [
        ("default", "http://p:9090"),
        ("long", "https://t/prefix"),
    ]


def test_all_faults_are_said_at_once() -> None:
    found = faults(
        "--tick", "soon", "--listen", "8080", "--prometheus", "http://p", "--log-format", "xml", "--exporter-port", "0",
        "--server", "http://a", "--context", "b", "--renew-deadline", "20", GPUSCALE_TOLERANCE="NaN",
    )  # fmt: skip
    words = ["--tick", "--listen", "--prometheus", "--log-format", "--exporter-port", "--server", "--renew-deadline"]
    assert all(any(word in fault for fault in found) for word in [*words, "GPUSCALE_TOLERANCE"])
    assert len(found) == 8


def test_a_prometheus_file_gives_servers_with_all_their_settings(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "servers:\n- {name: long, url: 'https://t', bearerTokenFile: /t, caFile: /c, headers: {X-Scope-OrgID: ml}}\n"
    )
    (default, long) = settings("--prometheus", "default=http://p", "--prometheus-config", str(file)).prometheus
    assert default.name == "default"
    assert (long.bearer_token_file, long.ca_file, long.headers) == ("/t", "/c", {"X-Scope-OrgID": "ml"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("servers: [{url: 5}]", "servers[0].name"),
        ("servers: [{name: a, url: ftp://x}]", "the url of a must be an address"),
        ("servers: [{name: a, url: 'http://x', token: y}]", "token"),
        ("{", "is not YAML"),
        ("servers:\n- {name: a, url: 'http://x'}\nservers: []", "servers is given twice"),
        ("[]", "must be"),
        ("servers: [{name: default, url: 'http://x'}]", "default is given more than once"),
    ],
)
def test_a_bad_prometheus_file_is_said_with_its_field(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    found = faults("--prometheus", "default=http://p", "--prometheus-config", str(file))
    assert any(said in fault for fault in found), found


def test_a_prometheus_file_that_is_not_there_is_a_fault() -> None:
    assert "cannot be read" in faults("--prometheus-config", "/does/not/exist")[0]


def test_identity_and_namespace_come_from_the_pod_unless_given() -> None:
    found = settings(POD_NAME="gpuscale-0", POD_NAMESPACE="gpu")
    assert (found.identity, found.lease_namespace) == ("gpuscale-0", "gpu")
    assert settings("--identity", "me", POD_NAME="x").identity == "me"


def test_every_setting_has_a_help_text_and_is_shown_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--help"])
    text = capsys.readouterr().out
    for field in dataclasses.fields(Settings):
        assert field.metadata["help"]
        assert f"--{field.name.replace('_', '-')}" in text
        assert f"GPUSCALE_{field.name.upper()}" in text


def test_bad_settings_end_with_code_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--tick", "x", "--listen", "y"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
