"""What every test may rely on: the folder of public data, and no skipping in CI."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
IN_CI = os.environ.get("CI", "").lower() == "true"

# by hand each run looks at new examples; in CI the same ones are looked at, so that red means a change of ours
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
if IN_CI:
    settings.load_profile("ci")

# a shell that starts a run in the background has it ignore Ctrl-C, and so would every program that a test starts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def shared_folder(name: str) -> Path:
    """``data`` or ``cases``, beside the checkout or where GPUSCALE_SHARED points; it may be absent."""
    return Path(os.environ.get("GPUSCALE_SHARED", ROOT.parent / "shared")) / name


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public captures, recorded answers and traces; the test is skipped where they are absent."""
    return _present(shared_folder("data"))


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """The conformance tables; the test is skipped where they are absent."""
    return _present(shared_folder("cases"))


def _present(folder: Path) -> Path:
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent; point GPUSCALE_SHARED at the folder that holds {folder.name}/")
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that skips has failed: a layer that silently does not run proves nothing."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skipped, and with CI=true none may: {report.longrepr}"
    return report
