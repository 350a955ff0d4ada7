"""What the demo sets up: an LLM Deployment, a pool of GPU nodes, and the two custom resources that scale them.

The windows are short, so that a minute shows a whole round; they are listed in the summary, because they are nobody's
defaults. A manifest here is what a user would write.
"""

from dataclasses import dataclass
from typing import Any

from controller.resources import API_VERSION
from controller.sandbox.kubelet import LOAD_SECONDS
from controller.sandbox.nodepool import NODE_POOLS, POOL_LABEL, REMOVE_MARK
from controller.sandbox.scheduler import GPU

Object = dict[str, Any]

NAMESPACE = "ml"
WORKLOAD = "llm"
POOL = "h100"


@dataclass(frozen=True, slots=True)
class Scenario:
    """The numbers of the demo: what is asked of the operator, and how slow the simulated world is."""

    target_percent: int = 60
    min_replicas: int = 1
    max_replicas: int = 8
    peak_gpus: float = 3.5
    down_window_seconds: int = 4
    up_step_pods: int = 4
    up_period_seconds: int = 5
    gpus_per_node: int = 2
    min_nodes: int = 1
    max_nodes: int = 4
    quiet_seconds: int = 3
    min_node_age_seconds: int = 5
    boot_seconds: float = 4.0
    gpu_ready_seconds: float = 2.0
    load_seconds: float = 3.0
    termination_grace_seconds: int = 5

    @property
    def chosen(self) -> dict[str, int | float]:
        """The settings that differ from what people would use, by the words of the custom resources."""
        return {
            "behavior.scaleUp.policies[0].value": self.up_step_pods,
            "behavior.scaleUp.policies[0].periodSeconds": self.up_period_seconds,
            "behavior.scaleDown.stabilizationWindowSeconds": self.down_window_seconds,
            "scaleDown.quietSeconds": self.quiet_seconds,
            "scaleDown.minNodeAgeSeconds": self.min_node_age_seconds,
        }

    @property
    def simulated(self) -> dict[str, float]:
        """How long things take in the simulated world, seconds."""
        return {
            "nodeBootSeconds": self.boot_seconds,
            "gpuReadySeconds": self.gpu_ready_seconds,
            "modelLoadSeconds": self.load_seconds,
        }


def node_pool(scenario: Scenario) -> Object:
    """Make the pool, at its minimum."""
    return {
        "apiVersion": NODE_POOLS.api_version,
        "kind": NODE_POOLS.kind,
        "metadata": {"name": POOL},
        "spec": {
            "size": scenario.min_nodes,
            "gpusPerNode": scenario.gpus_per_node,
            "gpuModel": "NVIDIA H100 80GB HBM3",
            "bootSeconds": scenario.boot_seconds,
            "gpuReadySeconds": scenario.gpu_ready_seconds,
            "taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}],
        },
    }


def deployment(scenario: Scenario) -> Object:
    """Make the LLM server, at its minimum: one GPU a pod."""
    labels = {"app": WORKLOAD}
    resources = {"requests": {"cpu": "4", "memory": "32Gi", GPU: "1"}, "limits": {GPU: "1"}}
    pod = {
        "terminationGracePeriodSeconds": scenario.termination_grace_seconds,
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [{"name": "server", "image": "example.com/llm-server:1", "resources": resources}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": WORKLOAD, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": scenario.min_replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {LOAD_SECONDS: f"{scenario.load_seconds:g}"}},
                "spec": pod,
            },
        },
    }


def workload_scaler(scenario: Scenario) -> Object:
    """Make the GPUWorkloadScaler: GPU utilisation at the target, the least busy pod goes first."""
    target = {"type": "Utilization", "averageUtilization": scenario.target_percent}
    up_step = {"type": "Pods", "value": scenario.up_step_pods, "periodSeconds": scenario.up_period_seconds}
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUWorkloadScaler",
        "metadata": {"name": WORKLOAD, "namespace": NAMESPACE},
        "spec": {
            "mode": "Active",
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": WORKLOAD},
            "minReplicas": scenario.min_replicas,
            "maxReplicas": scenario.max_replicas,
            "metrics": [{"type": "GPU", "gpu": {"name": "utilization", "target": target}}],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [up_step]},
                "scaleDown": {
                    "stabilizationWindowSeconds": scenario.down_window_seconds,
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 5}],
                },
            },
            "victimSelection": {"strategy": "LeastBusy"},
        },
    }


def pool_scaler(scenario: Scenario) -> Object:
    """Make the GPUNodePoolScaler: nodes for the pods that wait, and only marked, empty nodes go."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUNodePoolScaler",
        "metadata": {"name": POOL},
        "spec": {
            "mode": "Active",
            "pool": {
                "ref": {"apiVersion": NODE_POOLS.api_version, "kind": NODE_POOLS.kind, "name": POOL},
                "nodeSelector": {POOL_LABEL: POOL},
                "victimMark": {"annotation": REMOVE_MARK, "value": "true"},
            },
            "bounds": {"min": scenario.min_nodes, "max": scenario.max_nodes},
            "scaleDown": {
                "enabled": True,
                "quietSeconds": scenario.quiet_seconds,
                "minNodeAgeSeconds": scenario.min_node_age_seconds,
            },
        },
    }
