"""The command as people start it: a process, its exit code, its output, its signals."""

import contextlib
import ctypes.util
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from tests.exporter.build import Series, names, read, values
from tests.interruption import interrupted_at

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("GPUSCALE_")} | {"PYTHONPATH": str(ROOT)}
COMMAND = (sys.executable, "-m", "exporter")


def once(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*COMMAND, *argv), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)


@contextlib.contextmanager
def running(
    folder: Path, *argv: str, command: tuple[str, ...] = COMMAND
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the URL it serves on."""
    address = folder / "address"
    arguments = (*command, "--listen", "127.0.0.1:0", "--address-file", str(address), *argv)
    process = subprocess.Popen(arguments, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        waiting = time.monotonic() + 60
        while not address.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < waiting
            time.sleep(0.01)
        yield process, f"http://{address.read_text().strip()}"
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def scrape(url: str) -> Series:
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:  # noqa: S310 - the process just started
        return read(answer.read().decode())


def scrape_until(url: str, name: str, **labels: str) -> Series:
    """The first scrape that has such a series."""
    waiting = time.monotonic() + 60
    while time.monotonic() < waiting:
        with contextlib.suppress(urllib.error.HTTPError):  # 503 before the first poll
            series = scrape(url)
            if values(series, name, **labels):
                return series
        time.sleep(0.02)
    raise AssertionError(f"{name} with {labels} never came")


def write(file: Path, world: object) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(world if isinstance(world, str) else json.dumps(world))
    draft.replace(file)


def test_once_prints_what_a_scrape_would_get_and_ends_well() -> None:
    ended = once("--simulate", "2xH100", "--once", "--node", "node-7")
    assert ended.returncode == 0, ended.stderr
    assert len(values(read(ended.stdout), "aom_node_gpu_usage", node="node-7")) == 2


def test_bad_settings_end_with_two_and_one_line_that_names_all_of_them() -> None:
    ended = once("--poll-seconds", "soon", "--bogus", "--listen", "9836")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    for name in ("--poll-seconds", "--bogus", "--listen"):
        assert name in ended.stderr


def test_help_lists_each_setting_with_its_variable() -> None:
    ended = once("--help")
    assert ended.returncode == 0
    assert "--kubelet-socket" in ended.stdout
    assert "GPUSCALE_EXPORTER_KUBELET_SOCKET" in ended.stdout


def test_an_address_in_use_ends_with_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = once("--simulate", "1xT4", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--log-level", "error")
    assert ended.returncode == 1
    assert ended.stderr.startswith("gpuscale-exporter: ")
    assert ended.stderr.count("\n") == 1
    assert "in use" in ended.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--listen", "256.1.1.1:0"), "--listen 256.1.1.1:0: cannot be served on: "),
        (("--listen", "x..y:0"), "--listen x..y:0: cannot be served on: it is no name of a host: "),
        (
            ("--listen", "127.0.0.1:0", "--address-file", "/missing/folder/a"),
            "--address-file /missing/folder/a: cannot be written: No such file or directory",
        ),
        (("--listen", "127.0.0.1:0", "--address-file", "/"), "--address-file /: cannot be written: "),
    ],
)
def test_what_cannot_be_opened_is_named_with_its_flag(flags: tuple[str, ...], said: str) -> None:
    ended = once("--simulate", "1xT4", "--log-level", "error", *flags)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"gpuscale-exporter: {said}")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("explain", "gpuscale_driver_up"), ("doctor", "--simulate", "1xT4"), ("--once",)])
def test_what_cannot_be_written_is_said_in_one_line(words: tuple[str, ...]) -> None:
    more = ("--simulate", "1xT4", "--log-level", "error") if words == ("--once",) else ()
    full = Path("/dev/full")
    if not full.is_char_device():
        pytest.skip("this system has no /dev/full")
    with full.open("w") as output:
        ended = subprocess.run(
            (*COMMAND, *words, *more), env=ENVIRONMENT, stdout=output, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == (1 if more else 2)
    assert ended.stderr == "gpuscale-exporter: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("words", [("explain", "gpuscale_driver_up"), ("doctor", "--simulate", "1xT4"), ("--once",)])
def test_without_an_output_it_ends_as_it_would(words: tuple[str, ...]) -> None:
    more = ("--simulate", "1xT4", "--log-level", "error") if words == ("--once",) else ()
    closed = ("/bin/sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *words, *more)
    ended = subprocess.run(closed, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_doctor_tells_of_a_gpu_whose_name_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    file.write_text('{"devices": [{"uuid": "GPU-\\ud800", "fault": "lost"}]}')
    ended = once("doctor", "--simulate", str(file))
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "problem  gpu GPU-\\ud800: lost" in ended.stdout


def test_an_address_file_that_is_a_link_or_no_file_stays_what_it_is(tmp_path: Path) -> None:
    link, there = tmp_path / "link", tmp_path / "there"
    there.touch()
    link.symlink_to(there)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (link, pipe):
        argv = ("--simulate", "1xT4", "--listen", "127.0.0.1:0", "--address-file", str(path))
        with subprocess.Popen((*COMMAND, *argv), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert any(" serving node " in line for line in process.stderr)
            process.terminate()
    assert os.read(reading, 100).startswith(b"127.0.0.1:")
    os.close(reading)
    assert there.read_text().startswith("127.0.0.1:")
    assert link.is_symlink()
    assert pipe.is_fifo()


def test_a_request_that_is_no_http_leaves_no_traceback(tmp_path: Path) -> None:
    with running(tmp_path, "--simulate", "1xT4") as (process, url):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.0 400")
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert "Traceback" not in log


def test_the_version_is_told() -> None:
    ended = once("--version")
    assert (ended.returncode, ended.stdout.split()[0]) == (0, "gpuscale-exporter")


def test_a_broken_simulation_file_is_named_and_mending_it_brings_the_values_back(tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    write(file, {"devices": [{"uuid": "GPU-a", "power_watts": "much"}]})
    argv = ("--simulate", str(file), "--poll-seconds", "0.05")
    ended = once(*argv, "--once")
    assert ended.returncode == 0
    assert "devices[0].power_watts (GPU-a): must be a number, not 'much'" in ended.stderr
    assert values(read(ended.stdout), "gpuscale_driver_up", reason="bad_file") == [0]
    with running(tmp_path, *argv) as (process, url):
        scrape_until(url, "gpuscale_driver_up", reason="bad_file")
        write(file, {"devices": [{"uuid": "GPU-a", "power_watts": 12}]})
        assert values(scrape_until(url, "gpuscale_driver_up", reason=""), "aom_node_gpu_power_watts") == [12]
        write(file, "{")
        withdrawn = scrape_until(url, "gpuscale_driver_up", reason="bad_file")
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert "aom_node_gpu_power_watts" not in names(withdrawn)
    assert values(withdrawn, "gpuscale_gpu_absent", uuid="GPU-a") == [1]
    assert log.count("driver does not answer") == 2, "told once for each time it breaks, not once a poll"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, "--simulate", "1xT4") as (process, url):
        scrape_until(url, "aom_node_gpu_usage")
        process.send_signal(number)
        assert process.wait(20) == 0


def test_sighup_has_the_web_configuration_read_again_and_ends_nothing(tmp_path: Path) -> None:
    web_config = tmp_path / "web.yml"
    web_config.write_text("{}\n")
    with running(tmp_path, "--simulate", "1xT4", "--web-config-file", str(web_config)) as (process, url):
        scrape_until(url, "aom_node_gpu_usage")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert any("the web configuration was read again" in line for line in process.stderr)
        scrape_until(url, "aom_node_gpu_usage")
        process.terminate()
        assert process.wait(20) == 0


def test_sighup_without_a_web_configuration_says_so_and_ends_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--simulate", "1xT4") as (process, url):
        process.send_signal(signal.SIGHUP)
        scrape_until(url, "aom_node_gpu_usage")
        assert process.stderr is not None
        assert any("no --web-config-file is set" in line for line in process.stderr)
        process.terminate()
        assert process.wait(20) == 0


def test_a_process_that_got_no_cpu_never_shows_values_of_before_as_present(tmp_path: Path) -> None:
    with running(tmp_path, "--simulate", "1xT4", "--poll-seconds", "0.2") as (process, url):
        before = scrape_until(url, "aom_node_gpu_usage")
        process.send_signal(signal.SIGSTOP)
        time.sleep(1)  # longer than three polls: the time that passes is what is tested
        woken = time.time()
        process.send_signal(signal.SIGCONT)
        first = scrape(url)
        taken_at = values(first, "gpuscale_snapshot_timestamp_seconds")
        assert not values(first, "aom_node_gpu_usage") or taken_at[0] >= woken - 0.6
        assert taken_at[0] >= values(before, "gpuscale_snapshot_timestamp_seconds")[0]
        scrape_until(url, "aom_node_gpu_usage")


def test_a_web_configuration_is_served_by_and_followed(tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(b"sesame", bcrypt.gensalt(4)).decode()
    web_config = tmp_path / "web.yml"
    write(web_config, f"basic_auth_users:\n  ali: {hashed}\n")

    def status(url: str) -> int:
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:  # noqa: S310 - the process just started
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            return refused.code

    with running(tmp_path, "--simulate", "1xT4", "--web-config-file", str(web_config)) as (_, url):
        assert status(url) == 401
        write(web_config, "{}\n")
        scrape_until(url, "aom_node_gpu_usage")


def test_sigterm_ends_it_even_while_a_device_thread_hangs_and_the_source_cannot_close(tmp_path: Path) -> None:
    program = """
        import asyncio, sys, threading
        import exporter.__main__ as command
        from exporter.readings import SourceState
        from exporter.settings import parse

        class Stuck:
            driver_version, needs_restart = "", None
            async def read(self, now):
                threading.Thread(target=threading.Event().wait, daemon=True).start()
                return (), SourceState(up=False, reason="stuck")
            async def allocations(self):
                return None, SourceState(up=False, reason="off")
            async def close(self):
                await asyncio.Event().wait()

        settings = parse(sys.argv[1:], {})
        sys.exit(asyncio.run(command.serve(settings, command.Parts(Stuck(), Stuck(), None))))
    """
    command = (sys.executable, "-c", textwrap.dedent(program))
    with running(tmp_path, command=command) as (process, url):
        scrape_until(url, "gpuscale_driver_up", reason="stuck")
        process.terminate()
        assert process.wait(20) == 0


def test_a_source_that_needs_a_new_process_gets_one(tmp_path: Path) -> None:
    program = """
        import asyncio, os, pathlib, sys
        import exporter.__main__ as command
        from exporter.readings import SourceState
        from exporter.settings import parse

        settings = parse(sys.argv[1:], {})
        first = pathlib.Path(settings.address_file + ".first")
        again = first.exists()
        first.touch()

        class Replaced:
            driver_version, needs_restart = "", None
            async def read(self, now):
                if not again:
                    self.needs_restart = "library_replaced"
                return (), SourceState(up=False, reason="second" if again else "first")
            async def allocations(self):
                return None, SourceState(up=False, reason="off")
            async def close(self):
                pathlib.Path(settings.address_file).unlink(missing_ok=True)

        sys.exit(asyncio.run(command.serve(settings, command.Parts(Replaced(), Replaced(), None))))
    """
    command = (sys.executable, "-c", textwrap.dedent(program))
    with running(tmp_path, "--poll-seconds", "0.05", command=command) as (process, _):
        address = tmp_path / "address"
        waiting = time.monotonic() + 60
        found = False
        while not found and time.monotonic() < waiting:
            with contextlib.suppress(OSError):  # between the two processes nobody serves
                found = (
                    values(scrape(f"http://{address.read_text().strip()}"), "gpuscale_driver_up", reason="second") != []
                )
            time.sleep(0.02)
        assert found
        assert process.poll() is None, "the same process id goes on"


@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has a GPU driver")
def test_without_a_driver_it_stays_up_and_says_why(tmp_path: Path) -> None:
    with running(tmp_path, "--poll-seconds", "0.1", "--kubelet-socket", "") as (process, url):
        series = scrape_until(url, "gpuscale_driver_up")
        scrape_until(url, "gpuscale_kubelet_up", reason="off")
        assert process.poll() is None
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert values(series, "gpuscale_driver_up") == [0]
    assert not [name for name in names(series) if name.startswith("aom_")]
    assert log.count("driver does not answer") == 1


def test_a_simulation_loads_neither_the_drivers_library_nor_grpc() -> None:
    program = (
        "import sys, exporter.__main__ as command\n"
        "command.main(['--simulate', '1xT4', '--once'])\n"
        "print({'pynvml', 'grpc'} & sys.modules.keys(), file=sys.stderr)\n"
    )
    ended = subprocess.run(
        (sys.executable, "-c", program), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr.splitlines()[-1] == "set()"


def entry_point() -> str:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, function = scripts["gpuscale-exporter"].partition(":")
    return f"from {module} import {function} as main"


@pytest.mark.parametrize("module", ["asyncio", "aiohttp", "exporter.settings", "exporter.nvml.device"])
def test_ctrl_c_while_the_command_is_being_loaded_ends_it_quietly(module: str) -> None:
    program = interrupted_at(module, f"{entry_point()}; sys.exit(main())")
    done = subprocess.run((sys.executable, "-c", program), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
