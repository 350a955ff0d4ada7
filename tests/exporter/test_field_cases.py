"""Public bug reports about drivers and boards, each as the exporter must answer it.

The ids are those of the catalogue of field cases; each test names the kind of fault that its report is one of. What
only a driver can prove is in the fake driver's tests under the same ids.
"""

import ast
import asyncio
import json
import re
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from exporter.dialects import Spoken
from exporter.poller import Poller
from exporter.readings import AbsentReason, GpuReading, SourceState, XidReading
from exporter.server import Pages
from exporter.settings import parse
from exporter.simulated import SimulatedSource
from exporter.system_memory import SystemMemory
from tests.exporter.build import Series, gpu, names, published, read, read_openmetrics, snapshot, values

ROW = re.compile("test_(x[0-9]{2})_")
NODE_USAGE = "aom_node_gpu_usage"


def test_every_row_about_the_exporter_has_its_test_and_one_that_names_its_kind(shared_cases: Path) -> None:
    section = (shared_cases / "field-cases.md").read_text().partition("## Exporter")[2].partition("\n## ")[0]
    rows = {row.lower() for row in re.findall(r"^\| (X[0-9]{2}) \|", section, re.M)}
    assert len(rows) >= 14
    tested: dict[str, list[str]] = {}
    for file in Path(__file__).parent.glob("test_field_cases*.py"):
        for test in ast.walk(ast.parse(file.read_text())):
            if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and (found := ROW.match(test.name)):
                tested.setdefault(found[1], []).append(ast.get_docstring(test) or "")
    assert sorted(rows - tested.keys()) == []
    assert sorted(row for row in rows if not any(text.startswith("Kind: ") for text in tested[row])) == []


async def test_x04_a_driver_upgrade_withdraws_all_values_and_the_same_process_recovers(tmp_path: Path) -> None:
    """Kind: the last good answer, shown as the present one."""
    file = tmp_path / "world.json"
    world = {"driver": "550.54.15", "devices": [{"uuid": "GPU-a", "name": "Tesla T4", "utilization_percent": 40}]}
    file.write_text(json.dumps(world))
    source = SimulatedSource(str(file))
    mismatch = SourceState(up=False, reason="lib_rm_version_mismatch", message="reboot the node")
    working = source.read
    poller = Poller(source, source, "n1", 1)
    before = read((await poller.poll()).fresh.plain.decode())
    source.read = lambda now: _answer(((), mismatch))  # type: ignore[method-assign]
    during = read((await poller.poll()).fresh.plain.decode())
    source.read = working  # type: ignore[method-assign]
    after = read((await poller.poll()).fresh.plain.decode())

    assert values(before, NODE_USAGE) == values(after, NODE_USAGE) == [40]
    assert not [name for name in names(during) if name.startswith("aom_")]
    assert values(during, "gpuscale_driver_up", reason="lib_rm_version_mismatch") == [0]
    assert values(during, "gpuscale_gpu_absent", uuid="GPU-a", model="Tesla T4", reason="driver_error") == [1]
    assert values(after, "gpuscale_driver_up", reason="") == [1]
    assert values(after, "gpuscale_driver_failures_total") == [1]


async def _answer(value: object) -> object:
    return value


async def test_x08_a_gpu_without_power_reading_loses_that_series_alone_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Kind: one value that is not told, at the cost of others."""
    file = tmp_path / "world.json"
    device = {"uuid": "GPU-a", "utilization_percent": 40, "temperature_celsius": 60, "power_watts": None}
    file.write_text(json.dumps({"devices": [device]}))
    source = SimulatedSource(str(file))
    poller = Poller(source, source, "n1", 1)
    caplog.set_level("INFO")
    for _ in range(3):
        text = (await poller.poll()).fresh.plain.decode()
    series = read(text)
    assert "aom_node_gpu_power_watts" not in text
    assert values(series, NODE_USAGE) == [40]
    assert values(series, "aom_node_gpu_temperature_centigrade") == [60]
    assert values(series, "gpuscale_gpu_capability", field="power_watts", reason="not_supported") == [0]
    assert values(series, "gpuscale_driver_failures_total") == [0]
    assert len([r for r in caplog.records if "power_watts" in r.getMessage()]) == 1


def test_x22_a_new_order_of_the_cards_changes_only_the_info_series() -> None:
    """Kind: a place taken for an identity."""
    idle, busy = {"utilization_percent": 0}, {"utilization_percent": 80}
    first = published(snapshot(gpu("GPU-a", index=0, **idle), gpu("GPU-b", index=1, **busy)))
    second = published(snapshot(gpu("GPU-b", index=0, **busy), gpu("GPU-a", index=1, **idle)))
    changed = {name for (name, _), _ in first.items() ^ second.items()}
    assert changed == {"aom_node_gpu_info"}
    assert values(first, NODE_USAGE, uuid="GPU-b") == values(second, NODE_USAGE, uuid="GPU-b") == [80]


async def test_x07_fifty_scrapes_at_once_read_the_source_no_more_often_and_never_at_the_same_time() -> None:
    """Kind: readers that run into each other because each starts the work itself."""
    source = OneAtATime()
    poller = Poller(source, source.quiet, "n1", 0.02)
    await poller.poll()
    pages = Pages(lambda: poller.latest, "n1", 60.0)
    async with TestServer(pages.app()) as server, aiohttp.ClientSession(server.make_url("/")) as http:
        polling = asyncio.create_task(poller.run())
        texts = await asyncio.gather(*(_get(http) for _ in range(50)))
        polling.cancel()
    assert all(values(read(text), NODE_USAGE) == [55] for text in texts)
    assert source.overlaps == 0
    # a poll that was cut off is the one that did not count
    assert source.reads - poller.latest.snapshot.polls <= 1


class OneAtATime:
    """A driver that takes its time and notices who calls it meanwhile."""

    driver_version = "1"
    needs_restart: str | None = None

    def __init__(self) -> None:
        self.quiet = SimulatedSource("/nowhere/world.json")
        self.reads = self.overlaps = self.inside = 0

    async def read(self, now: float) -> tuple[tuple[GpuReading, ...], SourceState]:
        self.reads += 1
        self.overlaps += self.inside
        self.inside += 1
        await asyncio.sleep(0.01)
        self.inside -= 1
        return (gpu(),), SourceState(up=True)

    async def close(self) -> None:
        pass


async def _get(http: aiohttp.ClientSession) -> str:
    async with http.get("/metrics") as answer:
        return await answer.text()


async def test_x09_a_simulated_chip_without_memory_of_its_own_has_none_made_up(tmp_path: Path) -> None:
    """Kind: what is not known, published as 0, or another's value in its place."""
    (tmp_path / "meminfo").write_text("MemTotal: 127600748 kB\nMemAvailable: 118566368 kB\n")
    file = tmp_path / "world.json"
    held = {"namespace": "ml", "pod": "p", "container": "main", "device_ids": ["GPU-a"]}
    listed = [{"pid": pid, "gpu_uuid": "GPU-a", "memory_used_bytes": 600 << 20} for pid in (1, 2)]
    device = {"uuid": "GPU-a", "name": "NVIDIA GB10", "memory_unified": True, "utilization_percent": 3}
    file.write_text(json.dumps({"devices": [device], "processes": listed, "allocations": [held]}))
    source = SimulatedSource(str(file))
    series = read((await Poller(source, source, "n1", 1).poll()).fresh.plain.decode())
    assert {name for name in names(series) if "gpu_memory" in name} == {"aom_container_gpu_memory_used_megabytes"}
    assert values(series, "aom_container_gpu_memory_used_megabytes", pod="p") == [1200]
    assert values(series, "aom_node_gpu_info", unified="true") == [1]
    assert values(series, "gpuscale_gpu_capability", field="memory_total_bytes", reason="unified_memory") == [0]
    asked = Poller(source, source, "n1", 1, system_memory=SystemMemory(tmp_path, fallback=True))
    filled = read((await asked.poll()).fresh.plain.decode())
    assert values(filled, "aom_node_gpu_memory_capacity_megabytes") == [pytest.approx(124610.1, abs=0.05)]
    assert values(filled, "aom_node_gpu_memory_used_megabytes") == [1200]


NOW = 1700000000.0


def test_x26_an_xid_is_a_counter_with_its_time_and_latches_nothing() -> None:
    """Kind: an event, kept as a state."""
    event = (XidReading(31, 1, NOW), XidReading(79, 1, NOW))

    def after(seconds: float, xids: tuple[XidReading, ...] = event) -> Series:
        return published(snapshot(gpu(xids=xids), taken_at=NOW + seconds))

    for later in (0, 300):
        series = after(later)
        assert values(series, "aom_node_gpu_xid_events_total", xid="31") == [1]
        assert values(series, "aom_node_gpu_xid_last_timestamp_seconds", xid="31") == [NOW]
        assert values(series, "gpuscale_gpu_health") == [2]  # of 79; 31 is an application's
        assert values(series, "gpuscale_gpu_health_reason", reason="xid_31") == []
    recovered = after(3601)
    assert values(recovered, "gpuscale_gpu_health") == [0]
    assert values(recovered, "aom_node_gpu_xid_events_total", xid="79") == [1]
    restarted = after(3700, ())
    assert not {name for name in names(restarted) if "xid" in name}
    again = after(3800, (XidReading(31, 1, NOW + 3750),))
    assert values(again, "aom_node_gpu_xid_events_total") == [1]
    assert values(again, "aom_node_gpu_xid_last_timestamp_seconds") == [NOW + 3750]


ODD = ("C:\\Windows\\x.exe", 'a "quoted"\nname', 'C:\\n"\r\n')


@pytest.mark.parametrize("name", ODD)
async def test_x27_a_name_with_backslash_quote_or_newline_comes_back_from_the_parser(name: str, tmp_path: Path) -> None:
    """Kind: text that breaks the form that it is written in."""
    file = tmp_path / "world.json"
    listed = [{"pid": 4, "gpu_uuid": "GPU-a", "memory_used_bytes": 1 << 20, "name": name}]
    text = json.dumps({"devices": [{"uuid": "GPU-a", "name": name, "power_watts": 1}], "processes": listed}, indent=1)
    file.write_bytes(text.replace("\n", "\r\n").encode())  # a field file as Windows writes it
    source = SimulatedSource(str(file))
    poller = Poller(source, source, "n1", 1, spoken=Spoken(("nvidia_smi", "dcgm")), process_series=True)
    page = (await poller.poll()).fresh
    kept = name.replace("\r", "")
    for parsed, exposition in ((read, page.plain), (read_openmetrics, page.openmetrics)):
        assert b"\r" not in exposition
        series = parsed(exposition.decode())
        assert values(series, "aom_node_gpu_power_watts", model=kept) == [1]
        assert values(series, "aom_process_gpu_memory_used_megabytes", process_name=kept) == [1]
        assert values(series, "nvidia_smi_compute_app_used_memory_bytes", process_name=kept) == [1 << 20]
    written = kept.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert f'process_name="{written}"' in page.plain.decode()


def test_x27_a_configuration_with_carriage_returns_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"# by hand\r\nnode: gpu-1\r\npoll-seconds: 2\r\n\r\ndialect: dcgm,cce\r\n")
    settings = parse(["--config", str(file)], {})
    assert (settings.node, settings.poll_seconds, settings.dialect) == ("gpu-1", 2.0, ("dcgm", "cce"))


def test_a_gpu_with_a_fault_never_has_an_out_of_range_value() -> None:
    series = published(snapshot(gpu(fault=AbsentReason.TIMEOUT, utilization_percent=400)))
    assert values(series, "gpuscale_gpu_capability") == []
