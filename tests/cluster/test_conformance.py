"""The conformance suite of the emulator, unchanged, on the real control plane."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.realparts.controlplane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
FEWEST = 100


def test_the_conformance_suite_holds_on_a_real_api_server(plane: ControlPlane) -> None:
    environment = os.environ | {
        "GPUSCALE_CONFORMANCE_SERVER": plane.server,
        "GPUSCALE_CONFORMANCE_TOKEN": plane.token,
        "GPUSCALE_CONFORMANCE_CA": str(plane.ca),
        "CI": "true",  # nothing may be skipped: here the controllers run
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance_api"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None
    assert int(passed[1]) >= FEWEST
    print(ran.stdout.splitlines()[-1])
