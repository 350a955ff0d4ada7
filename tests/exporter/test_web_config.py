"""The file of --web-config-file: what is read, what is refused, and what a change does to a server that runs."""

import asyncio
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import bcrypt
import pytest
from aiohttp import web

from exporter.__main__ import main
from exporter.guard import MOST_REMEMBERED, Credentials, Guard
from exporter.listener import Listener, OnceAMinute, read_web_config
from exporter.webconfig import WebConfig, WebConfigError, load
from tests.realparts import certificates

RIGHT = "open sesame"
HASHED = bcrypt.hashpw(RIGHT.encode(), bcrypt.gensalt(4)).decode()
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
USERS = f"basic_auth_users:\n  ali: {HASHED}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority = certificates.authority(tmp_path)
    authority.issue("server", "exporter", certificates.LOOPBACK)
    authority.issue("client", "prometheus", certificates.FOR_CLIENTS)
    return tmp_path


def written(folder: Path, text: str) -> Path:
    draft = folder / ".draft"
    draft.write_text(text)
    return draft.replace(folder / "web.yml")


def faults(folder: Path, text: str) -> str:
    with pytest.raises(WebConfigError) as caught:
        load(written(folder, text))
    assert "\n" not in str(caught.value)
    return "\n".join(caught.value.faults)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "http_server_config:\n  http2: true\n"])
def test_a_file_that_asks_for_nothing_is_plain_http_for_anybody(folder: Path, text: str) -> None:
    config = load(written(folder, text))
    assert (config.context, config.users, config.headers) == (None, {}, {})


def test_paths_start_at_the_folder_of_the_file_and_windows_line_ends_are_read(folder: Path) -> None:
    config = load(written(folder, (TLS + USERS).replace("\n", "\r\n")))
    assert config.context is not None
    assert config.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert config.users == {"ali": HASHED.encode()}
    assert config.files == (folder / "web.yml", folder / "server.crt", folder / "server.key")


def test_all_faults_are_told_at_once_and_a_password_is_never_repeated(folder: Path) -> None:
    found = faults(
        folder,
        """
tls_server_config:
  cert_fil: server.crt
  key_file: missing.key
  client_auth_type: RequireAnyClientCert
  min_version: TLS9
  cipher_suites: [TLS_AES_128_GCM_SHA256]
http_server_config:
  headers:
    X-Frame-Option: deny
    X-XSS-Protection: 1
basic_auth_user:
  ali: secret
basic_auth_users:
  bea: hunter2
""",
    )
    for words in (
        "cert_fil is unknown, did you mean cert_file?",
        "cert_file and key_file are both needed",
        "RequireAnyClientCert is not served, use one of NoClientCert, VerifyClientCertIfGiven",
        "min_version TLS9 is not served",
        "cipher_suites can't be set here",
        "X-Frame-Option is unknown, did you mean X-Frame-Options?",
        "X-XSS-Protection must be one line of text",
        "basic_auth_user is unknown, did you mean basic_auth_users?",
        "the value of bea is no bcrypt hash of a cost from 4 to 16; make one with: htpasswd",
    ):
        assert words in found
    assert "hunter2" not in found
    assert "secret" not in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tls_server_config: [", "no YAML"),
        ("basic_auth_users:\n  ann: x\n  ann: y\n", "line 3: ann is given twice, first in line 2"),
        ("- a\n", "must be a mapping"),
        ("basic_auth_users:\n  bea: 2026-99-99\n", "no YAML: line 2: month must be in 1..12"),
        (100_000 * "[", "no YAML: it is nested too deeply"),
        ("basic_auth_users:\n  'ali:b': x\n", "ali:b can't be asked for: a colon ends a name"),
        (f"basic_auth_users:\n  ali: $2y$17${53 * 'a'}\n", "the value of ali is no bcrypt hash of a cost from 4 to 16"),
        ("http_server_config:\n  http2: 7\n", "http2 must be true or false"),
        ('http_server_config:\n  headers:\n    X-Frame-Options: "a\\0b"\n', "X-Frame-Options must be one line of text"),
        (TLS + "  min_version: TLS13\n  max_version: TLS12\n", "min_version must not be newer than max_version"),
        ("tls_server_config: yes\n", "must be a mapping"),
        (TLS.replace("server.key", "ca.key"), "can't be used"),
        (TLS.replace("server.crt", "nowhere.crt"), "nowhere.crt is not to be found"),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert\n", "needs a client_ca_file"),
        (TLS + "  client_ca_file: ca.crt\n", "else it does nothing"),
        (TLS.replace("server.crt", "1"), "must be a path"),
        (TLS + "  client_allowed_sans: [prometheus]\n", "client_allowed_sans can't be set here"),
        (TLS + "  key: inline\n", "key can't be set here"),
    ],
)
def test_what_cannot_be_done_is_refused(folder: Path, text: str, words: str) -> None:
    assert words in faults(folder, text)


def test_a_wrong_file_ends_the_start_with_2_and_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(folder, "basic_auth: {}\n")
    assert main(["--simulate", "1xT4", "--web-config-file", str(path)]) == 2
    assert main(["--simulate", "1xT4", "--web-config-file", str(folder / "nowhere.yml")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "did you mean basic_auth_users?" in lines[0]
    assert "No such file" in lines[1]


class Site:
    """A server with one page, by a web configuration file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "web.yml"

    async def start(self, text: str) -> None:
        config = read_web_config(str(written(self.folder, text)))
        guard = Guard(config)
        app = web.Application(middlewares=[guard.middleware()])
        app.router.add_get("/metrics", self._page)
        app.router.add_get("/healthz", self._page)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        self.listener = Listener(self.runner, guard, str(self.path), config)
        await self.listener.start("127.0.0.1", 0)
        self.port = self.runner.addresses[0][1]

    async def change(self, text: str) -> bool:
        written(self.folder, text)
        return await self.listener.look()

    async def status(
        self, path: str = "/metrics", user: str = "", password: str = "", *, tls: bool = False, client: bool = False
    ) -> int:
        """Ask over a fresh connection."""
        auth = {"Authorization": aiohttp.encode_basic_auth(user, password)} if user else {}
        context: ssl.SSLContext | bool = True
        if tls:
            context = ssl.create_default_context(cafile=self.folder / "ca.crt")
            if client:
                context.load_cert_chain(self.folder / "client.crt", self.folder / "client.key")
        url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers=auth, ssl=context) as answer:
            self.headers = answer.headers
            return answer.status

    async def _page(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def close(self) -> None:
        self.listener.close()
        await self.runner.cleanup()


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    made = Site(folder)
    yield made
    await made.close()


async def test_only_a_user_with_his_password_gets_an_answer_and_probes_need_none(site: Site) -> None:
    await site.start(USERS)
    assert await site.status(user="ali", password=RIGHT) == 200
    assert await site.status(user="ali", password=RIGHT[:-1]) == 401
    assert await site.status(user="bea", password=RIGHT) == 401
    assert await site.status() == 401
    assert site.headers["WWW-Authenticate"] == "Basic"
    assert await site.status("/healthz") == 200
    assert await site.status("/nothing") == 401
    assert await site.status("/nothing", "ali", "open sesame") == 404


async def test_answers_carry_the_headers_of_the_file(site: Site) -> None:
    await site.start("http_server_config:\n  headers:\n    X-Frame-Options: deny\n")
    assert await site.status() == 200
    assert site.headers["X-Frame-Options"] == "deny"


async def test_tls_is_served_by_the_certificate_of_the_file(site: Site) -> None:
    await site.start(TLS)
    assert site.listener.scheme == "https"
    assert await site.status(tls=True) == 200
    with pytest.raises(aiohttp.ClientError):
        await site.status()


async def test_a_client_without_its_certificate_is_turned_away(site: Site) -> None:
    await site.start(TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n")
    assert await site.status(tls=True, client=True) == 200
    with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
        await site.status(tls=True)


async def test_a_changed_file_is_used_on_the_same_port_without_a_restart(site: Site) -> None:
    await site.start("")
    port = site.port
    assert await site.status() == 200
    assert await site.change(USERS)
    assert await site.status() == 401
    assert await site.change(TLS)
    assert (await site.status(tls=True), site.runner.addresses[0][1]) == (200, port)
    assert await site.change("")
    assert await site.status() == 200
    assert not await site.listener.look()


async def test_a_renewed_certificate_is_used_although_the_file_that_names_it_stays(site: Site) -> None:
    await site.start(TLS)
    renewed = certificates.authority(site.folder)
    with pytest.raises(aiohttp.ClientError):
        await site.status(tls=True)
    renewed.issue("server", "exporter", certificates.LOOPBACK)
    assert await site.listener.look()
    assert await site.status(tls=True) == 200


async def test_a_wrong_change_is_told_once_and_the_last_right_one_serves_on(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await site.start(USERS)
    with caplog.at_level(logging.ERROR):
        assert not await site.change("basic_auth_users: nobody\n")
        assert not await site.listener.look()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert await site.status(user="ali", password=RIGHT) == 200
    assert await site.change("")
    assert await site.status() == 200


async def test_a_certificate_that_comes_later_than_the_file_that_names_it_is_found(site: Site) -> None:
    await site.start("")
    (site.folder / "server.crt").rename(site.folder / "later.crt")
    assert not await site.change(TLS)
    (site.folder / "later.crt").rename(site.folder / "server.crt")
    assert await site.listener.look()
    assert await site.status(tls=True) == 200


async def test_requests_that_come_while_the_file_changes_are_all_answered(site: Site) -> None:
    await site.start("")
    asking = [asyncio.create_task(site.status()) for _ in range(20)]
    assert await site.change("http_server_config:\n  headers:\n    X-Frame-Options: deny\n")
    asking += [asyncio.create_task(site.status()) for _ in range(20)]
    assert set(await asyncio.gather(*asking)) == {200}


def header(user: str, password: str) -> str:
    return aiohttp.encode_basic_auth(user, password)


class Counted:
    """A check that counts; the password is right when it is the hash."""

    def __init__(self) -> None:
        self.checks = 0

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.checks += 1
        return password == hashed


async def test_a_right_password_costs_one_check_and_a_wrong_one_costs_each_time() -> None:
    check = Counted()
    credentials = Credentials({"ali": b"right"}, check)
    assert [await credentials.admit(header("ali", "right")) for _ in range(5)] == [True] * 5
    assert check.checks == 1
    assert [await credentials.admit(header("ali", "wrong")) for _ in range(3)] == [False] * 3
    assert check.checks == 4


async def test_an_unknown_user_costs_a_check_like_a_known_one() -> None:
    check = Counted()
    assert not await Credentials({"ali": b"right"}, check).admit(header("bea", "right"))
    assert check.checks == 1


async def test_wrong_guesses_do_not_push_a_right_one_out_and_memory_is_bounded() -> None:
    check = Counted()
    users = {f"user-{number}": b"right" for number in range(2 * MOST_REMEMBERED)}
    credentials = Credentials(users, check)
    for name in users:
        assert await credentials.admit(header(name, "right"))
        await credentials.admit(header(name, "guess"))
    assert len(credentials._right) == MOST_REMEMBERED
    before = check.checks
    assert await credentials.admit(header(name, "right"))
    assert check.checks == before


@pytest.mark.parametrize("text", ["", "Basic", "Basic !!", "Basic YWxp", "Basic /w==", "Bearer YWxpOnJpZ2h0"])
async def test_a_header_that_is_none_of_basic_authentication_is_refused(text: str) -> None:
    check = Counted()
    assert not await Credentials({"ali": b"right"}, check).admit(text)
    assert check.checks == 0


async def test_a_password_that_is_longer_than_bcrypt_reads_is_cut_as_elsewhere() -> None:
    long = "x" * 100
    hashed = bcrypt.hashpw(long[:72].encode(), bcrypt.gensalt(4))
    assert await Credentials({"ali": hashed}).admit(header("ali", long))


async def test_the_hash_for_unknown_users_is_one_that_bcrypt_reads() -> None:
    assert not await Credentials({"ali": HASHED.encode()}).admit(header("bea", "x"))


async def test_requests_beyond_the_cap_get_503_and_those_under_way_are_answered() -> None:
    arrived, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        arrived.release()
        await go_on.wait()
        return web.Response(text="ok\n")

    guard = Guard(WebConfig(), most_requests=2)
    app = web.Application(middlewares=[guard.middleware()])
    app.router.add_get("/metrics", slow)
    app.router.add_get("/healthz", answers_at_once)
    runner = web.AppRunner(app)
    await runner.setup()
    listener = Listener(runner, guard, "", WebConfig())
    await listener.start("127.0.0.1", 0)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:

        async def status(path: str) -> int:
            async with session.get(url + path) as answer:
                return answer.status

        waiting = [asyncio.create_task(status("/metrics")) for _ in range(2)]
        await arrived.acquire()
        await arrived.acquire()
        assert await status("/metrics") == 503
        assert await status("/healthz") == 200
        go_on.set()
        assert await asyncio.gather(*waiting) == [200, 200]
        assert await status("/metrics") == 200
    listener.close()
    await runner.cleanup()


async def answers_at_once(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def test_without_users_the_library_for_passwords_is_not_needed(folder: Path, missing: Callable[[str], None]) -> None:
    missing("bcrypt")
    assert load(written(folder, TLS)).context is not None
    assert "pip install 'gpuscale[auth]'" in faults(folder, USERS)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a module impossible to import."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


async def test_a_surprise_in_a_look_at_the_file_does_not_end_the_looking(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await site.start("")
    looked = asyncio.Event()
    answers = iter((ValueError("embedded null byte"), None))

    async def look(**_: bool) -> bool:
        error = next(answers)
        if error is not None:
            raise error
        looked.set()
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr("exporter.listener.WATCH_SECONDS", 0)
    monkeypatch.setattr(site.listener, "look", look)
    watching = asyncio.create_task(site.listener.watch())
    await asyncio.wait_for(looked.wait(), 10)
    watching.cancel()
    assert "embedded null byte" in caplog.text


async def test_who_connects_and_never_asks_is_closed_and_who_asked_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start("")
    monkeypatch.setattr("exporter.listener.SILENT_SECONDS", 0)
    silent, half, asking = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(3)]
    half[1].write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
    for _ in range(2):
        asking[1].write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asking[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        await asking[0].readuntil(b"ok\n")
        site.listener.sweep()
    assert await asyncio.wait_for(silent[0].read(), 10) == b""
    assert await asyncio.wait_for(half[0].read(), 10) == b""
    for _, writer in (silent, half, asking):
        writer.close()
        await writer.wait_closed()


async def test_a_client_has_time_for_its_first_request(site: Site) -> None:
    await site.start("")
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    site.listener.sweep()
    site.listener.sweep()
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


def test_a_process_that_may_open_no_more_says_so_once_a_minute() -> None:
    lines = OnceAMinute()
    record = logging.LogRecord("asyncio", logging.ERROR, "", 0, "socket.accept() out of system resource", (), None)
    written = []
    for second in (0, 1, 59, 60, 61, 130):
        record.created = float(second)
        written.append(lines.filter(record))
    assert written == [True, False, False, True, False, True]
    assert lines.filter(logging.LogRecord("asyncio", logging.ERROR, "", 0, "something else", (), None))
