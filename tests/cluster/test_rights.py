"""The operator with the very rights that the chart gives it: they are enough, and none is left over."""

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from controller.cluster import NODE, POD, Cluster
from controller.view import POOLS, WORKLOADS
from tests.cluster.helm import CHART, Helm
from tests.cluster.kubectl import Kubectl
from tests.cluster.operators import Operators, Write
from tests.cluster.rights import Right, Use, granted, unused, uses
from tests.cluster.scenery import deployment, made, node_pool, pool_scaler, until, workload_scaler
from tests.realparts import build, cloud
from tests.realparts.controlplane import ControlPlane
from tests.realparts.machines import Machines
from tests.realparts.processes import Process

RELEASE = "gpuscale"


@pytest.fixture
def helm(plane: ControlPlane, tmp_path: Path) -> Helm:
    try:
        return Helm(build.programs("helm") / "helm", tmp_path, plane)
    except build.MissingError as missing:
        pytest.skip(f"real parts: {missing}")


@pytest.fixture
def release(helm: Helm, kubectl: Kubectl, space: str) -> Iterator[str]:
    """The chart, installed; its controller is not run by kwok but by us. Gives the account's user name."""
    # the controller's pod finds no node: on one of the pool's it would keep that node, as any pod does
    values = "exporter.tolerations[0].operator=Exists,controller.nodeSelector.node=none"
    helm("install", RELEASE, str(CHART), "--namespace", space, "--set", values)
    yield f"system:serviceaccount:{space}:{RELEASE}"
    kubectl("delete", "gws,gnps", "--all", "-A", "--wait=false")
    helm.uninstall(RELEASE, space)


@pytest.fixture
async def machines(cluster: Cluster, release: str, tmp_path: Path) -> AsyncIterator[Machines]:
    """Real exporters for the pods of the chart's DaemonSet."""
    running = Machines(cluster, tmp_path)
    task = asyncio.create_task(running.run())
    yield running
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
def operator(plane: ControlPlane, kubectl: Kubectl, release: str, space: str, tmp_path: Path) -> Iterator[Process]:
    """The program of the chart's Deployment with its arguments, as a process, with the token of its account."""
    kubeconfig, address = tmp_path / "operator.kubeconfig", tmp_path / "operator.address"
    plane.write_kubeconfig(kubeconfig, kubectl("create", "token", RELEASE, "-n", space).strip())
    pod = kubectl.object("deployment", "-n", space, RELEASE)["spec"]["template"]["spec"]
    args = [arg for arg in pod["containers"][0]["args"] if not arg.startswith("--listen")]
    command = [sys.executable, "-m", "controller", "run", *args, "--kubeconfig", str(kubeconfig)]
    command += ["--listen", "127.0.0.1:0", "--address-file", str(address)]
    process = Process(command, tmp_path / "operator.log", environment={"PYTHONUNBUFFERED": "1"})
    process.wait_until(lambda: address.is_file() and _ready(address.read_text()), 60.0)
    yield process
    process.end()


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


async def running_pods(cluster: Cluster, space: str) -> int:
    pods = (await cluster.list(POD, space, label_selector="app=llm")).items
    return sum(pod.get("status", {}).get("phase") == "Running" for pod in pods)


async def test_the_operator_works_with_the_charts_rights_and_uses_each_of_them(
    plane: ControlPlane,
    cluster: Cluster,
    helm: Helm,
    space: str,
    release: str,
    machines: Machines,
    operator: Process,
) -> None:
    pool = node_pool("rights", size=1, gpusPerNode=2)
    async with made(cluster, cloud.POOL, pool), made(cluster, POOLS, pool_scaler(pool)):
        llm = deployment(space, "llm", replicas=2, pool="rights")
        machines.work[space, "llm"] = 150.0
        await cluster.create(cloud.DEPLOYMENT, llm, space)
        await until(lambda: running_pods(cluster, space), lambda count: count == 2)
        await cluster.create(WORKLOADS, workload_scaler(llm), space)
        machines.work[space, "llm"] = 380.0
        await until(lambda: running_pods(cluster, space), lambda count: count >= 4)
        machines.work[space, "llm"] = 50.0
        await until(lambda: running_pods(cluster, space), lambda count: count == 1)
        nodes = f"{cloud.POOL_LABEL}=rights"
        await until(lambda: cluster.list(NODE, label_selector=nodes), lambda found: len(found.items) == 1)
    rendered = helm.render(release=RELEASE, namespace=space)
    used = uses(plane.audit(), release)
    rights = granted(rendered.values())
    left = unused(rights, used)
    print(f"rights: {len(rights)} granted, {len(left)} never used", *left, sep="\n  ")
    refused = {(use.verb, use.resource, use.name) for use in used if not use.allowed}
    assert refused == set()
    assert left == []
    assert operator.running()


def test_a_right_that_nobody_used_is_found() -> None:
    role = {
        "kind": "ClusterRole",
        "metadata": {"name": "r"},
        "rules": [
            {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["list", "watch"]},
            {"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["get"]},
            {"apiGroups": ["g"], "resources": ["leases"], "resourceNames": ["a", "b"], "verbs": ["update"]},
        ],
    }
    used = [
        Use("", "pods", "", "list", allowed=True),
        Use("", "pods", "", "watch", allowed=False),
        Use("apps", "deployments/scale", "x", "get", allowed=True),
        Use("g", "leases", "a", "update", allowed=True),
    ]
    assert unused(granted([role]), used) == [
        Right("r", "", "pods", "*", "watch"),
        Right("r", "", "pods/status", "*", "list"),
        Right("r", "", "pods/status", "*", "watch"),
        Right("r", "g", "leases", "b", "update"),
    ]


def test_a_request_without_a_user_is_no_write_of_an_operator_and_a_half_written_line_waits(tmp_path: Path) -> None:
    plane = ControlPlane.__new__(ControlPlane)
    plane.folder = tmp_path
    event = {"verb": "patch", "requestURI": "/apis/x", "requestReceivedTimestamp": "t", "responseStatus": {"code": 200}}
    users: list[dict[str, str]] = [{}, {"username": "system:serviceaccount:ns:operator"}]
    rows = "".join(json.dumps(event | {"user": user}) + "\n" for user in users)
    (tmp_path / "audit.log").write_text(rows + '{"user": {"usern')
    operators = Operators(plane, Kubectl.__new__(Kubectl), "ns", tmp_path)
    assert list(operators.writes()) == [Write("t", "operator", "patch", "/apis/x", 200)]


def test_a_request_of_another_user_or_without_a_resource_is_no_use() -> None:
    audit = [
        {"user": {"username": "me"}, "verb": "get", "objectRef": {"resource": "pods", "name": "a"}},
        {"user": {"username": "you"}, "verb": "get", "objectRef": {"resource": "nodes"}},
        {"user": {"username": "me"}, "verb": "get", "requestURI": "/version"},
        {"user": {}, "verb": "get", "objectRef": {"resource": "nodes"}},
    ]
    assert uses(audit, "me") == [Use("", "pods", "a", "get", allowed=False)]
