"""How a source is asked: whom we trust and who we say we are, from files that are replaced while we run.

Why it exists: exporters and Prometheus servers want the same things of a client, and a rotated secret must need no
restart. A file that can't be used is a fault that names it; nothing is then sent, and nothing is trusted instead.
"""

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controller.tls import ClientTls

_Seen = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """What a server wants of us. Files are paths, "" = none."""

    bearer_token_file: str = ""
    basic_auth_file: str = ""
    """A file with ``user:password``."""
    ca_file: str = ""
    """Whom we trust; "" = the system's authorities."""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """The name in the server's certificate, where it isn't the one in the address."""
    insecure_skip_verify: bool = False

    @property
    def tls_fields(self) -> tuple[str, ...]:
        """The fields that are given and mean something over TLS only."""
        names = ("ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify")
        return tuple(name for name in names if getattr(self, name))


@dataclass(frozen=True, slots=True)
class Presented:
    """What a request carries: its headers, and the TLS context (True = the system's)."""

    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | bool = True


class CredentialsError(Exception):
    """Files that can't be used: field of Access -> what is wrong, with the path. str() is one line."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        self.faults = dict(faults)
        super().__init__("; ".join(f"{name.replace('_', ' ')} {fault}" for name, fault in self.faults.items()))


class Credentials:
    """Reads the files of one Access at each use; the TLS context is made anew when one of its files has changed."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._context: ssl.SSLContext | None = None
        self._seen: _Seen = ()

    def present(self) -> Presented:
        """Give what the next request carries. Raises CredentialsError with all faults."""
        faults: dict[str, str] = {}
        headers = self._headers(faults)
        tls = self._tls(faults) if self.access.tls_fields else True
        if faults:
            raise CredentialsError(faults)
        return Presented(headers, tls)

    def _headers(self, faults: dict[str, str]) -> dict[str, str]:
        access = self.access
        if access.bearer_token_file:
            return {"Authorization": f"Bearer {_secret('bearer_token_file', access.bearer_token_file, faults)}"}
        if access.basic_auth_file:
            pair = _secret("basic_auth_file", access.basic_auth_file, faults)
            if ":" not in pair:
                faults.setdefault("basic_auth_file", f"{access.basic_auth_file}: is not user:password")
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}

    def _tls(self, faults: dict[str, str]) -> ssl.SSLContext | bool:
        access = self.access
        seen = tuple(_identity(path) for path in (access.ca_file, access.cert_file, access.key_file))
        if self._context is None or seen != self._seen:
            self._context, self._seen = _context(access, faults), seen
        return self._context or True


def _context(access: Access, faults: dict[str, str]) -> ssl.SSLContext | None:
    """Read the TLS files, None where one is at fault. The context is new: an old CA is no longer trusted."""
    verify = not access.insecure_skip_verify
    try:
        found = ClientTls(access.ca_file, verify=verify, server_name=access.server_name or None)
    except OSError as error:
        faults["ca_file"] = f"{access.ca_file}: {_why(error, 'certificate')}"
        found = ClientTls(verify=False)
    if access.cert_file:
        try:
            found.load(access.cert_file, access.key_file)
        except OSError as error:
            faults["cert_file"] = f"{access.cert_file} with {access.key_file}: {_why(error, 'certificate and its key')}"
    return None if faults.keys() & {"ca_file", "cert_file"} else found.context


def _secret(name: str, path: str, faults: dict[str, str]) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        faults[name] = f"{path}: {error.strerror}"
    except UnicodeDecodeError:
        faults[name] = f"{path}: is no text"
    else:
        if text and text.isprintable():
            return text
        # what is in it is not repeated: it may be half a password
        faults[name] = f"{path}: {'is more than one line' if text else 'is empty'}"
    return ""


def _identity(path: str) -> tuple[int, int, int] | None:
    """Give what changes when a file does, or the link that leads to it; None where there is none."""
    if not path:
        return None
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _why(error: OSError, wanted: str) -> str:
    if isinstance(error, ssl.SSLError):
        return f"holds no {wanted} that can be read ({(error.reason or 'unknown').lower().replace('_', ' ')})"
    return error.strerror or str(error)
