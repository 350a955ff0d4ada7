"""Processes and folders that end with the test run, however it ends.

Why it exists: a test run may be killed at any moment, and nobody should find an etcd or a folder of its afterwards.
The kernel ends each process when its parent dies; a folder is removed by a watcher at the other end of a pipe.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 10.0
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_WATCH = """IFS= read -r word
[ "$word" = keep ] && exit
for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$0" && exit; sleep 1; done"""


class StartError(Exception):
    """A program ended, or was not ready in time; the message ends with the last lines of its log."""


class Folder:
    """A temporary folder that is removed when this process ends or dies, unless ``keep`` was called."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        command = ["/bin/sh", "-c", _WATCH, str(self.path)]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def keep(self) -> None:
        """Leave the folder to the reader."""
        self._watcher.communicate(b"keep\n")

    def remove(self) -> None:
        """Remove it now."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._watcher.communicate()


class Process:
    """One program that writes a log. It dies with the thread that started it: start it in the main thread."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self.name = log.stem
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=None if environment is None else os.environ | environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send(self, how: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.running():
            self._process.send_signal(how)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait, and kill what does not end; the exit code. Safe to call twice."""
        self.send(how)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until ``ready``. Raises StartError if the program ends or the time is over."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running():
                raise StartError(f"{self.name} ended:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} was not ready after {seconds:.0f} s:\n{self.tail()}")
            time.sleep(0.1)

    def tail(self) -> str:
        """Give the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
