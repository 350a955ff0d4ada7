"""?gpu= and ?collect[]= in every dialect, by the bytes of the page."""

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.dialects import DIALECTS, Spoken
from exporter.filters import COLLECTORS, QueryError, select
from exporter.poller import Poller, Publication
from exporter.simulated import SimulatedSource

UUIDS = ("GPU-a", "GPU-b")
ODD = "x\v\f\x1c\x85\u2028\u2029y"
"""All of it ends a line for Python, and none of it in an exposition."""


async def publish(*dialects: str) -> Publication:
    source = SimulatedSource("3xT4")
    return await Poller(source, source, "node-1", 1, spoken=Spoken(dialects)).poll()


def series(text: bytes) -> list[str]:
    return [line for line in text.decode().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_one_gpu_is_all_lines_but_those_of_the_others(dialect: str) -> None:
    publication = await publish(dialect)
    gpus = publication.snapshot.gpus
    part = select(publication.fresh, (), (gpus[1].uuid,), gpus)
    others = [gpu for gpu in gpus if gpu is not gpus[1]]
    # the cce dialect names a card by its index alone
    marks = [mark for gpu in others for mark in (gpu.uuid.removeprefix("GPU-"), f'gpu_index="{gpu.index}"')]
    expected = [line for line in series(publication.fresh.plain) if not any(mark in line for mark in marks)]
    assert series(part.plain) == expected
    assert len(expected) < len(series(publication.fresh.plain))
    assert any(gpus[1].uuid.removeprefix("GPU-") in line for line in expected)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_collectors_divide_the_page_and_leave_nothing_out(dialect: str) -> None:
    publication = await publish(dialect)
    parts = [series(select(publication.fresh, (name,), (), ()).plain) for name in COLLECTORS]
    assert sorted(line for part in parts for line in part) == sorted(series(publication.fresh.plain))


async def test_a_family_without_series_has_no_head_and_openmetrics_keeps_its_end() -> None:
    publication = await publish()
    part = select(publication.fresh, ("node",), (), ())
    assert b"# TYPE aom_node_gpu_usage gauge" in part.plain
    assert b"gpuscale_driver_up" not in part.plain
    assert part.openmetrics.endswith(b"\n# EOF\n")
    assert part.openmetrics.count(b"# EOF") == 1


async def test_what_is_unknown_is_named_with_all_that_is_known() -> None:
    publication = await publish()
    with pytest.raises(QueryError, match="no collector gpus, cpu: known are node, "):
        select(publication.fresh, ("gpus", "node", "cpu"), (), ())
    with pytest.raises(QueryError, match="no GPU 3: known are GPU-"):
        select(publication.fresh, (), ("3",), publication.snapshot.gpus)
    with pytest.raises(QueryError, match="known are none"):
        select(publication.fresh, (), ("0",), ())


@pytest.mark.parametrize("query", [{"gpus": ("GPU-a",)}, *({"collectors": (name,)} for name in COLLECTORS)])
async def test_what_a_label_holds_ends_no_line(query: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    devices = [{"uuid": uuid, "index": at, "name": ODD, "utilization_percent": 1} for at, uuid in enumerate(UUIDS)]
    processes = [{"pid": 7, "gpu_uuid": uuid, "memory_used_bytes": 2**20, "name": ODD} for uuid in UUIDS]
    file = tmp_path / "world.json"
    file.write_text(json.dumps({"driver": ODD, "devices": devices, "processes": processes}))
    source = SimulatedSource(str(file))
    publication = await Poller(source, source, "n", 1, spoken=Spoken(tuple(DIALECTS))).poll()
    asked = {"collectors": (), "gpus": (), **query}
    part = select(publication.fresh, asked["collectors"], asked["gpus"], publication.snapshot.gpus)
    whole = set(publication.fresh.plain.split(b"\n"))
    assert set(part.plain.split(b"\n")) <= whole
    assert list(text_string_to_metric_families(part.plain.decode())) or not part.plain


@pytest.mark.parametrize("dialect", [(), *((name,) for name in DIALECTS)])
async def test_a_series_is_not_lost_because_a_pod_or_a_process_is_called_like_another_gpu(
    dialect: tuple[str, ...], tmp_path: Path
) -> None:
    uuids = ("GPU-a", 'GPU-"b\\\r\ud800', "GPU-c")
    devices = [{"uuid": uuid, "index": at, "utilization_percent": 1} for at, uuid in enumerate(uuids)]
    like_another = dict(zip(uuids, (*uuids[1:], 'x,uuid="GPU-b",gpu_index="1"'), strict=True))
    world = {
        "devices": devices,
        "processes": [
            {"pid": 7, "gpu_uuid": uuid, "memory_used_bytes": 2**20, "name": like_another[uuid]} for uuid in uuids
        ],
        "allocations": [
            {"namespace": "n", "pod": like_another[uuid], "container": "a", "device_ids": [uuid]} for uuid in uuids
        ],
    }
    file = tmp_path / "world.json"
    file.write_text(json.dumps(world))
    source = SimulatedSource(str(file))
    poller = Poller(source, source, "n", 1, spoken=Spoken(dialect), process_series=True)
    publication = await poller.poll()
    gpus = publication.snapshot.gpus
    whole = series(publication.fresh.plain)
    parts = [series(select(publication.fresh, (), (uuid,), gpus).plain) for uuid in uuids]
    of_no_gpu = set(whole).intersection(*parts)
    assert sorted(line for part in parts for line in part if line not in of_no_gpu) == sorted(
        line for line in whole if line not in of_no_gpu
    )
    assert not of_no_gpu & {line for line in whole if line.startswith(("aom_", "cce_", "DCGM_"))}
