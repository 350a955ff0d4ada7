from pathlib import Path

import pytest

from controller.sandbox.exporters import NAMESPACE
from controller.sandbox.kinds import DAEMON_SETS, DEPLOYMENTS, NODES, PODS, REPLICA_SETS
from controller.sandbox.nodepool import NODE_POOLS, REMOVE_MARK
from controller.sandbox.scheduler import GPU
from controller.sandbox.workloads import DELETION_COST
from tests.sandbox.stage import Stage, condition, is_ready


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def warm(stage: Stage) -> Stage:
    """Two nodes of two GPUs and a Deployment of two replicas, all ready."""
    stage.pool(2)
    stage.deployment(2)
    stage.warm()
    return stage


def test_a_deployment_becomes_ready_pods_that_hold_a_gpu_each(warm: Stage) -> None:
    assert len(warm.pods) == 2
    assert all(is_ready(pod) for pod in warm.pods)
    said = [warm.simulation(name) for name in warm.node_names()]
    held = [gpu for file in said for a in file["allocations"] for gpu in a["device_ids"]]
    assert len(set(held)) == 2
    status = warm.status()
    assert (status["replicas"], status["readyReplicas"], status["observedGeneration"]) == (2, 2, 1)
    assert condition({"status": status}, "Available")["status"] == "True"


def test_a_new_pod_runs_before_it_is_ready_for_as_long_as_its_model_loads(warm: Stage) -> None:
    warm.resize(3)
    warm.steps(0.5)
    new = [pod for pod in warm.pods if not is_ready(pod)]
    assert [pod["status"]["phase"] for pod in new] == ["Running"]
    assert warm.status()["readyReplicas"] == 2
    warm.steps(2.5)
    assert sum(map(is_ready, warm.pods)) == 2
    warm.steps(0.5)
    assert sum(map(is_ready, warm.pods)) == 3
    assert warm.status()["observedGeneration"] == 2


def test_a_loading_model_fills_the_memory_before_the_gpu_is_busy(warm: Stage) -> None:
    warm.demand = 2.0
    warm.resize(3)
    warm.steps(2)
    loading = next(life for life in warm.world.kubelet.lives.values() if life.ready_at is None)
    device = next(d for d in warm.simulation(loading.node)["devices"] if d["uuid"] == loading.gpus[0])
    assert device["utilization_percent"] == 0
    assert 0 < device["memory_used_bytes"] < device["memory_total_bytes"]


def test_the_pod_with_the_lowest_deletion_cost_goes_first_whatever_its_age(warm: Stage) -> None:
    warm.resize(4)
    warm.steps(5)
    names = [pod["metadata"]["name"] for pod in warm.pods]
    for cost, name in enumerate(names):
        kept = names.index(name) != 2
        annotations = {DELETION_COST: str(cost + 10 if kept else -5)}
        warm.store.patch(PODS, "ml", name, {"metadata": {"annotations": annotations}})
    warm.resize(3)
    warm.steps(0.5)
    assert [p["metadata"]["name"] for p in warm.pods if "deletionTimestamp" in p["metadata"]] == [names[2]]


def test_a_pod_that_is_not_ready_goes_before_a_ready_one_with_a_lower_cost(warm: Stage) -> None:
    old = warm.pods[0]["metadata"]["name"]
    warm.store.patch(PODS, "ml", old, {"metadata": {"annotations": {DELETION_COST: "-100"}}})
    warm.resize(3)
    warm.steps(0.5)
    loading = next(pod["metadata"]["name"] for pod in warm.pods if not is_ready(pod))
    warm.resize(2)
    warm.steps(3)
    assert loading not in [pod["metadata"]["name"] for pod in warm.pods]
    assert old in [pod["metadata"]["name"] for pod in warm.pods]


def test_a_deleted_pod_takes_no_work_and_keeps_its_gpu_until_it_has_ended(warm: Stage) -> None:
    warm.demand = 0.5
    warm.resize(1)
    warm.steps(0.5)
    assert len(warm.world.serving()) == 1
    assert len(warm.world.kubelet.lives) == 2
    warm.steps(1.5)
    assert len(warm.world.kubelet.lives) == 1
    assert len(warm.pods) == 1


def test_a_pod_without_room_says_so_in_the_words_of_the_scheduler(warm: Stage) -> None:
    warm.store.patch(NODES, None, "h100-2", {"spec": {"unschedulable": True}})
    warm.resize(4)
    warm.steps(0.5)
    waiting = [pod for pod in warm.pods if not pod["spec"].get("nodeName")]
    assert len(waiting) == 2
    said = condition(waiting[0], "PodScheduled")
    assert (said["status"], said["reason"]) == ("False", "Unschedulable")
    assert said["message"].startswith(
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable."
    )
    assert waiting[0]["status"]["phase"] == "Pending"
    warm.store.patch(NODES, None, "h100-2", {"spec": {"unschedulable": None}})
    warm.steps(0.5)
    assert all(pod["spec"].get("nodeName") for pod in warm.pods)
    assert condition(warm.pods[-1], "PodScheduled")["status"] == "True"


def test_gpus_are_packed_so_that_a_node_can_become_empty(warm: Stage) -> None:
    assert len({pod["spec"]["nodeName"] for pod in warm.pods}) == 1


@pytest.mark.parametrize(
    ("pod_spec", "placed"),
    [
        ({}, False),
        ({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, True),
        ({"tolerations": [{"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}]}, True),
        ({"tolerations": [{"key": "nvidia.com/gpu", "value": "no"}]}, False),
        ({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"zone": "b"}}, False),
    ],
)
def test_taints_and_selectors_keep_pods_away(stage: Stage, pod_spec: dict[str, object], *, placed: bool) -> None:
    stage.pool(1, taints=[{"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}])
    stage.deployment(1, **pod_spec)
    stage.warm()
    assert all(is_ready(pod) is placed for pod in stage.pods)


def test_a_larger_pool_becomes_a_node_after_its_boot_and_gpus_after_that(warm: Stage) -> None:
    warm.resize_pool(3)
    warm.steps(3.5)
    assert warm.node_names() == ["h100-1", "h100-2"]
    warm.steps(1.0)
    assert warm.node_names() == ["h100-1", "h100-2", "h100-3"]
    new = warm.nodes[2]
    assert condition(new, "Ready")["status"] == "True"
    assert GPU not in new["status"]["allocatable"]
    assert len(warm.simulation("h100-3")["devices"]) == 2
    warm.steps(2.0)
    assert warm.nodes[2]["status"]["allocatable"][GPU] == "2"
    assert warm.store.get(NODE_POOLS, None, "h100")["status"]["size"] == 3


def test_a_size_taken_back_before_the_boot_never_becomes_a_node(warm: Stage) -> None:
    warm.resize_pool(4)
    warm.steps(2)
    warm.resize_pool(2)
    warm.steps(10)
    assert warm.node_names() == ["h100-1", "h100-2"]
    assert warm.world.record.node_removals == []


def test_a_marked_node_goes_and_the_others_stay(warm: Stage) -> None:
    warm.resize_pool(4)
    warm.steps(7)
    warm.store.patch(NODES, None, "h100-2", {"metadata": {"annotations": {REMOVE_MARK: "true"}}})
    warm.steps(2)
    assert len(warm.nodes) == 4
    warm.resize_pool(3)
    warm.steps(0.5)
    assert warm.node_names() == ["h100-1", "h100-3", "h100-4"]
    assert [(r.node, r.marked, r.pods) for r in warm.world.record.node_removals] == [("h100-2", True, 0)]


def test_a_shrink_without_a_mark_hits_the_newest_node_and_its_pods_and_shows(warm: Stage) -> None:
    warm.resize(4)
    warm.demand = 3.4
    warm.steps(5)
    on_it = {p["metadata"]["name"] for p in warm.pods if p["spec"]["nodeName"] == "h100-2"}
    warm.resize_pool(1)
    warm.steps(0.5)
    removal = warm.world.record.node_removals[0]
    assert (removal.node, removal.marked, removal.pods) == ("h100-2", False, 2)
    assert {r.pod for r in warm.world.record.removals if r.cause == "node"} == on_it
    assert on_it.isdisjoint({p["metadata"]["name"] for p in warm.pods if p["spec"].get("nodeName")})
    warm.steps(0.5)
    assert sum(not pod["spec"].get("nodeName") for pod in warm.pods) == 2


def test_each_node_has_an_exporter_and_its_pod_for_as_long_as_it_lives(warm: Stage) -> None:
    pods = warm.store.list(PODS, NAMESPACE, label_selector="app.kubernetes.io/name=gpuscale-exporter")
    assert [pod["status"]["podIP"] for pod in pods] == ["127.0.0.1", "127.0.0.1"]
    assert [p["spec"]["containers"][0]["ports"][0]["name"] for p in pods] == ["metrics", "metrics"]
    assert {p["spec"]["containers"][0]["ports"][0]["containerPort"] for p in pods} == {9000, 9001}
    assert all(pod["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet" for pod in pods)
    warm.resize_pool(1)
    warm.steps(0.5)
    assert [exporter.stopped for exporter in warm.exporters] == [False, True]
    assert len(warm.store.list(PODS, NAMESPACE)) == 1
    warm.world.exporters.close()
    assert all(exporter.stopped for exporter in warm.exporters)


def test_a_dead_exporter_is_a_sentence(warm: Stage) -> None:
    assert warm.world.exporters.failure() is None
    warm.exporters[0].failure = "the exporter of node h100-1 ended with code 3: no port"
    assert warm.world.exporters.failure() == "the exporter of node h100-1 ended with code 3: no port"


def test_every_change_of_a_size_is_recorded_with_its_time(warm: Stage) -> None:
    warm.steps(1)
    asked_at = warm.now
    warm.resize(3)
    warm.resize_pool(3)
    warm.steps(1)
    found = [(c.at, c.target.value, c.name, c.before, c.after) for c in warm.world.record.changes]
    assert found == [(asked_at, "workload", "llm", 2, 3), (asked_at, "pool", "h100", 2, 3)]


def test_a_busy_pod_that_went_while_an_idler_one_stayed_is_on_record(warm: Stage) -> None:
    warm.demand = 0.5
    warm.steps(4)
    busy = max(warm.world.plant.utilization.items(), key=lambda item: item[1])[0]
    warm.store.patch(PODS, "ml", busy, {"metadata": {"annotations": {DELETION_COST: "-1"}}})
    warm.resize(1)
    warm.steps(0.5)
    removal = warm.world.record.removals[0]
    assert (removal.pod, removal.cause, removal.idlest_staying) == (busy, "shrink", 0.0)
    assert removal.utilization == pytest.approx(50.0)


def test_the_exporters_files_carry_the_load_and_the_record_says_the_same(warm: Stage) -> None:
    warm.demand = 1.2
    warm.steps(2)
    said = [d["utilization_percent"] for name in warm.node_names() for d in warm.simulation(name)["devices"]]
    assert sum(said) == pytest.approx(120.0, abs=0.1)
    last = warm.world.record.moments[-1]
    assert (last.serving, last.replicas, last.pool_size, last.gpus) == (2, 2, 2, 4)
    assert last.utilization == pytest.approx(120.0)


def test_a_changed_pod_template_replaces_the_pods(warm: Stage) -> None:
    before = {pod["metadata"]["name"] for pod in warm.pods}
    change = {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}
    warm.store.patch(warm.store.resources["deployments.apps"], "ml", "llm", change)
    warm.steps(8)
    assert before.isdisjoint({pod["metadata"]["name"] for pod in warm.pods})
    assert sum(map(is_ready, warm.pods)) == 2
    assert sorted(r["spec"]["replicas"] for r in warm.store.list(REPLICA_SETS)) == [0, 2]


def test_what_a_user_deletes_or_gets_wrong_does_not_stop_the_world(warm: Stage) -> None:
    odd = {"containers": [{"name": "a", "image": "b", "resources": {"requests": {"cpu": "lots"}}}]}
    warm.store.create(PODS, {"metadata": {"name": "odd", "namespace": "ml"}, "spec": odd})
    warm.store.create(NODES, {"metadata": {"name": "bare"}})
    warm.steps(1)
    pod = warm.store.get(PODS, "ml", "odd")
    assert "Insufficient cpu" in condition(pod, "PodScheduled")["message"]
    warm.store.delete(DAEMON_SETS, NAMESPACE, "gpuscale-exporter")
    warm.store.delete(NODES, None, "h100-1")
    warm.steps(8)
    assert len(warm.store.list(DAEMON_SETS, NAMESPACE)) == 1
    assert warm.node_names() == ["bare", "h100-2", "h100-3"]
    assert sum(map(is_ready, warm.pods)) == 2
    warm.store.delete(DEPLOYMENTS, "ml", "llm")
    warm.store.delete(NODE_POOLS, None, "h100")
    warm.steps(3)
    assert [pod["metadata"]["name"] for pod in warm.pods] == ["odd"]
    assert (warm.world.record.moments[-1].replicas, warm.world.record.moments[-1].pool_size) == (0, 0)


def test_work_that_came_after_the_operators_last_reading_is_not_held_against_it(warm: Stage) -> None:
    warm.steps(4)
    warm.demand = 0.5
    warm.steps(1)
    busy = max(warm.world.plant.utilization.items(), key=lambda item: item[1])[0]
    warm.store.patch(PODS, "ml", busy, {"metadata": {"annotations": {DELETION_COST: "-1"}}})
    warm.resize(1)
    warm.steps(0.5)
    assert [(r.pod, r.utilization) for r in warm.world.record.removals] == [(busy, 0.0)]
