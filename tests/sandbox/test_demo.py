"""The demo as a user starts it. Slow by nature: it runs in real time, with real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 150.0
Document = dict[str, Any]


class Demo:
    """A demo process, its output and the folder that it uses for temporary files."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.output = folder / "output"
        environment = os.environ | {"GPUSCALE_KUBECONFIG": "/nowhere", "GPUSCALE_EXPORTER_SIMULATE": "nothing"}
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "controller", "demo", *words],
                cwd=ROOT,
                env=environment | {"TMPDIR": str(self.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while words not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.1)

    def children(self) -> set[int]:
        """The ids of the processes that it has started and that still run."""
        found = set()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and fields[0] != "Z":
                found.add(int(stat.parent.name))
        return found

    def nothing_left(self, children: set[int]) -> bool:
        return not any(Path(f"/proc/{pid}").exists() for pid in children) and not list(self.temporary.iterdir())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def begin(*words: str) -> Demo:
        started.append(Demo(tmp_path, *words))
        return started[-1]

    yield begin
    for demo in started:
        if demo.process.poll() is None:
            demo.process.terminate()
            demo.process.wait(30)


def changes(document: Document, target: str) -> list[tuple[int, int]]:
    return [(c["from"], c["to"]) for c in document["changes"] if c["target"] == target]


@pytest.mark.timeout(240)
def test_in_less_than_a_minute_workload_and_pool_go_up_and_back_and_say_why(
    start: Callable[..., Demo], tmp_path: Path
) -> None:
    demo = start("--for", "50", "--json", str(tmp_path / "demo.json"), "--kubeconfig", str(tmp_path / "kubeconfig"))
    demo.wait_for("pool 1 (1 nodes")
    children = demo.children()
    assert len(children) == 2  # the operator and the first node's exporter
    assert (tmp_path / "kubeconfig").exists()
    assert demo.process.wait(WAIT_SECONDS) == 0, demo.text
    assert demo.nothing_left(children)
    assert not (tmp_path / "kubeconfig").exists()

    document = json.loads((tmp_path / "demo.json").read_text())
    assert document["outcome"] == "finished"
    for part in ("workload", "pool"):
        went = document[part]
        assert went["start"] == went["end"] == went["min"] < went["highest"], demo.text
        steps = changes(document, part)
        assert any(after > before for before, after in steps)
        assert any(after < before for before, after in steps)
    assert document["pool"]["nodes"]["end"] == 1
    assert all(change["reason"] and change["sentence"] for change in document["changes"]), demo.text
    assert document["reaction"]["workloadUp"]["count"] >= 1
    assert document["reaction"]["workloadUp"]["p95Seconds"] <= 5
    assert document["podsRemoved"]["serving"] >= 1
    assert document["podsRemoved"]["busyWhileIdleStayed"] == 0
    assert document["nodesRemoved"]
    assert document["nodesRemovedUnmarked"] == 0
    assert all(node["pods"] == 0 for node in document["nodesRemoved"])
    hours = document["gpuHours"]
    assert 0 < hours["busy"] < hours["pods"] <= hours["nodes"]


@pytest.mark.timeout(240)
def test_ctrl_c_ends_it_cleanly_with_the_summary_of_what_there_was(start: Callable[..., Demo], tmp_path: Path) -> None:
    demo = start("--json", str(tmp_path / "demo.json"))
    demo.wait_for("pool 1 (1 nodes")
    children = demo.children()
    demo.process.send_signal(signal.SIGINT)
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(60) == 0, demo.text
    assert "(interrupted)" in demo.text
    assert json.loads((tmp_path / "demo.json").read_text())["outcome"] == "interrupted"
    assert demo.nothing_left(children)


@pytest.mark.timeout(240)
def test_a_part_that_dies_ends_it_with_a_sentence_and_exit_code_1(start: Callable[..., Demo], tmp_path: Path) -> None:
    demo = start("--json", str(tmp_path / "demo.json"))
    demo.wait_for("pool 1 (1 nodes")
    children = demo.children()
    exporter = next(p for p in children if b"exporter" in Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0")[2])
    os.kill(exporter, signal.SIGKILL)
    assert demo.process.wait(60) == 1, demo.text
    assert "gpuscale demo: the exporter of node h100-1 ended with code -9" in demo.text
    assert json.loads((tmp_path / "demo.json").read_text())["outcome"] == "failed"
    assert demo.nothing_left(children)
