"""How the cluster is found, and how we say who we are: a server, a pod's service account, a kubeconfig.

Why it exists: configuration and authentication are the ``kubernetes`` package's business, plugins and renewed tokens
included. This is the only module that imports it, and only when a plain server address is not given.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from controller.api_errors import ConfigError, one_line
from controller.tls import ClientTls
from controller.transport import Connection, Credentials

PLUGIN_SECONDS = 60.0


async def connection_from(
    server: str | None, kubeconfig: str | None, context: str | None, token: str | None
) -> Connection:
    """How to reach the cluster; see ``Cluster.connect``. Raises ConfigError."""
    if server is not None and (kubeconfig or context):
        raise ConfigError("give either a server or a kubeconfig, not both")
    if server is not None:
        return _from_server(server, token)
    if kubeconfig is None and context is None:
        inside = await _from_service_account()
        if inside is not None:
            return inside
    return await _from_kubeconfig(kubeconfig, context)


def _from_server(server: str, token: str | None) -> Connection:
    url = urlsplit(server)
    if url.scheme not in {"http", "https"} or not url.hostname or url.username:
        raise ConfigError(f"the server must look like https://HOST:PORT, not {one_line(server)}")
    credentials = Credentials(f"Bearer {token}" if token else "")
    return Connection(server.rstrip("/"), credentials, ssl.create_default_context() if url.scheme == "https" else None)


async def _from_service_account() -> Connection | None:
    """Give the connection of a pod, None outside of one."""
    library, settings = _library()

    async def load(_force: bool) -> None:  # noqa: FBT001 - the shape of Credentials.load
        library.load_incluster_config(settings, try_refresh_token=False)

    try:
        return await _from_library(settings, load)
    except library.ConfigException as problem:
        if "not set" in str(problem):
            return None
        raise ConfigError(f"the service account of this pod cannot be used: {problem}") from None


async def _from_kubeconfig(path: str | None, context: str | None) -> Connection:
    library, settings = _library()
    wanted = path or library.KUBE_CONFIG_DEFAULT_LOCATION
    if not _exists(wanted):
        hint = "" if path else "; this is no pod either: name a kubeconfig or a server"
        raise ConfigError(f"the kubeconfig {wanted} does not exist{hint}")
    loader: Any = None

    async def load(force: bool) -> None:  # noqa: FBT001 - the shape of Credentials.load
        nonlocal loader
        if loader is None:
            loader = await library.load_kube_config(wanted, context, settings, persist_config=False)
        elif force or not _token_without_end(loader):
            vars(loader).pop("exec_plugin_expiry" if force else "", None)
            await loader.load_and_set(settings)

    try:
        async with asyncio.timeout(PLUGIN_SECONDS):
            connection = await _from_library(settings, load)
    except Exception as problem:  # noqa: BLE001 - the library answers bad files with errors of any type
        raise ConfigError(f"the kubeconfig {wanted} cannot be used: {_explained(problem)}") from None
    if "exec" in (vars(loader).get("_user") or {}) and not (settings.api_key or settings.cert_file):
        raise ConfigError(f"the kubeconfig {wanted} names a credential plugin that gave no credentials")
    return connection


def _exists(paths: str) -> bool:
    """Whether one of the paths, joined as in KUBECONFIG, exists."""
    return any(Path(part).expanduser().exists() for part in paths.split(os.pathsep) if part)


def _token_without_end(loader: Any) -> bool:
    """Whether a plugin gave a token without expiry: good until it is refused, so the plugin is not run each minute."""
    return "exec" in (vars(loader).get("_user") or {}) and "exec_plugin_expiry" not in vars(loader)


def _explained(problem: Exception) -> str:
    """Give the library's reason without the piece of the file that it quotes, which may hold a token."""
    if isinstance(problem, TimeoutError):
        return f"its credential plugin did not end within {PLUGIN_SECONDS:g} s"
    text = re.sub(r"\{.*\}", "...", str(problem), flags=re.DOTALL)
    known = type(problem).__name__ in {"ConfigException", "PermissionError", "IsADirectoryError", "SSLError"}
    return one_line(text) if known else "it is not a kubeconfig in YAML"


def _library() -> tuple[Any, Any]:
    """Import the configuration part of the package, late: a plain server URL saves its 20 MB and half a second."""
    from kubernetes.aio import client, config

    return config, client.Configuration()


async def _from_library(settings: Any, load: Callable[[bool], Awaitable[None]]) -> Connection:
    await load(False)
    tls = None
    if settings.host.startswith("https"):
        tls = ClientTls(
            settings.ssl_ca_cert,
            settings.cert_file,
            settings.key_file,
            verify=settings.verify_ssl,
            server_name=settings.tls_server_name,
        )

    async def header(force: bool) -> str:  # noqa: FBT001 - the shape of Credentials.load
        await load(force)
        if tls is not None:
            tls.load(settings.cert_file, settings.key_file)
        return _header(settings)

    credentials = Credentials(_header(settings), header)
    return Connection(settings.host.rstrip("/"), credentials, tls.context if tls else None, settings.proxy)


def _header(settings: Any) -> str:
    """Give the header without the line end that a token file may have."""
    return " ".join(str(settings.api_key.get("BearerToken", "")).split())
