"""Runs the exporter, as a user would, on the fake driver."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from tests.fakenvml.reader import ROOT, environment

Series = dict[tuple[str, str], float]
"""(family, value of the label that tells its series apart) -> value."""


class Exporter:
    """A running `python -m exporter` with the fake driver as its driver."""

    def __init__(self, library: Path, state: Path, *arguments: str) -> None:
        self._address_file = state.with_suffix(".address")
        self.forget_address()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "exporter", "--listen", "127.0.0.1:0", "--node", "node-a"),
                *("--address-file", str(self._address_file), "--kubelet-socket", "", *arguments),
            ],
            env=environment(library, state),
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = ""

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def forget_address(self) -> None:
        """Let the next connect() wait for the program to announce itself, after it started anew."""
        self._address_file.unlink(missing_ok=True)

    def connect(self) -> None:
        """Wait until the program serves its first poll."""
        self.wait_for(self._address_file.exists)
        self.address = self._address_file.read_text().strip()
        self.wait_for(lambda: self._status("/readyz") == 200)

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; 30 s are a fault, not a measurement."""
        give_up = time.monotonic() + 30
        while not holds():
            if self.process.poll() is not None:
                raise AssertionError(f"the exporter ended with {self.process.returncode}: {self.process.communicate()}")
            if time.monotonic() > give_up:
                raise AssertionError("not within 30 s")
            time.sleep(0.02)

    def text(self) -> str:
        """Scrape once; anything but 200 raises."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def scrape(self) -> Series:
        """Scrape once; each series by family and by its uuid, or its reason where it has no uuid."""
        series: Series = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                series[sample.name, sample.labels.get("uuid") or sample.labels.get("reason", "")] = sample.value
        return series

    def absent(self) -> dict[str, str]:
        """Scrape once; uuid -> why the GPU is absent."""
        families = text_string_to_metric_families(self.text())
        samples = [sample for family in families for sample in family.samples if sample.name == "gpuscale_gpu_absent"]
        return {sample.labels["uuid"]: sample.labels["reason"] for sample in samples if sample.value}

    def _status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
                return int(answer.status)
        except OSError:
            return 0
