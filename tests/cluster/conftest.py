"""A real control plane with fake nodes and a test cloud, once for all; a namespace for each test."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from controller.cluster import Cluster, Kind
from tests.cluster.kubectl import Kubectl
from tests.cluster.operators import Operators
from tests.realparts import build, cloud, fakenodes
from tests.realparts.controlplane import ControlPlane
from tests.realparts.machines import Machines, daemon_set

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "charts" / "gpuscale" / "files" / "crds"
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
DEFINITION = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
_FAILED = pytest.StashKey[bool]()
_KEPT = pytest.StashKey[Path]()


@pytest.fixture(scope="session")
def binaries() -> Path:
    """The folder of the real programs; without them the layer is skipped, in CI it fails."""
    try:
        return build.programs(*build.CONTROL_PLANE)
    except build.MissingError as missing:
        pytest.skip(f"real parts: {missing}")


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the real programs, Helm among them."""
    try:
        return build.programs(*build.CONTROL_PLANE, "helm")
    except build.MissingError as missing:
        pytest.skip(f"real parts: {missing}")


@pytest.fixture(scope="session")
def plane(binaries: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The control plane, kwok, the test cloud and our definitions."""
    with ControlPlane(binaries) as running:
        kubectl = Kubectl(running)
        fakenodes.start(running)
        kubectl.apply(*cloud.definitions())
        kubectl("apply", "--server-side", "-f", str(CRDS))
        kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        running.program("cloud", [sys.executable, "-m", "tests.realparts.cloud", "--kubeconfig", running.kubeconfig])
        yield running
        running.keep_logs = request.config.stash.get(_FAILED, False)
        if running.keep_logs:
            request.config.stash[_KEPT] = running.folder


@pytest.fixture(scope="session")
def kubectl(plane: ControlPlane) -> Kubectl:
    """kubectl as administrator."""
    return Kubectl(plane)


@pytest.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    """The project's own client, as administrator."""
    client = await Cluster.connect(kubeconfig=str(plane.kubeconfig))
    yield client
    await client.close()


@pytest.fixture
async def space(cluster: Cluster) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    created = await cluster.create(NAMESPACE, {"metadata": {"generateName": "test-"}})
    name = created["metadata"]["name"]
    yield name
    await cluster.delete(NAMESPACE, name)


@pytest.fixture
def logs(plane: ControlPlane, space: str) -> Path:
    """The folder of the test's own files, which is kept with the control plane's when a test fails."""
    folder = plane.folder / space
    folder.mkdir()
    return folder


@pytest.fixture
async def machines(cluster: Cluster, kubectl: Kubectl, space: str, logs: Path) -> AsyncIterator[Machines]:
    """Real exporters on the fake nodes, and how much work there is."""
    kubectl.apply(daemon_set(space))
    running = Machines(cluster, logs)
    task = asyncio.create_task(running.run())
    yield running
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
def operators(plane: ControlPlane, kubectl: Kubectl, space: str, logs: Path) -> Iterator[Operators]:
    """To start operators with."""
    started = Operators(plane, kubectl, space, logs)
    yield started
    (logs / "scalers.txt").write_text(kubectl("describe", "gws,gnps", "-A"))
    started.stop()
    kubectl("delete", "gws,gnps", "--all", "-A", "--wait=false")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.config.stash[_FAILED] = True
    return report


def pytest_report_header() -> list[str]:
    """Say which programs are judged by, and which of them are not of the expected version."""
    given = os.environ.get(build.ASSETS)
    return [f"real parts: {line}" for line in build.unexpected()] + (
        [f"real parts: {build.ASSETS}={given}"] if given else []
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    kept = config.stash.get(_KEPT, None)
    if kept is not None:
        shutil.rmtree(kept / "etcd", ignore_errors=True)
        terminalreporter.write_line(f"the control plane's logs are kept in {kept}")
