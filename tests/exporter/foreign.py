"""Snapshots rich enough for every row of every dialect, and what a dialect makes of them."""

import json
import re
from typing import Any

from exporter.dialects import DIALECTS, Spoken, nvidia_smi
from exporter.exposition import Renderer, Texts
from exporter.holdings import held_at
from exporter.readings import (
    AbsentReason,
    ClocksEventReading,
    EccReading,
    GpuReading,
    MigReading,
    ProcessReading,
    RepairReading,
    Snapshot,
    XidReading,
)
from exporter.samples import collect
from exporter.simulated import parse
from tests.exporter.build import MIB, Series, gpu, holds, read, snapshot
from tests.fakenvml.scenario import DETAILS

FACTS = {
    "pci_bus_id": "00000000:83:00.0",
    "minor_number": "0",
    "serial": "1650522000001",
    "vbios_version": "96.00.A5.00.03",
    "cuda_version": "13.1",
} | {
    name: "1"
    for name in re.findall(r"facts\[(\w+)\]", " ".join(row.metric.source for row in nvidia_smi.FACTS))
    if name not in {"pci_bus_id", "serial"}
}


def full_gpu(uuid: str = "GPU-full", **changed: Any) -> GpuReading:
    """One GPU of which everything is known."""
    facts: dict[str, Any] = {
        "memory_temperature_celsius": 51,
        "power_limit_watts": 700,
        "energy_joules": 1234.5678,
        "fan_percent": 30,
        "bar1_total_bytes": 131072 * MIB,
        "bar1_used_bytes": 3 * MIB,
        "encoder_utilization_percent": 5,
        "decoder_utilization_percent": 6,
        "sm_clock_hertz": 1.98e9,
        "memory_clock_hertz": 3.201e9,
        "graphics_clock_hertz": 1.965e9,
        "video_clock_hertz": 1.545e9,
        "pcie_generation": 4,
        "pcie_width": 8,
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
        "pcie_replays": 2,
        "clocks_event_reasons": 0x45,
        "performance_state": 0,
        "temperature_margin_celsius": 35,
        "recovery_action": 0,
        "graphics_active_ratio": 0.5,
        "sm_active_ratio": 0.25,
        "sm_occupancy_ratio": 0.125,
        "tensor_active_ratio": 0.0625,
        "dram_active_ratio": 0.375,
        "ecc": EccReading(1, 2, 3, 4, 5),
        "repair": RepairReading(6, 7, False, 8, 9, True, False),
        "clocks_event": ClocksEventReading(1.5, 2.5, 3.5, 4.5, 5.5),
        "details": parse(json.dumps({"devices": [{"uuid": uuid, "details": DETAILS}]}).encode()).gpus[0].details,
        "xids": (XidReading(79, 1, 1700000000.0), XidReading(31, 4, 1700000001.5)),
        "mig_enabled": False,
        "facts": FACTS,
        "memory_used_bytes": 20000 * MIB + 700_000,
        "processes": (
            ProcessReading(10, uuid, 100 * MIB, 40, "/usr/bin/python"),
            ProcessReading(11, uuid, None, None, 'odd "name"\n'),
        ),
    }
    return gpu(uuid, **(facts | changed))


def mig_gpu(uuid: str = "GPU-mig") -> GpuReading:
    """One GPU in two GPU instances; the first is shared by two compute instances. Slots have gaps."""
    shared = {"memory_total_bytes": 71424 * MIB, "memory_used_bytes": 16925 * MIB, "memory_free_bytes": 54499 * MIB}
    return full_gpu(
        uuid,
        index=1,
        name="NVIDIA H200",
        utilization_percent=None,
        mig_enabled=True,
        facts=FACTS | {"pci_bus_id": "00000000:84:00.0", "minor_number": "1"},
        mig=(
            MigReading("MIG-a", 2, 0, "1c.4g.71gb", **shared, sm_active_ratio=0.75),
            MigReading("MIG-b", 2, 1, "2c.4g.71gb", **shared, sm_active_ratio=0.75),
            MigReading(
                "MIG-c",
                9,
                0,
                "1g.18gb",
                memory_total_bytes=16384 * MIB,
                memory_used_bytes=9 * MIB,
                memory_reserved_bytes=0,
            ),
        ),
    )


def rich() -> Snapshot:
    """One GPU of each kind: held alone, partitioned, shared, of which little is known, idle, lost."""
    gpus = (
        full_gpu("GPU-full"),
        mig_gpu(),
        gpu("GPU-shared", index=2, utilization_percent=90),
        gpu("GPU-poor", index=3, name="Tesla T4", power_watts=None, temperature_celsius=float("nan")),
        full_gpu("GPU-liar", index=4, memory_used_bytes=2**64 - 1, utilization_percent=65535, energy_joules=None),
        GpuReading("GPU-lost", 5, "NVIDIA H100 80GB HBM3", fault=AbsentReason.LOST),
    )
    allocations = (
        holds("alone-0", "GPU-full"),
        holds("mig-0", "MIG-c"),
        holds("shared-0", "GPU-shared::0"),
        holds("shared-1", "GPU-shared::1"),
        holds("lost-0", "GPU-lost"),
    )
    return snapshot(*gpus, allocations=allocations, driver_version="595.80")


LABELS = {"clusterName": "prod", "nodeIP": "10.0.0.7"}


def spoken(of: Snapshot, *names: str, node: str = "node-1") -> Texts:
    """Return what these dialects, or all of them, print of a snapshot."""
    say = Spoken(names or tuple(DIALECTS), LABELS)
    who = held_at(of)
    return Renderer(say.order).render(say.families(of, who, node, collect(of, who, node)[1]))


def heard(text: str) -> Series:
    """Read a plain exposition; Prometheus' Python parser adds _total to every counter's name, which is undone here."""
    printed = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines()}
    series = read(text)
    return {(n if n in printed else n.removesuffix("_total"), labels): value for (n, labels), value in series.items()}
