"""The operator as users run it: ``gpuscale run`` as a process, against the real API server."""

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.kubectl import Kubectl
from tests.cluster.scenery import until
from tests.realparts.controlplane import ControlPlane
from tests.realparts.processes import Process

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30.0
WRITES = {"create", "update", "patch", "delete"}


@dataclass(frozen=True, slots=True)
class Write:
    """What an operator did to the cluster, as the API server's audit log has it."""

    at: str
    user: str
    verb: str
    path: str
    code: int


@dataclass
class Operators:
    """All operators of one test. Each has a user of its own, so that the audit log tells them apart."""

    plane: ControlPlane
    kubectl: Kubectl
    namespace: str
    folder: Path
    running: list[Process] = field(default_factory=list)

    def start(self, name: str = "operator", *flags: str, tick: str = "1") -> Process:
        """Start one and wait until its copies of the cluster are whole."""
        address = self.folder / f"{name}.address"
        command = [
            *(sys.executable, "-m", "controller", "run", "--tick", tick, "--identity", name),
            *("--kubeconfig", str(self._kubeconfig(name)), "--lease-namespace", self.namespace),
            *("--listen", "127.0.0.1:0", "--address-file", str(address), *flags),
        ]
        process = Process(command, self.folder / f"{name}.log", environment={"PYTHONUNBUFFERED": "1"})
        self.running.append(process)
        process.wait_until(lambda: address.is_file() and _ready(address.read_text()), START_SECONDS)
        return process

    async def passes(self, number: int, name: str = "operator") -> None:
        """Return after so many more whole looks of an operator at everything."""
        address = (self.folder / f"{name}.address").read_text()
        start = _passes(address)

        async def look() -> int:
            return _passes(address) - start

        await until(look, lambda more: more >= number)

    def stop(self) -> None:
        """End all."""
        for process in self.running:
            process.end()

    def user(self, name: str) -> str:
        """Give the name under which the API server knows an operator."""
        return f"system:serviceaccount:{self.namespace}:{name}"

    def writes(self, name: str = "operator") -> Iterator[Write]:
        """Give all that one operator wrote, in order, but for its Lease and its Events."""
        for event in self.plane.audit():
            # a request that an API server which is just starting has refused with 401 has no user
            if event["user"].get("username") != self.user(name) or event["verb"] not in WRITES:
                continue
            path = event["requestURI"].partition("?")[0]
            if "/leases" not in path and "/events" not in path:
                code = event.get("responseStatus", {}).get("code", 0)
                yield Write(event["requestReceivedTimestamp"], name, event["verb"], path, code)

    def scale_writes(self, name: str = "operator") -> list[Write]:
        """Give the writes of sizes."""
        return [write for write in self.writes(name) if write.path.endswith("/scale")]

    def _kubeconfig(self, name: str) -> Path:
        self.kubectl("create", "serviceaccount", name, "-n", self.namespace)
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        self.kubectl.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"{self.namespace}-{name}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [subject],
            }
        )
        token = self.kubectl("create", "token", name, "-n", self.namespace).strip()
        path = self.folder / f"{name}.kubeconfig"
        self.plane.write_kubeconfig(path, token)
        return path


def _passes(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        rows = answer.read().decode().splitlines()
    return sum(int(float(row.split()[-1])) for row in rows if row.startswith("gpuscale_tick_seconds_count"))


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
