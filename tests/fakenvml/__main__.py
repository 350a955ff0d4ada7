"""Runs any program on the fake driver, by hand.

    python -m tests.fakenvml --gpus 8 -- python -m exporter --listen 127.0.0.1:9836
    python -m tests.fakenvml --scenario world.json --flavour r470 -- python -m exporter --once

A scenario is the exporter's simulation form, as for `--simulate FILE`. While the program runs the file is read again
each second, so that editing it changes what the driver answers.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fakenvml.build import MISSING, build
from tests.fakenvml.reader import environment
from tests.fakenvml.scenario import gpus, load
from tests.fakenvml.state import FakeDriver


def main() -> int:
    """Exit code: the program's own."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakenvml", description="Run a program on the fake driver.")
    parser.add_argument("--gpus", type=int, default=8, help="how many GPUs, without a scenario (default 8)")
    parser.add_argument("--scenario", type=Path, help="a simulation file of the exporter")
    parser.add_argument("--flavour", choices=sorted(MISSING), default="current", help="how old a driver it is")
    parser.add_argument("command", nargs="+", help="the program and its arguments, after --")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fakenvml-") as folder:
        library = build(Path(folder) / "library", settings.flavour)
        with FakeDriver(Path(folder) / "nvml.state") as fake:
            _load(fake, settings)
            program = subprocess.Popen(settings.command, env=environment(library, fake.path))
            with contextlib.suppress(KeyboardInterrupt):
                return _follow(program, fake, settings)
            return program.wait()


def _follow(program: subprocess.Popen[bytes], fake: FakeDriver, settings: argparse.Namespace) -> int:
    while True:
        try:
            return program.wait(timeout=1)
        except subprocess.TimeoutExpired:
            _load(fake, settings)


def _load(fake: FakeDriver, settings: argparse.Namespace) -> None:
    try:
        load(fake, json.loads(settings.scenario.read_text()) if settings.scenario else gpus(settings.gpus))
    except (OSError, ValueError, KeyError) as error:
        print(f"fakenvml: {settings.scenario}: {error!r}; the driver stays as it was", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
