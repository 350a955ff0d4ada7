"""GPUs split into instances, what their SMs do, and what an Xid leaves behind."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from exporter.readings import AbsentReason, GpuReading
from tests.fakenvml.reader import Reader
from tests.fakenvml.scenario import gpus, load, uuid
from tests.fakenvml.state import LOST, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, XID, FakeDriver

MIB = 2**20
UTILIZATION = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization")


def instance(slot: int, gi: int, ci: int, profile: str = "1g.18gb", used: int = 9) -> dict[str, Any]:
    total = 16384 * MIB
    return {
        "slot": slot,
        "uuid": f"MIG-{gi}-{ci}-{profile}",
        "gpu_instance": gi,
        "compute_instance": ci,
        "profile": profile,
        "memory_total_bytes": total,
        "memory_used_bytes": used * MIB,
        "sm_active_ratio": 0.25,
    }


def split(fake: FakeDriver, count: int, *instances: dict[str, Any]) -> None:
    load(fake, gpus(count, mig_enabled=True, mig=instances, utilization_percent=None))
    for at in range(count):
        for function in UTILIZATION:
            fake.fail(at, function, NOT_SUPPORTED)


def until(process: Reader, holds: Callable[[dict[str, GpuReading]], bool]) -> dict[str, GpuReading]:
    """Poll until something holds; 30 s are a fault, not a measurement."""
    give_up = time.monotonic() + 30
    while not holds(readings := process.read()[0]):
        assert time.monotonic() < give_up, readings
    return readings


def test_x16_gaps_between_the_slots_hide_no_instance(fake: FakeDriver, reader: Any) -> None:
    split(fake, 8, instance(0, 1, 0), instance(3, 2, 0))
    readings = reader().read()[0].values()
    assert sum(len(reading.mig) for reading in readings) == 16
    assert {part.gpu_instance for reading in readings for part in reading.mig} == {1, 2}


@pytest.mark.parametrize("flavour", ["current", "r470"])
def test_x14_a_split_gpu_has_instances_with_memory_and_no_utilisation(
    flavour: str, fake: FakeDriver, reader: Any
) -> None:
    split(fake, 1, instance(0, 2, 0, "1c.4g.71gb"), instance(1, 2, 1, "2c.4g.71gb"), instance(4, 9, 0))
    process: Reader = reader(flavour)
    reading = process.read()[0][uuid(0)]
    assert reading.mig_enabled
    for field in ("utilization_percent", "encoder_utilization_percent", "decoder_utilization_percent"):
        assert getattr(reading, field) is None
        assert reading.absent[field] is AbsentReason.MIG_ENABLED
    found = {(part.gpu_instance, part.compute_instance): part for part in reading.mig}
    assert set(found) == {(2, 0), (2, 1), (9, 0)}
    assert found[2, 1].profile == "2c.4g.71gb"
    assert (found[9, 0].memory_used_bytes, found[9, 0].memory_total_bytes) == (9 * MIB, 16384 * MIB)
    assert (reading.power_watts, reading.memory_total_bytes) == (70.5, 81559 * MIB)


def test_memory_is_asked_for_once_per_gpu_instance(fake: FakeDriver, reader: Any) -> None:
    split(fake, 1, *(instance(slot, 2, slot) for slot in range(4)))
    process: Reader = reader()
    process.read()
    fake.reset_calls()
    process.read()
    assert fake.calls(0, "nvmlDeviceGetMemoryInfo_v2") == 1 + 1  # the board's, and that of the one GPU instance


def test_instances_that_are_made_anew_are_seen_at_the_next_poll(fake: FakeDriver, reader: Any) -> None:
    split(fake, 1, instance(0, 2, 0, "4g.71gb"))
    process: Reader = reader()
    assert [part.profile for part in process.read()[0][uuid(0)].mig] == ["4g.71gb"]
    split(fake, 1, instance(0, 2, 0, "1g.18gb", used=5), instance(5, 7, 0))  # the same slot and id, another shape
    after = process.read()[0][uuid(0)].mig
    assert [(part.gpu_instance, part.profile) for part in after] == [(2, "1g.18gb"), (7, "1g.18gb")]
    assert after[0].memory_used_bytes == 5 * MIB
    load(fake, gpus(1, utilization_percent=50))
    whole = process.read()[0][uuid(0)]
    assert (whole.mig_enabled, whole.mig, whole.utilization_percent) == (False, (), 50)
    assert fake.overlaps == 0


def test_where_an_instance_lies_is_asked_for_once_until_it_is_made_anew(fake: FakeDriver, reader: Any) -> None:
    here, there = ({"profile_id": 19, "placement_start": start} for start in (6, 0))
    split(fake, 1, instance(0, 7, 0) | here, instance(2, 9, 0) | there)
    process: Reader = reader()
    for _ in range(3):
        found = process.read()[0][uuid(0)].mig
    assert [(part.gpu_instance, part.profile_id, part.placement_start) for part in found] == [(7, 19, 6), (9, 19, 0)]
    asked = ("nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo")
    assert [fake.calls(0, function) for function in asked] == [2, 2]
    split(fake, 1, instance(0, 7, 0, "2g.35gb") | {"profile_id": 14, "placement_start": 2})
    again = process.read()[0][uuid(0)].mig
    assert [(part.profile_id, part.placement_start) for part in again] == [(14, 2)]
    assert [fake.calls(0, function) for function in asked] == [3, 3]


@pytest.mark.parametrize(("code", "asked"), [(NO_PERMISSION, 2), (NOT_SUPPORTED, 1), (UNKNOWN, 3 * 2)])
def test_a_driver_that_does_not_tell_where_instances_lie_costs_nothing_else(
    fake: FakeDriver, reader: Any, code: int, asked: int
) -> None:
    place = {"profile_id": 19, "placement_start": 0}
    split(fake, 1, instance(0, 7, 0) | place, instance(2, 9, 0) | place)
    fake.fail(0, "nvmlDeviceGetGpuInstanceById", code)
    process: Reader = reader()
    for _ in range(3):
        found = process.read()[0][uuid(0)].mig
    assert [(part.profile_id, part.memory_used_bytes) for part in found] == [(None, 9 * MIB)] * 2
    assert fake.calls(0, "nvmlDeviceGetGpuInstanceById") == asked


def test_the_second_sample_tells_what_the_sms_did(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    process: Reader = reader(activity_seconds=0)
    first = process.read()[0][uuid(0)]
    assert (first.sm_active_ratio, first.absent) == (None, {})
    second = process.read()[0][uuid(0)]
    assert (second.sm_active_ratio, second.sm_occupancy_ratio) == (0.5, 0.25)
    assert (second.tensor_active_ratio, second.dram_active_ratio) == (0.125, 0.75)
    assert second.graphics_active_ratio == 0.625
    for _ in range(5):
        process.read()
    assert fake.calls(None, "nvmlGpmSampleAlloc") == 2
    assert fake.calls(0, "nvmlGpmQueryDeviceSupport") == 1


def test_samples_keep_their_distance_and_the_last_answer_stands_meanwhile(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    process: Reader = reader(activity_seconds=3600)
    for _ in range(4):
        assert process.read()[0][uuid(0)].absent == {}
    assert fake.calls(0, "nvmlGpmSampleGet") == 1


def test_a_board_without_gpm_says_so_and_is_asked_once(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    fake.state.devices[0].gpm_supported = 0
    process: Reader = reader(activity_seconds=0)
    for _ in range(3):
        assert process.read()[0][uuid(0)].absent["sm_active_ratio"] is AbsentReason.NOT_SUPPORTED
    assert fake.calls(0, "nvmlGpmQueryDeviceSupport") == 1
    assert fake.calls(0, "nvmlGpmSampleGet") == 0


def test_a_gpu_instance_has_an_activity_of_its_own(fake: FakeDriver, reader: Any) -> None:
    split(fake, 1, instance(0, 2, 0, "1c.4g.71gb"), instance(1, 2, 1, "1c.4g.71gb"), instance(4, 9, 0))
    process: Reader = reader(activity_seconds=0)
    assert [part.sm_active_ratio for part in process.read()[0][uuid(0)].mig] == [None] * 3
    reading = process.read()[0][uuid(0)]
    assert [part.sm_active_ratio for part in reading.mig] == [0.25] * 3
    assert reading.absent["sm_active_ratio"] is AbsentReason.MIG_ENABLED
    assert fake.calls(0, "nvmlGpmMigSampleGet") == 2 * 2
    split(fake, 1, instance(0, 2, 0, "2g.35gb"))
    assert [part.sm_active_ratio for part in process.read()[0][uuid(0)].mig] == [None]  # nothing of the old shape


def samples_held(fake: FakeDriver) -> int:
    return fake.calls(None, "nvmlGpmSampleAlloc") - fake.calls(None, "nvmlGpmSampleFree")


def test_instances_that_are_gone_give_their_samples_back(fake: FakeDriver, reader: Any) -> None:
    process: Reader = reader(activity_seconds=0)
    held = []
    for gi in range(1, 13):
        split(fake, 1, instance(0, gi, 0), instance(1, gi + 20, 0))
        for _ in range(3):
            process.read()
        held.append(samples_held(fake))
    assert held == [2 * 2] * 12
    load(fake, gpus(1, mig_enabled=False))
    process.read()
    assert samples_held(fake) <= 2, "at most the board's own"
    assert fake.overlaps == 0


def test_a_board_that_stops_sampling_keeps_no_sample(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1, sm_active_ratio=0.5))
    process: Reader = reader(activity_seconds=0)
    for _ in range(5):
        for code in (0, 0, 0, UNKNOWN):
            fake.fail(0, "nvmlGpmSampleGet", code)
            process.read()
        assert samples_held(fake) == 0
    fake.fail(0, "nvmlGpmSampleGet", 0)
    assert [process.read()[0][uuid(0)].sm_active_ratio for _ in range(2)] == [None, 0.5]


def listening(fake: FakeDriver, process: Reader, count: int) -> None:
    until(process, lambda _: all(fake.calls(at, "nvmlDeviceRegisterEvents") for at in range(count)))


def test_x26_each_xid_is_counted_with_its_last_time_and_stays_no_longer_than_the_process(
    fake: FakeDriver, reader: Any
) -> None:
    load(fake, gpus(2))
    process: Reader = reader()
    listening(fake, process, 2)
    before = time.time()
    for xid in (31, 79, 31):
        fake.event(1, xid)
    fake.event(1, 99, kind=XID << 1)  # no Xid
    readings = until(process, lambda now: sum(event.count for event in now[uuid(1)].xids or ()) == 3)
    assert {event.xid: event.count for event in readings[uuid(1)].xids} == {31: 2, 79: 1}
    assert all(before - 1 <= event.last_at <= time.time() for event in readings[uuid(1)].xids)
    assert readings[uuid(0)].xids == ()
    assert process.read()[0][uuid(1)].xids == readings[uuid(1)].xids  # nothing new, nothing changed
    again: Reader = reader()
    listening(fake, again, 2)
    assert again.read()[0][uuid(1)].xids == ()


def test_a_gpu_lost_while_waiting_costs_the_others_no_event(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(2))
    process: Reader = reader()
    listening(fake, process, 2)
    fake.event(1, 79)
    until(process, lambda now: bool(now[uuid(1)].xids))
    fake.state.devices[1].error = fake.state.wait_error = LOST
    fake.reset_calls()
    until(process, lambda _: fake.calls(0, "nvmlDeviceRegisterEvents") > 0)
    fake.event(0, 13)
    readings = until(process, lambda now: bool(now[uuid(0)].xids))
    assert [event.xid for event in readings[uuid(0)].xids] == [13]
    assert readings[uuid(1)].fault is AbsentReason.LOST
    assert [event.xid for event in readings[uuid(1)].xids] == [79]
    assert fake.overlaps == 0


def test_a_card_that_reports_no_events_says_so_and_is_asked_once(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    fake.fail(0, "nvmlDeviceGetSupportedEventTypes", NOT_SUPPORTED)
    process: Reader = reader()
    until(process, lambda now: now[uuid(0)].absent.get("xids") is AbsentReason.NOT_SUPPORTED)
    process.read()
    assert fake.calls(0, "nvmlDeviceGetSupportedEventTypes") == 1


def test_waiting_for_events_that_hangs_stops_neither_reading_nor_closing(fake: FakeDriver, reader: Any) -> None:
    load(fake, gpus(1))
    process: Reader = reader()
    listening(fake, process, 1)
    with fake.hanging(None, "nvmlEventSetWait_v2"):
        fake.reset_calls()
        until(process, lambda _: fake.calls(None, "nvmlEventSetWait_v2") > 0)
        assert process.read()[0][uuid(0)].fault is None
        assert process.close() < 1
        assert fake.calls(None, "nvmlShutdown") == 0
