"""kwok as the kubelet of nodes that do not exist, with the stages beside this file.

A node whose label testcloud.gpuscale.dev/silent is "true" gives no more signs of life: kwok lets go of it.
"""

from pathlib import Path

from tests.realparts.controlplane import ControlPlane, free_port
from tests.realparts.processes import Process

STAGES = Path(__file__).resolve().parent / "stages"
DOMAIN = "testcloud.gpuscale.dev"
SILENT = f"{DOMAIN}/silent"
CRASH = f"{DOMAIN}/crash"
GPUS = f"{DOMAIN}/gpus"
GPU_SECONDS = f"{DOMAIN}/gpu-seconds"
LOAD_SECONDS = f"{DOMAIN}/load-seconds"
LEASE_SECONDS = 8


def start(plane: ControlPlane) -> Process:
    """Run kwok until the plane ends."""
    stages = [part for path in sorted(STAGES.glob("*.yaml")) for part in ("--config", path)]
    return plane.run(
        "kwok",
        [
            *("--kubeconfig", plane.kubeconfig),
            f"--manage-nodes-with-label-selector={SILENT}!=true",
            "--node-ip=127.0.0.1",
            f"--server-address=127.0.0.1:{free_port()}",
            f"--node-lease-duration-seconds={LEASE_SECONDS}",
            *stages,
        ],
    )
