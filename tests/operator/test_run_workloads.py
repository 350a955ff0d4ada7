"""``gpuscale run`` as a process, against the embedded API and a scripted exporter: workloads."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.cluster import POD
from controller.view import WORKLOADS
from tests.operator.scripted import Scripted, text
from tests.operator.stage import DEPLOYMENT, Stage, eventually, gpu_spec, staged


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Stage, Scripted]]:
    async with staged(tmp_path) as both:
        yield both


async def test_load_above_the_target_scales_up_and_says_why(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=75)
    await stage.exporter_pod("exporter-1", exporter.url)
    await stage.scaler("llm", gpu_spec("llm"))
    await stage.run()

    async def holds() -> bool:
        return (await stage.condition("llm", "ScalingActive"))[:2] == ("True", "ValidMetricFound")

    await eventually(holds)
    stage.load("llm", 100)

    async def grown() -> bool:
        return await stage.replicas("llm") == 5

    await eventually(grown)

    async def told() -> bool:
        status = await stage.status("llm")
        return bool(status.get("decisions")) and any(name == "llm" for name, _, _ in await stage.events())

    await eventually(told)
    status = await stage.status("llm")
    assert status["decisions"][-1]["from"] == 4
    assert status["decisions"][-1]["to"] == 5
    assert status["decisions"][-1]["reason"] == "MetricAboveTarget"
    assert [row["metric"] for row in status["currentMetrics"]] == ["gpu/utilization"]
    assert status["memory"]["recommendations"]
    events = [(reason, message) for name, reason, message in await stage.events() if name == "llm"]
    assert any(reason == "MetricAboveTarget" and message.startswith("4 -> 5") for reason, message in events)


async def test_series_that_vanish_are_a_hold_and_never_zero(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=70)
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run(exporter=exporter.url)

    async def active() -> bool:
        return (await stage.condition("llm", "ScalingActive"))[0] == "True"

    await eventually(active)
    stage.usage.clear()

    async def holding() -> bool:
        active, signal = await stage.condition("llm", "ScalingActive"), await stage.condition("llm", "SignalHealthy")
        return (active[0], signal[:2]) == ("False", ("False", "NoAttribution"))

    await eventually(holding)
    await stage.passes(operator)
    assert stage.scale_writes() == []
    assert await stage.replicas("llm") == 4


async def test_an_exporter_that_is_gone_is_a_hold_that_names_it(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=70)
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run(exporter=exporter.url)
    exporter.answer = text("boom", status=500)

    async def holding() -> bool:
        status, reason, message = await stage.condition("llm", "ScalingActive")
        return (status, reason) == ("False", "FailedGetGPUMetric") and "HTTP 500" in message

    await eventually(holding)
    await stage.passes(operator)
    assert stage.scale_writes() == []


async def test_p01_nan_from_every_gpu_is_a_hold(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 5, usage="NaN")
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run(exporter=exporter.url)

    async def holding() -> bool:
        return (await stage.condition("llm", "ScalingActive"))[0] == "False"

    await eventually(holding)
    await stage.passes(operator)
    assert stage.scale_writes() == []


async def test_c07_an_hpa_on_the_same_target_is_named_and_not_fought(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 2, usage=100)
    await stage.hpa("old", "llm")
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run(exporter=exporter.url)

    async def conflict() -> bool:
        status, reason, message = await stage.condition("llm", "TargetOwned")
        return (status, reason) == ("False", "CompetingScaler") and "HorizontalPodAutoscaler ml/old" in message

    await eventually(conflict)
    await stage.passes(operator)
    assert stage.scale_writes() == []


async def test_c07_of_two_scalers_of_one_target_only_the_older_acts(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 2, usage=100)
    await stage.scaler("a-first", gpu_spec("llm", maxReplicas=3))
    await stage.scaler("b-second", gpu_spec("llm", minReplicas=8))
    operator = await stage.run(exporter=exporter.url)

    async def grown() -> bool:
        return await stage.replicas("llm") == 3

    await eventually(grown)

    async def conflict() -> bool:
        status, reason, message = await stage.condition("b-second", "TargetOwned")
        return (status, reason) == ("False", "CompetingScaler") and "a-first" in message

    await eventually(conflict)
    await stage.passes(operator, 20)
    assert await stage.replicas("llm") == 3
    assert len(stage.scale_writes()) == 1


async def test_preview_writes_nothing_but_status(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=100)
    await stage.scaler("llm", gpu_spec("llm", mode="Preview"))
    before = len(stage.writes)
    operator = await stage.run(exporter=exporter.url)

    async def shown() -> bool:
        status = await stage.status("llm")
        return (status.get("currentReplicas"), status.get("desiredReplicas")) == (4, 5)

    await eventually(shown)
    await stage.passes(operator)
    others = [path for _, path, _ in stage.writes[before:] if "/leases" not in path and "/events" not in path]
    assert set(others) == {"/apis/gpuscale.dev/v1alpha1/namespaces/ml/gpuworkloadscalers/llm/status"}
    assert await stage.replicas("llm") == 4


async def test_off_writes_nothing_at_all(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=100)
    await stage.scaler("llm", gpu_spec("llm", mode="Off"))
    await stage.scaler("shown", gpu_spec("llm", mode="Preview"))
    operator = await stage.run(exporter=exporter.url)

    async def other_shown() -> bool:
        return bool(await stage.status("shown"))

    await eventually(other_shown)
    await stage.passes(operator)
    assert await stage.status("llm") == {}
    assert stage.scale_writes() == []


async def test_a_missing_target_is_named_and_the_others_go_on(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=100)
    await stage.scaler("ghost", gpu_spec("nowhere"))
    await stage.scaler("llm", gpu_spec("llm"))
    await stage.run(exporter=exporter.url)

    async def both() -> bool:
        status, reason, message = await stage.condition("ghost", "AbleToScale")
        named = (status, reason) == ("False", "FailedGetScale") and "Deployment ml/nowhere" in message
        return named and await stage.replicas("llm") == 5

    await eventually(both)


async def test_an_invalid_spec_gets_a_condition_with_all_faults_while_others_go_on(
    world: tuple[Stage, Scripted],
) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=100)
    stage.forget_rules()
    twice = gpu_spec("other")["metrics"] * 2
    await stage.scaler("bad", gpu_spec("other", minReplicas=9, maxReplicas=3, metrics=twice))
    await stage.scaler("llm", gpu_spec("llm"))
    await stage.run(exporter=exporter.url)

    async def both() -> bool:
        status, reason, message = await stage.condition("bad", "ScalingActive")
        named = (status, reason) == ("False", "InvalidSpec")
        all_faults = "spec.maxReplicas: " in message and "spec.metrics: " in message
        return named and all_faults and await stage.replicas("llm") == 5

    await eventually(both)


async def test_a_metric_whose_api_is_not_there_is_a_hold_that_names_it(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=100)
    pods = {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "5"}}
    await stage.scaler("llm", gpu_spec("llm", metrics=[{"type": "Pods", "pods": pods}]))
    await stage.run(exporter=exporter.url)

    async def holding() -> bool:
        status, reason, message = await stage.condition("llm", "ScalingActive")
        return (status, reason) == ("False", "FailedGetPodsMetric") and "custom.metrics.k8s.io" in message

    await eventually(holding)
    assert stage.scale_writes() == []


async def test_an_unknown_prometheus_server_is_named_with_the_known_ones(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=100)
    external = {
        "metric": {"name": "queue"},
        "target": {"type": "AverageValue", "averageValue": "5"},
        "source": {"kind": "Prometheus", "server": "prod", "query": "up"},
    }
    await stage.scaler("llm", gpu_spec("llm", metrics=[{"type": "External", "external": external}]))
    await stage.run("--prometheus", f"default={exporter.url}", exporter=exporter.url)

    async def holding() -> bool:
        status, reason, message = await stage.condition("llm", "ScalingActive")
        return (status, reason) == ("False", "FailedGetExternalMetric") and "it knows: default" in message

    await eventually(holding)


async def test_the_api_server_down_for_three_seconds_does_no_harm(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=70)
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run(exporter=exporter.url)

    async def active() -> bool:
        return (await stage.condition("llm", "ScalingActive"))[0] == "True"

    await eventually(active)
    await stage.down()
    stage.load("llm", 5)
    await asyncio.sleep(1.5)
    stage.load("llm", 100)
    await asyncio.sleep(1.5)
    await stage.up()

    async def grown() -> bool:
        return await stage.replicas("llm") == 5

    await eventually(grown)
    assert len(stage.scale_writes()) == 1
    assert operator.process.returncode is None


async def test_a_size_set_by_hand_meanwhile_is_decided_again_and_never_overwritten_blindly(
    world: tuple[Stage, Scripted],
) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=100)
    await stage.scaler("llm", gpu_spec("llm"))

    async def scale_by_hand() -> None:
        for size in (6, 4, 6, 4, 6, 4, 7):
            await stage.cluster.patch(DEPLOYMENT, "llm", {"spec": {"replicas": size}}, "ml")
            await asyncio.sleep(0.05)

    operator = await stage.run(exporter=exporter.url)

    async def first() -> bool:
        return bool(stage.scale_writes())

    await eventually(first)
    await scale_by_hand()
    await stage.passes(operator, 5)
    status, _ = await operator.get("/healthz")
    assert status == 200
    assert 1 <= await stage.replicas("llm") <= 10


async def test_a_shrink_takes_the_least_busy_pods(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=30)
    stage.usage["llm-2"] = 1
    await stage.scaler("llm", gpu_spec("llm"))
    await stage.run(exporter=exporter.url)

    async def shrunk() -> bool:
        return await stage.replicas("llm") < 4

    await eventually(shrunk)
    first = next(
        path for method, path, _ in stage.writes if method == "PATCH" and "/pods/" in path and "status" not in path
    )
    assert first.endswith("/pods/llm-2")
    pod = await stage.cluster.get(POD, "llm-2", "ml")
    assert int(pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"]) < 0
    order = [path for _, path, _ in stage.writes]
    assert order.index(first) < order.index(stage.scale_writes()[0])


async def test_of_two_operators_one_writes_and_the_other_takes_over_its_memory(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=100)
    await stage.scaler("llm", gpu_spec("llm"))
    fast = ("--lease-duration", "3", "--renew-deadline", "2", "--retry-period", "0.4")
    first = await stage.run(*fast, exporter=exporter.url)

    async def leads() -> bool:
        return "gpuscale_leader 1.0" in (await first.get("/metrics"))[1] and await stage.replicas("llm") == 5

    await eventually(leads)
    second = await stage.run(*fast, exporter=exporter.url)
    await stage.passes(second)
    assert "gpuscale_leader 0.0" in (await second.get("/metrics"))[1]
    assert "gpuscale_writes_total{" not in (await second.get("/metrics"))[1]
    await first.kill()

    async def taken_over() -> bool:
        return "gpuscale_leader 1.0" in (await second.get("/metrics"))[1]

    await eventually(taken_over)
    await stage.passes(second)
    status = await stage.status("llm")
    assert next((row["from"], row["to"]) for row in status["decisions"]) == (4, 5)


async def test_a_deleted_scaler_is_scaled_no_more(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=70)
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run(exporter=exporter.url)

    async def active() -> bool:
        return (await stage.condition("llm", "ScalingActive"))[0] == "True"

    await eventually(active)
    await stage.cluster.delete(WORKLOADS, "llm", "ml")

    async def forgotten() -> bool:
        return 'name="llm"' not in (await operator.get("/metrics"))[1]

    await eventually(forgotten)
    stage.load("llm", 100)
    await stage.passes(operator)
    assert stage.scale_writes() == []


async def test_a_steady_fleet_costs_no_status_writes(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=70)
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run(exporter=exporter.url)

    async def active() -> bool:
        return (await stage.condition("llm", "ScalingActive"))[0] == "True"

    await eventually(active)
    await stage.passes(operator)
    written = stage.status_writes("llm")
    stage.load("llm", 70.3)
    await stage.passes(operator, 8)
    assert stage.status_writes("llm") == written


async def test_sigterm_stops_cleanly_and_releases_the_lease(world: tuple[Stage, Scripted]) -> None:
    stage, exporter = world
    operator = await stage.run(exporter=exporter.url)

    async def ready() -> bool:
        return (await operator.get("/readyz"))[0] == 200

    await eventually(ready)
    assert await operator.stop() == 0
    assert "Traceback" not in operator.log()


async def test_a_kubeconfig_that_is_not_there_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    operator = await stage.run()
    assert await operator.process.wait() == 2
    assert operator.log().count("\n") == 1
    assert "kubeconfig" in operator.log()
