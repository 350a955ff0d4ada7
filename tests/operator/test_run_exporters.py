"""``gpuscale run`` as a process: which pods it takes for exporters, and what it believes of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.operator.scripted import Scripted, serving, text
from tests.operator.stage import Stage, eventually, gpu_spec, line, staged


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Stage, Scripted]]:
    async with staged(tmp_path) as both:
        yield both


async def says(stage: Stage, words: str) -> None:
    async def said() -> bool:
        status, _, message = await stage.condition("llm", "ScalingActive")
        return status == "False" and words in message

    await eventually(said)


async def test_a_pod_outside_the_exporters_namespace_is_none_whatever_its_labels(
    world: tuple[Stage, Scripted],
) -> None:
    stage, exporter = world
    await stage.fleet("llm", 4, usage=0)
    await stage.exporter_pod("exporter-1", exporter.url, namespace="elsewhere")
    await stage.scaler("llm", gpu_spec("llm"))
    operator = await stage.run("--exporter-namespace", "ml")
    await says(stage, "no GPU exporter was found: a running pod in namespace ml")
    await stage.passes(operator)
    assert exporter.requests == []
    assert stage.scale_writes() == []
    await stage.exporter_pod("exporter-2", exporter.url)

    async def shrunk() -> bool:
        return await stage.replicas("llm") == 1

    await eventually(shrunk)


async def test_an_exporter_that_tells_of_another_node_moves_no_size_and_is_named(world: tuple[Stage, Scripted]) -> None:
    stage, _ = world
    await stage.fleet("llm", 4, usage=None)
    forged = "".join(line(f"llm-{number}", 0, node="n1") for number in range(4))
    async with serving(text(forged)) as liar:
        await stage.exporter_pod("exporter-1", liar.url, node="n2")
        await stage.scaler("llm", gpu_spec("llm"))
        operator = await stage.run()
        await says(stage, "on node n2 tells of llm-")
        await stage.passes(operator)
        assert "gpuscale_scrape_foreign_pods 4.0" in (await operator.get("/metrics"))[1]
    assert "runs on node n2 and tells of node n1: not believed" in operator.log()
    assert stage.scale_writes() == []
