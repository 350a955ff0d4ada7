"""helm, as a user runs it."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.realparts.controlplane import ControlPlane

CHART = Path(__file__).resolve().parents[2] / "charts" / "gpuscale"
PATIENCE = "90s"


class RefusedError(Exception):
    """Helm failed; the message is what it said."""


class Helm:
    """``helm("list", "-A")`` gives what it prints. Nothing is read from or written to the user's own Helm."""

    def __init__(self, binary: Path, home: Path, plane: ControlPlane | None = None) -> None:
        self._binary = binary
        self._environment = {
            "PATH": "",
            "HOME": str(home),
            "HELM_CACHE_HOME": str(home / "cache"),
            "HELM_CONFIG_HOME": str(home / "config"),
            "HELM_DATA_HOME": str(home / "data"),
        }
        if plane is not None:
            self._environment["KUBECONFIG"] = str(plane.kubeconfig)

    def __call__(self, *args: str) -> str:
        ran = subprocess.run(
            [str(self._binary), *args], env=self._environment, capture_output=True, text=True, check=False
        )
        if ran.returncode != 0:
            raise RefusedError(ran.stderr)
        return ran.stdout

    def render(self, *args: str, release: str = "gs", namespace: str = "gpus") -> dict[tuple[str, str], Any]:
        """``helm template``: objects by kind and name."""
        text = self("template", release, str(CHART), "--namespace", namespace, *args)
        objects = [one for one in yaml.safe_load_all(text) if one]
        return {(one["kind"], one["metadata"]["name"]): one for one in objects}

    def install(self, release: str, namespace: str, *args: str, chart: Path = CHART) -> str:
        """``helm install --wait``."""
        where = ("--namespace", namespace, "--create-namespace", "--wait", "--timeout", PATIENCE)
        return self("install", release, str(chart), *where, *args)

    def upgrade(self, release: str, namespace: str, *args: str, chart: Path = CHART) -> str:
        """``helm upgrade --wait``."""
        return self("upgrade", release, str(chart), "--namespace", namespace, "--wait", "--timeout", PATIENCE, *args)

    def uninstall(self, release: str, namespace: str) -> str:
        """``helm uninstall --wait``."""
        return self("uninstall", release, "--namespace", namespace, "--wait", "--timeout", PATIENCE)


def container(objects: dict[tuple[str, str], Any], kind: str) -> dict[str, Any]:
    """Give the only container of the only object of a kind."""
    [workload] = [one for (found, _), one in objects.items() if found == kind]
    [only] = workload["spec"]["template"]["spec"]["containers"]
    return dict(only)


def values(tmp_path: Path, content: Any) -> str:
    """Write values to a file for ``-f``."""
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)
