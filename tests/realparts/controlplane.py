"""A throw-away Kubernetes control plane on loopback: etcd, API server, controller manager, scheduler.

Why it exists: the emulator must never know something else than the real API, so the same checks run here.
``with ControlPlane(Path(bin)) as plane`` gives ``plane.server``, ``plane.token``, ``plane.ca`` and a kubeconfig;
leaving the block ends every process by pid and removes the folder (``keep_logs`` leaves it).
"""

import json
import secrets
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.realparts import certificates
from tests.realparts.processes import Folder, Process

START_SECONDS = 60.0
NODE_GRACE_SECONDS = 12
"""A node that is silent for so long is not ready; Kubernetes' own default is 50."""
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
"""Who did what: from it the tests read that never two operators wrote, and which rights were used."""


def free_port() -> int:
    """A port on loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ControlPlane:
    """One real control plane. Binaries are taken from ``binaries``; nothing outside ``folder`` is written."""

    def __init__(self, binaries: Path, *, hpa_sync_seconds: int = 15) -> None:
        self.binaries = binaries
        self._folder = Folder("gpuscale-plane-")
        self.folder = self._folder.path
        self.token = secrets.token_hex(16)
        self.port = free_port()
        self.server = f"https://127.0.0.1:{self.port}"
        self.keep_logs = False
        self._hpa_sync = hpa_sync_seconds
        self._etcd = f"http://127.0.0.1:{free_port()}"
        self._tokens = {name: secrets.token_hex(16) for name in ("kube-controller-manager", "kube-scheduler")}
        self._processes: dict[str, Process] = {}

    @property
    def ca(self) -> Path:
        """The certificate that signed the API server's."""
        return self.folder / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig."""
        return self.folder / "admin.kubeconfig"

    def __enter__(self) -> Self:
        """Start everything; on a failure nothing is left running."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None) -> None:
        """End every process, remove the folder."""
        self.stop()

    def start(self) -> None:
        """Start the programs in order, each when the one before it answers. About 8 s."""
        certificates.write(self.folder)
        self._write_tokens()
        (self.folder / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        self.run("etcd", self._etcd_args())
        self._wait("etcd", lambda: self._answers(f"{self._etcd}/health"))
        self.start_api_server()
        for name in ("kube-controller-manager", "kube-scheduler"):
            self.write_kubeconfig(self.folder / f"{name}.kubeconfig", self._tokens[name])
        self.run("kube-controller-manager", self._manager_args())
        self.run("kube-scheduler", self._scheduler_args())
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("kube-controller-manager", lambda: self._answers(self.server + path))

    def start_api_server(self) -> None:
        """Start (or start again) the API server and wait until it is ready."""
        self.run("kube-apiserver", self._api_server_args())
        self.write_kubeconfig(self.kubeconfig, self.token)
        self._wait("kube-apiserver", lambda: self._answers(f"{self.server}/readyz"))

    def kill_api_server(self) -> None:
        """End the API server at once, as a crash would."""
        self._end("kube-apiserver", signal.SIGKILL)

    def stop(self) -> None:
        """End all, the API server and etcd last. Safe to call twice."""
        for name in self._processes.keys() - {"etcd", "kube-apiserver"}:
            self._processes[name].send(signal.SIGTERM)
        for name in sorted(self._processes, key=lambda name: (name == "etcd", name == "kube-apiserver")):
            self._end(name, signal.SIGTERM)
        if self.keep_logs:
            self._folder.keep()
        else:
            self._folder.remove()

    def get(self, path: str) -> object:
        """GET as administrator, the JSON answer."""
        return json.loads(self._open(self.server + path))

    def audit(self) -> Iterator[dict[str, Any]]:
        """Give what the API server has been asked so far, as audit.k8s.io/v1 events in the order of their answers."""
        for line in (self.folder / "audit.log").read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # the last may be half written
                yield json.loads(line)

    def run(self, name: str, args: Sequence[str | Path]) -> Process:
        """Start one of the real programs; it ends with the plane."""
        return self.program(name, [self.binaries / name, *args])

    def program(self, name: str, command: Sequence[str | Path]) -> Process:
        """Start any program, with a log of its own; it ends with the plane."""
        self._processes[name] = Process(command, self.folder / f"{name}.log")
        return self._processes[name]

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.end(how)

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        self._processes[name].wait_until(ready, START_SECONDS)

    def _answers(self, url: str) -> bool:
        try:
            self._open(url)
        except (urllib.error.URLError, OSError):
            return False
        return True

    def _open(self, url: str) -> bytes:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})  # noqa: S310 loopback
        context = ssl.create_default_context(cafile=str(self.ca)) if url.startswith("https") else None
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:  # noqa: S310 loopback
            return bytes(answer.read())

    def _write_tokens(self) -> None:
        rows = [f'{self.token},admin,admin,"system:masters"']
        rows += [f"{token},system:{name},{name}" for name, token in self._tokens.items()]
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")

    def write_kubeconfig(self, path: Path, token: str) -> None:
        """Write a kubeconfig for the owner of a token."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.server, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)

    def _etcd_args(self) -> list[str]:
        peer = f"http://127.0.0.1:{free_port()}"
        return [
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        ]

    def _api_server_args(self) -> list[str]:
        folder = self.folder
        return [
            f"--etcd-servers={self._etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={folder}/server.crt",
            f"--tls-private-key-file={folder}/server.key",
            f"--client-ca-file={self.ca}",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://127.0.0.1",
            f"--service-account-key-file={folder}/service-accounts.pub",
            f"--service-account-signing-key-file={folder}/service-accounts.key",
            "--service-cluster-ip-range=10.255.0.0/24",
            f"--requestheader-client-ca-file={self.ca}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={folder}/front-proxy.crt",
            f"--proxy-client-key-file={folder}/front-proxy.key",
            "--allow-privileged=true",
            f"--audit-policy-file={folder}/audit-policy.yaml",
            f"--audit-log-path={folder}/audit.log",
        ]

    def _manager_args(self) -> list[str]:
        return [
            *self._component_args("kube-controller-manager"),
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self.folder}/service-accounts.key",
            f"--root-ca-file={self.ca}",
            f"--horizontal-pod-autoscaler-sync-period={self._hpa_sync}s",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
        ]

    def _scheduler_args(self) -> list[str]:
        return self._component_args("kube-scheduler")

    def _component_args(self, name: str) -> list[str]:
        config = self.folder / f"{name}.kubeconfig"
        return [
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
        ]
