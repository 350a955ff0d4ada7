"""The fake driver, built once per session, and programs that run on it."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakenvml.build import MISSING, build, compiler
from tests.fakenvml.program import Exporter
from tests.fakenvml.reader import Reader
from tests.fakenvml.state import FakeDriver

OpenReader = Callable[..., Reader]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Flavour -> the folder of its library."""
    if compiler() is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no C compiler: CI must build the fake driver")
        pytest.skip("no C compiler: install cc, gcc or clang to run the exporter on the fake driver")
    folder = tmp_path_factory.mktemp("fakenvml")
    return {flavour: build(folder / flavour, flavour) for flavour in MISSING}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDriver]:
    with FakeDriver(tmp_path / "nvml.state") as driver:
        yield driver


@pytest.fixture
def reader(libraries: dict[str, Path], fake: FakeDriver) -> Iterator[OpenReader]:
    """Open a process that polls the fake when told to; hanging calls are released at the end."""
    with ExitStack() as opened:

        def start(
            flavour: str = "current", library: Path | None = None, binding: Path | None = None, **settings: float
        ) -> Reader:
            return opened.enter_context(Reader(library or libraries[flavour], fake.path, binding, **settings))

        yield start
        fake.release()


@pytest.fixture
def exporter(libraries: dict[str, Path], fake: FakeDriver) -> Iterator[Callable[..., Exporter]]:
    """Start `python -m exporter` on the fake; whatever hangs, it is gone at the end."""
    with ExitStack() as opened:

        def start(*arguments: str, library: Path | None = None) -> Exporter:
            return opened.enter_context(Exporter(library or libraries["current"], fake.path, *arguments))

        yield start
        fake.release()
