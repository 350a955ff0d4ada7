"""kubectl against the embedded API: what a newcomer types has to work and to look as on a cluster."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from controller import crds

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = shutil.which("kubectl")
PATIENCE_SECONDS = 60

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm, labels: {team: ml}}
spec:
  replicas: 2
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec:
      containers:
      - name: server
        image: example.com/vllm:1
        env: [{name: A, value: "1"}]
        resources: {limits: {nvidia.com/gpu: 1}}
"""
SCALER = """
apiVersion: gpuscale.dev/v1alpha1
kind: GPUWorkloadScaler
metadata: {name: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llm}
  maxReplicas: 8
  metrics:
  - type: GPU
    gpu: {name: utilization, target: {type: Utilization, averageUtilization: 70}}
"""
POOL = """
apiVersion: gpuscale.dev/v1alpha1
kind: GPUNodePoolScaler
metadata: {name: h100}
spec:
  pool:
    ref: {apiVersion: apps/v1, kind: Deployment, namespace: default, name: pool}
    nodeSelector: {pool: h100}
  bounds: {min: 0, max: 4}
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: gpu-0, labels: {pool: h100, node-role.kubernetes.io/gpu: ""}}
status:
  nodeInfo: {kubeletVersion: v1.36.0}
  conditions: [{type: Ready, status: "True"}]
  allocatable: {nvidia.com/gpu: "8"}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: llm-0, labels: {app: llm}}
spec: {nodeName: gpu-0, containers: [{name: server, image: "example.com/vllm:1"}]}
"""


class Kubectl:
    """kubectl with its own configuration and cache."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._folder = folder
        self.command = [str(KUBECTL), "--kubeconfig", str(config), "--cache-dir", str(folder / "cache")]
        self.environment = {**os.environ, "HOME": str(folder), "KUBECTL_KUBERC": "false"}

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *words],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def __call__(self, *words: str, stdin: str = "") -> str:
        """Output of a command that has to succeed."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def apply(self, *manifests: str, server_side: bool = False) -> str:
        words = ["--server-side"] if server_side else []
        return self("apply", *words, "-f", "-", stdin="---\n".join(manifests))

    def table(self, *words: str) -> list[list[str]]:
        return [line.split() for line in self("get", *words).splitlines()]


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    folder = tmp_path_factory.mktemp("kubectl")
    config = folder / "kubeconfig"
    command = [sys.executable, "-m", "controller.sandbox.api", "--kubeconfig", str(config)]
    with subprocess.Popen(command, cwd=ROOT) as server:
        try:
            end = time.monotonic() + PATIENCE_SECONDS
            while not config.exists():
                assert server.poll() is None, "the embedded API ended"
                assert time.monotonic() < end, "the embedded API did not start"
                time.sleep(0.02)
            run = Kubectl(folder, config)
            run("apply", "-f", "-", stdin=yaml.safe_dump_all(crds.definitions()))
            run("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
            yield run
        finally:
            server.terminate()


@pytest.fixture
def objects(kubectl: Kubectl) -> Iterator[None]:
    """The objects that most tests look at, new for each."""
    kubectl.apply(DEPLOYMENT, SCALER, POOL, POD)
    kubectl("create", "-f", "-", stdin=NODE)
    yield
    kubectl("delete", "--now", "--ignore-not-found", "-f", "-", stdin="---\n".join((DEPLOYMENT, SCALER, POOL, NODE)))
    kubectl("delete", "pods", "--all", "--force", "--grace-period=0")


def test_an_applied_object_is_created_then_unchanged_then_configured(kubectl: Kubectl) -> None:
    words = [kubectl.apply(DEPLOYMENT, SCALER) for _ in range(2)]
    changed = kubectl.apply(DEPLOYMENT.replace("replicas: 2", "replicas: 3"), SCALER.replace("70", "60"))
    kubectl("delete", "deploy/llm", "gws/llm")
    assert [line.split()[-1] for line in words[0].splitlines()] == ["created", "created"]
    assert [line.split()[-1] for line in words[1].splitlines()] == ["unchanged", "unchanged"]
    assert [line.split()[-1] for line in changed.splitlines()] == ["configured", "configured"]


@pytest.mark.usefixtures("objects")
def test_an_apply_takes_out_what_is_no_longer_in_the_file(kubectl: Kubectl) -> None:
    kubectl.apply(
        DEPLOYMENT.replace("labels: {team: ml}", "labels: {}").replace('        env: [{name: A, value: "1"}]\n', "")
    )
    found = json.loads(kubectl("get", "deploy", "llm", "-o", "json"))
    assert "labels" not in found["metadata"]
    assert "env" not in found["spec"]["template"]["spec"]["containers"][0]


def test_a_server_side_apply_owns_its_fields_and_conflicts_with_others(kubectl: Kubectl) -> None:
    kubectl.apply(DEPLOYMENT, SCALER, server_side=True)
    kubectl("scale", "deploy/llm", "--replicas=5")
    refused = kubectl.run("apply", "--server-side", "-f", "-", stdin=DEPLOYMENT)
    forced = kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=DEPLOYMENT)
    kubectl("delete", "deploy/llm", "gws/llm")
    assert refused.returncode != 0
    assert ".spec.replicas" in refused.stderr
    assert "serverside-applied" in forced


@pytest.mark.usefixtures("objects")
def test_a_server_side_apply_after_a_client_side_one_keeps_the_defaults(kubectl: Kubectl) -> None:
    for _ in range(2):
        kubectl.apply(DEPLOYMENT, server_side=True)
    found = json.loads(kubectl("get", "deploy", "llm", "-o", "json"))
    assert found["spec"]["strategy"]["type"] == "RollingUpdate"


@pytest.mark.parametrize(
    ("words", "heads", "name"),
    [
        (("deploy",), "NAME READY UP-TO-DATE AVAILABLE AGE", "llm"),
        (("po",), "NAME READY STATUS RESTARTS AGE", "llm-0"),
        (("no",), "NAME STATUS ROLES AGE VERSION", "gpu-0"),
        (("ns",), "NAME STATUS AGE", "default"),
        (("gws",), "NAME REFERENCE TARGETS MINPODS MAXPODS REPLICAS DESIRED MODE REASON AGE", "llm"),
        (("gnps",), "NAME POOL MIN MAX NODES DESIRED MODE REASON AGE", "h100"),
        (("crd",), "NAME CREATED AT", "gpuworkloadscalers.gpuscale.dev"),
        (("sa",), "NAME AGE", "default"),
    ],
)
@pytest.mark.usefixtures("objects")
def test_get_shows_the_columns_of_a_cluster(kubectl: Kubectl, words: tuple[str, ...], heads: str, name: str) -> None:
    lines = kubectl("get", *words).splitlines()
    assert lines[0].split() == heads.split()
    assert name in {line.split()[0] for line in lines[1:]}


@pytest.mark.usefixtures("objects")
def test_cells_are_those_of_the_objects(kubectl: Kubectl) -> None:
    deployment = kubectl.table("deploy", "llm")[1]
    assert deployment[:4] == ["llm", "0/2", "0", "0"]
    assert deployment[4].endswith("s")
    assert kubectl.table("no", "gpu-0")[1][:3] == ["gpu-0", "Ready", "gpu"]
    assert kubectl.table("po", "llm-0")[1][:4] == ["llm-0", "0/1", "Pending", "0"]
    scaler = kubectl("get", "gws", "llm", "--no-headers").split()
    assert scaler[:2] == ["llm", "llm"]
    assert "8" in scaler
    assert "gpu-0" in kubectl("get", "po", "-o", "wide")


@pytest.mark.usefixtures("objects")
def test_lists_are_narrowed_and_printed_in_every_form(kubectl: Kubectl) -> None:
    assert kubectl("get", "deploy", "-l", "team=ml", "-o", "name").split() == ["deployment.apps/llm"]
    assert kubectl("get", "deploy", "-l", "team!=ml", "-o", "name").split() == []
    assert kubectl("get", "po", "--field-selector", "spec.nodeName=gpu-0", "-o", "name").split() == ["pod/llm-0"]
    assert kubectl("get", "gws", "llm", "-o", "jsonpath={.spec.maxReplicas}") == "8"
    assert kubectl("get", "gws", "-A", "-o", "name").split() == ["gpuworkloadscaler.gpuscale.dev/llm"]
    both = kubectl("get", "gpuscale", "-o", "name").split()
    assert sorted(both) == ["gpunodepoolscaler.gpuscale.dev/h100", "gpuworkloadscaler.gpuscale.dev/llm"]
    assert yaml.safe_load(kubectl("get", "gws", "llm", "-o", "yaml"))["kind"] == "GPUWorkloadScaler"
    assert "deployment.apps/llm" in kubectl("get", "all", "-o", "name")


@pytest.mark.usefixtures("objects")
def test_describe_tells_of_the_object_and_its_events(kubectl: Kubectl) -> None:
    uid = json.loads(kubectl("get", "gws", "llm", "-o", "json"))["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "llm.1", "namespace": "default"},
        "involvedObject": {
            "apiVersion": "gpuscale.dev/v1alpha1",
            "kind": "GPUWorkloadScaler",
            "name": "llm",
            "namespace": "default",
            "uid": uid,
        },
        "type": "Normal",
        "reason": "Scaled",
        "message": "2 to 5",
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    }
    kubectl("create", "-f", "-", stdin=json.dumps(event))
    told = kubectl("describe", "gws", "llm")
    assert "2 to 5" in told
    assert "Scaled" in told
    listed = kubectl("get", "ev").splitlines()
    assert listed[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert "gpuworkloadscaler/llm" in listed[1]
    assert "2 to 5" in kubectl("events", "--for", "gpuworkloadscaler/llm")
    assert "server:" in kubectl("describe", "deploy", "llm")
    assert "gpu-0" in kubectl("describe", "po", "llm-0")
    assert "nvidia.com/gpu" in kubectl("describe", "no", "gpu-0")
    kubectl("delete", "event", "llm.1")


@pytest.mark.usefixtures("objects")
def test_a_workload_is_scaled_in_the_usual_ways(kubectl: Kubectl) -> None:
    kubectl("scale", "deploy/llm", "--replicas=4")
    assert kubectl("get", "deploy", "llm", "-o", "jsonpath={.spec.replicas}") == "4"
    refused = kubectl.run("scale", "deploy/llm", "--current-replicas=2", "--replicas=6")
    assert refused.returncode != 0
    kubectl("patch", "deploy", "llm", "--subresource=scale", "--type=merge", "-p", '{"spec":{"replicas":3}}')
    assert kubectl("get", "deploy", "llm", "-o", "jsonpath={.spec.replicas}") == "3"
    assert "3" in kubectl("get", "deploy", "llm", "--subresource=scale", "-o", "json")


@pytest.mark.usefixtures("objects")
def test_objects_are_patched_labelled_annotated_and_set(kubectl: Kubectl) -> None:
    kubectl("annotate", "gws/llm", "note=hello")
    kubectl("label", "no/gpu-0", "zone=a")
    kubectl("patch", "gws", "llm", "--type=merge", "-p", '{"spec":{"mode":"Preview"}}')
    kubectl("patch", "deploy", "llm", "--type=json", "-p", '[{"op":"replace","path":"/spec/replicas","value":7}]')
    kubectl("set", "image", "deploy/llm", "server=example.com/vllm:2")
    kubectl("set", "env", "deploy/llm", "B=2")
    scaler = json.loads(kubectl("get", "gws", "llm", "-o", "json"))
    assert scaler["metadata"]["annotations"]["note"] == "hello"
    assert scaler["spec"]["mode"] == "Preview"
    deployment = json.loads(kubectl("get", "deploy", "llm", "-o", "json"))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert deployment["spec"]["replicas"] == 7
    assert container["image"] == "example.com/vllm:2"
    assert {one["name"] for one in container["env"]} == {"A", "B"}
    assert "zone=a" in kubectl("get", "no", "--show-labels")
    kubectl("annotate", "gws/llm", "note-")
    assert "note" not in json.loads(kubectl("get", "gws", "llm", "-o", "json"))["metadata"]["annotations"]


@pytest.mark.usefixtures("objects")
def test_a_node_is_cordoned_and_drained(kubectl: Kubectl) -> None:
    kubectl("cordon", "gpu-0")
    assert kubectl.table("no", "gpu-0")[1][1] == "Ready,SchedulingDisabled"
    kubectl("uncordon", "gpu-0")
    kubectl("taint", "no", "gpu-0", "gpu=yes:NoSchedule")
    told = kubectl("drain", "gpu-0", "--force", "--grace-period=0")
    assert "pod/llm-0 evicted" in told
    assert kubectl("get", "po", "-o", "name").split() == []


@pytest.mark.usefixtures("objects")
def test_waits_end_when_what_they_wait_for_is_there(kubectl: Kubectl) -> None:
    words = ("wait", "gws/llm", "--for=condition=ScalingActive", "--timeout=30s")
    with subprocess.Popen(
        [*kubectl.command, *words], env=kubectl.environment, stdout=subprocess.PIPE, text=True
    ) as waiting:
        status = {"status": {"conditions": [{"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}]}}
        kubectl("patch", "gws", "llm", "--subresource=status", "--type=merge", "-p", json.dumps(status))
        assert "condition met" in waiting.communicate(timeout=PATIENCE_SECONDS)[0]
    kubectl("wait", "gws/llm", "--for=jsonpath={.spec.maxReplicas}=8", "--timeout=30s")
    late = kubectl.run("wait", "gws/llm", "--for=jsonpath={.spec.maxReplicas}=9", "--timeout=1s")
    assert late.returncode != 0
    kubectl("delete", "gws", "llm", "--wait=true", "--timeout=30s")


@pytest.mark.usefixtures("objects")
def test_a_watch_prints_each_change(kubectl: Kubectl) -> None:
    command = [*kubectl.command, "get", "deploy", "llm", "-w", "--request-timeout=60s"]
    with subprocess.Popen(command, env=kubectl.environment, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            assert watching.stdout.readline().split()[0] == "NAME"
            assert watching.stdout.readline().split()[1] == "0/2"
            kubectl("scale", "deploy/llm", "--replicas=6")
            assert watching.stdout.readline().split()[1] == "0/6"
        finally:
            watching.terminate()


def test_every_kind_is_listed_with_its_short_name(kubectl: Kubectl) -> None:
    lines = kubectl("api-resources", "--no-headers").splitlines()
    shorts = {line.split()[0]: line.split()[1] for line in lines}
    assert shorts["gpuworkloadscalers"] == "gws"
    assert shorts["gpunodepoolscalers"] == "gnps"
    assert shorts["deployments"] == "deploy"
    assert "gpuscale.dev/v1alpha1" in kubectl("api-versions").split()


def test_explain_reads_the_schema(kubectl: Kubectl) -> None:
    told = kubectl("explain", "gws.spec.maxReplicas")
    assert "maxReplicas <integer>" in told
    assert "scaleTargetRef" in kubectl("explain", "gws.spec")


def test_bad_objects_are_refused_in_words(kubectl: Kubectl) -> None:
    wrong = SCALER.replace("maxReplicas: 8", "maxReplicas: 3\n  minReplicas: 5")
    refused = kubectl.run("apply", "-f", "-", stdin=wrong)
    assert refused.returncode != 0
    assert "spec.maxReplicas" in refused.stderr
    misspelt = kubectl.run("apply", "-f", "-", stdin=SCALER.replace("maxReplicas", "maxReplica"))
    assert misspelt.returncode != 0
    assert 'unknown field "spec.maxReplica"' in misspelt.stderr


def test_a_dry_run_on_the_server_keeps_nothing(kubectl: Kubectl) -> None:
    assert "(server dry run)" in kubectl("apply", "--dry-run=server", "-f", "-", stdin=DEPLOYMENT)
    assert kubectl.run("get", "deploy", "llm").returncode != 0


def test_objects_are_created_without_a_file(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=nginx:1", "--replicas=0", "--port=80")
    found = json.loads(kubectl("get", "deploy", "web", "-o", "json"))
    assert found["spec"]["replicas"] == 0
    assert found["spec"]["selector"] == {"matchLabels": {"app": "web"}}
    assert found["spec"]["template"]["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    kubectl("delete", "deploy", "web")


def test_a_namespace_goes_with_what_is_in_it(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "team")
    kubectl("-n", "team", "create", "configmap", "settings", "--from-literal=a=b")
    kubectl("delete", "namespace", "team", "--timeout=30s")
    assert kubectl.run("get", "ns", "team").returncode != 0
