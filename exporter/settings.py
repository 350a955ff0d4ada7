"""The exporter's settings: one frozen dataclass whose fields are the table of flag, variable, default and help.

Why it exists: a setting is written once. A wrong command line or environment is reported whole, in one sentence,
not fault by fault.
"""

import argparse
import contextlib
import dataclasses
import difflib
import importlib.metadata
import math
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from exporter.dialects import DIALECTS
from exporter.dialects.aom import SETTABLE
from exporter.health import HealthPolicy
from exporter.simulated import MODELS, SPEC

ENVIRONMENT_PREFIX = "GPUSCALE_EXPORTER_"
LOG_LEVELS = ("debug", "info", "warning", "error")


class SettingsError(Exception):
    """Every fault of the command line and the environment. str() is one line."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


class _Given(NamedTuple):
    """A setting's text, and the name it was given under."""

    name: str
    text: str


class Address(NamedTuple):
    """Where to listen. port 0 = any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not _is_count(port) or int(port) > 65535 or {"[", "]"} & {*bare} or len(host) - len(bare) == 1:
        raise ValueError("must be HOST:PORT with a port of 0 to 65535, such as 0.0.0.0:9836 or [::1]:9836")
    return Address(bare or "0.0.0.0", int(port))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10


def _seconds(smallest: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        complaint = f"must be a number of seconds from {smallest:g} to 3600"
        try:
            # Python would read 1_0 as 10
            seconds = math.nan if "_" in text else float(text)
        except ValueError:
            raise ValueError(complaint) from None
        if not math.isfinite(seconds) or not smallest <= seconds <= 3600:
            raise ValueError(complaint)
        return seconds

    return convert


def _polls(text: str) -> int:
    if not _is_count(text) or not 2 <= int(text) <= 1000:
        raise ValueError("must be a whole number from 2 to 1000")
    return int(text)


def _count(text: str) -> int:
    if not _is_count(text) or int(text) > 10**9:
        raise ValueError("must be a whole number from 0 to 10^9")
    return int(text)


def _simulation(text: str) -> str:
    asked = SPEC.fullmatch(text)
    if asked and asked["model"].upper() not in MODELS:
        raise ValueError(f"names an unknown model {asked['model']}; known are {', '.join(MODELS)}, or give a file")
    if text and not asked and not re.search(r"[/.]", text) and not Path(text).exists():
        raise ValueError("must be COUNTxMODEL, such as 8xH100, or the path of a JSON file")
    return text


def _yes_no(text: str) -> bool:
    if text.lower() not in {"true", "false", "1", "0"}:
        raise ValueError("must be true or false")
    return text.lower() in {"true", "1"}


def _dialects(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in DIALECTS]
    if unknown:
        raise ValueError(f"names unknown dialects {', '.join(unknown)}; known are {', '.join(DIALECTS)}")
    return names


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(equals and name.strip() in SETTABLE for name, equals, _ in pairs):
        raise ValueError(f"must be NAME=VALUE, separated by commas, of the names {', '.join(SETTABLE)}")
    names = [name.strip() for name, _, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"must name each label once, not {', '.join(twice)} twice")
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def _level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError(f"must be one of {', '.join(LOG_LEVELS)}")
    return text.lower()


def _xids(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(_is_count(part) for part in parts):
        raise ValueError('must be Xid numbers separated by commas, such as 74,79, or "" for none')
    return frozenset(int(part) for part in parts)


def _setting(default: str, help_text: str, convert: Callable[[str], object]) -> Any:
    metadata = {"default": default, "help": help_text, "convert": convert}
    return dataclasses.field(default=convert(default), metadata=metadata)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. Each field's flag is --its-name, its variable GPUSCALE_EXPORTER_ITS_NAME, its key its-name."""

    config: str = _setting("", "YAML file of settings, each named as its flag without --; flags and variables win", str)
    listen: Address = _setting(  # noqa: RUF009 - a field, made from its row
        "0.0.0.0:9836", "address to serve on, HOST:PORT; port 0 takes a free one", _address
    )
    address_file: str = _setting("", "write the address that is served on to this file", str)
    node: str = _setting("", "name of the node in all series; default: $NODE_NAME, else the host's name", str)
    poll_seconds: float = _setting("1", "time between two polls of the driver", _seconds(0.05))
    deadline_seconds: float = _setting(
        "0", "how long one GPU, or the kubelet, may take; 0 = half of the polls that may be missed", _seconds(0)
    )
    slow_poll_seconds: float = _setting(
        "15", "time between two readings of what is slow to read: ECC, repairs, NVLink, PCIe", _seconds(0.05)
    )
    stale_polls: int = _setting("3", "polls after which values that are not renewed are withdrawn", _polls)
    simulate: str = _setting(
        "", "no driver: COUNTxMODEL, such as 8xH100, or a JSON file re-read at each poll", _simulation
    )
    kubelet_socket: str = _setting(
        "/var/lib/kubelet/pod-resources/kubelet.sock", 'socket of the pod-resources API; "" = no container series', str
    )
    proc: str = _setting("/proc", 'the host\'s /proc, to tell processes by container; "" = off', str)
    process_series: bool = _setting(
        "false", "publish each process of a GPU too, aom_process_gpu_*: as many series as there are processes", _yes_no
    )
    unified_memory_from_system: bool = _setting(
        "false",
        "of a GPU without memory of its own (unified memory), take the machine's as its capacity, from --proc",
        _yes_no,
    )
    container_logs: str = _setting(
        "/var/log/containers", "directory of the node whose names tell containers by id; no log is read", str
    )
    fatal_xids: frozenset[int] = _setting("74,79", "Xids that make a GPU's health fatal", _xids)
    ignored_xids: frozenset[int] = _setting(
        "13,31,43,45,68,109,137", "Xids of applications, which say nothing of the GPU's health", _xids
    )
    xid_window_seconds: float = _setting("3600", "how long an Xid counts after it last came", _seconds(1))
    dialect: tuple[str, ...] = _setting(
        "", f"other exporters' names to publish too, separated by commas: {', '.join(DIALECTS)}", _dialects
    )
    aom_labels: tuple[tuple[str, str], ...] = _setting(
        "", f"labels of the aom dialect that only you know, NAME=VALUE with commas: {', '.join(SETTABLE)}", _labels
    )
    once: bool = _setting("false", "poll once, print what a scrape would get, and exit", _yes_no)
    web_config_file: str = _setting(
        "", "YAML file of TLS, users and headers, as Prometheus' own exporters read it; followed while running", str
    )
    max_requests: int = _setting("40", "requests under way at once, more get 503; 0 = no limit", _count)
    max_series: int = _setting("0", "GPU series on a page, families beyond it are left out; 0 = no limit", _count)
    log_level: str = _setting("info", f"one of {', '.join(LOG_LEVELS)}", _level)

    @property
    def deadline(self) -> float:
        """Seconds one GPU or the kubelet may take. A poll that waits that long still ends before values go stale."""
        return self.deadline_seconds or (self.stale_polls - 1) * self.poll_seconds / 2

    @property
    def health_policy(self) -> HealthPolicy:
        """What makes a GPU unhealthy."""
        return HealthPolicy(self.fatal_xids, self.ignored_xids, self.xid_window_seconds)

    @property
    def stale_after_seconds(self) -> float:
        """Age in seconds past which values are withdrawn."""
        return self.stale_polls * self.poll_seconds


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Take flags, then variables, then the file, then defaults. Raises SettingsError with all faults; --help exits."""
    faults: list[str] = []
    flags = {field: _Given(_flag(field), text) for field, text in _flags(argv, faults).items()}
    given = {**_variables(environment), **flags}
    if "config" in given and given["config"].text:
        given = {**_file(Path(given["config"].text), faults), **given}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        if field.name not in given:
            continue
        name, text = given[field.name]
        if "\0" in text:
            faults.append(f"{name} must hold no NUL, not {text!r}")
            continue
        try:
            values[field.name] = field.metadata["convert"](text)
        except ValueError as fault:
            faults.append(f"{name} {fault}, not {text!r}")
    settings = Settings(**values)
    faults += _together(settings)
    if faults:
        raise SettingsError(faults)
    return dataclasses.replace(settings, node=settings.node or environment.get("NODE_NAME") or socket.gethostname())


def _variables(environment: Mapping[str, str]) -> dict[str, _Given]:
    names = {field.name: _variable(field.name) for field in dataclasses.fields(Settings)}
    return {field: _Given(name, environment[name]) for field, name in names.items() if name in environment}


def _file(path: Path, faults: list[str]) -> dict[str, _Given]:
    """Read `key: value` lines, the keys spelled as flags or with _. What is wrong is added to the faults."""
    import yaml  # only who has a file pays for the library

    from exporter import user_yaml

    try:
        # each value stays the text it is, so that it means what it means as a flag
        found = user_yaml.load_text(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        faults.append(f"--config {path}: {error.strerror}")
        return {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        faults.append(f"--config {path} is no YAML: {' '.join(str(error).split())}")
        return {}
    if not isinstance(found, dict | None) and found != "":
        faults.append(f"--config {path} must be lines of key: value")
        return {}
    return _of_file(path, found or {}, faults)


def _of_file(path: Path, found: Mapping[str, object], faults: list[str]) -> dict[str, _Given]:
    known = [field.name for field in dataclasses.fields(Settings) if field.name != "config"]
    given: dict[str, _Given] = {}
    for key, value in found.items():
        field = key.replace("-", "_")
        if field not in known:
            faults.append(f"{path}: {key} is unknown, {_nearest(field, known)}")
        elif not isinstance(value, str):
            faults.append(f"{path}: {key} must be one value")
        elif field in given:
            faults.append(f"{path}: {key} is given twice")
        else:
            given[field] = _Given(f"{path}: {key}", value)
    return given


def _nearest(field: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(field, known, n=1, cutoff=0.6)
    shown = [name.replace("_", "-") for name in close or known]
    return f"did you mean {shown[0]}?" if close else f"known are {', '.join(shown)}"


def _meant(word: str, known: Sequence[str]) -> str:
    flag = word.partition("=")[0].removeprefix("--").replace("-", "_")
    close = difflib.get_close_matches(flag, known, n=1, cutoff=0.6) if word.startswith("--") else []
    return f"did you mean {_flag(close[0])}?" if close else "see --help"


def _together(settings: Settings) -> list[str]:
    room = (settings.stale_polls - 1) * settings.poll_seconds
    if settings.deadline < room:
        return []
    return [
        f"--deadline-seconds must be below {room:g} (poll seconds x (stale polls - 1)), not {settings.deadline:g}: "
        "one GPU that hangs would else make the others stale"
    ]


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _variable(field: str) -> str:
    return ENVIRONMENT_PREFIX + field.upper()


def _version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("gpuscale")
    return "unknown"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError([message])


def _flags(argv: Sequence[str], faults: list[str]) -> dict[str, str]:
    """Return the flags that were given, as text. Unknown words are added to the faults."""
    parser = _Parser(
        prog="gpuscale-exporter",
        description="Publishes what is true about the GPUs of this node. With doctor as the first word: examines the "
        "machine and says what keeps the exporter from that; --json for machines.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for field in dataclasses.fields(Settings):
        default = field.metadata["default"]
        text = f"{field.metadata['help']} (${_variable(field.name)}{f', default {default}' if default else ''})"
        switch: dict[str, Any] = {"action": "store_const", "const": "true"} if field.type is bool else {"metavar": "X"}
        parser.add_argument(_flag(field.name), dest=field.name, help=text.replace("%", "%%"), **switch)
    parser.add_argument("--version", action="version", version=f"gpuscale-exporter {_version()}")
    given, unknown = parser.parse_known_args(list(argv))
    known = [field.name for field in dataclasses.fields(Settings)]
    faults += [f"unknown argument {word!r}, {_meant(word, known)}" for word in unknown]
    return vars(given)
