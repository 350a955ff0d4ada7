"""``gpuscale-exporter doctor``: what keeps this exporter, here and now, from telling all there is, and the cure.

Why it exists: a person, or node-problem-detector, asks once and gets the checks of ``symptoms``. The first line says it
all, because node-problem-detector cuts the output; the exit code is what it expects of a custom plugin: 0 = fine, 1 =
a problem, 2 = can't be told.
"""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from exporter import symptoms
from exporter.listener import read_web_config
from exporter.nvml.library import loaded_library
from exporter.parts import wire
from exporter.readings import Allocation, GpuReading, SourceState
from exporter.settings import Settings, SettingsError, parse
from exporter.symptoms import Check, Found
from exporter.webconfig import WebConfigError

LONGEST_FIRST_READ_SECONDS = 10.0
_EXIT = {"ok": 0, "note": 0, "problem": 1, "unknown": 2}


class _Driver(Protocol):
    @property
    def driver_version(self) -> str: ...

    async def read(self, now: float) -> tuple[tuple[GpuReading, ...], SourceState]: ...

    async def close(self) -> None: ...


class _Kubelet(Protocol):
    async def allocations(self) -> tuple[tuple[Allocation, ...] | None, SourceState]: ...

    async def close(self) -> None: ...


def main(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Print the checks, with --json as one document. Takes the exporter's own flags, to look where it would look."""
    as_json = "--json" in argv
    try:
        settings = parse([word for word in argv if word != "--json"], environment)
    except SettingsError as bad:
        print(f"gpuscale-exporter doctor: {bad}", file=sys.stderr)
        return 2
    found = asyncio.run(_look(settings))
    checks = simulated(found) if settings.simulate else examine(found)
    code = exit_code(checks)
    if as_json:
        print(json.dumps({"exit_code": code, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        print("\n".join((summary(checks), *_lines(checks))))
    return code


def examine(found: Found) -> list[Check]:
    """Return all checks, in the order in which faults should be cured."""
    if not symptoms.any_gpu(found):
        return [
            Check(
                "gpu",
                "unknown",
                "this machine has no NVIDIA GPU that can be seen",
                "none, if it has none: let the exporter run on nodes with GPUs only (nodeSelector). On a GPU machine: "
                "is the card in its slot, and passed through to this virtual machine?",
            ),
            *symptoms.web(found),
        ]
    return [
        symptoms.driver(found),
        *symptoms.versions(found),
        *symptoms.boards(found),
        symptoms.devices(found),
        *symptoms.gpus(found),
        symptoms.kubelet(found),
        *symptoms.held_devices(found),
        *symptoms.processes(found),
        *symptoms.mig(found),
        *symptoms.web(found),
    ]


def simulated(found: Found) -> list[Check]:
    """Return the checks of a simulation, to which it does not matter what the machine has."""
    return [symptoms.driver(found), *symptoms.gpus(found), *symptoms.held_devices(found), *symptoms.web(found)]


def exit_code(checks: Iterable[Check]) -> int:
    """0 = no fault, 1 = a problem, 2 = nothing but what can't be told."""
    codes = {_EXIT[check.verdict] for check in checks}
    return 1 if 1 in codes else max(codes, default=2)


def summary(checks: Sequence[Check]) -> str:
    """Return one line: the checks of the worst verdict."""
    for verdict, words in (("problem", "problem"), ("unknown", "can't be told")):
        if names := [check.name for check in checks if check.verdict == verdict]:
            return f"{words}: {', '.join(names)} ({len(names)} of {len(checks)})"
    return f"all is fine ({len(checks)} {'check' if len(checks) == 1 else 'checks'})"


async def _look(settings: Settings) -> Found:
    patient = dataclasses.replace(settings, deadline_seconds=max(settings.deadline, LONGEST_FIRST_READ_SECONDS))
    driver, kubelet, _ = wire(patient)
    found, library = await look(driver, kubelet), loaded_library()
    return dataclasses.replace(
        found,
        proc=settings.proc,
        container_logs=settings.container_logs,
        library=library.path if library else None,
        web_fault=_web_fault(settings.web_config_file),
    )


async def look(driver: _Driver, kubelet: _Kubelet) -> Found:
    """Ask the driver and the kubelet once."""
    try:
        (gpus, state), (allocations, answered) = await asyncio.gather(driver.read(0.0), kubelet.allocations())
        return Found(gpus, state, driver.driver_version, allocations, answered)
    finally:
        await asyncio.gather(driver.close(), kubelet.close())


def _web_fault(path: str) -> str | None:
    """Return what is wrong with the web configuration, "" = nothing, None = none is set."""
    try:
        read_web_config(path)
    except WebConfigError as bad:
        return str(bad)
    return "" if path else None


def _lines(checks: Iterable[Check]) -> Iterator[str]:
    for check in checks:
        yield f"{check.verdict:8} {check.name}: {check.finding}"
        if check.cure:
            yield f"         cure: {check.cure}"
