"""How the cluster is found and how we say who we are: kubeconfigs, plugins, service accounts, TLS."""

import datetime
import json
import ssl
import stat
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography.x509 import DNSName, SubjectAlternativeName
from kubernetes.aio.config import incluster_config, kube_config

from controller.cluster import POD, Cluster, ConfigError, Unauthorized, Unreachable
from tests.k8s.scripted import ScriptedApi, reply, status
from tests.realparts.certificates import FOR_CLIENTS, authority

ONE = "/api/v1/namespaces/ml/pods/a"


def config(server: str, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server} | (cluster or {})}],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(path: Path, document: object) -> str:
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither in a pod nor with a kubeconfig of one's own."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.aio.config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))


@dataclass
class Opened:
    """Clients that are closed at the end of the test."""

    clients: list[Cluster]

    async def connect(self, **how: str) -> Cluster:
        client = await Cluster.connect(**how)  # type: ignore[arg-type]
        self.clients.append(client)
        return client


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    made = Opened([])
    yield made
    for client in made.clients:
        await client.close()


async def test_a_kubeconfig_gives_server_and_token(api: ScriptedApi, opened: Opened, tmp_path: Path) -> None:
    path = write(tmp_path / "config", config(api.url + "/", {"token": "t-1"}))
    client = await opened.connect(kubeconfig=path)
    api.once("GET", ONE, reply({}))
    await client.get(POD, "a", "ml")
    assert api.seen[0].headers["Authorization"] == "Bearer t-1"


async def test_a_context_is_chosen_by_its_name(api: ScriptedApi, opened: Opened, tmp_path: Path) -> None:
    document = config("http://127.0.0.1:1", {"token": "t-1"})
    document["contexts"].append({"name": "there", "context": {"cluster": "d", "user": "v"}})
    document["clusters"].append({"name": "d", "cluster": {"server": api.url}})
    document["users"].append({"name": "v", "user": {"username": "me", "password": "pw"}})
    client = await opened.connect(kubeconfig=write(tmp_path / "config", document), context="there")
    api.once("GET", ONE, reply({}))
    await client.get(POD, "a", "ml")
    assert api.seen[0].headers["Authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not a kubeconfig"),
        ("{unbalanced: [", "not a kubeconfig"),
        ("just a sentence", "not a kubeconfig"),
        ("- a\n- list\n", "not a kubeconfig"),
        (b"\x00\xff\xfe".decode("latin-1"), "not a kubeconfig"),
        (yaml.safe_dump(config("http://x") | {"contexts": None}), "here"),
        (yaml.safe_dump(config("http://x") | {"current-context": "gone"}), "gone"),
        (yaml.safe_dump({k: v for k, v in config("http://x").items() if k != "current-context"}), "current-context"),
        (yaml.safe_dump(config("http://x") | {"clusters": []}), "clusters"),
        (yaml.safe_dump(config("https://x", cluster={"certificate-authority": "/nowhere/ca"})), "/nowhere/ca"),
        (yaml.safe_dump(config("https://x", cluster={"certificate-authority-data": "bm8gY2VydA=="})), ""),
    ],
)
async def test_a_bad_kubeconfig_is_one_sentence_that_names_it(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        await Cluster.connect(kubeconfig=str(path))
    sentence = str(caught.value)
    assert str(path) in sentence
    assert reason in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("what", ["missing", "a folder", "unknown context"])
async def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path, what: str) -> None:
    path = {"missing": str(tmp_path / "none"), "a folder": str(tmp_path)}.get(what)
    if path is None:
        path = write(tmp_path / "config", config("http://x"))
    with pytest.raises(ConfigError) as caught:
        await Cluster.connect(kubeconfig=path, context="other" if what == "unknown context" else None)
    assert path in str(caught.value)
    assert "other" in str(caught.value) or what != "unknown context"


async def test_no_error_quotes_the_secrets_of_the_file(tmp_path: Path) -> None:
    document = config("http://x", {"token": "top-secret-token"})
    document["contexts"][0]["context"] = {"user": "u", "extra": "top-secret-token"}
    with pytest.raises(ConfigError) as caught:
        await Cluster.connect(kubeconfig=write(tmp_path / "config", document))
    assert "cluster" in str(caught.value)
    assert "top-secret" not in str(caught.value)


@pytest.mark.usefixtures("outside")
async def test_without_any_configuration_the_sentence_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match="name a kubeconfig or a server"):
        await Cluster.connect()


async def test_a_server_and_a_kubeconfig_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="not both"):
        await Cluster.connect("http://x", kubeconfig="y")


# --- credentials that change


async def test_a_token_file_is_read_again_when_the_server_refuses_the_old_token(
    api: ScriptedApi, opened: Opened, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("t-1\n")
    client = await opened.connect(kubeconfig=write(tmp_path / "config", config(api.url, {"tokenFile": str(token)})))
    token.write_text("t-2\n")
    api.once("GET", ONE, status(401, "Unauthorized"), reply({"ok": True}))
    assert await client.get(POD, "a", "ml") == {"ok": True}
    assert [seen.headers["Authorization"] for seen in api.seen] == ["Bearer t-1", "Bearer t-2"]


async def test_a_token_file_is_read_again_once_a_minute(api: ScriptedApi, opened: Opened, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t-1")
    client = await opened.connect(kubeconfig=write(tmp_path / "config", config(api.url, {"tokenFile": str(token)})))
    later = [0.0]
    client.connection.credentials.clock = lambda: time.monotonic() + later[0]
    api.down = reply({})
    for seconds, content in ((0, "t-2"), (61, "t-3"), (90, "t-4"), (122, "t-5")):
        later[0] = seconds
        token.write_text(content)
        await client.get(POD, "a", "ml")
    assert [seen.headers["Authorization"][-3:] for seen in api.seen] == ["t-1", "t-3", "t-3", "t-5"]


async def test_a_token_file_that_vanishes_leaves_the_old_token(
    api: ScriptedApi, opened: Opened, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("t-1")
    client = await opened.connect(kubeconfig=write(tmp_path / "config", config(api.url, {"tokenFile": str(token)})))
    token.unlink()
    client.connection.credentials.period_seconds = 0.0
    api.down = reply({})
    await client.get(POD, "a", "ml")
    assert api.seen[0].headers["Authorization"] == "Bearer t-1"


async def test_a_refused_token_without_a_newer_one_is_unauthorized_after_one_try(
    api: ScriptedApi, cluster: Cluster
) -> None:
    api.down = status(401, "Unauthorized")
    with pytest.raises(Unauthorized):
        await cluster.get(POD, "a", "ml")
    assert len(api.seen) == 1


def plugin(tmp_path: Path, body: str) -> dict[str, Any]:
    """A credential plugin that counts its runs in a file and then does what ``body`` says."""
    script = tmp_path / "plugin.py"
    runs = tmp_path / "runs"
    script.write_text(
        f"import json, sys\nfrom pathlib import Path\nruns = Path({str(runs)!r})\n"
        f"run = int(runs.read_text()) + 1 if runs.exists() else 1\nruns.write_text(str(run))\n{body}\n"
    )
    script.chmod(stat.S_IRWXU)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script)],
        }
    }


def gives(expiry: str | None) -> str:
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "TOKEN"}}
    if expiry is not None:
        answer["status"]["expirationTimestamp"] = expiry  # type: ignore[index]
    return f"print({json.dumps(answer)!r}.replace('TOKEN', f't-{{run}}'))"


async def test_a_plugins_token_without_an_end_is_kept_until_it_is_refused(
    api: ScriptedApi, opened: Opened, tmp_path: Path
) -> None:
    client = await opened.connect(kubeconfig=write(tmp_path / "config", config(api.url, plugin(tmp_path, gives(None)))))
    client.connection.credentials.period_seconds = 0.0
    api.once("GET", ONE, reply({}), reply({}), status(401), reply({}))
    for _ in range(3):
        await client.get(POD, "a", "ml")
    assert [seen.headers["Authorization"][-3:] for seen in api.seen] == ["t-1", "t-1", "t-1", "t-2"]


async def test_a_plugin_runs_again_when_its_token_ends(api: ScriptedApi, opened: Opened, tmp_path: Path) -> None:
    past = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)).isoformat()
    client = await opened.connect(kubeconfig=write(tmp_path / "config", config(api.url, plugin(tmp_path, gives(past)))))
    client.connection.credentials.period_seconds = 0.0
    api.down = reply({})
    await client.get(POD, "a", "ml")
    assert api.seen[0].headers["Authorization"] == "Bearer t-2"


@pytest.mark.parametrize("body", ["sys.exit('no login: top-secret')", "print('not json')", "print('{}')"])
async def test_a_plugin_that_fails_is_named(tmp_path: Path, body: str) -> None:
    path = write(tmp_path / "config", config("http://127.0.0.1:1", plugin(tmp_path, body)))
    with pytest.raises(ConfigError, match="credential plugin") as caught:
        await Cluster.connect(kubeconfig=path)
    assert path in str(caught.value)


async def test_a_plugin_that_is_not_installed_is_named(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}}
    with pytest.raises(ConfigError, match="credential plugin"):
        await Cluster.connect(kubeconfig=write(tmp_path / "config", config("http://127.0.0.1:1", user)))


# --- TLS


@dataclass(frozen=True)
class Certificates:
    """PEM files made for this test run: an authority, a server named ``kubernetes``, a client."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("tls")
    signer = authority(folder)
    signer.issue("server", "server", SubjectAlternativeName([DNSName("kubernetes")]))
    signer.issue("client", "client", FOR_CLIENTS)
    return Certificates(folder)


@pytest.fixture
async def secure(certificates: Certificates) -> AsyncIterator[str]:
    """A server that talks to holders of a client certificate only; it answers with the client's name."""

    async def who(request: web.Request) -> web.StreamResponse:
        peer = request.transport.get_extra_info("peercert") if request.transport else {}
        return web.json_response({"name": dict(pair for row in peer["subject"] for pair in row)["commonName"]})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.path("ca.crt"))
    context.load_cert_chain(certificates.path("server.crt"), certificates.path("server.key"))
    context.verify_mode = ssl.CERT_REQUIRED
    app = web.Application()
    app.router.add_get("/{path:.*}", who)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def secured(certificates: Certificates, server: str, **cluster: object) -> dict[str, Any]:
    user = {"client-certificate": certificates.path("client.crt"), "client-key": certificates.path("client.key")}
    return config(server, user, {"certificate-authority": certificates.path("ca.crt")} | cluster)


async def test_tls_checks_the_server_and_shows_our_certificate(
    secure: str, certificates: Certificates, opened: Opened, tmp_path: Path
) -> None:
    document = secured(certificates, secure, **{"tls-server-name": "kubernetes"})
    client = await opened.connect(kubeconfig=write(tmp_path / "config", document))
    assert await client.get(POD, "a", "ml") == {"name": "client"}


@pytest.mark.parametrize("cluster", [{}, {"tls-server-name": "elsewhere"}])
async def test_tls_refuses_a_server_of_another_name(
    secure: str, certificates: Certificates, opened: Opened, tmp_path: Path, cluster: dict[str, object]
) -> None:
    client = await opened.connect(kubeconfig=write(tmp_path / "config", secured(certificates, secure, **cluster)))
    with pytest.raises(Unreachable, match="certificate"):
        await client.get(POD, "a", "ml")


async def test_tls_that_the_user_switched_off_is_off(
    secure: str, certificates: Certificates, opened: Opened, tmp_path: Path
) -> None:
    document = secured(certificates, secure, **{"insecure-skip-tls-verify": True})
    del document["clusters"][0]["cluster"]["certificate-authority"]
    client = await opened.connect(kubeconfig=write(tmp_path / "config", document))
    assert await client.get(POD, "a", "ml") == {"name": "client"}


async def test_a_server_url_alone_trusts_the_systems_authorities_only(secure: str, opened: Opened) -> None:
    client = await opened.connect(server=secure)
    with pytest.raises(Unreachable, match="certificate"):
        await client.get(POD, "a", "ml")


# --- inside a pod


async def test_in_a_pod_the_service_account_is_used_and_its_token_read_again(
    secure: str, certificates: Certificates, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("t-1\n")
    host, port = secure.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", certificates.path("ca.crt"))
    client = await opened.connect()
    assert client.connection.server == secure
    assert client.connection.credentials.header == "bearer t-1"
    token.write_text("t-2\n")
    assert await client.connection.credentials.renew("bearer t-1")
    assert client.connection.credentials.header == "bearer t-2"


async def test_a_pod_without_its_service_account_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="service account"):
        await Cluster.connect()


def test_the_library_still_has_what_we_lean_on() -> None:
    """Attributes that are not in its documentation; a new major version may move them."""
    loader = kube_config.KubeConfigLoader(config("http://x", {"exec": {"command": "c", "apiVersion": "v1"}}))
    assert "exec" in vars(loader)["_user"]
