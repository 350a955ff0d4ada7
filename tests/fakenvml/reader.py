"""Runs the exporter's NvmlSource in a process of its own, one poll at a time, at the word of a test.

Why it exists: the binding loads the driver's library once per process, so each test of the real path needs a new one;
and a test that orders each poll needs no clock. `python -m tests.fakenvml.reader SETTINGS` reads one command a line
(read, close) and answers each with a line of JSON.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

from exporter.details import DetailReading
from exporter.nvml.device import NvmlSource
from exporter.readings import (
    AbsentReason,
    ClocksEventReading,
    EccReading,
    GpuReading,
    MigReading,
    NvlinkReading,
    ProcessReading,
    RepairReading,
    SourceState,
    XidReading,
)

ROOT = Path(__file__).resolve().parents[2]


def environment(library: Path, state: Path) -> dict[str, str]:
    """Return the environment in which a program finds the fake driver."""
    return os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "FAKENVML_STATE": str(state),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


class Reader:
    """The test's side: each method is one command."""

    def __init__(self, library: Path, state: Path, binding: Path | None = None, **settings: float) -> None:
        variables = environment(library, state)
        if binding is not None:
            variables["PYTHONPATH"] = os.pathsep.join([str(binding), variables["PYTHONPATH"]])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakenvml.reader", json.dumps({"deadline_seconds": 5.0} | settings)],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.driver_version = ""
        self.needs_restart: str | None = None
        self.seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def read(self) -> tuple[dict[str, GpuReading], SourceState]:
        """Poll once; the readings by UUID."""
        answer = self._ask("read")
        self.driver_version, self.needs_restart = answer["driver_version"], answer["needs_restart"]
        self.seconds = answer["seconds"]
        return {gpu["uuid"]: _gpu(gpu) for gpu in answer["gpus"]}, SourceState(**answer["state"])

    def close(self) -> float:
        """Close the source; returns how long that took, in seconds."""
        return float(self._ask("close")["seconds"])

    def _ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))


_PARTS: dict[str, Any] = {"ecc": EccReading, "repair": RepairReading, "clocks_event": ClocksEventReading}
_LISTS: dict[str, Any] = {"nvlinks": NvlinkReading, "xids": XidReading, "mig": MigReading}


def _gpu(form: dict[str, Any]) -> GpuReading:
    processes = form.pop("processes")
    fault, absent = form.pop("fault"), form.pop("absent")
    for part, cls in _PARTS.items():
        form[part] = None if form[part] is None else cls(**form[part])
    form["details"] = None if form["details"] is None else _details(form["details"])
    for part, cls in _LISTS.items():
        form[part] = None if form[part] is None else tuple(cls(**item) for item in form[part])
    return GpuReading(
        **form,
        processes=None if processes is None else tuple(ProcessReading(**process) for process in processes),
        fault=None if fault is None else AbsentReason(fault),
        absent={name: AbsentReason(reason) for name, reason in absent.items()},
    )


def _details(form: dict[str, Any]) -> DetailReading:
    kinds = get_type_hints(DetailReading)
    return DetailReading(
        **{part: None if told is None else get_args(kinds[part])[0](**told) for part, told in form.items()}
    )


async def _serve(source: NvmlSource) -> None:
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        started = time.monotonic()
        answer: dict[str, Any] = {}
        if command == "read":
            gpus, state = await source.read(time.time())
            answer = {"gpus": [asdict(gpu) for gpu in gpus], "state": asdict(state)}
        else:
            await source.close()
        answer |= {"driver_version": source.driver_version, "needs_restart": source.needs_restart}
        print(json.dumps(answer | {"seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(NvmlSource(**json.loads(sys.argv[1]))))
