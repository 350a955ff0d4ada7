"""Reads `nvidia-smi --query-gpu` and `--query-compute-apps`, as recorded on real machines, into a snapshot.

The CSV is what nvidia_gpu_exporter parsed at that very moment; `nvidia-smi -q` was run at another one.
"""

import csv
import dataclasses
import re
from pathlib import Path

from exporter import details
from exporter.readings import (
    ClocksEventReading,
    EccReading,
    GpuReading,
    MigReading,
    ProcessReading,
    RepairReading,
    Snapshot,
)
from tests.exporter.build import MIB, snapshot
from tests.fakenvml.captures import section

Row = dict[str, str]
_WORDS = {"Enabled": "1", "Yes": "1", "Active": "1", "Disabled": "0", "No": "0", "Not Active": "0", "Default": "0"}
_FACTS = {
    "power.default_limit [W]": "power_default_limit_watts",
    "power.min_limit [W]": "power_min_limit_watts",
    "power.max_limit [W]": "power_max_limit_watts",
    "pci.baseClass": "pci_base_class",
    "pci.subClass": "pci_sub_class",
    "pcie.link.gen.gpumax": "pcie_link_gen_gpumax",
}
_RECOVERY = {"None": 0}
_FABRIC = {"Not Started": 1, "In Progress": 2, "Completed": 3}
_SUBJECTS: dict[str, tuple[type, dict[str, tuple[str, float]]]] = {
    "power": (
        details.PowerDetails,
        {
            "instant_watts": ("power.draw.instant [W]", 1),
            "average_watts": ("power.draw.average [W]", 1),
            "requested_limit_watts": ("power.limit [W]", 1),
            "edpp_multiplier_percent": ("edpp_multiplier [%]", 1),
        },
    ),
    "engines": (
        details.EngineDetails,
        {
            "jpeg_utilization_percent": ("utilization.jpeg [%]", 1),
            "ofa_utilization_percent": ("utilization.ofa [%]", 1),
            "encoder_sessions": ("encoder.stats.sessionCount", 1),
            "encoder_frames_per_second": ("encoder.stats.averageFps", 1),
            "encoder_latency_microseconds": ("encoder.stats.averageLatency", 1),
        },
    ),
    "ecc": (
        details.EccDetails,
        {
            f"{life}_{kind}_{place}": (f"ecc.errors.{kind}.{life}.{place}", 1.0)
            for life in ("volatile", "aggregate")
            for kind in ("corrected", "uncorrected")
            for place in ("dram", "sram")
        }
        | {
            f"{life}_sram_{how}": (f"ecc.errors.uncorrected.{life}.sram.{how}", 1.0)
            for life, ways in (
                ("volatile", ("parity", "secded")),
                ("aggregate", ("parity", "secded", "l2", "sm", "mcu", "pcie", "other")),
            )
            for how in ways
        }
        | {"sram_threshold_exceeded": ("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", 1)},
    ),
    "rows": (
        details.RowDetails,
        {
            f"banks_{mark}": (f"remapped_rows.histogram.{mark}", 1.0)
            for mark in ("max", "high", "partial", "low", "none")
        }
        | {f"inactive_{kind}ed": (f"remapped_rows.{kind}able_inactive", 1.0) for kind in ("correct", "uncorrect")},
    ),
    "protected_memory": (
        details.ProtectedMemoryDetails,
        {f"{part}_bytes": (f"protected_memory.{part} [MiB]", float(MIB)) for part in ("total", "used", "free")},
    ),
    "fabric": (details.FabricDetails, {"state": ("fabric.state", 1), "clique_id": ("fabric.cliqueId", 1)}),
    "switches": (
        details.SwitchDetails,
        {
            "persistence": ("persistence_mode", 1),
            "accounting": ("accounting.mode", 1),
            "compute_mode": ("compute_mode", 1),
            "display_attached": ("display_attached", 1),
            "display_active": ("display_active", 1),
            "ecc_pending": ("ecc.mode.pending", 1),
            "mig_pending": ("mig.mode.pending", 1),
        },
    ),
}
_CLOCKS = ("graphics", "sm", "memory")


def captured(file: Path, moment: str) -> Snapshot:
    """Return the node at the moment "idle" or "load" of a capture."""
    text = file.read_text()
    rows = _table(section(text, f"{moment} :: query-gpu (csv"))
    apps = _table(section(text, f"{moment} :: query-compute-apps"))
    cuda = re.search(r"CUDA Version\s*: (\S+)", section(text, f"{moment} :: query (-q)"))
    gpus = tuple(_gpu(row, apps, cuda[1] if cuda else "") for row in rows)
    return snapshot(*gpus, driver_version=rows[0]["driver_version"])


def _table(text: str) -> list[Row]:
    lines = [line for line in text.splitlines() if line.strip()]
    header = [name.strip() for name in lines[0].split(",")]
    return [dict(zip(header, line, strict=True)) for line in csv.reader(lines[1:], skipinitialspace=True)]


def _gpu(row: Row, apps: list[Row], cuda: str) -> GpuReading:
    def number(name: str, times: float = 1) -> float | None:
        found = re.match(r"P?(-?[0-9.]+)( |$)", row.get(name, ""))
        return float(found[1]) * times if found else None

    def whole(name: str, times: int = 1) -> int | None:
        value = number(name, times)
        return None if value is None else int(value)

    def switch(name: str) -> bool | None:
        return {"1": True, "0": False}.get(_WORDS.get(row.get(name, ""), ""))

    return GpuReading(
        row["uuid"],
        int(row["index"]),
        row["name"],
        memory_total_bytes=whole("memory.total [MiB]", MIB),
        memory_used_bytes=whole("memory.used [MiB]", MIB),
        memory_free_bytes=whole("memory.free [MiB]", MIB),
        memory_reserved_bytes=whole("memory.reserved [MiB]", MIB),
        utilization_percent=number("utilization.gpu [%]"),
        memory_utilization_percent=number("utilization.memory [%]"),
        encoder_utilization_percent=number("utilization.encoder [%]"),
        decoder_utilization_percent=number("utilization.decoder [%]"),
        fan_percent=number("fan.speed [%]"),
        temperature_celsius=number("temperature.gpu"),
        memory_temperature_celsius=number("temperature.memory"),
        power_watts=number("power.draw [W]"),
        power_limit_watts=number("enforced.power.limit [W]"),
        graphics_clock_hertz=number("clocks.current.graphics [MHz]", 1e6),
        sm_clock_hertz=number("clocks.current.sm [MHz]", 1e6),
        memory_clock_hertz=number("clocks.current.memory [MHz]", 1e6),
        video_clock_hertz=number("clocks.current.video [MHz]", 1e6),
        performance_state=whole("pstate"),
        pcie_generation=whole("pcie.link.gen.current"),
        pcie_generation_max=whole("pcie.link.gen.max"),
        pcie_width=whole("pcie.link.width.current"),
        pcie_width_max=whole("pcie.link.width.max"),
        clocks_event_reasons=int(row["clocks_event_reasons.active"], 16),
        temperature_margin_celsius=number("temperature.gpu.tlimit"),
        recovery_action=_RECOVERY.get(row["gpu_recovery_action"]),
        clocks_event=ClocksEventReading(
            **{
                field.name: number(f"clocks_event_reasons_counters.{field.name.removesuffix('_seconds')} [us]", 1e-6)
                for field in dataclasses.fields(ClocksEventReading)
            }
        ),
        details=_details(row),
        mig_enabled=switch("mig.mode.current"),
        ecc=EccReading(
            *(
                whole(f"ecc.errors.{kind}.{life}.total")
                for life in ("volatile", "aggregate")
                for kind in ("corrected", "uncorrected")
            )
        ),
        repair=RepairReading(
            remapped_rows_corrected=whole("remapped_rows.correctable"),
            remapped_rows_uncorrected=whole("remapped_rows.uncorrectable"),
            remapped_rows_pending=switch("remapped_rows.pending"),
            remapped_rows_failed=switch("remapped_rows.failure"),
        ),
        processes=tuple(_process(app) for app in apps if app["gpu_uuid"] == row["uuid"]),
        facts=_facts(row)
        | {f"clocks_max_{c}_hertz": str(number(f"clocks.max.{c} [MHz]", 1e6)) for c in _CLOCKS}
        | {"cuda_version": cuda},
    )


def _details(row: Row) -> details.DetailReading:
    def value(kind: object, column: str, unit: float) -> float | None:
        text = row.get(column, "")
        told = re.match(r"-?[0-9.]+", _WORDS.get(text, str(_FABRIC.get(text, text))))
        if told is None:
            return None
        return bool(int(told[0])) if kind == bool | None else type_of(kind)(float(told[0]) * unit)

    def type_of(kind: object) -> type[float]:
        return int if kind == int | None else float

    def subject(cls: type, columns: dict[str, tuple[str, float]]) -> object:
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        told = {field: value(kinds[field], *column) for field, column in columns.items()}
        return None if set(told.values()) == {None} else cls(**told)

    return details.DetailReading(**{name: subject(*columns) for name, columns in _SUBJECTS.items()})


def _facts(row: Row) -> dict[str, str]:
    """Every column as a fact, by the exporter's spelling of its name; what is N/A is left out."""
    known = {name: value for name, value in row.items() if "N/A" not in value and "deprecated" not in value}
    return {
        _FACTS.get(name, re.sub(r"\W+", "_", name.partition(" [")[0])): _WORDS.get(value, value.partition(" ")[0])
        for name, value in known.items()
    }


def _process(row: Row) -> ProcessReading:
    used = row["used_gpu_memory [MiB]"].removesuffix(" MiB")
    return ProcessReading(
        int(row["pid"]), row["gpu_uuid"], int(used) * MIB if used.isdecimal() else None, name=row["process_name"]
    )


def partitioned(file: Path, moment: str) -> Snapshot:
    """Return the same with the MIG devices that `nvidia-smi -q` lists and `nvidia-smi -L` names."""
    text = file.read_text()
    blocks = section(text, f"{moment} :: query (-q)").split("    MIG Device\n")[1:]
    named = re.findall(
        r"^\s*MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", section(text, "capabilities :: list"), re.MULTILINE
    )
    whole = captured(file, moment)
    instances = tuple(
        _instance(block.partition("    Accounting Mode ")[0], profile, uuid)
        for block, (profile, uuid) in zip(blocks, named, strict=True)
    )
    (gpu,) = whole.gpus
    return dataclasses.replace(whole, gpus=(dataclasses.replace(gpu, mig=instances),))


def _instance(block: str, profile: str, uuid: str) -> MigReading:
    def number(pattern: str) -> int:
        found = re.search(rf"{pattern}\s*: (\d+)", block)
        assert found, pattern
        return int(found[1])

    memory = {
        f"memory_{name.lower()}_bytes": number(rf"Shared FB Memory Usage\n(?:.*\n){{{line}}}\s*{name}") * MIB
        for line, name in enumerate(("Total", "Reserved", "Used", "Free"))
    }
    return MigReading(uuid, number("GPU Instance ID"), number("Compute Instance ID"), profile, **memory)
