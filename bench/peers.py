"""The exporter beside nvitop-exporter and a bare aiohttp handler, all on one fake driver, in one run.

``ours`` and ``nvitop`` read the same 8 GPUs with 4 processes each; ``bytes`` returns what ours said, ready: the floor.
``node`` is ours as it runs on a node, with a kubelet that tells 32 containers and a /proc that tells whose the
processes are. ``hung`` is ours on a second fake driver, of which one GPU hangs.
Isolates what an exporter costs a node: CPU of a scrape with the headers that Prometheus sends, CPU while nobody asks,
memory, NVML calls, and scrapes while one GPU hangs. The driver's calls take no time here. A last part polls as fast
as it can and compares the memory after 100 polls with that at the end.

Servers are compared in blocks. Within a block they are asked one after the other, again and again, so that whatever
else the machine does meets all of them; a ratio of percentiles is taken within each block, and its median is judged.
--smoke checks that all of this runs and is right; it prints the same table but judges no time and no size.
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
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aiohttp import web  # noqa: E402 - the path has to be set first

from bench.exporter import HEADERS, PATIENCE_SECONDS, SELDOM, Server, measure, p99, paired, write  # noqa: E402 - as above
from bench.nvml_poll import GPUS, PROCESSES, pid_of, world  # noqa: E402 - as above
from exporter.kubelet import KubeletAllocations  # noqa: E402 - as above
from exporter.nvml.device import NvmlSource  # noqa: E402 - as above
from exporter.owners import ProcessOwners  # noqa: E402 - as above
from exporter.poller import Poller  # noqa: E402 - as above
from tests.exporter.host import Host, pod_uid  # noqa: E402 - as above
from tests.fakenvml.build import build, compiler  # noqa: E402 - as above
from tests.fakenvml.reader import environment  # noqa: E402 - as above
from tests.fakenvml.scenario import load, uuid  # noqa: E402 - as above
from tests.fakenvml.state import Device, FakeDriver  # noqa: E402 - as above

MOST_OF_PEER = 1 / 10
MOST_OF_BYTES = 1.5
MOST_WHILE_HUNG = 1.2
MOST_IDLE_MS_PER_S = 10.0
MOST_MIB = 64.0
MOST_GROWTH_MIB = 2.0
HUNG_GPU = 3
OTHER_PROCESSES = 300
"""On the node beside those on GPUs."""

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


def ours(
    env: Environment, folder: Path, *, kind: str = "ours", node: Path | None = None
) -> contextlib.AbstractContextManager[Server]:
    """Start the exporter; node: the folder of what a node has beside its driver."""
    address = folder / f"{kind}.address"
    command = [sys.executable, "-m", "exporter", "--listen", "127.0.0.1:0", "--node", "node-1"]
    if node:
        paths = {"--kubelet-socket": "kubelet.sock", "--proc": "proc", "--container-logs": "containers"}
        command += [word for flag, name in paths.items() for word in (flag, str(node / name))]
    else:
        command += ["--kubelet-socket", ""]
    return started(kind, [*command, "--address-file", str(address)], env, address)


@contextlib.contextmanager
def a_node(folder: Path) -> Iterator[Path]:
    """Make what a node has beside its driver: /proc, the logs' names, and a kubelet in a process of its own."""
    folder.mkdir()
    host = Host(folder)
    for number in range(OTHER_PROCESSES):
        host.process(20_000 + number, "0::/system.slice/some.service\n")
    for gpu in range(GPUS):
        for share in range(PROCESSES):
            number = gpu * PROCESSES + share
            host.runs(pid_of(gpu, share), pod_uid(number), f"c{number}")
            host.named(f"llm-{number}", pod_uid(number), f"c{number}")
    kubelet = subprocess.Popen([sys.executable, __file__, "--kubelet", str(folder / "kubelet.sock")], cwd=ROOT)
    try:
        yield folder
    finally:
        kubelet.kill()
        kubelet.wait()


def serve_kubelet(path: str) -> None:
    # not above: gRPC is no part of what is measured without a kubelet
    from tests.exporter.podresources import container, devices, pod, serving

    pods = [
        pod(
            "ml",
            f"llm-{gpu * PROCESSES + share}",
            container("main", devices("nvidia.com/gpu", f"{uuid(gpu)}::{share}")),
        )
        for gpu in range(GPUS)
        for share in range(PROCESSES)
    ]
    with serving(Path(path), lambda *_: b"".join(pods)):
        threading.Event().wait()


def floor(env: Environment, folder: Path, of: str) -> contextlib.AbstractContextManager[Server]:
    address = folder / "bytes.address"
    command = [sys.executable, __file__, "--serve-bytes", of, "--address-file", str(address)]
    return started("bytes", command, env, address)


def peer(env: Environment, python: str) -> contextlib.AbstractContextManager[Server]:
    port = str(free_port())
    command = [python, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", port]
    return started("nvitop", command, env, f"127.0.0.1:{port}")


def page(server: Server) -> str:
    return gzip.decompress(server.scrape()).decode()


def until(server: Server, holds: Callable[[str], bool], what: str) -> None:
    """Wait until a page says something; a minute is a fault, whatever else the machine does."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not holds(page(server)):
        assert time.monotonic() < give_up, f"{server.kind}: {what}"
        time.sleep(0.2)


def samples(server: Server) -> int:
    return sum(not line.startswith("#") for line in page(server).splitlines())


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
    mine, other, node = by_kind["ours"], by_kind.get("nvitop"), by_kind["node"]
    found = {
        "p99, ours / bytes": (paired(mine, by_kind["bytes"], p99), MOST_OF_BYTES),
        "p99, ours with a GPU that hangs / ours": (paired(by_kind["hung"], mine, p99), MOST_WHILE_HUNG),
        "CPU while nobody asks, ms/s": (mine.idle_cpu_ms_per_s, MOST_IDLE_MS_PER_S),
        "the same on a node with a kubelet, ms/s": (node.idle_cpu_ms_per_s, MOST_IDLE_MS_PER_S),
        "RSS, MiB": (mine.resident_mib(), MOST_MIB),
        "RSS on a node with a kubelet, MiB": (node.resident_mib(), MOST_MIB),
    }
    if other is not None:
        found["CPU per scrape, ours / nvitop"] = (mine.cpu_ms / other.cpu_ms, MOST_OF_PEER)
        found["p50, ours / nvitop"] = (median(mine.latencies_ms) / median(other.latencies_ms), 1 / 4)
    return found


def prepare(fake: FakeDriver) -> None:
    load(fake, world())
    # a driver wakes who waits for events; that the fake looks for them is no cost of who waits
    fake.state.event_step_ms = 1000


@contextlib.contextmanager
def at_work(fake: FakeDriver) -> Iterator[None]:
    """Let what a load moves be another figure at each poll: what stands still is cheaper to publish."""
    ended = threading.Event()

    def work() -> None:
        step = 1
        while not ended.wait(0.4):
            step = -step
            for number in range(GPUS):
                move(fake.state.devices[number], step)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def move(device: Device, step: int) -> None:
    device.gpu_percent += step
    device.memory_percent += step
    device.temperature += step
    device.power_mw += 1000 * step
    device.memory_used += step * 2**20
    device.memory_free -= step * 2**20
    for domain in range(len(device.clock_mhz)):
        device.clock_mhz[domain] += 15 * step
    for process in range(device.process_count):
        device.processes[process].memory_used += step * 2**18
        device.processes[process].sm_percent += step


def hang(fake: FakeDriver, server: Server) -> None:
    """Let one GPU hang, and see that it costs nothing but itself."""
    fake.state.devices[HUNG_GPU].hang = 1
    until(server, lambda text: 'reason="timeout"' in text, "the GPU that hangs is not named")
    until(server, lambda text: text.count("\naom_node_gpu_usage{") == GPUS - 1, "the other GPUs do not go on")


def poll_for_ever(polls: int, node: str) -> None:
    """Poll as fast as it goes; prints the resident memory in MiB after 100 polls and at the end."""

    async def run() -> list[float]:
        folder = Path(node)
        owners = ProcessOwners(folder / "proc", folder / "containers", 5.0) if node else None
        # asked at each poll: so many polls in so little time would leave it alone
        kubelet = KubeletAllocations(str(folder / "kubelet.sock") if node else "", 5.0)
        poller = Poller(source := NvmlSource(5.0), kubelet, "node-1", 1, owners=owners)
        found = []
        for number in range(1, polls + 1):
            publication = await poller.poll()
            # a scrape each time, so that its memory counts
            publication.fresh.form(openmetrics=True, gzip=True)
            if number in {100, polls}:
                found.append(Server("", os.getpid(), "").resident_mib())
        assert publication.snapshot.driver.up
        assert publication.snapshot.kubelet.up == publication.snapshot.processes.up == bool(node)
        await source.close()
        await kubelet.close()
        return found

    print(json.dumps(asyncio.run(run())))


def growth(env: Environment, polls: int, node: Path) -> dict[str, tuple[float, float]]:
    print()
    found = {}
    for where, folder in (("", ""), (" on a node with a kubelet", str(node))):
        command = [sys.executable, __file__, "--poll", str(polls), "--node-folder", folder]
        done = subprocess.run(command, env=env, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        first, last = json.loads(done.stdout)
        print(f"RSS{where} after 100 polls {first:.1f} MiB, after {polls:,} polls {last:.1f} MiB")
        found[f"growth over {polls:,} polls{where}, MiB"] = (last - first, MOST_GROWTH_MIB)
    return found


def compare(
    fake: FakeDriver, library: Path, folder: Path, node: Path, python: str, *, smoke: bool
) -> dict[str, tuple[float, float]]:
    blocks, scrapes, idle_seconds = (2, 10, 1.0) if smoke else (21, 300, 20.0)
    env = environment(library, fake.path)
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(ours(env, folder))
        print(f"NVML calls per GPU and second: ours {calls_per_second(fake, 2.0):.1f}", end="")
        others = []
        if has_peer(python):
            before = calls_per_second(fake, 2.0)
            others.append(stack.enter_context(peer(env, python)))
            print(f", nvitop {calls_per_second(fake, 2.0) - before:.1f}", end="")
        else:
            print("\nnvitop-exporter is not installed, so it is left out: pip install 'gpuscale[bench]'", end="")
        broken = stack.enter_context(FakeDriver(folder / "broken.state"))
        prepare(broken)
        stack.enter_context(at_work(fake))
        hung = stack.enter_context(ours(environment(library, broken.path), folder, kind="hung"))
        hang(broken, hung)
        others.append(stack.enter_context(ours(env, folder, kind="node", node=node)))
        until(others[-1], lambda text: text.count("\naom_container_gpu_usage{") == GPUS * PROCESSES, "no containers")
        servers = [mine, stack.enter_context(floor(env, folder, mine.host)), hung, *others]
        for other in others:
            other.every = SELDOM
        print(
            f"\n{GPUS} GPUs, {PROCESSES} processes each; {blocks} blocks of {scrapes} scrapes of ours, bytes and hung"
        )
        print(f"in turn, the others at every {SELDOM}th; CPU while nobody asks over {idle_seconds:g} s\n")
        measure(servers, blocks, scrapes, idle_seconds)
        table(servers)
        return bars({server.kind: server for server in servers})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a short run that checks results, not bars")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has nvitop-exporter")
    parser.add_argument("--serve-bytes", help=argparse.SUPPRESS)
    parser.add_argument("--address-file", help=argparse.SUPPRESS)
    parser.add_argument("--poll", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--node-folder", default="", help=argparse.SUPPRESS)
    parser.add_argument("--kubelet", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_bytes:
        serve_bytes(arguments.serve_bytes, arguments.address_file)
    if arguments.poll:
        poll_for_ever(arguments.poll, arguments.node_folder)
        return 0
    if arguments.kubelet:
        serve_kubelet(arguments.kubelet)
    if compiler() is None:
        print("skipped: no C compiler, so there is no fake driver to read")
        return 0
    # a socket's path has to be short
    with tempfile.TemporaryDirectory(prefix="gs") as name, FakeDriver(Path(name) / "nvml.state") as fake:
        prepare(fake)
        library, folder = build(Path(name) / "library"), Path(name)
        with a_node(folder / "node") as node:
            found = compare(fake, library, folder, node, arguments.peer_python, smoke=arguments.smoke)
            found |= growth(environment(library, fake.path), 300 if arguments.smoke else 10_000, node)
    for what, (ratio, most) in found.items():
        print(f"{what}: {ratio:.2f} (at most {most:.2f}, {'met' if ratio <= most else 'MISSED'})")
    return int(any(ratio > most for ratio, most in found.values()) and not arguments.smoke)


if __name__ == "__main__":
    sys.exit(main())
