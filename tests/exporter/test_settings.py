import dataclasses
import json
import socket
from pathlib import Path

import pytest

from exporter.settings import Address, Settings, SettingsError, parse


def refused(*argv: str, **environment: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        parse(argv, environment)
    assert "\n" not in str(caught.value)
    return caught.value.faults


def test_without_arguments_the_defaults_hold() -> None:
    settings = parse([], {})
    assert settings == Settings(node=socket.gethostname())
    assert settings.listen == Address("0.0.0.0", 9836)
    assert settings.kubelet_socket == "/var/lib/kubelet/pod-resources/kubelet.sock"


SAMPLES = {
    "listen": ("127.0.0.1:1", "127.0.0.1:2"),
    "poll_seconds": ("2", "3"),
    "slow_poll_seconds": ("20", "30"),
    "deadline_seconds": ("0.5", "0.25"),
    "stale_polls": ("4", "5"),
    "simulate": ("2xT4", "./world.json"),
    "log_level": ("debug", "error"),
    "once": ("false", "true"),
    "config": ("", ""),
    "fatal_xids": ("74", "48, 79"),
    "ignored_xids": ("", "13"),
    "xid_window_seconds": ("60", "600"),
    "dialect": ("dcgm", " cce,aom"),
    "aom_labels": ("nodeIP=10.0.0.1", "clusterId=a, clusterName=b=c"),
    "max_requests": ("3", "0"),
    "max_series": ("3", "0"),
    "unified_memory_from_system": ("false", "true"),
    "process_series": ("false", "true"),
}
"""field -> two of its values, as text; any text does for the others."""


@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_each_setting_has_a_flag_and_a_variable_and_the_flag_wins(field: dataclasses.Field[object]) -> None:
    by_variable, by_flag = SAMPLES.get(field.name, ("from-variable", "from-flag"))
    environment = {f"GPUSCALE_EXPORTER_{field.name.upper()}": by_variable}
    flag = ["--" + field.name.replace("_", "-")] + ([] if field.type is bool else [by_flag])
    convert = field.metadata["convert"]
    assert getattr(parse([], environment), field.name) == convert(by_variable)
    assert getattr(parse(flag, environment), field.name) == convert(by_flag)


@pytest.mark.parametrize(
    "field", [field for field in dataclasses.fields(Settings) if field.name != "config"], ids=lambda field: field.name
)
def test_each_setting_can_stand_in_a_file_below_variables_and_flags(
    field: dataclasses.Field[object], tmp_path: Path
) -> None:
    by_variable, other = SAMPLES.get(field.name, ("from-variable", "from-elsewhere"))
    file = tmp_path / "settings.yaml"
    flag, variable = "--" + field.name.replace("_", "-"), f"GPUSCALE_EXPORTER_{field.name.upper()}"
    convert = field.metadata["convert"]
    for key in (field.name, field.name.replace("_", "-")):
        file.write_text(f"# ours\r\n{key}: {json.dumps(other)}\r\n")
        argv = ["--config", str(file)]
        assert getattr(parse(argv, {}), field.name) == convert(other)
        assert getattr(parse(argv, {variable: by_variable}), field.name) == convert(by_variable)
    by_flag = [*argv, flag] + ([] if field.type is bool else [other])
    assert getattr(parse(by_flag, {variable: by_variable}), field.name) == convert(other)


def test_an_unknown_flag_is_told_with_the_nearest_right_one() -> None:
    assert refused("--pol-seconds", "2", "--xyzzy", "word", "--max_series=3") == (
        "unknown argument '--pol-seconds', did you mean --poll-seconds?",
        "unknown argument '2', see --help",
        "unknown argument '--xyzzy', see --help",
        "unknown argument 'word', see --help",
        "unknown argument '--max_series=3', did you mean --max-series?",
    )


@pytest.mark.parametrize(
    ("flag", "text"),
    [("--poll-seconds", "1_0"), ("--stale-polls", "٣"), ("--max-series", "1_0"), ("--max-series", 5000 * "1")],
)
def test_a_number_is_written_in_plain_digits(flag: str, text: str) -> None:
    assert refused(flag, text)[0].startswith(f"{flag} must be a ")


def test_the_file_itself_can_be_named_by_a_variable_and_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"\xef\xbb\xbfnode: n-1\r\n")
    assert parse([], {"GPUSCALE_EXPORTER_CONFIG": str(file)}).node == "n-1"
    file.write_text("")
    assert parse(["--config", str(file)], {"NODE_NAME": "n-2"}).node == "n-2"


def test_faults_of_the_file_name_it_and_the_right_key_along_with_all_others(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("lisen: 127.0.0.1:0\npoll-seconds: soon\nnode: [a, b]\nxyzzy: 1\nconfig: other.yaml\n")
    found = "\n".join(refused("--config", str(file), "--stale-polls", "1"))
    for words in (
        f"{file}: lisen is unknown, did you mean listen?",
        f"{file}: poll-seconds must be a number of seconds from 0.05 to 3600, not 'soon'",
        f"{file}: node must be one value",
        f"{file}: xyzzy is unknown, known are listen, ",
        f"{file}: config is unknown",
        "--stale-polls must be",
    ):
        assert words in found


def test_a_key_of_the_file_that_is_given_twice_is_a_fault_in_either_spelling(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("node: a\npoll-seconds: 1\nnode: b\n")
    (said,) = refused("--config", str(file))
    assert said == f"--config {file} is no YAML: line 3: node is given twice, first in line 1"
    file.write_text("poll-seconds: 1\npoll_seconds: 2\n")
    assert refused("--config", str(file)) == (f"{file}: poll_seconds is given twice",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "is no YAML"),
        (100_000 * "[", "is no YAML: it is nested too deeply"),
        ("- a", "lines of key: value"),
        ("a", "lines of"),
        ('node: "a\\0b"', "node must hold no NUL, not 'a\\x00b'"),
    ],
)
def test_a_file_that_holds_no_settings_is_one_fault(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    assert words in refused("--config", str(file))[0]
    assert "No such file" in refused("--config", str(tmp_path / "nowhere"))[0]


def test_the_node_is_named_by_flag_then_variable_then_kubernetes_then_host() -> None:
    assert parse(["--node", "a"], {"NODE_NAME": "b"}).node == "a"
    assert parse([], {"GPUSCALE_EXPORTER_NODE": "c", "NODE_NAME": "b"}).node == "c"
    assert parse([], {"NODE_NAME": "b"}).node == "b"


def test_an_empty_socket_path_switches_the_kubelet_off() -> None:
    assert parse(["--kubelet-socket", ""], {}).kubelet_socket == ""
    assert parse([], {"GPUSCALE_EXPORTER_KUBELET_SOCKET": ""}).kubelet_socket == ""


@pytest.mark.parametrize(
    ("text", "address"),
    [("[::1]:80", ("::1", 80)), (":9836", ("0.0.0.0", 9836)), ("localhost:0", ("localhost", 0))],
)
def test_an_address_has_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse(["--listen", text], {}).listen == address


@pytest.mark.parametrize(
    "text",
    [
        "9836",
        "host:",
        "host:http",
        "host:65536",
        "host:-1",
        "",
        "host:٣",
        "[::1",
        "::1]:80",
        "a[b:1",
        f"host:{5000 * '1'}",
    ],
)
def test_an_address_without_a_usable_port_is_refused(text: str) -> None:
    assert refused("--listen", text)[0].startswith("--listen must be HOST:PORT")


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-1", "0", "3601"])
def test_a_period_that_is_no_sensible_number_is_refused(text: str) -> None:
    assert refused("--poll-seconds", text)[0].startswith("--poll-seconds must be a number of seconds")


def test_all_faults_are_reported_at_once_by_the_name_they_were_given_under() -> None:
    found = refused("--listen", "x", "--bogus", "--stale-polls", "1", GPUSCALE_EXPORTER_LOG_LEVEL="loud")
    assert len(found) == 4
    for name in ("--listen", "--bogus", "--stale-polls", "GPUSCALE_EXPORTER_LOG_LEVEL"):
        assert any(name in fault for fault in found)


def test_a_flag_without_its_value_is_one_sentence() -> None:
    assert "--listen" in refused("--listen")[0]


def test_a_model_that_is_not_known_is_refused_with_those_that_are() -> None:
    (fault,) = refused("--simulate", "8xH900")
    assert "H900" in fault
    assert "H100" in fault


@pytest.mark.parametrize("text", ["H100", "0xH100", "8x", "eight"])
def test_a_simulation_that_is_neither_count_and_model_nor_a_path_is_refused(text: str) -> None:
    assert "COUNTxMODEL" in refused("--simulate", text)[0]


def test_a_simulation_file_need_not_exist_yet(tmp_path: Path) -> None:
    assert parse(["--simulate", str(tmp_path / "later.json")], {}).simulate.endswith("later.json")


def test_a_poll_that_waits_to_its_deadline_still_ends_before_values_go_stale() -> None:
    settings = Settings()
    assert settings.deadline + settings.poll_seconds < settings.stale_after_seconds
    assert Settings(poll_seconds=0.1).deadline < 0.2
    assert "--deadline-seconds must be below 2" in refused("--deadline-seconds", "2")[0]
    assert parse(["--deadline-seconds", "1.9"], {}).deadline == 1.9


@pytest.mark.parametrize("text", ["x", "74;79", "74,", "-1", "7.5", "99999999999"])
def test_a_list_of_xids_that_is_none_is_refused(text: str) -> None:
    assert refused("--fatal-xids", text)[0].startswith("--fatal-xids must be Xid numbers")


def test_the_health_policy_is_made_of_its_settings() -> None:
    policy = parse(["--fatal-xids", "48", "--ignored-xids", "", "--xid-window-seconds", "60"], {}).health_policy
    assert (policy.fatal_xids, policy.ignored_xids, policy.xid_window_seconds) == ({48}, set(), 60)


def test_dialects_are_named_and_an_unknown_one_is_refused_with_those_that_are_known() -> None:
    assert parse(["--dialect", "dcgm, dcgm"], {}).dialect == ("dcgm",)
    (fault,) = refused("--dialect", "dcgm,dcmg")
    assert "dcmg" in fault
    assert "known are" in fault


@pytest.mark.parametrize("text", ["[::1]:9836", "127.0.0.1:0"])
def test_an_address_is_shown_as_it_is_written(text: str) -> None:
    assert str(parse(["--listen", text], {}).listen) == text


def test_a_label_of_aom_that_is_given_twice_is_refused_and_named() -> None:
    (fault,) = refused("--aom-labels", "clusterId=a,nodeIP=1,clusterId=b")
    assert "not clusterId twice" in fault


@pytest.mark.parametrize("text", ["nodeIP", "node_ip=1", "=x"])
def test_a_label_that_aom_does_not_have_is_refused(text: str) -> None:
    assert "clusterId" in refused("--aom-labels", text)[0]
