"""The processes of the demo that are programs of their own: how they are started and ended."""

import os
import subprocess
from pathlib import Path

STOP_SECONDS = 3.0
PACKAGES = Path(__file__).resolve().parents[2]
OUR_SETTINGS = "GPUSCALE_"


def start(words: list[str], sink: int) -> subprocess.Popen[bytes]:
    """Start a child beside this package, in a session of its own.

    So ``-m`` finds our modules whatever lies in the user's folder, a Ctrl-C at the terminal is ours to handle, and
    settings that the user keeps in the environment for real clusters do not reach the demo.
    """
    return subprocess.Popen(  # noqa: S603 - our own programs
        words,
        cwd=PACKAGES,
        env={name: value for name, value in os.environ.items() if not name.startswith(OUR_SETTINGS)},
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def end_process(process: subprocess.Popen[bytes], within_seconds: float = STOP_SECONDS) -> None:
    """Wait for a process that was asked to end, and kill it if it does not."""
    try:
        process.wait(within_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_line(log_file: Path) -> str:
    """Give the last line that a process wrote, to say why it ended."""
    lines = log_file.read_text(errors="replace").strip().splitlines() if log_file.exists() else []
    return lines[-1][:300] if lines else "it said nothing"
