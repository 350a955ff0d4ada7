"""The operator's settings: one frozen dataclass whose fields are the table of flag, variable, default and help.

Why it exists: a setting is written once, and everything that is wrong with the command line, the environment and the
Prometheus file is said at once.
"""

import argparse
import dataclasses
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import yaml

from controller import user_yaml
from controller.schema import Invalid, parse
from controller.shapes import Doc, Length
from controller.sources.credentials import Access, Credentials, CredentialsError
from controller.sources.prometheus import Server

ENVIRONMENT_PREFIX = "GPUSCALE_"
LOG_LEVELS = ("debug", "info", "warning", "error")
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class SettingsError(Exception):
    """Every fault of the settings. str() is one line."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


def _text(text: str) -> str:
    return text


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be HOST:PORT with a port of 0 to 65535, such as 0.0.0.0:8080")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


def _number(smallest: float, largest: float, unit: str) -> Callable[[str], float]:
    def convert(text: str) -> float:
        complaint = f"must be {unit} from {smallest:g} to {largest:g}"
        try:
            number = float(text)
        except ValueError:
            raise ValueError(complaint) from None
        if not math.isfinite(number) or not smallest <= number <= largest:
            raise ValueError(complaint)
        return number

    return convert


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address such as http://HOST:PORT/metrics")
    return text


def _urls(texts: str) -> tuple[str, ...]:
    return tuple(_url(text) for text in texts.split())


def _words(texts: str) -> tuple[str, ...]:
    return tuple(texts.split())


def _servers(texts: str) -> tuple[Server, ...]:
    found = []
    for text in texts.split():
        name, equals, url = text.partition("=")
        if not equals or not name:
            raise ValueError("must be NAME=URL, such as default=http://prometheus.monitoring:9090")
        found.append(Server(name, _url(url)))
    return tuple(found)


def _one_of(*words: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text.lower()

    return convert


def _truth(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _port(text: str) -> str:
    if not text or (text.isdecimal() and not 0 < int(text) <= 65535):
        raise ValueError("must be a container port's name or its number")
    return text


def _row(default: str, help_text: str, convert: Callable[[str], object] = _text, *, repeat: bool = False) -> Any:
    metadata = {"default": default, "help": help_text, "convert": convert, "repeat": repeat}
    return dataclasses.field(default=convert(default), metadata=metadata)


_SECONDS = _number(0.0, 86_400.0, "seconds")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. Each field's flag is --its-name, its variable GPUSCALE_ITS_NAME; the flag wins.

    A repeatable flag is a list; its variable holds the entries with blanks between them.
    """

    server: str = _row("", "URL of an API server without authentication, such as the embedded cluster's")
    kubeconfig: str = _row("", "kubeconfig file; default: the pod's service account, else the user's own kubeconfig")
    context: str = _row("", "context of the kubeconfig")
    tick: float = _row("2", "seconds between two looks at everything", _number(0.1, 3600.0, "seconds"))
    listen: tuple[str, int] = _row(
        "0.0.0.0:8080", "address of /metrics, /healthz and /readyz, HOST:PORT; port 0 takes a free one", _address
    )
    address_file: str = _row("", "write the address that is served on to this file")
    exporter_selector: str = _row("app.kubernetes.io/name=gpuscale-exporter", "labels of the exporters' pods")
    exporter_namespace: tuple[str, ...] = _row(
        "", "namespace of the exporters' pods; repeatable; default: all, so whoever may label a pod is believed",
        _words, repeat=True,
    )  # fmt: skip
    exporter_port: str = _row("metrics", "the exporters' container port: its name or number", _port)
    exporter_url: tuple[str, ...] = _row(
        "", "an exporter's address; repeatable; replaces selector and namespaces", _urls, repeat=True
    )
    exporter_scheme: str = _row("http", "how the exporters' pods are asked: http or https", _one_of("http", "https"))
    exporter_ca_file: str = _row("", "whose certificates of exporters are trusted; default: the system's authorities")
    exporter_server_name: str = _row("", "the name in the exporters' certificates, which are asked by address")
    exporter_insecure_skip_verify: bool = _row("false", "true: trust any certificate of an exporter", _truth)
    exporter_cert_file: str = _row("", "our certificate, for exporters that want one")
    exporter_key_file: str = _row("", "the key of --exporter-cert-file")
    exporter_basic_auth_file: str = _row("", "file with user:password for the exporters")
    exporter_bearer_token_file: str = _row("", "file with a token for the exporters")
    prometheus: tuple[Server, ...] = _row(
        "", "NAME=URL of a Prometheus server that resources may name; repeatable", _servers, repeat=True
    )
    prometheus_config: str = _row("", "YAML file of Prometheus servers with their credentials, CA and headers")
    lease_namespace: str = _row("", "namespace of the Lease; default: the pod's, else default")
    lease_name: str = _row("gpuscale", "name of the Lease")
    lease_duration: float = _row("15", "seconds after which a silent leader is replaced", _SECONDS)
    renew_deadline: float = _row("10", "seconds after which a leader that can't renew stops writing", _SECONDS)
    retry_period: float = _row("2", "seconds between two tries to get or renew the Lease", _SECONDS)
    identity: str = _row("", "this process in the Lease; default: the host's name")
    log_format: str = _row("text", "text or json", _one_of("text", "json"))
    log_level: str = _row("info", f"one of {', '.join(LOG_LEVELS)}", _one_of(*LOG_LEVELS))
    tolerance: float = _row("0.1", "the HPA's tolerance, where a resource has none", _number(0.0, 10.0, "a ratio"))
    downscale_stabilization: float = _row("300", "the HPA's window for scale-down, in seconds", _SECONDS)
    cpu_initialization_period: float = _row("300", "the HPA's time in which a pod's cpu may be its start", _SECONDS)
    initial_readiness_delay: float = _row("30", "the HPA's time in which readiness may still flip, seconds", _SECONDS)

    @property
    def exporter_access(self) -> Access:
        """What exporters want of us."""
        names = [field.name for field in dataclasses.fields(Access)]
        return Access(**{name: getattr(self, f"exporter_{name}") for name in names})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag per setting; the texts are read by ``settings_from``."""
    for field in dataclasses.fields(Settings):
        default = field.metadata["default"]
        shown = f"${_variable(field.name)}{f', default {default}' if default else ''}"
        parser.add_argument(
            _flag(field.name),
            dest=field.name,
            metavar="X",
            default=argparse.SUPPRESS,
            action="append" if field.metadata["repeat"] else "store",
            help=f"{field.metadata['help']} ({shown})".replace("%", "%%"),
        )


def settings_from(args: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Take flags, then variables, then defaults. Raises SettingsError with all faults."""
    faults: list[str] = []
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        where, text = _given(field.name, args, environment)
        if text is None:
            continue
        try:
            values[field.name] = field.metadata["convert"](text)
        except ValueError as fault:
            faults.append(f"{where} {fault}, not {text!r}")
    settings = Settings(**values)
    servers = settings.prometheus
    if settings.prometheus_config:
        servers += _servers_from(settings.prometheus_config, faults)
    faults += _together(settings, servers)
    faults += _exporter_faults(settings)
    if faults:
        raise SettingsError(faults)
    return dataclasses.replace(
        settings,
        prometheus=servers,
        identity=settings.identity or environment.get("POD_NAME") or socket.gethostname(),
        lease_namespace=settings.lease_namespace or environment.get("POD_NAMESPACE") or _own_namespace(),
    )


def _given(field: str, args: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, str | None]:
    value = getattr(args, field, None)
    if value is not None:
        return _flag(field), " ".join(value) if isinstance(value, list) else value
    return _variable(field), environment.get(_variable(field))


def _together(settings: Settings, servers: Sequence[Server]) -> list[str]:
    faults = []
    if settings.server and (settings.kubeconfig or settings.context):
        faults.append("--server goes without --kubeconfig and --context")
    if not 0 < 2 * settings.retry_period < settings.renew_deadline < settings.lease_duration:
        faults.append(
            "2 x --retry-period < --renew-deadline < --lease-duration must hold, not "
            f"{settings.retry_period:g}, {settings.renew_deadline:g}, {settings.lease_duration:g}"
        )
    names = [server.name for server in servers]
    repeated = sorted({name for name in names if names.count(name) > 1})
    faults += [f"the Prometheus server {name} is given more than once" for name in repeated]
    return faults


def _exporter_faults(settings: Settings) -> list[str]:
    """Check the settings together, and that every file can be used now; a later fault is the exporters'."""
    access, faults = settings.exporter_access, []
    if access.basic_auth_file and access.bearer_token_file:
        faults.append("--exporter-basic-auth-file goes without --exporter-bearer-token-file")
    if access.insecure_skip_verify and access.ca_file:
        faults.append("--exporter-insecure-skip-verify goes without --exporter-ca-file")
    if bool(access.cert_file) != bool(access.key_file):
        return [*faults, "--exporter-cert-file and --exporter-key-file go together"]
    by_tls = settings.exporter_scheme == "https" or any(url.startswith("https:") for url in settings.exporter_url)
    if access.tls_fields and not by_tls:
        names = ", ".join(_flag(f"exporter_{name}") for name in access.tls_fields)
        faults.append(f"{names} need --exporter-scheme https or an --exporter-url that begins with https")
    try:
        Credentials(access).present()
    except CredentialsError as error:
        faults += [f"{_flag(f'exporter_{name}')} {fault}" for name, fault in error.faults.items()]
    return faults


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ServerRow:
    name: Annotated[str, Length(63, 1), Doc("The name that resources use.")]
    url: Annotated[str, Length(2000, 1)]
    bearer_token_file: Annotated[str, Length(4096)] = ""
    basic_auth_file: Annotated[str, Length(4096), Doc("A file with user:password.")] = ""
    ca_file: Annotated[str, Length(4096)] = ""
    headers: Annotated[Mapping[str, Annotated[str, Length(4096)]], Length(32)] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _PrometheusFile:
    servers: Annotated[tuple[_ServerRow, ...], Length(100)] = ()


def _servers_from(path: str, faults: list[str]) -> tuple[Server, ...]:
    """Read ``servers: [{name, url, bearerTokenFile, basicAuthFile, caFile, headers}]``."""
    where = f"--prometheus-config {path}"
    try:
        document = user_yaml.load(Path(path).read_text(encoding="utf-8"))
        rows = parse(_PrometheusFile, {} if document is None else document).servers
    except OSError as error:
        faults.append(f"{where} cannot be read: {error.strerror}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        faults.append(f"{where} is not YAML: {' '.join(str(error).split())}")
    except Invalid as invalid:
        faults += [f"{where}: {fault.path}: {fault.message}" for fault in invalid.faults]
    else:
        return tuple(_server(row, where, faults) for row in rows)
    return ()


def _server(row: _ServerRow, where: str, faults: list[str]) -> Server:
    try:
        _url(row.url)
    except ValueError as fault:
        faults.append(f"{where}: the url of {row.name} {fault}, not {row.url!r}")
    return Server(row.name, row.url, row.bearer_token_file, row.basic_auth_file, row.ca_file, dict(row.headers))


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _variable(field: str) -> str:
    return ENVIRONMENT_PREFIX + field.upper()
