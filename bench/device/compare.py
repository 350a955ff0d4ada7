"""The exporter on a machine with a real GPU: its values beside nvidia-smi's, and how long each NVML call takes.

    python bench/device/compare.py --seconds 60 --out docs/device.md

Starts the exporter, and while it runs asks `nvidia-smi -q -x` between two scrapes: a value is right when it lies
between the two scrapes, give or take what one printed digit and one sampling period of the driver can differ. Then
polls in a process of its own with every NVML call timed, and says which of the GPM figures this GPU gives. Writes one
Markdown page. Exit code 1: a value that never agreed. Isolates nothing: it is the whole exporter on a real driver.
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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402 - the path has to be set first


class Field(NamedTuple):
    """Where nvidia-smi prints what a family says (the first path that is there), and how far apart they may be."""

    family: str
    paths: tuple[str, ...]
    scale: float
    tolerance: float


FIELDS = (
    Field("aom_node_gpu_memory_capacity_megabytes", ("fb_memory_usage/total",), 1, 1),
    Field("aom_node_gpu_memory_used_megabytes", ("fb_memory_usage/used",), 1, 1),
    Field("aom_node_gpu_memory_free_megabytes", ("fb_memory_usage/free",), 1, 1),
    Field("aom_node_gpu_memory_reserved_megabytes", ("fb_memory_usage/reserved",), 1, 1),
    Field("aom_node_gpu_usage", ("utilization/gpu_util",), 1, 5),
    Field("aom_node_gpu_memory_controller_usage", ("utilization/memory_util",), 1, 5),
    Field("aom_node_gpu_temperature_centigrade", ("temperature/gpu_temp",), 1, 1),
    Field("aom_node_gpu_memory_temperature_centigrade", ("temperature/memory_temp",), 1, 1),
    Field(
        "aom_node_gpu_power_watts",
        (
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/power_draw",
            "gpu_power_readings/instant_power_draw",
            "power_readings/power_draw",
        ),
        1,
        10,
    ),
    Field(
        "aom_node_gpu_power_limit_watts",
        ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
        1,
        1,
    ),
    Field("aom_node_gpu_fan_speed", ("fan_speed",), 1, 2),
    Field("aom_node_gpu_encoder_usage", ("utilization/encoder_util",), 1, 5),
    Field("aom_node_gpu_decoder_usage", ("utilization/decoder_util",), 1, 5),
)
GPM = ("graphics_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio")
BETWEEN_SECONDS = 2.0


@dataclass
class Agreement:
    """How often a value was compared and agreed; the last pair is an example."""

    compared: int = 0
    agreed: int = 0
    ours: float = 0.0
    theirs: float = 0.0

    def add(self, before: float, theirs: float, after: float, tolerance: float) -> None:
        """Take one comparison: theirs was printed between the two of ours."""
        self.compared += 1
        self.agreed += min(before, after) - tolerance <= theirs <= max(before, after) + tolerance
        self.ours, self.theirs = after, theirs


@dataclass
class Report:
    """What was found. agreements: (family, uuid) -> how it compares; missing: what only nvidia-smi says."""

    driver: str = ""
    gpus: dict[str, str] = field(default_factory=dict)
    agreements: dict[tuple[str, str], Agreement] = field(default_factory=dict)
    missing: set[tuple[str, str]] = field(default_factory=set)
    calls: dict[str, list[float]] = field(default_factory=dict)
    gpm: dict[str, dict[str, str]] = field(default_factory=dict)

    def never_agreed(self) -> list[str]:
        """Return the values that were never what nvidia-smi said."""
        return [f"{family} of {uuid}" for (family, uuid), found in self.agreements.items() if not found.agreed]


@contextlib.contextmanager
def exporter() -> Iterator[str]:
    """Start the exporter; yields the address of its page once it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder) / "address"
        command = [sys.executable, "-m", "exporter", "--listen", "127.0.0.1:0", "--kubelet-socket", ""]
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


def scrape(url: str) -> dict[tuple[str, str], float]:
    """Return (family, uuid) -> value."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - the exporter just started
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = (sample for family in families for sample in family.samples if sample.name.startswith("aom_node_"))
    return {(sample.name, sample.labels["uuid"]): sample.value for sample in samples if "uuid" in sample.labels}


def nvidia_smi(program: str) -> ET.Element:
    done = subprocess.run([program, "-q", "-x"], check=True, stdout=subprocess.PIPE, timeout=60)
    return ET.fromstring(done.stdout)  # noqa: S314 - printed by the driver's own program


def number(gpu: ET.Element, paths: tuple[str, ...]) -> float | None:
    """Return the figure at the first path that has one; None = N/A or not printed."""
    for path in paths:
        text = (gpu.findtext(path) or "").split(" ")[0]
        with contextlib.suppress(ValueError):
            return float(text)
    return None


def compare(
    report: Report, before: dict[tuple[str, str], float], smi: ET.Element, after: dict[tuple[str, str], float]
) -> None:
    report.driver = smi.findtext("driver_version") or ""
    for gpu in smi.iter("gpu"):
        uuid = gpu.findtext("uuid") or ""
        report.gpus[uuid] = gpu.findtext("product_name") or ""
        for one in FIELDS:
            theirs, key = number(gpu, one.paths), (one.family, uuid)
            if theirs is None:
                continue
            if key in before and key in after:
                agreement = report.agreements.setdefault(key, Agreement())
                agreement.add(before[key], theirs * one.scale, after[key], one.tolerance)
            else:
                report.missing.add(key)


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
    lines += ["| Family | GPU | compared | agreed | ours | nvidia-smi |", "|---|---|---|---|---|---|"]
    for (family, uuid), found in sorted(report.agreements.items()):
        lines.append(f"| `{family}` | {uuid} | {found.compared} | {found.agreed} | {found.ours:g} | {found.theirs:g} |")
    if report.missing:
        lines += ["", "Said by nvidia-smi and not by the exporter:", ""]
        lines += [f"- `{family}` of {uuid}" for family, uuid in sorted(report.missing)]
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
    for fault in report.never_agreed():
        print(f"never agreed: {fault}", file=sys.stderr)
    return int(bool(report.never_agreed()) or not report.agreements)


if __name__ == "__main__":
    sys.exit(main())
