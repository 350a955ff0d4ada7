import asyncio
from collections.abc import Awaitable, Callable

import pytest

from exporter.dialects import Spoken
from exporter.pace import Pace
from exporter.poller import Poller
from exporter.readings import AbsentReason, Allocation, GpuReading, SourceState
from tests.exporter.build import UP, gpu, holds, names, read, values

DOWN = SourceState(up=False, reason="driver_not_loaded", message="load the driver")
Answer = tuple[tuple[GpuReading, ...], SourceState]


class Scripted:
    """A source of readings and allocations that does what the test says."""

    driver_version = "1.2"
    needs_restart: str | None = None

    def __init__(self, reading: Callable[[], Awaitable[Answer]]) -> None:
        self._reading = reading
        self.held: tuple[Allocation, ...] | None = (holds("p", "GPU-a"),)

    async def read(self, now: float) -> Answer:
        assert now > 1e9
        return await self._reading()

    async def allocations(self) -> tuple[tuple[Allocation, ...] | None, SourceState]:
        return self.held, UP

    async def close(self) -> None:
        pass


def answers(*script: Answer | Exception) -> Scripted:
    steps = iter(script)

    async def step() -> Answer:
        answer = next(steps)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Scripted(step)


def poller(source: Scripted, period: float = 0.001) -> Poller:
    return Poller(source, source, "n1", period)


async def test_a_poll_publishes_values_and_a_second_body_of_health_alone() -> None:
    publication = await poller(answers(((gpu(),), UP))).poll()
    fresh = read(publication.fresh.plain.decode())
    stale = read(publication.stale.plain.decode())
    assert values(fresh, "aom_node_gpu_usage") == [55]
    assert values(fresh, "aom_container_gpu_usage", pod="p") == [55]
    assert "process_cpu_seconds_total" in names(fresh)
    assert not [name for name in names(stale) if name.startswith(("aom_", "process_", "python_"))]
    assert values(stale, "gpuscale_gpu_up", uuid="GPU-a") == [0]


async def test_a_poll_that_breaks_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    third = asyncio.Event()
    reads = 0

    async def breaks_first() -> Answer:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise RuntimeError("a bug")
        if reads == 3:
            third.set()
        return (gpu(),), UP

    polling = poller(Scripted(breaks_first))
    task = asyncio.create_task(polling.run())
    await asyncio.wait_for(third.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert polling.latest is not None
    assert polling.latest.snapshot.driver.up
    assert "a bug" in caplog.text


async def test_a_driver_that_never_came_is_told_once_and_its_coming_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    polling = poller(answers(((), DOWN), ((), DOWN), ((), DOWN), ((gpu(),), UP), ((gpu(),), UP)))
    for _ in range(3):
        publication = await polling.poll()
    assert values(read(publication.fresh.plain.decode()), "gpuscale_driver_up", reason="driver_not_loaded") == [0]
    for _ in range(2):
        publication = await polling.poll()
    assert values(read(publication.fresh.plain.decode()), "aom_node_gpu_usage") == [55]
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("driver")]
    assert told == ["driver does not answer (driver_not_loaded): load the driver", "driver answers"]


async def test_while_the_driver_is_down_its_gpus_keep_their_identity() -> None:
    polling = poller(answers(((gpu("GPU-a"), gpu("GPU-b")), UP), ((), DOWN)))
    await polling.poll()
    series = read((await polling.poll()).fresh.plain.decode())
    assert values(series, "gpuscale_gpu_absent", reason="driver_error") == [1, 1]
    assert values(series, "gpuscale_gpus_expected") == [2]
    assert values(series, "gpuscale_gpus_seen") == [0]
    assert not [name for name in names(series) if name.startswith("aom_")]


async def test_a_gpu_that_the_working_driver_no_longer_lists_is_gone() -> None:
    polling = poller(answers(((gpu("GPU-a"), gpu("GPU-b")), UP), ((gpu("GPU-a"),), UP)))
    await polling.poll()
    series = read((await polling.poll()).fresh.plain.decode())
    assert values(series, "gpuscale_gpus_expected") == [1]
    assert values(series, "gpuscale_gpu_up", uuid="GPU-b") == []


async def test_container_series_end_with_the_allocation() -> None:
    source = answers(((gpu(),), UP), ((gpu(),), UP))
    polling = poller(source)
    await polling.poll()
    source.held = ()
    series = read((await polling.poll()).fresh.plain.decode())
    assert not [name for name in names(series) if name.startswith("aom_container")]


async def test_the_next_poll_begins_when_the_pace_says() -> None:
    third = asyncio.Event()
    begins: list[float] = []

    class AtOnce(Pace):
        def after(self, began: float, now: float) -> float:
            assert began <= now
            assert not begins or began == begins[-1]
            begins.append(now)
            if len(begins) == 3:
                third.set()
            return now

    async def reads() -> Answer:
        return (gpu(),), UP

    polling = poller(Scripted(reads), period=3600.0)
    polling.pace = AtOnce(3600.0)
    task = asyncio.create_task(polling.run())
    await asyncio.wait_for(third.wait(), 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert polling.latest is not None


async def test_a_source_that_needs_a_new_process_ends_the_polling_with_its_reason() -> None:
    source = answers(((gpu(),), UP))
    source.needs_restart = "library_replaced"
    assert await poller(source).run() == "library_replaced"


async def test_a_lost_gpu_is_told_each_time_it_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    lost = GpuReading("GPU-a", 0, "Tesla T4", fault=AbsentReason.LOST)
    polling = poller(answers(*(((one,), UP) for one in (lost, lost, gpu(), lost))))
    for _ in range(4):
        await polling.poll()
    assert caplog.text.count("GPU GPU-a (Tesla T4) is absent: lost") == 2


async def test_a_field_that_comes_and_goes_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    poor = gpu(power_watts=None)
    polling = poller(answers(*(((one,), UP) for one in (poor, gpu(), poor, gpu(), poor))))
    for _ in range(5):
        await polling.poll()
    assert caplog.text.count("power_watts is not published: not_supported") == 1


async def test_the_loop_goes_on_while_a_reading_waits() -> None:
    release = asyncio.Event()

    async def slow() -> Answer:
        await release.wait()
        return (gpu(),), UP

    polling = poller(Scripted(slow))
    task = asyncio.create_task(polling.poll())
    await asyncio.sleep(0)
    assert polling.latest is None
    release.set()
    assert (await task) is polling.latest


async def test_a_dialect_is_a_part_of_the_page_and_not_of_the_native_one() -> None:
    source = answers(((gpu(),), UP))
    publication = await Poller(source, source, "n1", 0.001, spoken=Spoken(("dcgm",))).poll()
    page, native = (read(body.plain.decode()) for body in (publication.fresh, publication.native))
    assert values(page, "DCGM_FI_DEV_FB_USED", pod="p") == [20000]
    assert names(page) - names(native) == {name for name in names(page) if name.startswith("DCGM_")}
    assert names(native) <= names(page)
    assert not [name for name in names(read(publication.stale.plain.decode())) if name.startswith("DCGM_")]
