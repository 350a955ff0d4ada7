"""A fake host: a /proc tree and /var/log/containers, as a node has them."""

import shutil
from pathlib import Path

SYSTEMD = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{id}.scope"


def container_id(name: str) -> str:
    return name.encode().hex().ljust(64, "0")[:64]


def pod_uid(number: int) -> str:
    return f"{number:08x}-1111-4222-8333-444455556666"


class Host:
    """A node's directories. ``with_init`` False = the /proc of another pid namespace, where 2 is any process."""

    def __init__(self, root: Path, *, with_init: bool = True) -> None:
        self.proc = root / "proc"
        self.logs = root / "containers"
        self.logs.mkdir(parents=True)
        self.process(2, "0::/\n", comm="kthreadd" if with_init else "bash")

    def process(self, pid: int, cgroup: str, comm: str = "python") -> None:
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(cgroup)
        (folder / "comm").write_text(comm + "\n")

    def runs(self, pid: int, uid: str, name: str) -> None:
        """Process ``pid`` runs in the container ``name`` of the pod ``uid``."""
        self.process(pid, SYSTEMD.format(under=uid.replace("-", "_"), id=container_id(name)) + "\n")

    def named(self, pod: str, uid: str, name: str, container: str = "main", namespace: str = "ml") -> None:
        """Add the kubelet's link to that container's log."""
        link = self.logs / f"{pod}_{namespace}_{container}-{container_id(name)}.log"
        link.symlink_to(f"/var/log/pods/{namespace}_{pod}_{uid}/{container}/0.log")

    def ends(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))
