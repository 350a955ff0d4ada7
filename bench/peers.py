"""The exporter beside nvitop-exporter and a bare aiohttp handler, all on one fake driver, in one run.

``ours`` and ``nvitop`` read the same 8 GPUs with 4 processes each; ``bytes`` returns what ours said, ready: the floor.
Isolates what an exporter costs a node: CPU of a scrape with the headers that Prometheus sends, CPU while nobody asks,
memory, NVML calls, and scrapes while one GPU hangs. The driver's calls take no time here. A last part polls as fast
as it can and compares the memory after 100 polls with that at the end.
nvitop-exporter is an extra (``bench``); --peer-python names a Python that has it. Without it the rest is measured.
"""

import argparse
import asyncio
import contextlib
import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aiohttp import web  # noqa: E402 - the path has to be set first

from bench.exporter import HEADERS, Server, measure, p99, write  # noqa: E402 - as above
from bench.nvml_poll import GPUS, PROCESSES, world  # noqa: E402 - as above
from exporter.kubelet import KubeletAllocations  # noqa: E402 - as above
from exporter.nvml.device import NvmlSource  # noqa: E402 - as above
from exporter.poller import Poller  # noqa: E402 - as above
from tests.fakenvml.build import build, compiler  # noqa: E402 - as above
from tests.fakenvml.reader import environment  # noqa: E402 - as above
from tests.fakenvml.scenario import load  # noqa: E402 - as above
from tests.fakenvml.state import FakeDriver  # noqa: E402 - as above

MOST_OF_PEER = 1 / 10
MOST_OF_BYTES = 1.5
MOST_WHILE_HUNG = 1.2
MOST_IDLE_MS_PER_S = 10.0
MOST_MIB = 64.0
MOST_GROWTH_MIB = 2.0
HUNG_GPU = 3

Environment = dict[str, str]


def has_peer(python: str) -> bool:
    return subprocess.run([python, "-c", "import nvitop_exporter"], stderr=subprocess.DEVNULL).returncode == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def serve_bytes(of: str, address_file: str) -> None:
    """Run the floor: a handler that returns what another server said once."""
    connection = http.client.HTTPConnection(of, timeout=30)
    connection.request("GET", "/metrics", headers=HEADERS)
    answer = connection.getresponse()
    ready, kind = answer.read(), answer.headers["Content-Type"]

    async def reply(_request: web.Request) -> web.Response:
        return web.Response(body=ready, headers={"Content-Type": kind, "Content-Encoding": "gzip"})

    async def forever() -> None:
        app = web.Application()
        app.router.add_get("/metrics", reply)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        write(Path(address_file), "{}:{}\n".format(*runner.addresses[0][:2]))
        await asyncio.Event().wait()

    asyncio.run(forever())


@contextlib.contextmanager
def started(kind: str, command: list[str], env: Environment, address: str | Path) -> Iterator[Server]:
    """Start a server; yields it once it answers with values."""
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 60
        while True:
            assert process.poll() is None, f"{kind} ended with {process.returncode}"
            assert time.monotonic() < give_up, f"{kind} does not answer"
            host = address if isinstance(address, str) else address.read_text().strip() if address.exists() else ""
            with contextlib.suppress(OSError, AssertionError):
                server = Server(kind, process.pid, host or "127.0.0.1:1")
                if server.scrape():
                    break
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()


def ours(env: Environment, folder: Path) -> contextlib.AbstractContextManager[Server]:
    address = folder / "ours.address"
    command = [sys.executable, "-m", "exporter", "--listen", "127.0.0.1:0", "--node", "node-1", "--kubelet-socket", ""]
    return started("ours", [*command, "--address-file", str(address)], env, address)


def floor(env: Environment, folder: Path, of: str) -> contextlib.AbstractContextManager[Server]:
    address = folder / "bytes.address"
    command = [sys.executable, __file__, "--serve-bytes", of, "--address-file", str(address)]
    return started("bytes", command, env, address)


def peer(env: Environment, python: str) -> contextlib.AbstractContextManager[Server]:
    port = str(free_port())
    command = [python, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", port]
    return started("nvitop", command, env, f"127.0.0.1:{port}")


def samples(server: Server) -> int:
    lines = gzip.decompress(server.scrape()).decode().splitlines()
    return sum(not line.startswith("#") for line in lines)


def calls_per_second(fake: FakeDriver, seconds: float) -> float:
    before = sum(fake.all_calls(0).values())
    time.sleep(seconds)
    return (sum(fake.all_calls(0).values()) - before) / seconds


def table(servers: list[Server]) -> None:
    print(f"{'server':8}{'samples':>9}{'CPU ms/scrape':>15}{'p50 ms':>8}{'p99 ms':>8}{'idle ms/s':>11}{'RSS MiB':>9}")
    for server in servers:
        times = f"{median(server.latencies_ms):8.2f}{p99(server.latencies_ms):8.2f}"
        cost = f"{server.cpu_ms:15.2f}{times}{server.idle_cpu_ms_per_s:11.2f}{server.resident_mib():9.1f}"
        print(f"{server.kind:8}{samples(server):9}{cost}")


def bars(by_kind: dict[str, Server]) -> dict[str, tuple[float, float]]:
    """Name what is compared -> (found, at most)."""
    mine, bare, other = by_kind["ours"], by_kind["bytes"], by_kind.get("nvitop")
    found = {
        "p99, ours / bytes": (p99(mine.latencies_ms) / p99(bare.latencies_ms), MOST_OF_BYTES),
        "CPU while nobody asks, ms/s": (mine.idle_cpu_ms_per_s, MOST_IDLE_MS_PER_S),
        "RSS, MiB": (mine.resident_mib(), MOST_MIB),
    }
    if other is not None:
        found["CPU per scrape, ours / nvitop"] = (mine.cpu_ms / other.cpu_ms, MOST_OF_PEER)
        found["p50, ours / nvitop"] = (median(mine.latencies_ms) / median(other.latencies_ms), 1 / 4)
    return found


def hung(fake: FakeDriver, mine: Server, bare: Server, turns: int, scrapes: int) -> dict[str, tuple[float, float]]:
    """Compare scrapes while a GPU hangs with those before; both over the floor of the same minute."""
    before = p99(mine.latencies_ms) / p99(bare.latencies_ms)
    fake.state.devices[HUNG_GPU].hang = 1
    waiting = time.monotonic() + 30
    while b'reason="timeout"' not in gzip.decompress(mine.scrape()) and time.monotonic() < waiting:
        time.sleep(0.1)
    text = gzip.decompress(mine.scrape()).decode()
    assert 'reason="timeout"' in text
    assert text.count("aom_node_gpu_usage{") == GPUS - 1, "the other GPUs go on"
    mine.latencies_ms, bare.latencies_ms = [], []
    for _ in range(turns):
        for server in (mine, bare):
            for _ in range(scrapes):
                server.scrape()
    fake.release()
    after = p99(mine.latencies_ms) / p99(bare.latencies_ms)
    return {"p99 / bytes, one GPU hung / before": (after / before, MOST_WHILE_HUNG)}


def poll_for_ever(polls: int) -> None:
    """Poll as fast as it goes; prints the resident memory in MiB after 100 polls and at the end."""

    async def run() -> list[float]:
        poller = Poller(source := NvmlSource(5.0), KubeletAllocations("", 5.0), "node-1", 1)
        found = []
        for number in range(1, polls + 1):
            await poller.poll()
            if number in {100, polls}:
                found.append(Server("", os.getpid(), "").resident_mib())
        await source.close()
        return found

    print(json.dumps(asyncio.run(run())))


def growth(env: Environment, polls: int) -> dict[str, tuple[float, float]]:
    command = [sys.executable, __file__, "--poll", str(polls)]
    done = subprocess.run(command, env=env, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    first, last = json.loads(done.stdout)
    print(f"\nRSS after 100 polls {first:.1f} MiB, after {polls:,} polls {last:.1f} MiB")
    return {f"growth over {polls:,} polls, MiB": (last - first, MOST_GROWTH_MIB)}


def compare(
    fake: FakeDriver, env: Environment, folder: Path, python: str, *, smoke: bool
) -> dict[str, tuple[float, float]]:
    turns, scrapes, idle_seconds = (2, 10, 1.0) if smoke else (10, 40, 5.0)
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(ours(env, folder))
        print(f"NVML calls per GPU and second: ours {calls_per_second(fake, idle_seconds):.1f}", end="")
        servers = [mine, stack.enter_context(floor(env, folder, mine.host))]
        if has_peer(python):
            before = calls_per_second(fake, idle_seconds)
            servers.append(stack.enter_context(peer(env, python)))
            print(f", nvitop {calls_per_second(fake, idle_seconds) - before:.1f}", end="")
        else:
            print("\nnvitop-exporter is not installed, so it is left out: pip install 'gpuscale[bench]'", end="")
        print(f"\n{GPUS} GPUs, {PROCESSES} processes each; {turns * scrapes} scrapes of each server in {turns} turns\n")
        measure(servers, turns, scrapes, idle_seconds)
        table(servers)
        found = bars({server.kind: server for server in servers})
        return found | hung(fake, servers[0], servers[1], turns, scrapes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a short run that checks results, not bars")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has nvitop-exporter")
    parser.add_argument("--serve-bytes", help=argparse.SUPPRESS)
    parser.add_argument("--address-file", help=argparse.SUPPRESS)
    parser.add_argument("--poll", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_bytes:
        serve_bytes(arguments.serve_bytes, arguments.address_file)
    if arguments.poll:
        poll_for_ever(arguments.poll)
        return 0
    if compiler() is None:
        print("skipped: no C compiler, so there is no fake driver to read")
        return 0
    with tempfile.TemporaryDirectory() as name, FakeDriver(Path(name) / "nvml.state") as fake:
        load(fake, world())
        env = environment(build(Path(name) / "library"), fake.path)
        found = compare(fake, env, Path(name), arguments.peer_python, smoke=arguments.smoke)
        found |= growth(env, 300 if arguments.smoke else 10_000)
    for what, (ratio, most) in found.items():
        print(f"{what}: {ratio:.2f} (at most {most:.2f}){'' if ratio <= most else '  MISSED'}")
    return int(any(ratio > most for ratio, most in found.values()) and not arguments.smoke)


if __name__ == "__main__":
    sys.exit(main())
