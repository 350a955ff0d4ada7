"""``doctor`` as a person runs it: the real binding on the fake driver, and a host's directories made for the test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.exporter.host import Host, pod_uid
from tests.fakenvml.reader import ROOT, environment
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.state import LOST, MISMATCH, FakeDriver


def examined(library: Path, state: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "exporter", "doctor", "--json", *arguments],
        env=environment(library, state),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode, done.stderr
    return done.returncode, {check["name"]: check for check in document["checks"]}


def test_each_part_of_a_broken_node_is_told_with_its_cure(
    fake: FakeDriver, libraries: dict[str, Path], tmp_path: Path
) -> None:
    form = gpus(2)
    form["processes"] = [{"pid": 4000001, "gpu_uuid": uuid(0)}]
    load(fake, form)
    host = Host(tmp_path)
    host.runs(4000001, pod_uid(1), "main")
    host.named("p", pod_uid(1), "main")
    paths = ("--proc", str(host.proc), "--container-logs", str(host.logs))
    socket = ("--kubelet-socket", str(tmp_path / "kubelet.sock"))
    code, checks = examined(libraries["current"], fake.path, *paths, *socket)
    assert code == 1
    verdicts = {name: checks[name]["verdict"] for name in ("driver", "hostPID", "container logs", "kubelet")}
    assert verdicts == {"driver": "ok", "hostPID": "ok", "container logs": "ok", "kubelet": "problem"}
    assert checks["kubelet"]["finding"] == f"no_socket: {tmp_path / 'kubelet.sock'} is not there"
    assert checks["kubelet"]["cure"].startswith("mount the directory")
    fake.state.devices[1].error = LOST
    _, checks = examined(libraries["current"], fake.path, *paths, "--kubelet-socket", "")
    assert checks["gpu unknown-index-1"]["finding"] == "lost"
    assert checks["kubelet"]["verdict"] == "note"


def test_a_library_that_does_not_fit_the_kernel_module_is_told(fake: FakeDriver, libraries: dict[str, Path]) -> None:
    load(fake, gpus(1))
    fake.state.init_error = MISMATCH
    code, checks = examined(libraries["current"], fake.path, "--web-config-file", "/nowhere/web.yaml")
    assert code == 1
    assert checks["driver"]["finding"].startswith("lib_rm_version_mismatch")
    assert "reload the kernel module" in checks["driver"]["cure"]
    assert checks["web config"]["verdict"] == "problem"
