"""kubectl, as a user runs it."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from tests.realparts.controlplane import ControlPlane


class RefusedError(Exception):
    """kubectl failed; the message is what it said."""


class Kubectl:
    """``kubectl("get", "pods")`` gives what it prints."""

    def __init__(self, plane: ControlPlane) -> None:
        self._command = [str(plane.binaries / "kubectl"), f"--kubeconfig={plane.kubeconfig}"]

    def __call__(self, *args: str, stdin: str | None = None) -> str:
        ran = subprocess.run([*self._command, *args], input=stdin, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise RefusedError(ran.stderr)
        return ran.stdout

    def apply(self, *objects: Mapping[str, Any]) -> str:
        """``kubectl apply`` of objects."""
        whole = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self("apply", "-f", "-", stdin=json.dumps(whole))

    def create(self, obj: Mapping[str, Any]) -> str:
        """``kubectl create`` of one object, with its strict validation."""
        return self("create", "-f", "-", stdin=json.dumps(obj))

    def object(self, *args: str) -> Any:
        """``kubectl get ... -o json``."""
        return json.loads(self("get", *args, "-o", "json"))
