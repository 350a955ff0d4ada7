"""All of it at once: the cluster of tests/cluster, and a real Prometheus that scrapes exporters and operator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import *  # noqa: F403 - fixtures and hooks are found by their names
from tests.cluster.operators import Operators
from tests.realparts import build
from tests.realparts.controlplane import ControlPlane
from tests.stack.prometheus import Prometheus


@pytest.fixture(scope="session")
def monitoring() -> Path:
    """The folder of prometheus and promtool; without them the layer is skipped, in CI it fails."""
    try:
        return build.programs("prometheus", "promtool")
    except build.MissingError as missing:
        pytest.skip(f"real parts: {missing}")


@pytest.fixture
def prometheus(monitoring: Path, plane: ControlPlane, space: str, operators: Operators) -> Iterator[Prometheus]:
    """Prometheus with our rules, which finds the exporters of the test's namespace."""
    running = Prometheus(monitoring / "prometheus", plane.kubeconfig, space, operators.folder)
    yield running
    running.end()
