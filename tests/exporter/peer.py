"""What nvidia_gpu_exporter printed on real machines, and the two tables of where our dialect of it differs, and why."""

import math
from fnmatch import fnmatch
from pathlib import Path

from tests.exporter.build import Series
from tests.exporter.foreign import heard

PEER = "nvidia_gpu_exporter__"
CAPTURES = (
    "linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05",
    "linux-x86_64__nvidia-h200-mig__590.48.01",
    "linux-x86_64__nvidia-h200__590.48.01",
    "linux-x86_64__nvidia-l40s__595.80",
    "windows-x86_64__nvidia-geforce-rtx-2080-super__591.86",
)

NOT_OURS = {
    "command_exit_code": "of the program nvidia-smi, which we do not run",
    "pcie_link_gen_hostmax": "of the slot alone; NVML tells it of the GPU, and of GPU and slot together",
}
"""Families of the peer that we do not have, by pattern, each with the reason."""

OURS_TOO = {
    "kmd_version": "of nvidia-smi 595 and later; before, the same number is driver_version alone",
    "clocks_throttle_reasons_*": "the names of older drivers for the same, which dashboard 14574 asks for",
    "last_collect_success_timestamp_seconds": "left out of the recorded expositions by the peer's own tests",
    "last_collect_duration_seconds": "left out of the recorded expositions by the peer's own tests",
}
"""Families of ours that the recorded expositions lack."""


def matches(name: str, table: dict[str, str]) -> str:
    """Return the pattern of the table that a family's name matches, else ""."""
    return next((pattern for pattern in table if fnmatch(name.removeprefix("nvidia_smi_"), pattern)), "")


def exposition(shared_data: Path, capture: str, moment: str) -> Series:
    """Return what the peer printed at the moment "idle" or "load" of a capture."""
    return heard((shared_data / "gpu-metrics-expo" / f"{PEER}{capture}__{moment}.metrics").read_text())


def compared(theirs: Series, ours: Series) -> tuple[Series, Series]:
    """Return both without what the tables excuse; what they excuse and both have is compared all the same."""
    wanted = {key: value for key, value in theirs.items() if not matches(key[0], NOT_OURS)}
    mine = {key: value for key, value in ours.items() if key in wanted or not matches(key[0], OURS_TOO)}
    return wanted, mine


def insist_same(theirs: Series, ours: Series) -> int:
    """Assert that names, labels and values are the same; returns how many series were compared."""
    wanted, mine = compared(theirs, ours)
    assert wanted.keys() - mine.keys() == set()
    assert mine.keys() - wanted.keys() == set()
    assert [key for key in wanted if not math.isclose(wanted[key], mine[key], rel_tol=1e-9)] == []
    return len(wanted)
