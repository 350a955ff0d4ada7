"""The operator of the demo: a real process, started as a user would start it, told nothing but where the API is."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from controller.sandbox.children import end_process, last_line, start
from controller.sandbox.exporters import NAMESPACE

STOP_SECONDS = 8.0


@dataclass
class OperatorProcess:
    """`python -m controller run --server URL`; ``log_file`` gets what it says."""

    process: subprocess.Popen[bytes]
    address_file: Path
    log_file: Path

    @classmethod
    def begin(cls, server: str, tick_seconds: float, folder: Path) -> "OperatorProcess":
        """Start it; returns at once."""
        address, log = folder / "operator.address", folder / "operator.log"
        words = ["run", "--server", server, "--tick", f"{tick_seconds:g}", "--lease-namespace", NAMESPACE]
        words += ["--listen", "127.0.0.1:0", "--address-file", str(address)]
        with log.open("wb") as sink:
            process = start([sys.executable, "-m", "controller", *words], sink.fileno())
        return cls(process, address, log)

    def died(self) -> str | None:
        """Say how it ended, if it has; None = it runs."""
        code = self.process.poll()
        return None if code is None else f"the operator ended with code {code}: {last_line(self.log_file)}"

    async def is_ready(self, session: aiohttp.ClientSession) -> bool:
        """Ask it whether it has its first full lists and leads or could."""
        if not self.address_file.exists():
            return False
        address = self.address_file.read_text().strip()
        try:
            async with session.get(f"http://{address}/readyz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def stop(self) -> None:
        """End it and wait until it has ended."""
        if self.process.poll() is None:
            self.process.terminate()
        await asyncio.to_thread(end_process, self.process, STOP_SECONDS)
