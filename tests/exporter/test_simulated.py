import json
import os
from pathlib import Path
from typing import Any

import pytest

from exporter.readings import AbsentReason, Allocation, ProcessReading
from exporter.simulated import MODELS, MOST_BYTES, SimulatedSource, SimulationError, parse

DEVICE = {
    "uuid": "GPU-a",
    "index": 2,
    "name": "NVIDIA H100 80GB HBM3",
    "memory_total_bytes": 1000,
    "memory_used_bytes": 300,
    "memory_reserved_bytes": 100,
    "utilization_percent": 50,
    "memory_utilization_percent": 20,
    "temperature_celsius": 40.5,
    "power_watts": 100,
}


def world(*devices: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"driver": "550.54.15", "devices": list(devices), **more}).encode()


def faults(content: bytes) -> str:
    with pytest.raises(SimulationError) as caught:
        parse(content)
    return str(caught.value)


@pytest.mark.parametrize("model", MODELS)
async def test_every_known_model_gives_that_many_gpus_of_its_memory(model: str) -> None:
    source = SimulatedSource(f"3x{model}")
    gpus, state = await source.read(0.0)
    held, kubelet = await source.allocations()
    assert state.up
    assert kubelet.up
    assert [gpu.index for gpu in gpus] == [0, 1, 2]
    assert {gpu.memory_total_bytes for gpu in gpus} == {MODELS[model].memory_mib * 2**20}
    assert {gpu.name for gpu in gpus} == {MODELS[model].name}
    assert len({gpu.uuid for gpu in gpus}) == 3
    assert held is not None
    assert {device for allocation in held for device in allocation.device_ids} < {gpu.uuid for gpu in gpus}
    assert source.driver_version


async def test_two_nodes_never_simulate_the_same_gpu() -> None:
    first, _ = await SimulatedSource("2xT4", seed="node-1").read(0.0)
    second, _ = await SimulatedSource("2xT4", seed="node-2").read(0.0)
    again, _ = await SimulatedSource("2xT4", seed="node-1").read(0.0)
    assert not {gpu.uuid for gpu in first} & {gpu.uuid for gpu in second}
    assert first == again


async def test_the_load_of_a_simulated_model_moves_and_adds_up() -> None:
    source = SimulatedSource("1xH100")
    seen = [(await source.read(float(now)))[0][0] for now in range(0, 300, 30)]
    assert len({gpu.utilization_percent for gpu in seen}) > 3
    for gpu in seen:
        assert None not in (gpu.memory_used_bytes, gpu.memory_free_bytes, gpu.memory_reserved_bytes)
        parts = (gpu.memory_used_bytes or 0) + (gpu.memory_free_bytes or 0) + (gpu.memory_reserved_bytes or 0)
        assert parts == gpu.memory_total_bytes
        assert 0 <= (gpu.utilization_percent or -1) <= 100


def test_a_device_is_read_field_by_field() -> None:
    (gpu,) = parse(world(DEVICE)).gpus
    for field, value in DEVICE.items():
        assert getattr(gpu, field) == value
    assert gpu.absent == {}
    assert gpu.processes is None


def test_free_memory_that_is_not_given_is_what_is_left() -> None:
    assert parse(world(DEVICE)).gpus[0].memory_free_bytes == 600
    assert parse(world(DEVICE | {"memory_free_bytes": 7})).gpus[0].memory_free_bytes == 7


@pytest.mark.parametrize("device", [{"uuid": "GPU-a"}, {"uuid": "GPU-a", **dict.fromkeys([*DEVICE][3:])}])
def test_an_absent_or_null_key_is_an_unknown_field(device: dict[str, Any]) -> None:
    (gpu,) = parse(world(device)).gpus
    assert gpu.utilization_percent is None
    assert gpu.memory_free_bytes is None
    assert gpu.absent["power_watts"] is AbsentReason.NOT_SUPPORTED


def test_a_fault_takes_the_values_and_leaves_the_identity() -> None:
    (gpu,) = parse(world(DEVICE | {"fault": "lost"})).gpus
    assert (gpu.uuid, gpu.index, gpu.name, gpu.fault) == ("GPU-a", 2, "NVIDIA H100 80GB HBM3", AbsentReason.LOST)
    assert gpu.utilization_percent is None


def test_processes_go_to_their_gpu_and_allocations_are_read() -> None:
    processes = [{"pid": 7, "gpu_uuid": "GPU-a", "memory_used_bytes": 5, "utilization_percent": 3.5, "name": "python"}]
    allocations = [{"namespace": "ml", "pod": "p", "container": "c", "device_ids": ["GPU-a"], "pids": [7]}]
    read = parse(world(DEVICE, DEVICE | {"uuid": "GPU-b", "index": 3}, processes=processes, allocations=allocations))
    assert [gpu.processes for gpu in read.gpus] == [(ProcessReading(7, "GPU-a", 5, 3.5, "python"),), ()]
    assert read.allocations == (Allocation("ml", "p", "c", "nvidia.com/gpu", ("GPU-a",), (7,)),)


def test_pids_may_be_unknown() -> None:
    allocation = {"namespace": "ml", "pod": "p", "container": "c", "device_ids": ["GPU-a"], "pids": None}
    assert parse(world(DEVICE, allocations=[allocation])).allocations[0].pids is None


def test_numbers_that_no_gpu_can_have_are_left_to_the_publishing_side() -> None:
    (gpu,) = parse(b'{"devices": [{"uuid": "GPU-a", "utilization_percent": NaN, "power_watts": -1}]}').gpus
    assert gpu.utilization_percent != gpu.utilization_percent
    assert gpu.power_watts == -1


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1" + "0" * 5000, "1e400", "1e300", "NaN", "-Infinity"])
@pytest.mark.parametrize("field", ["index", "memory_total_bytes", "pcie_width"])
def test_a_number_without_end_is_a_fault_of_its_field(field: str, number: str) -> None:
    content = f'{{"devices": [{{"uuid": "a", "{field}": {number}}}]}}'.encode()
    assert faults(content).startswith(f"devices[0].{field} (a): must be a whole number, not ")


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("xid", "-1", "must be a whole number of 0 or more, not -1"),
        ("count", "-1", "must be a whole number of 0 or more, not -1"),
        ("count", "null", "must be a whole number"),
        ("last_at", "null", "must be a number of 0 or more"),
        ("last_at", "NaN", "must be a number of 0 or more, not nan"),
        ("last_at", "-1", "must be a number of 0 or more, not -1"),
        ("last_at", "1e308", "must be a number of 0 or more, not 1e+308"),
    ],
)
def test_what_happened_is_counted_and_dated(field: str, value: str, wanted: str) -> None:
    xid = {"xid": "79", "count": "1", "last_at": "5.5"} | {field: value}
    told = ",".join(f'"{key}": {text}' for key, text in xid.items())
    content = f'{{"devices": [{{"uuid": "a", "xids": [{{{told}}}]}}]}}'.encode()
    assert faults(content).startswith(f"devices[0].xids[0].{field}: {wanted}")


@pytest.mark.parametrize("number", [2**64 - 1, 2**64, 1e19])
def test_what_drivers_say_for_unknown_is_read(number: float) -> None:
    assert parse(world(DEVICE | {"memory_used_bytes": number})).gpus[0].memory_used_bytes == number


def test_all_faults_are_named_at_once_each_with_its_device_and_field() -> None:
    content = world(
        DEVICE | {"power_watts": "much", "memory_used_bytes": 1.5, "index": True},
        {"uuid": 3, "fault": "burning", "colour": "red"},
        {"uuid": "GPU-a"},
        processes=[{"pid": "one", "gpu_uuid": "GPU-z"}],
        allocations=[{"namespace": "ml", "pod": "", "device_ids": "GPU-a", "pids": [1.5]}, 4],
        speed=3,
    )
    found = faults(content).split("; ")
    for start in (
        "speed: is not known",
        "devices[0].index (GPU-a): must be a whole number, not True",
        "devices[0].memory_used_bytes (GPU-a): must be a whole number, not 1.5",
        "devices[0].power_watts (GPU-a): must be a number, not 'much'",
        "devices[1].colour: is not known",
        "devices[1].uuid: must be non-empty text, not 3",
        "devices[1].fault: must be null or one of not_supported, ",
        "devices: uuid GPU-a is there twice",
        "processes[0].pid: must be a whole number, not 'one'",
        "processes[0].gpu_uuid: no device has the uuid GPU-z",
        "allocations[0].pod: must be non-empty text, not ''",
        "allocations[0].container: must be non-empty text",
        "allocations[0].device_ids: must be a list of texts, not 'GPU-a'",
        "allocations[0].pids: must be null or a list of whole numbers, not [1.5]",
        "allocations[1]: must be an object",
    ):
        assert [fault for fault in found if fault.startswith(start)], f"{start} is not among {found}"
    assert len(found) == 15


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100000, "is not JSON"),
        (b"[]", "must hold a JSON object"),
        (b'{"devices": {}}', "devices: must be a list of objects"),
        (b'{"devices": [], "driver": 5}', "driver: must be text"),
        (b'{"devices": [], "devices": []}', "devices: is given more than once"),
        (b'{"devices": [{"uuid": "a", "index": 1, "index": 2}]}', "devices[0].index: is given more than once"),
        (b'{"devices": [{"uuid": "a", "facts": {"b": "", "b": ""}}]}', "facts.b: is given more than once"),
        (b'{"devices": [{"uuid": "a", "ecc": {"x": 1, "x": 1}}]}', "devices[0].ecc.x: is given more than once"),
        (b'{"devices": [{"uuid": "a", "index": -1}]}', "devices[0].index (a): must be a whole number of 0 or more"),
        (b'{"devices": [{"uuid": "a"}, {"uuid": "b", "index": 0}]}', "devices: index 0 is there twice"),
        (b'{"processes": [{"pid": -1, "gpu_uuid": "a"}]}', "processes[0].pid: must be a whole number of 0 or more"),
    ],
)
def test_a_file_of_another_form_is_refused_in_one_sentence(content: bytes, named: str) -> None:
    assert named in faults(content)


async def test_the_file_is_read_again_at_each_poll(tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    source = SimulatedSource(str(file))
    gpus, state = await source.read(0.0)
    assert (gpus, state.up, state.reason) == ((), False, "no_file")
    assert str(file) in state.message
    file.write_bytes(world(DEVICE))
    assert len((await source.read(1.0))[0]) == 1
    file.write_bytes(world(DEVICE, DEVICE | {"uuid": "GPU-b", "index": 3}))
    assert len((await source.read(2.0))[0]) == 2
    file.write_bytes(b"{")
    gpus, state = await source.read(3.0)
    assert (gpus, state.up, state.reason) == ((), False, "bad_file")
    assert (await source.allocations()) == (None, state)
    file.write_bytes(world())
    assert await source.read(4.0) == ((), (await source.allocations())[1])


async def test_allocations_are_of_the_moment_of_the_readings(tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    held = {"namespace": "ml", "pod": "p", "container": "c", "device_ids": ["GPU-a"]}
    file.write_bytes(world(DEVICE, allocations=[held]))
    source = SimulatedSource(str(file))
    await source.read(0.0)
    file.write_bytes(world(DEVICE, allocations=[]))
    first, _ = await source.allocations()
    second, _ = await source.allocations()
    assert first is not None
    assert (len(first), second) == (1, ())


async def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "world.json"
    os.mkfifo(pipe)
    _, state = await SimulatedSource(str(pipe)).read(0.0)
    assert (state.reason, "must be a regular file" in state.message) == ("bad_file", True)


async def test_a_file_too_large_to_parse_between_scrapes_is_refused_and_a_small_one_is_read_again(
    tmp_path: Path,
) -> None:
    file = tmp_path / "world.json"
    file.write_bytes(b" " * (MOST_BYTES + 1))
    source = SimulatedSource(str(file))
    _, state = await source.read(0.0)
    assert (state.reason, "must be at most 4 MiB" in state.message) == ("bad_file", True)
    file.write_text(json.dumps({"devices": [{"uuid": "GPU-a"}]}))
    gpus, state = await source.read(1.0)
    assert (len(gpus), state.up) == (1, True)
