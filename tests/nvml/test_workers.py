"""The thread that may hang, and the library that may be replaced."""

import asyncio
import threading
from pathlib import Path

import pytest

from exporter.nvml.library import SONAME, LibraryFile, loaded_library, was_replaced
from exporter.nvml.workers import Worker

LONG, SHORT = 30.0, 0.05


async def test_an_answer_and_an_error_come_through() -> None:
    worker = Worker("w")

    def refuse() -> int:
        raise ValueError("no")

    assert await worker.ask(lambda: 7, LONG) == 7
    with pytest.raises(ValueError, match="no"):
        await worker.ask(refuse, LONG)
    assert await worker.ask(lambda: 8, LONG) == 8
    worker.stop()


async def test_one_job_at_a_time_and_a_late_answer_is_dropped() -> None:
    worker = Worker("w")
    release, ran = threading.Event(), []

    def hang() -> str:
        release.wait(LONG)
        return "late"

    with pytest.raises(TimeoutError):
        await worker.ask(hang, SHORT)
    assert worker.busy
    assert worker.busy_seconds > 0
    with pytest.raises(TimeoutError, match="earlier"):
        await worker.ask(lambda: ran.append(1), LONG)
    release.set()
    while worker.busy:  # noqa: ASYNC110 - only a thread changes it
        await asyncio.sleep(0.001)
    assert worker.busy_seconds == 0
    assert await worker.ask(lambda: "next", LONG) == "next"
    assert ran == []
    worker.stop()


def test_a_job_outlives_the_loop_that_asked() -> None:
    worker = Worker("w")
    release, done = threading.Event(), threading.Event()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await worker.ask(lambda: release.wait(LONG), SHORT)

    asyncio.run(ask())
    release.set()

    async def again() -> None:
        while worker.busy:  # noqa: ASYNC110 - only a thread changes it
            await asyncio.sleep(0.001)
        await worker.ask(done.set, LONG)

    asyncio.run(again())
    assert done.is_set()
    worker.stop()


async def test_a_stopped_worker_ends_its_thread() -> None:
    worker = Worker("stops")
    thread = await worker.ask(threading.current_thread, LONG)
    assert thread.daemon
    worker.stop()
    thread.join(LONG)
    assert not thread.is_alive()


def maps(folder: Path, library: Path, suffix: str = "") -> Path:
    status = library.stat()
    text = (
        f"7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/other.so\n7f02-7f03 r-xp 0 fe:00 {status.st_ino} {library}{suffix}\n"
    )
    path = folder / "maps"
    path.write_text(text + "7f04-7f05 rw-p 00000000 00:00 0\n")
    return path


def install(folder: Path, version: str) -> Path:
    library = folder / f"libnvidia-ml.so.{version}"
    library.write_text(version)
    link = folder / SONAME
    link.unlink(missing_ok=True)
    link.symlink_to(library.name)
    return library


def test_the_loaded_library_is_the_one_that_is_mapped(tmp_path: Path) -> None:
    library = install(tmp_path, "550.54")
    loaded = loaded_library(maps(tmp_path, library))
    assert loaded == LibraryFile(library, library.stat().st_ino, library.stat().st_mtime_ns)
    assert not was_replaced(loaded)


def test_a_process_without_the_library_has_none(tmp_path: Path) -> None:
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/other.so\n")
    assert loaded_library(tmp_path / "maps") is None
    assert loaded_library(tmp_path / "no such file") is None


def test_an_upgrade_is_a_replaced_library_from_when_the_new_one_is_there(tmp_path: Path) -> None:
    old = install(tmp_path, "550.54")
    loaded = loaded_library(maps(tmp_path, old))
    assert loaded is not None
    old.unlink()
    assert not was_replaced(loaded)
    install(tmp_path, "560.28")
    assert was_replaced(loaded)


def test_a_new_library_beside_the_old_one_counts_when_the_name_leads_to_it(tmp_path: Path) -> None:
    loaded = loaded_library(maps(tmp_path, install(tmp_path, "550.54")))
    assert loaded is not None
    install(tmp_path, "560.28")
    assert was_replaced(loaded)


def test_a_library_deleted_before_it_was_looked_at_is_replaced_by_any_other(tmp_path: Path) -> None:
    old = install(tmp_path, "550.54")
    listed = maps(tmp_path, old, " (deleted)")
    old.unlink()
    loaded = loaded_library(listed)
    assert loaded is not None
    assert loaded.path == old
    install(tmp_path, "560.28")
    assert was_replaced(loaded)
