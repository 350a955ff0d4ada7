"""What doctor says of a machine, by a file system made for the test, and on the real socket of a kubelet."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.__main__ import main
from exporter.doctor import examine, exit_code, look, summary
from exporter.kubelet import KubeletAllocations
from exporter.readings import AbsentReason, Allocation, GpuReading, MigReading, SourceState
from exporter.simulated import SimulatedSource
from exporter.symptoms import Check, Found
from tests.exporter.build import UP, gpu, holds, process
from tests.exporter.host import Host, pod_uid

MODULE = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
NO_LIBRARY = SourceState(up=False, reason="library_not_found", message="libnvidia-ml.so.1 is not to be found; install")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A GPU node as root of the host sees it: one board, one pod on it that runs as process 7."""
    board(tmp_path, "0000:01:00.0", "nvidia")
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        put(tmp_path, f"dev/{name}", "")
    put(tmp_path, "proc/driver/nvidia/version", MODULE)
    host = Host(tmp_path)
    host.runs(7, pod_uid(1), "main")
    host.named("p", pod_uid(1), "main")
    return tmp_path


def put(root: Path, name: str, text: str) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def board(root: Path, address: str, driver: str) -> None:
    put(root, f"sys/bus/pci/devices/{address}/vendor", "0x10de\n")
    put(root, f"sys/bus/pci/devices/{address}/class", "0x030200\n")
    if driver:
        (root / f"sys/bus/pci/devices/{address}/driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def found(root: Path, *gpus: GpuReading, driver: SourceState = UP, kubelet: SourceState = UP, **more: Any) -> Found:
    facts: dict[str, Any] = {
        "allocations": (holds("p", "GPU-a"),),
        "library": put(root, "usr/lib/libnvidia-ml.so.550.54.15", ""),
        "container_logs": "/containers",
    }
    return Found(gpus, driver, "550.54.15", kubelet=kubelet, root=root, **(facts | more))


def one(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def used(pid: int = 7, **changed: Any) -> GpuReading:
    return gpu(processes=(process(pid),), **changed)


def test_a_sound_node_has_no_problem_and_ends_with_0(root: Path) -> None:
    checks = examine(found(root, used(), web_fault=""))
    names = ("driver", "versions", "devices", "kubelet", "hostPID", "cgroup", "container logs", "web config")
    assert [(check.name, check.verdict) for check in checks] == [(name, "ok") for name in names]
    assert not any(check.cure for check in checks)
    assert exit_code(checks) == 0
    assert summary(checks) == "all is fine (8 checks)"


def test_a_machine_without_any_gpu_is_told_plainly_and_is_no_problem(tmp_path: Path) -> None:
    checks = examine(found(tmp_path, driver=NO_LIBRARY))
    assert len(checks) == 1
    assert "no NVIDIA GPU" in checks[0].finding
    assert "nodeSelector" in checks[0].cure
    assert exit_code(checks) == 2


def test_a_gpu_without_its_library_is_a_problem_with_a_cure(root: Path) -> None:
    checks = examine(found(root, driver=NO_LIBRARY))
    finding = "library_not_found: libnvidia-ml.so.1 is not to be found"
    assert one(checks, "driver") == Check("driver", "problem", finding, "install")
    assert exit_code(checks) == 1


def test_a_driver_that_answers_but_shows_no_gpu_is_a_problem(root: Path) -> None:
    state = SourceState(up=True, reason="all_gpus_fail", message="start the pod again")
    assert one(examine(found(root, gpu(), driver=state)), "driver").verdict == "problem"


def test_a_library_of_another_version_than_the_module_is_named_with_both(root: Path) -> None:
    library = put(root, "usr/lib/libnvidia-ml.so.590.48.01", "")
    (root / "usr/lib/libnvidia-ml.so.1").symlink_to(library.name)
    check = one(examine(found(root, gpu(), library=root / "usr/lib/libnvidia-ml.so.1")), "versions")
    assert (check.verdict, check.finding) == ("problem", "the library is 590.48.01, the kernel module 550.54.15")
    assert "start the pod again" in check.cure
    (root / "proc/driver/nvidia/version").unlink()
    put(root, "sys/module/nvidia/version", "590.48.01\n")
    assert one(examine(found(root, gpu(), library=library)), "versions").verdict == "ok"


def test_boards_that_the_driver_does_not_show_are_told_by_who_has_them(root: Path) -> None:
    board(root, "0000:02:00.0", "nvidia")
    hidden = one(examine(found(root, gpu())), "boards")
    assert (hidden.verdict, hidden.finding) == ("problem", "1 of 2 boards of this node are shown here")
    assert "NVIDIA_VISIBLE_DEVICES=all" in hidden.cure
    board(root, "0000:03:00.0", "nouveau")
    board(root, "0000:04:00.0", "")
    board(root, "0000:05:00.0", "vfio-pci")
    told = [check for check in examine(found(root, gpu("GPU-a"), gpu("GPU-b"))) if check.name == "boards"]
    assert [check.verdict for check in told] == ["problem", "problem", "note"]
    assert "blacklist nouveau" in told[0].cure
    assert "modprobe nvidia" in told[1].cure


def test_device_files_that_are_missing_or_closed_are_problems(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as closed:
        closed.setattr(os, "access", lambda file, _mode: not str(file).endswith("nvidia0"))
        check = one(examine(found(root, gpu())), "devices")
    assert (check.verdict, check.finding) == ("problem", "no right to open /dev/nvidia0")
    assert "chmod a+rw /dev/nvidia0" in check.cure
    (root / "dev/nvidiactl").unlink()
    assert "runtimeClassName nvidia" in one(examine(found(root, gpu())), "devices").cure


def test_a_device_file_that_the_containers_device_cgroup_forbids_is_told_apart(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: Path, _flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    check = one(examine(found(root, gpu(processes=()))), "devices")
    assert "/dev/nvidia0 (Operation not permitted)" in check.finding
    assert "device cgroup" in check.cure


def test_a_gpu_that_does_not_answer_is_named(root: Path) -> None:
    checks = examine(found(root, gpu(), gpu("GPU-b", fault=AbsentReason.RESET_REQUIRED)))
    assert one(checks, "gpu GPU-b").finding == "reset_required"
    assert "--gpu-reset -i GPU-b" in one(checks, "gpu GPU-b").cure
    assert exit_code(checks) == 1
    assert summary(checks) == "problem: gpu GPU-b (1 of 7)"


@pytest.mark.parametrize(("reason", "verdict"), [("off", "note"), ("no_socket", "problem")])
def test_the_kubelets_own_cure_is_shown(root: Path, reason: str, verdict: str) -> None:
    state = SourceState(up=False, reason=reason, message="mount it")
    check = one(examine(found(root, gpu(), kubelet=state)), "kubelet")
    assert (check.verdict, "mount it" in check.finding + check.cure) == (verdict, True)


@pytest.fixture
def silent() -> Iterator[Path]:
    """A socket that accepts and never answers."""
    with tempfile.TemporaryDirectory(prefix="gs") as folder, socket.socket(socket.AF_UNIX) as listening:
        path = Path(folder) / "kubelet.sock"
        listening.bind(str(path))
        listening.listen()
        yield path


async def test_a_kubelet_that_accepts_and_never_answers_is_a_problem_with_a_cure(silent: Path) -> None:
    state = await look(SimulatedSource("1xT4", seed="n"), KubeletAllocations(str(silent), 0.2))
    check = one(examine(state), "kubelet")
    assert (check.verdict, check.finding.partition(":")[0]) == ("problem", "timeout")
    assert "look at its load and its log" in check.cure


def test_processes_that_cannot_be_seen_ask_for_the_hosts_pids(root: Path) -> None:
    assert one(examine(found(root, used(8))), "hostPID").verdict == "unknown"  # it may just have ended
    (root / "proc/2/comm").write_text("python\n")
    for seen in (7, 8):  # a pid of another namespace may exist here too: it is somebody else
        check = one(examine(found(root, used(seen))), "hostPID")
        assert check.verdict == "problem"
        assert "hostPID: true" in check.cure
    assert one(examine(found(root, gpu())), "hostPID").verdict == "note"
    assert one(examine(found(root, used(), proc="")), "hostPID").verdict == "note"


def test_processes_that_lead_to_no_pod_are_a_problem_of_the_cgroup_namespace(root: Path) -> None:
    put(root, "proc/7/cgroup", "0::/../..\n")
    check = one(examine(found(root, used())), "cgroup")
    assert (check.verdict, "cgroup namespace" in check.cure) == ("problem", True)


def test_a_folder_of_container_logs_that_does_not_serve_is_told_with_its_cure(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(finding: str, cure: str, **more: Any) -> None:
        check = one(examine(found(root, used(), **more)), "container logs")
        assert (check.verdict, finding in check.finding, cure in check.cure) == ("problem", True, True), check

    told("No such file", "mount the host's /var/log/containers", container_logs="/elsewhere")
    (root / "empty").mkdir()
    told("/empty is empty", "it is not the host's", container_logs="/empty")
    put(root, "other/syslog", "")
    told("1 entries and none is named", "mount", container_logs="/other")
    Host(root / "old").named("p", pod_uid(1), "before")
    told("none of 1 containers on the GPUs is among the 1 names", "old copy", container_logs="/old/containers")

    def refuse(_directory: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    told("may not be listed", "run as user 0")


def test_a_device_id_that_leads_nowhere_is_shown_with_its_holder(root: Path) -> None:
    odd = Allocation("ml", "p", "main", "nvidia.com/gpu", ("GPU-z", "nvidia7"))
    check = one(examine(found(root, gpu(), allocations=(odd,))), "device ids")
    assert check.finding == "unknown_device: 2 devices of containers, such as GPU-z of ml/p/main"
    claimed = Allocation("ml", "p", "main", "gpu.nvidia.com", ("gpu-0-mig-1g10gb-19-0",))
    board = gpu(mig_enabled=True, mig=(MigReading("MIG-x", 7, 0, "1g.10gb"),))
    check = one(examine(found(root, board, allocations=(claimed,))), "device ids")
    assert "see the check MIG" in check.cure


def test_a_partitioned_gpu_needs_the_right_to_look_at_all_its_instances(root: Path) -> None:
    split = found(root, gpu(mig_enabled=True))
    blind = one(examine(split), "MIG")
    assert (blind.verdict, "NVIDIA_MIG_MONITOR_DEVICES=all" in blind.cure) == ("unknown", True)
    put(root, "proc/driver/nvidia/capabilities/mig/monitor", "DeviceFileMinor: 2\nDeviceFileMode: 292\n")
    absent = one(examine(split), "MIG")
    assert "nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/monitor" in absent.cure
    file = put(root, "dev/nvidia-caps/nvidia-cap2", "")
    assert one(examine(split), "MIG").verdict == "ok"
    if os.geteuid():
        file.chmod(0)
        assert "chmod a+r /dev/nvidia-caps/nvidia-cap2" in one(examine(split), "MIG").cure


def test_a_web_config_that_cannot_be_served_is_a_problem_even_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(tmp_path, "web.yaml", "tls_server_config:\n  cert_file: gone.crt\n  key_file: gone.key\n")
    options = ("doctor", "--simulate", "2xT4", "--json", "--web-config-file")
    assert main([*options, str(file)]) == 1
    told = json.loads(capsys.readouterr().out)["checks"][-1]
    assert (told["name"], "gone.crt is not to be found" in told["finding"]) == ("web config", True)
    file.write_text("http_server_config: {}\n")
    assert main([*options, str(file)]) == 0
    assert main([*options, str(tmp_path / "absent.yaml")]) == 1


def test_the_worst_of_all_checks_is_the_exit_code() -> None:
    def code(*verdicts: str) -> int:
        return exit_code([Check("x", verdict, "") for verdict in verdicts])  # type: ignore[arg-type]

    assert (code("ok", "note"), code("ok", "unknown"), code("unknown", "problem"), code()) == (0, 2, 1, 2)


def test_the_command_prints_text_or_json_and_refuses_unknown_flags(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--simulate", "2xT4", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code == 0
    assert document["checks"][0] == {
        "name": "driver",
        "verdict": "ok",
        "finding": document["checks"][0]["finding"],
        "cure": "",
    }
    assert main(["doctor", "--simulate", "2xT4"]) == code
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert (first, second.partition(",")[0]) == ("all is fine (1 check)", "ok       driver: version 550.54.15")
    assert main(["doctor", "--jsn"]) == 2
    assert "--jsn" in capsys.readouterr().err
