import asyncio
import copy
import logging
from typing import Any

import pytest

from controller.cluster import Cluster, Forbidden, NotFound
from controller.crds import definitions
from controller.served_schema import CURE, compare, keep_comparing, missing_fields, sentence

WORKLOADS, POOLS = definitions()
NAME = WORKLOADS["metadata"]["name"]


def older(*path: str) -> dict[str, Any]:
    """The definition of workloads as it was before this field."""
    definition = copy.deepcopy(WORKLOADS)
    part = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for word in path[:-1]:
        part = part[word]
    del part[path[-1]]
    return definition


class Served:
    """A cluster that serves these definitions, or raises."""

    def __init__(self, *served: dict[str, Any] | Exception) -> None:
        self.answers = {one["metadata"]["name"]: one for one in served if isinstance(one, dict)}
        self.error = next((one for one in served if isinstance(one, Exception)), None)
        self.asked = 0
        self.asked_often = asyncio.Event()

    async def get(self, _kind: object, name: str) -> dict[str, Any]:
        self.asked += 1
        if self.asked > 2:
            self.asked_often.set()
        if self.error is not None:
            raise self.error
        if name not in self.answers:
            raise NotFound(404, "NotFound", name)
        return self.answers[name]


def cluster(*served: dict[str, Any] | Exception) -> Cluster:
    return Served(*served)  # type: ignore[return-value]


def test_the_same_definition_lacks_nothing() -> None:
    assert missing_fields(WORKLOADS, WORKLOADS) == missing_fields(POOLS, POOLS) == []


def test_a_newer_definition_lacks_nothing() -> None:
    assert missing_fields(WORKLOADS, older("properties", "spec", "properties", "warmup")) == []


def test_a_missing_block_is_named_once_and_a_missing_field_in_a_list_by_its_path() -> None:
    assert missing_fields(older("properties", "spec", "properties", "warmup"), WORKLOADS) == ["spec.warmup"]
    gpu = ("properties", "spec", "properties", "metrics", "items", "properties", "gpu", "properties", "podAggregation")
    assert missing_fields(older(*gpu), WORKLOADS) == ["spec.metrics[].gpu.podAggregation"]


def test_a_part_that_keeps_unknown_fields_lacks_nothing() -> None:
    served = older("properties", "spec", "properties", "warmup")
    spec = served["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["x-kubernetes-preserve-unknown-fields"] = True
    assert missing_fields(served, WORKLOADS) == []


def test_a_version_that_is_not_served_lacks_everything() -> None:
    served = copy.deepcopy(WORKLOADS)
    served["spec"]["versions"][0]["served"] = False
    assert missing_fields(served, WORKLOADS) == [""]
    assert "does not serve the version" in sentence(NAME, [""])


def test_the_sentence_names_definition_fields_and_cure_and_stays_short() -> None:
    said = sentence(NAME, [f"spec.f{i}" for i in range(9)])
    assert said.startswith(f"{NAME} is older than this controller")
    assert "spec.f4 and 4 more" in said
    assert said.endswith(CURE)


async def test_a_definition_that_is_not_there_is_left_out() -> None:
    assert await compare(cluster(WORKLOADS)) == {NAME: []}


async def test_it_is_told_once_and_shown_each_time(caplog: pytest.LogCaptureFixture) -> None:
    shown: list[tuple[str, int]] = []
    enough = asyncio.Event()

    def show(name: str, number: int) -> None:
        shown.append((name, number))
        if len(shown) == 3:
            enough.set()

    served = cluster(older("properties", "spec", "properties", "warmup"))
    task = asyncio.create_task(keep_comparing(served, show, every=0.0))
    await asyncio.wait_for(enough.wait(), 30)
    task.cancel()
    await asyncio.wait([task])
    assert set(shown) == {(NAME, 1)}
    assert [record.getMessage().count("spec.warmup") for record in caplog.records] == [1]


async def test_a_refusal_is_said_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refusing = Served(Forbidden(403, "Forbidden", "no"))
    shown: list[object] = []
    task = asyncio.create_task(keep_comparing(refusing, lambda *seen: shown.append(seen), every=0.0))  # type: ignore[arg-type]
    await asyncio.wait_for(refusing.asked_often.wait(), 30)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert "can't be compared" in caplog.text
    assert shown == []
