"""Exporters with TLS and users of their own --web-config-file, and what the operator is told to read them."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from controller.facts import ExporterFacts
from controller.sources.credentials import Access, Credentials
from controller.sources.exporters import Exporters, GpuReadings
from tests.operator.stage import eventually
from tests.operator.test_settings import faults, settings
from tests.realparts import certificates

RIGHT = "open sesame"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Certificates, the exporter's file, and what may be shown to it."""
    signer = certificates.authority(tmp_path)
    signer.issue("server", "exporter", certificates.LOOPBACK)
    signer.issue("client", "gpuscale", certificates.FOR_CLIENTS)
    (tmp_path / "other").mkdir()
    certificates.authority(tmp_path / "other")
    (tmp_path / "user").write_text(f"ali:{RIGHT}\n")
    (tmp_path / "wrong").write_text("ali:guess")
    (tmp_path / "token").write_text("t0ken")
    return tmp_path


class Served:
    """One exporter process."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    async def read(self, **access: Any) -> GpuReadings:
        """Ask once, with the fields of Access; files are those of the folder."""
        exporters = self.exporters(**access)
        try:
            return await exporters.read()
        finally:
            await exporters.close()

    def exporters(self, **access: Any) -> Exporters:
        """Make what reads it."""
        paths = {name: str(self._folder / value) for name, value in access.items() if name.endswith("_file")}
        credentials = Credentials(Access(**{**access, **paths}))
        return Exporters(lambda: [ExporterFacts(self.url)], credentials=credentials, deadline_seconds=10.0)


@pytest.fixture
async def served(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """``gpuscale-exporter`` with TLS and a user; it wants our certificate as well where the parameter is "client"."""
    hashed = bcrypt.hashpw(RIGHT.encode(), bcrypt.gensalt(4)).decode()
    client = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
    (folder / "web.yaml").write_text(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
        + (client if getattr(request, "param", "") == "client" else "")
        + f"basic_auth_users:\n  ali: {hashed}\n"
    )
    address = folder / "address"
    flags = ("--simulate", "1xT4", "--listen", "127.0.0.1:0", "--address-file", str(address))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "exporter", *flags, "--web-config-file", str(folder / "web.yaml"),
        env={**os.environ, "NODE_NAME": "n1"},
    )  # fmt: skip

    async def there() -> bool:
        return address.exists() and bool(address.read_text())

    try:
        await eventually(there)
        yield Served(f"https://{address.read_text().strip()}/metrics/native", folder)
    finally:
        process.terminate()
        await process.wait()


async def why(served: Served, **access: Any) -> str:
    readings = await served.read(**access)
    assert readings.pods == {}
    return readings.failures[served.url]


async def test_an_exporter_with_tls_and_users_is_read(served: Served) -> None:
    assert (await served.read(ca_file="ca.crt", basic_auth_file="user")).failures == {}
    assert (await served.read(insecure_skip_verify=True, basic_auth_file="user")).failures == {}


async def test_who_is_not_admitted_has_no_values_and_is_told_which_file_was_refused(served: Served) -> None:
    assert "HTTP 401: it wants a user or a token" in await why(served, ca_file="ca.crt")
    for access in ({"basic_auth_file": "wrong"}, {"bearer_token_file": "token"}):
        said = await why(served, ca_file="ca.crt", **access)
        assert said.startswith("HTTP 401")
        assert next(iter(access.values())) in said
        assert "guess" not in said


async def test_a_certificate_that_is_not_vouched_for_is_not_trusted(served: Served) -> None:
    assert "certificate" in await why(served, basic_auth_file="user")
    assert "certificate" in await why(served, ca_file="other/ca.crt", basic_auth_file="user")


async def test_the_certificates_name_may_be_another_than_the_address(served: Served) -> None:
    good = {"ca_file": "ca.crt", "basic_auth_file": "user"}
    assert (await served.read(server_name="localhost", **good)).failures == {}
    assert "exporter.example" in await why(served, server_name="exporter.example", **good)


@pytest.mark.parametrize("served", ["client"], indirect=True)
async def test_an_exporter_that_wants_a_certificate_is_given_ours(served: Served) -> None:
    good = {"ca_file": "ca.crt", "basic_auth_file": "user"}
    assert (await served.read(cert_file="client.crt", key_file="client.key", **good)).failures == {}
    assert await why(served, **good)


async def test_rotated_files_count_from_the_next_look_without_a_restart(served: Served, folder: Path) -> None:
    shutil.copy(folder / "other/ca.crt", folder / "trusted")
    shutil.copy(folder / "wrong", folder / "us")
    exporters = served.exporters(ca_file="trusted", basic_auth_file="us")
    try:
        assert "certificate" in (await exporters.read()).failures[served.url]
        shutil.copy(folder / "ca.crt", folder / "trusted")
        assert "HTTP 401" in (await exporters.read()).failures[served.url]
        shutil.copy(folder / "user", folder / "us")
        assert (await exporters.read()).failures == {}
        (folder / "us").unlink()
        gone = await exporters.read()
        assert gone.exporters == 1
        assert "basic auth file" in gone.failures[served.url]
    finally:
        await exporters.close()


def test_all_that_is_wrong_with_the_access_is_said_at_once_by_the_settings_name(folder: Path) -> None:
    (folder / "empty").write_text("")
    found = faults(
        "--exporter-scheme", "ftp", "--exporter-insecure-skip-verify", "yes",
        "--exporter-bearer-token-file", str(folder / "empty"), "--exporter-basic-auth-file", str(folder / "user"),
        "--exporter-ca-file", str(folder / "user"),
    )  # fmt: skip
    for words in (
        "--exporter-scheme must be one of http, https",
        "--exporter-insecure-skip-verify must be one of true, false",
        "--exporter-basic-auth-file goes without --exporter-bearer-token-file",
        "--exporter-ca-file need --exporter-scheme https",
        f"--exporter-ca-file {folder}/user: holds no certificate",
        f"--exporter-bearer-token-file {folder}/empty: is empty",
    ):
        assert any(words in fault for fault in found), (words, found)
    assert RIGHT not in str(found)


def test_a_certificate_goes_with_its_key_and_no_check_with_no_authority(folder: Path) -> None:
    assert faults("--exporter-scheme", "https", "--exporter-cert-file", str(folder / "client.crt")) == (
        "--exporter-cert-file and --exporter-key-file go together",
    )
    assert faults(
        "--exporter-scheme", "https", "--exporter-insecure-skip-verify", "true",
        "--exporter-ca-file", str(folder / "ca.crt"),
    ) == ("--exporter-insecure-skip-verify goes without --exporter-ca-file",)  # fmt: skip


def test_access_is_for_addresses_that_begin_with_https_as_well(folder: Path) -> None:
    given = settings("--exporter-url", "https://h:1/metrics", "--exporter-ca-file", str(folder / "ca.crt"))
    assert given.exporter_access == Access(ca_file=str(folder / "ca.crt"))
