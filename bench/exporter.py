"""What a scrape of the exporter costs, side by side with two servers that answer the same scrape.

``bytes`` is a bare aiohttp handler that returns ready bytes: the floor. ``stock`` renders the same samples at each
scrape with prometheus_client and compresses them, as exporters usually do. All three are asked in turn, over fresh
loopback connections, with the headers that Prometheus sends. CPU is the servers' own, by the kernel's account, less
what they use while nobody asks. Isolates serving: GPUs are simulated, 8 of them with 4 processes and 4 containers each.
A second table isolates rendering, without any server.

Servers are compared in blocks. Within a block they are asked one after the other, again and again, so that whatever
else the machine does meets all of them; a ratio of percentiles is taken within each block, and its median is judged.
--smoke checks that the servers say the same, prints what it measured and judges no time: a busy machine has no meaning.
"""

import argparse
import asyncio
import contextlib
import gc
import gzip
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aiohttp import web  # noqa: E402 - the path has to be set first
from prometheus_client import CollectorRegistry, Gauge  # noqa: E402
from prometheus_client.openmetrics.exposition import generate_latest  # noqa: E402
from prometheus_client.openmetrics.parser import text_string_to_metric_families  # noqa: E402

from exporter.exposition import OPENMETRICS_CONTENT_TYPE, Families, Renderer, finish  # noqa: E402
from exporter.holdings import held_at  # noqa: E402 - as above
from exporter.poller import Poller  # noqa: E402
from exporter.readings import Snapshot  # noqa: E402
from exporter.samples import collect  # noqa: E402
from exporter.simulated import SimulatedSource  # noqa: E402

GPUS, SHARES = 8, 4
HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}
MOST_OF_STOCK = 1 / 8
MOST_OF_BYTES = 1.5
MOST_MS_PER_1000 = 3.0
PATIENCE_SECONDS = 60.0
SELDOM = 20
PRECISE_CLOCK = 2  # what clock_getcpuclockid makes of a pid: its complement, shifted, and this kind of clock
KINDS = ("ours", "bytes", "stock")


def world() -> dict[str, object]:
    """Build the simulation: each GPU shared by four containers with one process each."""
    uuids = [f"GPU-{index:08d}-1111-2222-3333-444444444444" for index in range(GPUS)]
    mib = 2**20
    devices = [
        {
            "uuid": uuid,
            "index": index,
            "name": "NVIDIA H100 80GB HBM3",
            "memory_total_bytes": 81559 * mib,
            "memory_used_bytes": (20000 + index) * mib,
            "memory_reserved_bytes": 637 * mib,
            "utilization_percent": 50 + index,
            "memory_utilization_percent": 30,
            "temperature_celsius": 60,
            "power_watts": 412.5,
        }
        for index, uuid in enumerate(uuids)
    ]
    shares = [
        (uuid, share, 1000 + SHARES * index + share) for index, uuid in enumerate(uuids) for share in range(SHARES)
    ]
    processes = [
        {"pid": pid, "gpu_uuid": uuid, "memory_used_bytes": 4000 * mib, "utilization_percent": 12.5}
        for uuid, _, pid in shares
    ]
    allocations = [
        {
            "namespace": "inference",
            "pod": f"llama-3-70b-{pid}",
            "container": "server",
            "device_ids": [f"{uuid}::{share}"],
            "pids": [pid],
        }
        for uuid, share, pid in shares
    ]
    return {"driver": "550.54.15", "devices": devices, "processes": processes, "allocations": allocations}


async def snapshot(file: str) -> Snapshot:
    source = SimulatedSource(file)
    return (await Poller(source, source, "node-1", 1).poll()).snapshot


def samples(of: Snapshot) -> Families:
    health, values = collect(of, held_at(of), "node-1")
    return {**values, **health}


def registry(families: Families) -> CollectorRegistry:
    """Hold the same samples in prometheus_client."""
    found = CollectorRegistry()
    for metric, rows in families.items():
        gauge = Gauge(metric.name.removesuffix("_total"), metric.help, metric.labels, registry=found)
        for labels, value in rows.items():
            gauge.labels(*labels).set(value)
    return found


def write(file: Path, text: str) -> None:
    """Write by rename, so that nobody reads half of it."""
    draft = file.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(file)


def serve(kind: str, file: str, address_file: str) -> None:
    """Run one of the two servers to compare with."""
    families = samples(asyncio.run(snapshot(file)))
    headers = {"Content-Type": OPENMETRICS_CONTENT_TYPE, "Content-Encoding": "gzip"}
    ready = finish(Renderer().render(families)).form(openmetrics=True, gzip=True)
    held = registry(families)

    async def answer(_request: web.Request) -> web.Response:
        body = ready if kind == "bytes" else gzip.compress(generate_latest(held))
        return web.Response(body=body, headers=headers)

    async def forever() -> None:
        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        write(Path(address_file), "{}:{}\n".format(*runner.addresses[0][:2]))
        await asyncio.Event().wait()

    asyncio.run(forever())


@dataclass
class Server:
    """One server under measurement."""

    kind: str
    pid: int
    host: str
    every: int = 1
    """It is asked at every n-th turn: who takes long would be most of a block."""
    idle_cpu_ms_per_s: float = 0.0
    cpu_ms_in_all: float = 0.0
    blocks: list[list[float]] = field(default_factory=list)
    """Milliseconds from the connection to the last byte, of each scrape."""

    @property
    def latencies_ms(self) -> list[float]:
        """All blocks together."""
        return [took for block in self.blocks for took in block]

    @property
    def cpu_ms(self) -> float:
        """CPU time of one scrape."""
        return self.cpu_ms_in_all / len(self.latencies_ms)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process, threads that have ended included: the kernel's clock of that process."""
        return time.clock_gettime((~self.pid << 3) | PRECISE_CLOCK)

    def resident_mib(self) -> float:
        """Return its resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096 / 2**20

    def scrape(self) -> bytes:
        """Ask once over a fresh connection."""
        connection = http.client.HTTPConnection(self.host, timeout=30)
        connection.request("GET", "/metrics", headers=HEADERS)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert (answer.status, answer.headers["Content-Encoding"]) == (200, "gzip")
        return body


@contextlib.contextmanager
def started(kind: str, folder: Path, file: Path) -> Iterator[Server]:
    address = folder / f"{kind}.address"
    ours = ("-m", "exporter", "--simulate", file, "--node", "node-1", "--listen", "127.0.0.1:0")
    others = (__file__, "--serve", kind, "--simulate", file)
    arguments = ours if kind == "ours" else others
    command = [sys.executable, *map(str, arguments), "--address-file", str(address)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        waiting = time.monotonic() + 60
        while not address.exists():
            assert process.poll() is None
            assert time.monotonic() < waiting
            time.sleep(0.02)
        yield Server(kind, process.pid, address.read_text().strip())
    finally:
        process.kill()
        process.wait()


def measure(servers: list[Server], blocks: int, scrapes: int, idle_seconds: float) -> None:
    for server in servers:
        for _ in range(5):
            server.scrape()
    before = {server.kind: server.cpu_seconds() for server in servers}
    time.sleep(idle_seconds)
    for server in servers:
        server.idle_cpu_ms_per_s = (server.cpu_seconds() - before[server.kind]) * 1000 / idle_seconds
    # a walk of the collector in the middle of a scrape would be taken for the server's
    gc.disable()
    for _ in range(blocks):
        ask_in_turn(servers, scrapes)
    gc.enable()


def ask_in_turn(servers: list[Server], scrapes: int) -> None:
    """One block: all servers, one scrape each, again and again; who is first changes."""
    began, cpu = time.perf_counter(), {server.kind: server.cpu_seconds() for server in servers}
    for server in servers:
        server.blocks.append([])
    for turn in range(scrapes):
        first = turn % len(servers)
        for server in servers[first:] + servers[:first]:
            if turn % server.every == 0:
                asked = time.perf_counter()
                server.scrape()
                server.blocks[-1].append((time.perf_counter() - asked) * 1000)
    seconds = time.perf_counter() - began
    for server in servers:
        idle = server.idle_cpu_ms_per_s * seconds
        server.cpu_ms_in_all += (server.cpu_seconds() - cpu[server.kind]) * 1000 - idle


def paired(mine: Server, other: Server, of: Callable[[list[float]], float]) -> float:
    """Median over the blocks of mine / other within the block."""
    return median(of(one) / of(two) for one, two in zip(mine.blocks, other.blocks, strict=True))


def same_samples(servers: list[Server]) -> int:
    """Check that all three answer the same GPU samples; returns how many there are.

    Counters are left out: ours alone has been counting. A page that is too old, because this machine is busy, has no
    values: then they are asked again.
    """
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        seen = [gpu_samples(server) for server in servers]
        if seen[0] == seen[1] == seen[2]:
            return len(seen[0])
        assert time.monotonic() < give_up, "the servers do not say the same"
        time.sleep(0.5)


def gpu_samples(server: Server) -> dict[object, float]:
    families = text_string_to_metric_families(gzip.decompress(server.scrape()).decode())
    rows = [s for family in families for s in family.samples if s.name.startswith("aom_")]
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in rows if not s.name.endswith("_total")}


def p99(latencies: list[float]) -> float:
    return quantiles(latencies, n=100)[98]


def table_of_scrapes(servers: list[Server]) -> list[str]:
    """Print what a scrape costs; returns what misses its bar."""
    by_kind = {server.kind: server for server in servers}
    print(f"{'server':8} {'CPU ms/scrape':>14} {'p50 ms':>8} {'p99 ms':>8} {'idle CPU ms/s':>14} {'RSS MiB':>8}")
    for server in servers:
        print(
            f"{server.kind:8} {server.cpu_ms:14.2f} {median(server.latencies_ms):8.2f} {p99(server.latencies_ms):8.2f}"
            f" {server.idle_cpu_ms_per_s:14.2f} {server.resident_mib():8.1f}"
        )
    ours, floor, stock = (by_kind[kind] for kind in KINDS)
    ratios = {
        "CPU, ours / stock": (ours.cpu_ms / stock.cpu_ms, MOST_OF_STOCK),
        "CPU, ours / bytes": (ours.cpu_ms / floor.cpu_ms, MOST_OF_BYTES),
        f"p99, ours / bytes, median of {len(ours.blocks)} blocks": (paired(ours, floor, p99), MOST_OF_BYTES),
    }
    for name, (ratio, most) in ratios.items():
        print(f"{name}: {ratio:.2f} (at most {most:.2f}, {'met' if ratio <= most else 'MISSED'})")
    return [name for name, (ratio, most) in ratios.items() if ratio > most]


def best_ms(work: Callable[[], object], repeats: int) -> float:
    found = []
    for _ in range(repeats):
        began = time.thread_time()
        work()
        found.append((time.thread_time() - began) * 1000)
    return min(found)


def table_of_rendering(file: Path, repeats: int) -> list[str]:
    """Print what rendering costs without a server; returns what misses its bar."""
    taken = asyncio.run(snapshot(str(file)))
    families = samples(taken)
    count = sum(map(len, families.values()))
    renderer = Renderer()
    held = registry(families)
    costs = {
        "snapshot -> samples": best_ms(lambda: samples(taken), repeats),
        "samples -> text": best_ms(lambda: renderer.render(families), repeats),
        "text -> bytes, gzip": best_ms(lambda: finish(renderer.render(families)), repeats),
        "prometheus_client": best_ms(lambda: generate_latest(held), repeats),
    }
    print(f"\n{count} samples; best of {repeats}, ms of CPU per 1000 samples")
    for name, cost in costs.items():
        print(f"{name:22} {cost * 1000 / count:8.2f}")
    return ["rendering"] if costs["samples -> text"] * 1000 / count > MOST_MS_PER_1000 else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a short run that checks results, not bars")
    parser.add_argument("--serve", choices=KINDS[1:], help=argparse.SUPPRESS)
    parser.add_argument("--simulate", help=argparse.SUPPRESS)
    parser.add_argument("--address-file", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.simulate, arguments.address_file)
    blocks, scrapes, idle_seconds = (2, 10, 1.0) if arguments.smoke else (21, 300, 10.0)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        file = Path(name) / "world.json"
        file.write_text(json.dumps(world()))
        servers = [stack.enter_context(started(kind, Path(name), file)) for kind in KINDS]
        count = same_samples(servers)
        servers[KINDS.index("stock")].every = SELDOM
        print(f"{GPUS} GPUs, {count} GPU samples; {blocks} blocks of {scrapes} scrapes of ours and bytes in turn,")
        print(f"stock at every {SELDOM}th\n")
        measure(servers, blocks, scrapes, idle_seconds)
        missed = table_of_scrapes(servers) + table_of_rendering(file, 20 if arguments.smoke else 200)
    if missed and not arguments.smoke:
        print(f"\nmissed: {', '.join(missed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
