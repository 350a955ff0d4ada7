"""What doctor says of a machine, by a file system made for the test."""

import json
import os
from pathlib import Path

import pytest

from exporter.__main__ import main
from exporter.doctor import Check, Found, examine, exit_code
from exporter.readings import AbsentReason, GpuReading, SourceState
from tests.exporter.build import UP, gpu, holds, process

NO_LIBRARY = SourceState(up=False, reason="library_not_found", message="libnvidia-ml.so.1 is not to be found; install")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A GPU node as root of the host sees it."""
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    put(tmp_path, "sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")
    put(tmp_path, "proc/2/comm", "kthreadd\n")
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        put(tmp_path, f"dev/{name}", "")
    return tmp_path


def put(root: Path, name: str, text: str) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def found(root: Path, *gpus: GpuReading, driver: SourceState = UP, kubelet: SourceState = UP) -> Found:
    return Found(gpus, driver, "550.54.15", (holds("p", "GPU-a"),), kubelet, root)


def one(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_sound_node_has_no_problem_and_ends_with_0(root: Path) -> None:
    put(root, "proc/7/cgroup", "0::/kubepods.slice/kubepods-pod0a1b2c3d_1111.slice/cri-containerd-ab.scope\n")
    checks = examine(found(root, gpu(processes=(process(7),))))
    assert [(check.name, check.verdict) for check in checks] == [
        (name, "ok") for name in ("driver", "devices", "kubelet", "hostPID", "cgroup")
    ]
    assert not any(check.cure for check in checks)
    assert exit_code(checks) == 0


def test_a_machine_without_any_gpu_is_told_plainly_and_is_no_problem(tmp_path: Path) -> None:
    checks = examine(found(tmp_path, driver=NO_LIBRARY))
    assert len(checks) == 1
    assert "no NVIDIA GPU" in checks[0].finding
    assert "nodeSelector" in checks[0].cure
    assert exit_code(checks) == 2


def test_a_gpu_without_its_library_is_a_problem_with_a_cure(root: Path) -> None:
    checks = examine(found(root, driver=NO_LIBRARY))
    assert one(checks, "driver") == Check("driver", "problem", NO_LIBRARY.reason, NO_LIBRARY.message)
    assert exit_code(checks) == 1


def test_device_files_that_are_missing_or_closed_are_problems(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda file, _mode: not str(file).endswith("nvidia0"))
    closed = one(examine(found(root, gpu())), "devices")
    assert (closed.verdict, closed.finding) == ("problem", "no right to open /dev/nvidia0")
    assert "chmod a+rw /dev/nvidia0" in closed.cure
    (root / "dev/nvidiactl").unlink()
    assert "runtimeClassName nvidia" in one(examine(found(root, gpu())), "devices").cure


def test_a_gpu_that_does_not_answer_is_named(root: Path) -> None:
    checks = examine(found(root, gpu(), gpu("GPU-b", fault=AbsentReason.LOST)))
    assert one(checks, "gpu GPU-b").finding == "lost"
    assert exit_code(checks) == 1


@pytest.mark.parametrize(("reason", "verdict"), [("off", "note"), ("no_socket", "problem")])
def test_the_kubelets_own_cure_is_shown(root: Path, reason: str, verdict: str) -> None:
    state = SourceState(up=False, reason=reason, message="mount it")
    check = one(examine(found(root, gpu(), kubelet=state)), "kubelet")
    assert (check.verdict, "mount it" in check.finding + check.cure) == (verdict, True)


def test_processes_that_cannot_be_seen_ask_for_the_hosts_pids(root: Path) -> None:
    check = one(examine(found(root, gpu(processes=(process(7), process(8))))), "hostPID")
    assert check.verdict == "problem"
    assert "hostPID: true" in check.cure
    (root / "proc/2/comm").write_text("python\n")
    assert one(examine(found(root, gpu())), "hostPID").verdict == "note"


def test_processes_that_lead_to_no_pod_are_a_problem_of_the_cgroup_namespace(root: Path) -> None:
    put(root, "proc/7/cgroup", "0::/../..\n")
    check = one(examine(found(root, gpu(processes=(process(7),)))), "cgroup")
    assert (check.verdict, "cgroup namespace" in check.cure) == ("problem", True)


def test_a_partitioned_gpu_needs_the_right_to_look_at_all_its_instances(root: Path) -> None:
    split = found(root, gpu(mig_enabled=True))
    assert one(examine(split), "MIG").verdict == "unknown"
    put(root, "proc/driver/nvidia/capabilities/mig/monitor", "DeviceFileMinor: 2\nDeviceFileMode: 292\n")
    assert "NVIDIA_MIG_MONITOR_DEVICES=all" in one(examine(split), "MIG").cure
    put(root, "dev/nvidia-caps/nvidia-cap2", "")
    assert one(examine(split), "MIG").verdict == "ok"


def test_the_worst_of_all_checks_is_the_exit_code() -> None:
    def code(*verdicts: str) -> int:
        return exit_code([Check("x", verdict, "") for verdict in verdicts])  # type: ignore[arg-type]

    assert (code("ok", "note"), code("ok", "unknown"), code("unknown", "problem"), code()) == (0, 2, 1, 2)


def test_the_command_prints_text_or_json_and_refuses_unknown_flags(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--simulate", "2xT4", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    assert document["checks"][0] == {
        "name": "driver",
        "verdict": "ok",
        "finding": document["checks"][0]["finding"],
        "cure": "",
    }
    assert main(["doctor", "--simulate", "2xT4"]) == code
    assert "ok       driver: version" in capsys.readouterr().out
    assert main(["doctor", "--jsn"]) == 2
    assert "--jsn" in capsys.readouterr().err
