from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.cgroups import Named, Place, container_names, is_host_proc, live_pods, parse_cgroup, places, runs_in
from tests.exporter.host import Host, container_id, pod_uid

UID = "6b1b2c3d-1111-2222-3333-444455556666"
UNDER = UID.replace("-", "_")
ID = "ab" * 32
OTHER = "cd" * 32
HERE = (Place(UID, ID),)


@pytest.mark.parametrize(
    "text",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/cri-containerd-{ID}.scope\n",
        f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/crio-{ID}.scope/container\n",
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDER}.slice/docker-{ID}.scope\n",
        f"0::/kubepods/burstable/pod{UID}/{ID}\n",
        f"0::/kubepods/pod{UID}/{ID}/init.scope\n",
        f"12:memory:/kubepods/besteffort/pod{UID}/{ID}\n3:cpuset:/kubepods/besteffort/pod{UID}/{ID}\n0::/\n",
        f"5:devices:/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{ID}\n",
        f"0::/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDER}.slice/"
        f"cri-containerd-{ID}.scope\n",
        f"0::/system.slice/docker-{OTHER}.scope/kubelet/kubepods/pod{UID}/{ID}\n",
        f"0::/../../../kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/cri-containerd-{ID}.scope\n",
    ],
    ids=[
        "containerd v2",
        "cri-o",
        "docker",
        "cgroupfs",
        "inner scope",
        "v1",
        "containerd.service",
        "kind",
        "nested",
        "own namespace",
    ],
)
def test_pod_and_container_are_read_from_each_runtimes_cgroup(text: str) -> None:
    assert parse_cgroup(text) == HERE


def test_a_static_pods_uid_has_no_dashes() -> None:
    assert parse_cgroup(f"0::/kubepods/pod{'ef' * 16}/{ID}") == (Place("ef" * 16, ID),)


def test_a_pod_in_a_pod_is_told_from_the_outside_in() -> None:
    inner = pod_uid(9)
    text = f"0::/kubepods/pod{UID}/{ID}/docker/kubepods/pod{inner}/{OTHER}"
    assert parse_cgroup(text) == (Place(UID, ID), Place(inner, OTHER))


@pytest.mark.parametrize(
    "text",
    ["", "0::/\n", "0::/init.scope", "0::/user.slice/user-0.slice", f"0::/docker/{ID}", f"0::/kubepods/pod{UID}", "\0"],
)
def test_a_process_of_no_container_of_a_pod_has_no_place(text: str) -> None:
    assert parse_cgroup(text) == ()


@given(st.text())
def test_no_text_breaks_the_reading(text: str) -> None:
    assert isinstance(parse_cgroup(text), tuple)


def test_a_process_that_is_not_there_is_not_one_that_runs_nowhere(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.runs(10, UID, "a")
    host.process(11, "0::/init.scope\n")
    assert places(host.proc, [10, 11, 12]) == {10: (Place(UID, container_id("a")),), 11: (), 12: None}


def test_only_the_hosts_own_proc_shows_the_kernels_threads(tmp_path: Path) -> None:
    assert is_host_proc(Host(tmp_path / "host").proc)
    assert not is_host_proc(Host(tmp_path / "foreign", with_init=False).proc)
    assert not is_host_proc(tmp_path / "missing")


def test_a_pod_lives_while_any_process_of_it_does(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.runs(10, pod_uid(1), "pause")
    host.process(11, f"0::/kubepods/pod{pod_uid(2)}\n")
    (host.proc / "self").mkdir()
    (host.proc / "77").mkdir()
    assert live_pods(host.proc) == {pod_uid(1): 10, pod_uid(2): 11}
    assert runs_in(host.proc, 10, pod_uid(1))
    assert not runs_in(host.proc, 10, pod_uid(2)), "a pid that was given again"
    assert not runs_in(host.proc, 12, pod_uid(1))


def test_names_come_from_the_links_and_no_log_is_opened(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.named("llm-0", UID, "a", container="side-car")
    (host.logs / "something.else").write_text("x")
    (host.logs / f"plain_ml_main-{ID}.log").write_text("x")
    assert container_names(host.logs) == {
        container_id("a"): Named("ml", "llm-0", "side-car", UID),
        ID: Named("ml", "plain", "main", ""),
    }


def test_what_is_known_of_a_container_is_not_asked_again_until_it_is_whole(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.named("llm-0", UID, "a")
    link = host.logs / f"plain_ml_main-{ID}.log"
    link.write_text("x")
    known = container_names(host.logs)
    link.unlink()
    link.symlink_to(f"/var/log/pods/ml_plain_{UID}/main/0.log")
    again = container_names(host.logs, known)
    assert again[container_id("a")] is known[container_id("a")]
    assert again[ID] == Named("ml", "plain", "main", UID)
    (host.logs / f"llm-0_ml_main-{container_id('a')}.log").unlink()
    assert set(container_names(host.logs, again)) == {ID}, "nothing is kept of what is gone"
