"""Reads `nvidia-smi --query-gpu` and `--query-compute-apps`, as recorded on real machines, into a snapshot.

The CSV is what nvidia_gpu_exporter parsed at that very moment; `nvidia-smi -q` was run at another one.
"""

import csv
import dataclasses
import re
from pathlib import Path

from exporter.readings import EccReading, GpuReading, MigReading, ProcessReading, RepairReading, Snapshot
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
