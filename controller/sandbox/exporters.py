"""The exporters of the simulated nodes: one real process for each, started as a user would, and its pod.

Why it exists: nothing between the exporter and the operator is faked. A node's exporter reads the node's simulation
file, listens on a port of its own on loopback, and has a pod by which the operator finds it.
"""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from controller.sandbox.children import end_process, last_line, start
from controller.sandbox.conditions import condition, with_conditions
from controller.sandbox.errors import StatusError
from controller.sandbox.kinds import DAEMON_SETS, NODES, PODS
from controller.sandbox.kubelet import MANAGED
from controller.sandbox.store import Store
from controller.sandbox.strategy import timestamp
from controller.sandbox.workloads import owner_reference

Object = dict[str, Any]

NAMESPACE = "gpuscale-system"
EXPORTER_POLL_SECONDS = 0.5
EXPORTER_GAP_SECONDS = 1.5 * EXPORTER_POLL_SECONDS
"""The most between two polls: one may be put off, to end right before the operator's next read."""
LABELS = {"app.kubernetes.io/name": "gpuscale-exporter"}


class Exporter(Protocol):
    """What runs for a node: where it listens once it does, whether it has died, and how to end it."""

    def port(self) -> int | None:
        """Give the port it listens on; None = not yet."""

    def died(self) -> str | None:
        """Say how it ended, if it has; None = it runs."""

    def begin_stop(self) -> None:
        """Ask it to end; returns at once."""

    def finish_stop(self) -> None:
        """Wait until it has ended, at most a few seconds."""


class Starter(Protocol):
    """Starts the exporter of a node."""

    def __call__(self, node: str, simulation: Path) -> Exporter:
        """Start it."""


@dataclass
class ExporterProcess:
    """A real exporter: `python -m exporter --simulate FILE`."""

    node: str
    process: subprocess.Popen[bytes]
    address_file: Path
    log_file: Path

    def port(self) -> int | None:
        """Give the port it listens on; None = not yet."""
        try:
            return int(self.address_file.read_text().strip().rpartition(":")[2])
        except (OSError, ValueError):
            return None

    def died(self) -> str | None:
        """Say how it ended, if it has; None = it runs."""
        code = self.process.poll()
        if code is None:
            return None
        return f"the exporter of node {self.node} ended with code {code}: {last_line(self.log_file)}"

    def begin_stop(self) -> None:
        """Ask it to end; returns at once."""
        if self.process.poll() is None:
            self.process.terminate()

    def finish_stop(self) -> None:
        """Wait until it has ended, at most a few seconds."""
        end_process(self.process)


def start_process(node: str, simulation: Path) -> Exporter:
    """Start the exporter of a node; its address and its log lie beside its simulation file."""
    address, log = simulation.with_suffix(".address"), simulation.with_suffix(".log")
    address.unlink(missing_ok=True)
    words = ["--simulate", str(simulation), "--node", node, "--listen", "127.0.0.1:0"]
    words += ["--address-file", str(address), "--poll-seconds", f"{EXPORTER_POLL_SECONDS:g}"]
    with log.open("wb") as sink:
        process = start([sys.executable, "-m", "exporter", *words], sink.fileno())
    return ExporterProcess(node, process, address, log)


@dataclass
class Exporters:
    """The DaemonSet of exporters over a store. ``folder``: where simulation files lie."""

    store: Store
    folder: Path
    starter: Starter = start_process
    running: dict[str, Exporter] = field(default_factory=dict)
    _leaving: list[Exporter] = field(default_factory=list)

    def simulation_file(self, node: str) -> Path:
        """Give the file that a node's exporter reads."""
        return self.folder / f"{node}.json"

    def step(self, now: float) -> None:
        """Start the exporters of new nodes, give those that listen their pod, end those of nodes that have gone."""
        nodes = {node["metadata"]["name"] for node in self.store.list(NODES)}
        for name in sorted(nodes - self.running.keys()):
            if self.simulation_file(name).exists():
                self.running[name] = self.starter(name, self.simulation_file(name))
        for name in sorted(self.running.keys() - nodes):
            self._stop(name)
        for name, exporter in self.running.items():
            self._show(name, exporter, now)
        self._report(len(nodes))

    def failure(self) -> str | None:
        """Say which exporter has died, if one has."""
        return next((said for exporter in self.running.values() if (said := exporter.died())), None)

    def all_ready(self) -> bool:
        """Whether each node has an exporter that listens."""
        return all(exporter.port() is not None for exporter in self.running.values())

    def close(self) -> None:
        """End every exporter that is left."""
        for exporter in self.running.values():
            exporter.begin_stop()
        for exporter in [*self.running.values(), *self._leaving]:
            exporter.finish_stop()
        self.running.clear()
        self._leaving.clear()

    def _stop(self, node: str) -> None:
        exporter = self.running.pop(node)
        exporter.begin_stop()
        self._leaving.append(exporter)
        self._leaving = [left for left in self._leaving if left.died() is None]
        try:
            self.store.delete(PODS, NAMESPACE, pod_name(node))
        except StatusError:
            return  # its exporter never listened, so it had no pod

    def _show(self, node: str, exporter: Exporter, now: float) -> None:
        port = exporter.port()
        if port is None or self._has_pod(node):
            return
        pod = self.store.create(PODS, exporter_pod(node, port, self._owner()))
        meta = pod["metadata"]
        self.store.patch(PODS, meta["namespace"], meta["name"], {"status": _running(now)}, "status")

    def _has_pod(self, node: str) -> bool:
        return any(p["metadata"]["name"] == pod_name(node) for p in self.store.list(PODS, NAMESPACE))

    def _owner(self) -> Object:
        """Give the DaemonSet; one that somebody deleted is made again."""
        document = daemon_set()
        name = document["metadata"]["name"]
        found = [d for d in self.store.list(DAEMON_SETS, NAMESPACE) if d["metadata"]["name"] == name]
        return found[0] if found else self.store.create(DAEMON_SETS, document)

    def _report(self, nodes: int) -> None:
        ready = len(self.store.list(PODS, NAMESPACE))
        status = {"desiredNumberScheduled": nodes, "currentNumberScheduled": ready, "numberReady": ready}
        status |= {"numberAvailable": ready, "updatedNumberScheduled": ready, "numberMisscheduled": 0}
        meta = self._owner()["metadata"]
        self.store.patch(DAEMON_SETS, NAMESPACE, meta["name"], {"status": status}, "status")


def pod_name(node: str) -> str:
    """Name the exporter's pod on a node."""
    return f"gpuscale-exporter-{node}"


def daemon_set() -> Object:
    """Make the DaemonSet that owns the exporters' pods."""
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "exporter", "image": "gpuscale"}]}}
    spec = {"selector": {"matchLabels": LABELS}, "template": template}
    return {"metadata": {"name": "gpuscale-exporter", "namespace": NAMESPACE, "labels": LABELS}, "spec": spec}


def exporter_pod(node: str, port: int, owner: Object) -> Object:
    """Make the pod of the exporter that listens on a port of this machine."""
    container = {
        "name": "exporter",
        "image": "gpuscale",
        "ports": [{"name": "metrics", "containerPort": port, "protocol": "TCP"}],
    }
    return {
        "metadata": {
            "name": pod_name(node),
            "namespace": NAMESPACE,
            "labels": {**LABELS, MANAGED: "true"},
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {"nodeName": node, "hostNetwork": True, "containers": [container]},
    }


def _running(now: float) -> Object:
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    state = {"running": {"startedAt": timestamp(now)}}
    return {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "hostIP": "127.0.0.1",
        "startTime": timestamp(now),
        "conditions": with_conditions([], now, *(condition(kind, status=True) for kind in kinds)),
        "containerStatuses": [
            {
                "name": "exporter",
                "image": "gpuscale",
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": state,
            }
        ],
    }
