"""Builds the fake libnvidia-ml.so.1, in flavours: which symbols it exports is how old a driver it is."""

import shutil
import subprocess
from pathlib import Path

from tests.fakenvml.state import FUNCTIONS

SOURCE = Path(__file__).with_name("fakenvml.c")
SONAME = "libnvidia-ml.so.1"

_SINCE_R550 = frozenset(
    {
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetPlatformInfo",
        "nvmlDeviceGetPciInfoExt",
        "nvmlDeviceGetJpgUtilization",
        "nvmlDeviceGetOfaUtilization",
        "nvmlDeviceGetC2cModeInfoV",
        "nvmlDeviceGetGpuFabricInfoV",
    }
)
_SINCE_R535 = frozenset(
    {
        "nvmlDeviceGetSupportedClocksEventReasons",
        "nvmlDeviceGetConfComputeProtectedMemoryUsage",
        "nvmlDeviceGetGspFirmwareMode",
    }
)

MISSING: dict[str, frozenset[str]] = {
    "current": frozenset(),
    "r535": _SINCE_R550,
    "r535-early": _SINCE_R550,
    "r470": _SINCE_R550
    | _SINCE_R535
    | frozenset(
        {
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlGpmQueryDeviceSupport",
            "nvmlGpmSampleAlloc",
            "nvmlGpmSampleFree",
            "nvmlGpmSampleGet",
            "nvmlGpmMigSampleGet",
            "nvmlGpmMetricsGet",
        }
    ),
}
"""flavour -> the symbols that a driver of that age does not have."""

DEFINES: dict[str, tuple[str, ...]] = {"r535-early": ("WIDE_V3",)}
"""flavour -> in what it differs beside its symbols."""

_ALWAYS = ("nvmlErrorString", "fakenvml_fact_name", "fakenvml_fact_value", "fakenvml_sizeof_state")


def compiler() -> str | None:
    """Return the C compiler; None = this machine has none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path, flavour: str = "current") -> Path:
    """Compile into a folder of its own, for LD_LIBRARY_PATH; returns it. Raises RuntimeError, with the cure."""
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler: install cc, gcc or clang to run the tests on the fake driver")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "functions.inc").write_text("".join(f"X({name})\n" for name in FUNCTIONS))
    exported = [name for name in (*FUNCTIONS, *_ALWAYS) if name not in MISSING[flavour]]
    (folder / "exports.map").write_text("{ global: " + "; ".join(exported) + "; local: *; };\n")
    subprocess.run(
        [
            *(cc, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"),
            *(f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={folder / 'exports.map'}"),
            *(f"-D{define}" for define in DEFINES.get(flavour, ())),
            *("-I", str(folder), "-o", str(folder / SONAME), str(SOURCE)),
        ],
        check=True,
    )
    return folder
