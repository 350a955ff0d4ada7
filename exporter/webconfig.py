"""The file of --web-config-file: TLS, users and headers, in the format that Prometheus' own exporters read.

Why it exists: who has such a file for node_exporter has one for this exporter. Whatever this exporter can't do as the
file asks is a fault, never left out in silence; all faults are reported at once.
"""

import difflib
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from exporter import user_yaml

VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
CLIENT_AUTH = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
HEADERS = (
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
    "Content-Security-Policy",
)
# each step of the cost doubles the time that one check takes: at 16 it is seconds, at 31 days
BCRYPT_HASH = re.compile(r"\$2[aby]\$(0[4-9]|1[0-6])\$[./A-Za-z0-9]{53}")

T = TypeVar("T")

_TOP = ("tls_server_config", "http_server_config", "basic_auth_users")
_TLS = ("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version")
_NOT_SERVED = (
    *("cipher_suites", "prefer_server_cipher_suites", "curve_preferences"),
    *("client_allowed_sans", "cert", "key", "client_ca"),
)
_HTTP = ("http2", "headers")


class WebConfigError(Exception):
    """Every fault of the file. str() is one line."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(self.faults))


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths are whole. ``client_ca`` None: no client is asked for a certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED

    def context(self) -> ssl.SSLContext:
        """Read the certificates. Raises OSError (ssl.SSLError is one) where a file is missing or wrong."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version, context.maximum_version = self.oldest, self.newest
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
        context.verify_mode = self.client_auth
        return context


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says. ``context`` None: plain HTTP. ``users``: name -> bcrypt hash; none = nobody has to say."""

    context: ssl.SSLContext | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    """All files it was made from: when one of them changes, so may this."""


def load(path: Path) -> WebConfig:
    """Read the file and all it names. Raises WebConfigError."""
    try:
        document = user_yaml.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WebConfigError([f"{path}: {error.strerror}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WebConfigError([f"{path} is no YAML: {' '.join(str(error).split())}"]) from None
    faults: list[str] = []
    top = _section({"": document}, "", _TOP, faults)
    tls = _tls(_section(top, "tls_server_config", (*_TLS, *_NOT_SERVED), faults), path.parent, faults)
    http = _section(top, "http_server_config", _HTTP, faults)
    if not isinstance(http.get("http2") or False, bool):
        faults.append("http_server_config: http2 must be true or false")
    users = _users(_section(top, "basic_auth_users", None, faults), faults)
    headers = _headers(_section(http, "headers", HEADERS, faults), faults)
    context = _context(tls, faults)
    if faults:
        raise WebConfigError(f"{path}: {fault}" for fault in faults)
    named = (tls.certificate, tls.key, tls.client_ca) if tls else ()
    return WebConfig(context, users, headers, (path, *(file for file in named if file is not None)))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word: the right one, or all of them."""
    names = tuple(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"


def _section(of: Mapping[str, Any], name: str, known: Iterable[str] | None, faults: list[str]) -> dict[str, Any]:
    """Return a mapping of the file, {} where there is none. known None: any key is right."""
    found = of.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        faults.append(f"{name or 'the file'} must be a mapping of names to values, not {type(found).__name__}")
        return {}
    if known is not None:
        names, of_what = tuple(known), f"{name}: " if name else ""
        faults += [f"{of_what}{key} is unknown, {nearest(str(key), names)}" for key in found if key not in names]
    return {str(key): value for key, value in found.items()}


def _tls(section: Mapping[str, Any], folder: Path, faults: list[str]) -> Tls | None:
    if not section:
        return None
    faults += [
        f"tls_server_config: {key} can't be set here: this exporter does not serve it"
        for key in _NOT_SERVED
        if section.get(key)
    ]
    files = {key: _file(section, key, folder, faults) for key in ("cert_file", "key_file", "client_ca_file")}
    client_auth = _one_of(section, "client_auth_type", CLIENT_AUTH, ssl.CERT_NONE, faults)
    if client_auth != ssl.CERT_NONE and files["client_ca_file"] is None:
        faults.append("tls_server_config: client_auth_type needs a client_ca_file")
    if client_auth == ssl.CERT_NONE and files["client_ca_file"] is not None:
        faults.append(
            "tls_server_config: client_ca_file needs client_auth_type RequireAndVerifyClientCert, else it does nothing"
        )
    oldest = _one_of(section, "min_version", VERSIONS, ssl.TLSVersion.TLSv1_2, faults)
    newest = _one_of(section, "max_version", VERSIONS, ssl.TLSVersion.MAXIMUM_SUPPORTED, faults)
    if oldest > newest >= 0:
        faults.append("tls_server_config: min_version must not be newer than max_version")
    certificate, key = files["cert_file"], files["key_file"]
    if certificate is None or key is None:
        faults.append("tls_server_config: cert_file and key_file are both needed")
        return None
    return Tls(certificate, key, files["client_ca_file"], client_auth, oldest, newest)


def _file(section: Mapping[str, Any], key: str, folder: Path, faults: list[str]) -> Path | None:
    """Return the path; a relative one starts at the folder of the file that names it."""
    text = section.get(key) or ""
    if not isinstance(text, str):
        faults.append(f"tls_server_config: {key} must be a path, not {text!r}")
        return None
    return folder / text if text else None


def _one_of(section: Mapping[str, Any], key: str, choices: Mapping[str, T], default: T, faults: list[str]) -> T:
    if key not in section:
        return default
    text = str(section[key])
    if text not in choices:
        faults.append(f"tls_server_config: {key} {text} is not served, use one of {', '.join(filter(None, choices))}")
        return default
    return choices[text]


def _users(section: Mapping[str, Any], faults: list[str]) -> dict[str, bytes]:
    users = {}
    faults += [f"basic_auth_users: {name} can't be asked for: a colon ends a name" for name in section if ":" in name]
    for name, hashed in section.items():
        if isinstance(hashed, str) and BCRYPT_HASH.fullmatch(hashed):
            users[name] = hashed.encode()
        else:
            # the value is not repeated: it may be a password
            faults.append(
                f"basic_auth_users: the value of {name} is no bcrypt hash of a cost from 4 to 16; make one with: "
                f"htpasswd -nBC 10 {name}"
            )
    if users and _bcrypt_is_missing():
        faults.append("basic_auth_users needs the library bcrypt: pip install 'gpuscale[auth]'")
    return users


def _bcrypt_is_missing() -> bool:
    try:
        import bcrypt  # noqa: F401 - an extra that only this needs
    except ImportError:
        return True
    return False


def _headers(section: Mapping[str, Any], faults: list[str]) -> dict[str, str]:
    for name, value in section.items():
        if not isinstance(value, str) or not value.isprintable():
            faults.append(f"headers: {name} must be one line of text")
    return {name: value for name, value in section.items() if value}


def _context(tls: Tls | None, faults: list[str]) -> ssl.SSLContext | None:
    if tls is None:
        return None
    named = (file for file in (tls.certificate, tls.key, tls.client_ca) if file is not None)
    absent = [f"tls_server_config: {file} is not to be found" for file in named if not file.is_file()]
    faults += absent
    if absent:
        return None
    try:
        return tls.context()
    except (OSError, ValueError) as error:
        faults.append(f"tls_server_config: the certificate, its key or the client CA can't be used: {error}")
        return None
