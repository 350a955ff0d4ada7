"""The exporter on a machine with a real GPU: every value beside nvidia-smi's, and how long each NVML call takes.

    python bench/device/compare.py --seconds 60 --out docs/device.md

Starts the exporter, and while it runs asks `nvidia-smi -q -x` between two scrapes: a value is right when it lies
between the two scrapes, give or take what one printed digit and one sampling period of the driver can differ. Then
polls in a process of its own with every NVML call timed, and says which of the GPM figures this GPU gives. Writes one
Markdown page; what can be compared, and what nvidia-smi does not print, stands in fields.py. Exit code 1: a value that
never agreed, or that only nvidia-smi gave. Isolates nothing: it is the whole exporter on a real driver.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402 - the path has to be set first

from bench.device.fields import BY_FAMILY, FIELDS, NOT_PRINTED  # noqa: E402 - the path has to be set first

Key = tuple[str, str, str]
"""family, uuid, further labels such as ``kind=corrected``"""
GPM = ("graphics_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio")
BETWEEN_SECONDS = 2.0


@dataclass
class Agreement:
    """How often a value was compared and agreed; the last pair is an example."""

    compared: int = 0
    agreed: int = 0
    ours: float = 0.0
    theirs: float = 0.0

    def add(self, before: float, theirs: list[float], after: float, tolerance: float) -> None:
        """Take one comparison: theirs was printed between the two of ours, in one place or several."""
        low, high = min(before, after) - tolerance, max(before, after) + tolerance
        wrong = [value for value in theirs if not low <= value <= high]
        self.compared += 1
        self.agreed += not wrong
        self.ours, self.theirs = after, (wrong or theirs)[0]


@dataclass
class Report:
    """What was found. agreements: how each series compares; missing: what only nvidia-smi says."""

    driver: str = ""
    gpus: dict[str, str] = field(default_factory=dict)
    agreements: dict[Key, Agreement] = field(default_factory=dict)
    missing: set[Key] = field(default_factory=set)
    calls: dict[str, list[float]] = field(default_factory=dict)
    gpm: dict[str, dict[str, str]] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Return the values that were never what nvidia-smi said, and those that were never there."""
        wrong = [key for key, found in self.agreements.items() if not found.agreed]
        absent = sorted(self.missing - set(self.agreements))
        return [f"never agreed: {shown(key)}" for key in wrong] + [
            f"only nvidia-smi says: {shown(key)}" for key in absent
        ]


@contextlib.contextmanager
def exporter() -> Iterator[str]:
    """Start the exporter; yields the address of its page once it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder) / "address"
        command = [sys.executable, "-m", "exporter", "--listen", "127.0.0.1:0", "--kubelet-socket", ""]
        # what is read seldom must not be older than what it is compared with
        command += ["--slow-poll-seconds", "1", "--dialect", "nvidia_smi"]
        process = subprocess.Popen([*command, "--address-file", str(address)], cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            give_up = time.monotonic() + 120
            while True:
                assert process.poll() is None, "the exporter ended"
                assert time.monotonic() < give_up, "the exporter has no GPU to show within 120 s"
                with contextlib.suppress(OSError):
                    url = f"http://{address.read_text().strip()}/metrics"
                    if scrape(url):
                        break
                time.sleep(0.1)
            yield url
        finally:
            process.kill()
            process.wait()


def scrape(url: str) -> dict[Key, float]:
    """Return every series of the families that are compared."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - the exporter just started
        return series(answer.read().decode())


def series(page: str) -> dict[Key, float]:
    """Return every series of the families that are compared; an info series as one for each of its labels."""
    found: dict[Key, float] = {}
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    for sample in samples:
        if (one := BY_FAMILY.get(sample.name)) is None:
            continue
        uuid = sample.labels["uuid"] if sample.labels["uuid"].startswith("GPU-") else f"GPU-{sample.labels['uuid']}"
        if one.words:
            found |= {(sample.name, uuid, f"{label}={text}"): 1.0 for label, text in sample.labels.items()}
        else:
            found[sample.name, uuid, ",".join(f"{name}={sample.labels[name]}" for name in one.labels)] = sample.value
    return found


def nvidia_smi(program: str) -> ET.Element:
    done = subprocess.run([program, "-q", "-x"], check=True, stdout=subprocess.PIPE, timeout=60)
    return ET.fromstring(done.stdout)  # noqa: S314 - printed by the driver's own program


def compare(report: Report, before: dict[Key, float], smi: ET.Element, after: dict[Key, float]) -> None:
    report.driver = smi.findtext("driver_version") or ""
    for gpu in smi.iter("gpu"):
        uuid = gpu.findtext("uuid") or ""
        report.gpus[uuid] = gpu.findtext("product_name") or ""
        for one in FIELDS:
            told: dict[Key, list[float]] = defaultdict(list)
            for labels, value in one.read(gpu):
                told[one.family, uuid, labels].append(value)
            for key, theirs in told.items():
                _judge(report, key, before.get(key), theirs, after.get(key))


def _judge(report: Report, key: Key, before: float | None, theirs: list[float], after: float | None) -> None:
    if before is not None and after is not None:
        report.agreements.setdefault(key, Agreement()).add(before, theirs, after, BY_FAMILY[key[0]].tolerance)
    elif before is None and after is None:
        report.missing.add(key)


def shown(key: Key) -> str:
    family, uuid, labels = key
    return f"{family}{{{labels}}} of {uuid}" if labels else f"{family} of {uuid}"


def watch(report: Report, program: str, seconds: float) -> None:
    with exporter() as url:
        end = time.monotonic() + seconds
        while True:
            before, smi = scrape(url), nvidia_smi(program)
            time.sleep(min(BETWEEN_SECONDS, seconds))
            compare(report, before, smi, scrape(url))
            if time.monotonic() >= end:
                return


def time_calls(polls: int) -> None:
    """Poll with each call timed; prints the seconds of each, and the GPM figures. For a process of its own."""
    import pynvml

    taken: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                taken[name].append(time.perf_counter() - began)

        return call

    for name in [name for name in dir(pynvml) if name.startswith("nvml") and callable(getattr(pynvml, name))]:
        setattr(pynvml, name, timed(name, getattr(pynvml, name)))
    import asyncio

    from exporter.nvml.device import NvmlSource  # only now: it takes the timed functions

    async def run() -> dict[str, dict[str, str]]:
        source = NvmlSource(30.0)
        for _ in range(polls):
            readings, state = await source.read(time.time())
            await asyncio.sleep(0.1)
        await source.close()
        assert state.up, state.message
        return {
            gpu.uuid: {
                name: f"{value:.3f}"
                if (value := getattr(gpu, name)) is not None
                else str(gpu.absent.get(name, "absent"))
                for name in GPM
            }
            for gpu in readings
        }

    found = asyncio.run(run())
    print(json.dumps({"gpm": found, "calls": taken}))


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def page(report: Report, seconds: float) -> str:
    names = ", ".join(sorted(set(report.gpus.values())))
    lines = ["# The exporter on a real GPU", "", f"{len(report.gpus)} x {names}, driver {report.driver}."]
    lines += [f"Compared with `nvidia-smi -q -x` for {seconds:g} s by `bench/device/compare.py`.", ""]
    lines += ["| Family | labels | GPU | compared | agreed | ours | nvidia-smi |", "|---|---|---|---|---|---|---|"]
    for (family, uuid, labels), found in sorted(report.agreements.items()):
        pair = f"{found.ours:g} | {found.theirs:g}"
        lines.append(f"| `{family}` | {labels} | {uuid} | {found.compared} | {found.agreed} | {pair} |")
    if report.missing:
        lines += ["", "Said by nvidia-smi and not by the exporter:", ""]
        lines += [f"- `{shown(key)}`" for key in sorted(report.missing)]
    uncompared = sorted({one.family for one in FIELDS} - {family for family, _, _ in report.agreements})
    lines += ["", "Not compared here, because nvidia-smi gave no figure for any of these GPUs:", ""]
    lines += [f"- `{family}`" for family in uncompared] or ["- none"]
    lines += ["", "| Never printed by `nvidia-smi -q -x` | why |", "|---|---|"]
    lines += [f"| `{family}` | {why} |" for family, why in NOT_PRINTED.items()]
    lines += ["", "| NVML call | calls | p50 ms | p99 ms |", "|---|---|---|---|"]
    for name, taken in sorted(report.calls.items(), key=lambda item: -quantile(item[1], 0.99)):
        lines.append(
            f"| `{name}` | {len(taken)} | {quantile(taken, 0.5) * 1e3:.3f} | {quantile(taken, 0.99) * 1e3:.3f} |"
        )
    lines += ["", "| GPU | " + " | ".join(GPM) + " |", "|---" * (len(GPM) + 1) + "|"]
    lines += [f"| {uuid} | " + " | ".join(found[name] for name in GPM) + " |" for uuid, found in report.gpm.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long to compare (default 60)")
    parser.add_argument("--polls", type=int, default=200, help="polls with timed calls (default 200)")
    parser.add_argument("--nvidia-smi", default="nvidia-smi", help="the program to compare with")
    parser.add_argument("--out", type=Path, help="the page to write; default: print it")
    parser.add_argument("--time-calls", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.time_calls:
        time_calls(arguments.time_calls)
        return 0
    report = Report()
    watch(report, arguments.nvidia_smi, arguments.seconds)
    command = [sys.executable, __file__, "--time-calls", str(arguments.polls)]
    timed = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    report.calls, report.gpm = timed["calls"], timed["gpm"]
    text = page(report, arguments.seconds)
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text, end="")
    for fault in report.faults():
        print(fault, file=sys.stderr)
    return int(bool(report.faults()) or not report.agreements)


if __name__ == "__main__":
    sys.exit(main())
