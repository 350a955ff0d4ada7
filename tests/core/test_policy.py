"""From a manifest to a policy: the API server's defaults, and what turns the GPU rules on."""

from typing import Any

import pytest

from controller.core.model import GpuRules, Metric, RatePolicy, Source, TargetType
from controller.core.pool_model import NodeTemplate
from controller.policy import PolicyDefaults, fraction, pool_policy, workload_policy
from controller.resources import parse_pool_scaler, parse_workload_scaler

UP = (RatePolicy("Pods", 4, 15), RatePolicy("Percent", 100, 15))
DOWN = (RatePolicy("Percent", 100, 15),)


def policy(settings: PolicyDefaults | None = None, **spec: Any):
    manifest = {
        "apiVersion": "gpuscale.dev/v1alpha1",
        "kind": "GPUWorkloadScaler",
        "metadata": {"name": "llm"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}, "maxReplicas": 9}
        | spec,
    }
    return workload_policy(parse_workload_scaler(manifest).spec, settings)


GPU = {"type": "GPU", "gpu": {"name": "utilization", "target": {"type": "Utilization", "averageUtilization": 75}}}


def test_a_spec_without_metrics_gets_cpu_at_80_percent_and_one_replica_at_least() -> None:
    bare = policy()
    assert bare.metrics == (Metric(Source.RESOURCE, "cpu", TargetType.UTILIZATION, 80),)
    assert (bare.min_replicas, bare.behavior, bare.gpu) == (1, None, None)


def test_an_empty_behavior_block_is_not_an_absent_one() -> None:
    behavior = policy(behavior={}).behavior
    assert behavior is not None
    assert (behavior.scale_up.policies, behavior.scale_up.stabilization_window_seconds) == (UP, 0)
    assert (behavior.scale_down.policies, behavior.scale_down.stabilization_window_seconds) == (DOWN, 300)


def test_the_operators_flag_is_the_default_window_of_a_scale_down_only() -> None:
    behavior = policy(PolicyDefaults(downscale_stabilization_seconds=42.9), behavior={"scaleUp": {}}).behavior
    assert behavior is not None
    assert behavior.scale_down.stabilization_window_seconds == 42
    assert behavior.scale_up.stabilization_window_seconds == 0


def test_each_absent_part_of_a_direction_is_filled_in_by_itself() -> None:
    down = {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}], "tolerance": "0.01"}
    behavior = policy(behavior={"scaleDown": down}).behavior
    assert behavior is not None
    assert behavior.scale_down.policies == (RatePolicy("Pods", 2, 60),)
    assert (behavior.scale_down.select_policy, behavior.scale_down.stabilization_window_seconds) == ("Max", 300)
    assert (behavior.scale_down.tolerance, behavior.scale_up.tolerance) == (0.01, None)
    assert behavior.scale_up.policies == UP


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.05", 0.05), ("50m", 0.05), ("0.35", 350 * 1e-3), ("0", 0.0), ("2", 2.0), ("0.0005", 500 * 1e-6)],
)
def test_a_tolerance_is_the_float_of_its_stored_form(text: str, value: float) -> None:
    assert fraction(text) == value


@pytest.mark.parametrize(
    "extra", [{"metrics": [GPU]}, {"warmup": {}}, {"missingData": {}}, {"victimSelection": {"strategy": "LeastBusy"}}]
)
def test_any_block_beyond_autoscaling_v2_turns_the_gpu_rules_on(extra: dict[str, Any]) -> None:
    assert policy(**extra).gpu == GpuRules()


def test_the_blocks_set_the_gpu_rules() -> None:
    rules = policy(
        missingData={"minSamplePercent": 70, "maxAgeSeconds": 12},
        warmup={"maxStartupSeconds": 60},
        victimSelection={"strategy": "None", "protectAboveUtilization": 20},
    ).gpu
    assert rules == GpuRules(70, 12.0, 60.0, 20, pick_victims=False)


def test_metrics_keep_their_order_and_come_in_the_cores_units() -> None:
    headroom = {"name": "memoryUsed", "target": {"type": "Headroom", "headroomMegabytes": 4096}}
    watts = {"name": "power", "container": "server", "target": {"type": "AverageValue", "averageValue": "300"}}
    queue = {
        "metric": {"name": "queue"},
        "target": {"type": "Value", "value": "1500m"},
        "source": {"kind": "Prometheus", "query": "sum(q)", "maxAgeSeconds": 60},
    }
    metrics = policy(
        metrics=[
            GPU,
            {"type": "GPU", "gpu": headroom},
            {"type": "GPU", "gpu": watts},
            {"type": "External", "external": queue},
            {
                "type": "ContainerResource",
                "containerResource": {
                    "name": "memory",
                    "container": "app",
                    "target": {"type": "AverageValue", "averageValue": "1Gi"},
                },
            },
        ]
    ).metrics
    assert metrics == (
        Metric(Source.GPU, "utilization", TargetType.UTILIZATION, 75_000),
        Metric(Source.GPU, "memoryUsed", TargetType.HEADROOM, 4_096_000),
        Metric(Source.GPU, "power", TargetType.AVERAGE_VALUE, 300_000, "server"),
        Metric(Source.EXTERNAL, "queue", TargetType.VALUE, 1500, max_age_seconds=60.0),
        Metric(Source.CONTAINER_RESOURCE, "memory", TargetType.AVERAGE_VALUE, 2**30 * 1000, "app"),
    )


def pool(learned: NodeTemplate | None = None, **spec: Any):
    manifest = {
        "apiVersion": "gpuscale.dev/v1alpha1",
        "kind": "GPUNodePoolScaler",
        "metadata": {"name": "h100"},
        "spec": {
            "pool": {
                "ref": {"apiVersion": "apps/v1", "kind": "MachineDeployment", "name": "h100", "namespace": "fleet"},
                "nodeSelector": {"pool": "h100"},
            },
            "bounds": {"max": 7},
        }
        | spec,
    }
    return pool_policy(parse_pool_scaler(manifest).spec, learned)


def test_a_pool_without_declared_or_learned_nodes_has_no_template() -> None:
    bare = pool()
    assert (bare.template, bare.min_nodes, bare.max_nodes, bare.nameable) == (None, 0, 7, False)
    assert (bare.quiet_seconds, bare.provision_deadline_seconds) == (600.0, 900.0)


def test_a_declared_template_lies_over_the_learned_one_and_bears_the_pools_labels() -> None:
    learned = NodeTemplate({"cpu": 8000, "nvidia.com/gpu": 4000}, {"zone": "a"})
    template = pool(learned, template={"devices": {"count": 8}}).template
    assert template is not None
    assert template.allocatable == {"cpu": 8000, "nvidia.com/gpu": 8000}
    assert template.labels == {"zone": "a", "pool": "h100"}
    assert template.gpu_resources == ("nvidia.com/gpu",)


def test_shares_of_a_gpu_are_gpus_of_their_own_name() -> None:
    template = pool(template={"devices": {"count": 1}, "allocatable": {"nvidia.com/gpu": "4"}}).template
    assert template is not None
    assert template.allocatable == {"nvidia.com/gpu": 4000}


@pytest.mark.parametrize("written", ["1e999", "9" * 40, "99999E"])
def test_a_tolerance_beyond_all_measure_is_capped_as_kubernetes_caps_quantities(written: str) -> None:
    assert 1e15 < fraction(written) <= 2**63
