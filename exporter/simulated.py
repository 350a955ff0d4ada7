"""GPUs that are not there: the same readings and allocations from ``8xH100`` or from a JSON file.

Why it exists: the exporter, and all that reads it, can be run, tested and shown without a GPU. The file is the
one seam of every simulation; it is read again at each poll, so that whoever writes it moves the world.
"""

import dataclasses
import math
import re
import stat
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.checked import Checked, read_json
from exporter.details import DetailReading
from exporter.readings import (
    MEMORY_FIELDS,
    AbsentReason,
    Allocation,
    ClocksEventReading,
    EccReading,
    GpuReading,
    MigReading,
    NvlinkReading,
    ProcessReading,
    RepairReading,
    SourceState,
    XidReading,
)

SPEC = re.compile(r"(?P<count>[1-9][0-9]{0,2})x(?P<model>[A-Za-z][A-Za-z0-9-]*)")
SPEC_DRIVER = "550.54.15"
MOST_BYTES = 4 << 20
"""A device takes half a kilobyte. What is larger would keep scrapes waiting while it is parsed."""
UP = SourceState(up=True)


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model: the driver's name of it, its memory in MiB, and the watts it draws idle and at most."""

    name: str
    memory_mib: int
    idle_watts: float
    max_watts: float


MODELS: dict[str, Model] = {
    "T4": Model("Tesla T4", 15360, 10, 70),
    "V100": Model("Tesla V100-SXM2-32GB", 32768, 40, 300),
    "L4": Model("NVIDIA L4", 23034, 16, 72),
    "L40S": Model("NVIDIA L40S", 46068, 35, 350),
    "A10": Model("NVIDIA A10", 23028, 18, 150),
    "A100": Model("NVIDIA A100-SXM4-80GB", 81920, 60, 400),
    "H100": Model("NVIDIA H100 80GB HBM3", 81559, 70, 700),
    "H200": Model("NVIDIA H200", 143771, 75, 700),
    "B200": Model("NVIDIA B200", 183359, 140, 1000),
}


class SimulationError(Exception):
    """The simulation file cannot be used; str() names every fault."""


@dataclass(frozen=True, slots=True)
class World:
    """What a simulation file says."""

    driver: str
    gpus: tuple[GpuReading, ...]
    allocations: tuple[Allocation, ...]


class SimulatedSource:
    """Readings and allocations from ``COUNTxMODEL`` or a file. ``seed`` keeps the uuids of two nodes apart."""

    def __init__(self, spec_or_path: str, seed: str = "") -> None:
        self._spec = SPEC.fullmatch(spec_or_path)
        self._path = Path(spec_or_path)
        self._seed = seed
        self._driver = ""
        self._bytes: bytes | None = None
        self._parsed: World | SourceState = World("", (), ())
        self._for_allocations: World | SourceState | None = None

    @property
    def driver_version(self) -> str:
        """The simulated driver's version; "" before the first good reading."""
        return self._driver

    @property
    def needs_restart(self) -> str | None:
        """Never: a simulation is read afresh at each poll."""
        return None

    async def read(self, now: float) -> tuple[tuple[GpuReading, ...], SourceState]:
        """Every simulated GPU at ``now`` (Unix seconds)."""
        world = self._for_allocations = self._load(now)
        if isinstance(world, SourceState):
            return (), world
        self._driver = world.driver
        return world.gpus, UP

    async def allocations(self) -> tuple[tuple[Allocation, ...] | None, SourceState]:
        """Who holds the GPUs, as of the reading just made, so that both tell of the same moment."""
        world, self._for_allocations = self._for_allocations or self._load(0.0), None
        if isinstance(world, SourceState):
            return None, world
        return world.allocations, UP

    async def close(self) -> None:
        """Do nothing: nothing is held."""

    def _load(self, now: float) -> World | SourceState:
        if self._spec:
            return _from_spec(int(self._spec["count"]), MODELS[self._spec["model"].upper()], self._seed, now)
        try:
            content = _read(self._path)
        except OSError as error:
            self._bytes = None
            return SourceState(up=False, reason="no_file", message=f"{self._path}: {error.strerror or error}")
        except SimulationError as fault:
            self._bytes = None
            return SourceState(up=False, reason="bad_file", message=f"{self._path}: {fault}")
        if content != self._bytes:
            self._bytes, self._parsed = content, self._parse(content)
        return self._parsed

    def _parse(self, content: bytes) -> World | SourceState:
        try:
            return parse(content)
        except SimulationError as fault:
            return SourceState(up=False, reason="bad_file", message=f"{self._path}: {fault}")


def _read(path: Path) -> bytes:
    """Read the file. Raises OSError, or SimulationError for one that would hold up the loop: a pipe, or a huge one."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise SimulationError("must be a regular file: it is read again at each poll")
    if about.st_size > MOST_BYTES:
        raise SimulationError(f"must be at most {MOST_BYTES >> 20} MiB, not {about.st_size >> 20}")
    return path.read_bytes()


def _from_spec(count: int, model: Model, seed: str, now: float) -> World:
    uuids = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{seed}/{model.name}/{index}')}" for index in range(count)]
    gpus = tuple(_spec_gpu(name, index, model, now) for index, name in enumerate(uuids))
    held = uuids[: max(1, count - 1)]
    allocations = tuple(
        Allocation("simulated", f"job-{index}", "main", "nvidia.com/gpu", (name,)) for index, name in enumerate(held)
    )
    return World(SPEC_DRIVER, gpus, allocations)


def _spec_gpu(name: str, index: int, model: Model, now: float) -> GpuReading:
    # a slow wave, each GPU a step behind the last: something to see, and the same at the same time
    load = 0.5 + 0.45 * math.sin(now / 60 + index)
    total = model.memory_mib * 2**20
    reserved = total // 128
    used = int((total - reserved) * (0.3 + 0.5 * load))
    return GpuReading(
        uuid=name,
        index=index,
        name=model.name,
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_free_bytes=total - reserved - used,
        memory_reserved_bytes=reserved,
        utilization_percent=round(100 * load),
        memory_utilization_percent=round(60 * load),
        temperature_celsius=round(35 + 40 * load),
        power_watts=round(model.idle_watts + (model.max_watts - model.idle_watts) * load, 1),
    )


def parse(content: bytes) -> World:
    """Read the JSON text of a simulation file. Raises SimulationError that names every fault, device and field."""
    try:
        document = read_json(content)
    except (ValueError, RecursionError) as error:
        raise SimulationError(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise SimulationError("must hold a JSON object with devices, processes and allocations")
    faults: list[str] = []
    checked = Checked(document, "", faults)
    checked.only("driver", "devices", "processes", "allocations")
    driver = checked.text("driver", "")
    processes = [_process(item) for item in checked.items("processes")] if "processes" in document else None
    gpus = tuple(_device(item, index, processes) for index, item in enumerate(checked.items("devices")))
    allocations = tuple(_allocation(item) for item in checked.items("allocations"))
    _references(gpus, processes or (), faults)
    if faults:
        raise SimulationError("; ".join(faults))
    return World(driver, gpus, allocations)


def _device(item: Checked, position: int, processes: Sequence[ProcessReading] | None) -> GpuReading:
    item.only("uuid", "index", "name", "fault", *MEMORY_FIELDS, *_NUMBERS, *_SCALARS, *_NESTED)
    identity = (item.text("uuid"), item.natural("index", position), item.text("name", "GPU"))
    sizes = {field: item.whole(field, None) for field in MEMORY_FIELDS}
    numbers = {field: item.number(field) for field in _NUMBERS}
    further = item.typed(GpuReading, *_SCALARS) | _nested(item)
    if fault := item.reason("fault"):
        return GpuReading(*identity, fault=fault)
    total, used = sizes["memory_total_bytes"], sizes["memory_used_bytes"]
    if sizes["memory_free_bytes"] is None and total is not None and used is not None:
        sizes["memory_free_bytes"] = total - used - (sizes["memory_reserved_bytes"] or 0)
    fields: dict[str, Any] = {**sizes, **numbers}
    values = fields | further
    return GpuReading(
        *identity,
        **values,
        processes=None if processes is None else tuple(p for p in processes if p.gpu_uuid == identity[0]),
        absent=_absent(fields, unified=bool(further["memory_unified"])),
    )


def _absent(fields: dict[str, Any], *, unified: bool) -> dict[str, AbsentReason]:
    of_memory = AbsentReason.UNIFIED_MEMORY if unified else AbsentReason.NOT_SUPPORTED
    return {
        field: of_memory if field in MEMORY_FIELDS else AbsentReason.NOT_SUPPORTED
        for field, value in fields.items()
        if value is None
    }


def _nested(item: Checked) -> dict[str, Any]:
    return {
        "ecc": item.part("ecc", EccReading),
        "repair": item.part("repair", RepairReading),
        "clocks_event": item.part("clocks_event", ClocksEventReading),
        "details": item.part("details", DetailReading),
        "nvlinks": item.parts("nvlinks", NvlinkReading),
        "xids": item.parts("xids", XidReading),
        "mig": item.parts("mig", MigReading) or (),
        "facts": item.words("facts"),
    }


def _process(item: Checked) -> ProcessReading:
    item.only("pid", "gpu_uuid", "memory_used_bytes", "utilization_percent", "name", "computes", *_PLACE)
    return ProcessReading(
        pid=item.natural("pid"),
        gpu_uuid=item.text("gpu_uuid"),
        memory_used_bytes=item.whole("memory_used_bytes", None),
        utilization_percent=item.number("utilization_percent"),
        name=item.text("name", ""),
        computes=item.yes_no("computes") is not False,
        **{key: item.whole(key, None) for key in _PLACE},
    )


def _allocation(item: Checked) -> Allocation:
    item.only("namespace", "pod", "container", "resource", "device_ids", "pids")
    return Allocation(
        namespace=item.text("namespace"),
        pod=item.text("pod"),
        container=item.text("container"),
        resource=item.text("resource", "nvidia.com/gpu"),
        device_ids=item.texts("device_ids"),
        pids=item.wholes("pids"),
    )


def _references(gpus: Sequence[GpuReading], processes: Sequence[ProcessReading], faults: list[str]) -> None:
    known = Counter(gpu.uuid for gpu in gpus if gpu.uuid)
    faults += [f"devices: uuid {name} is there {_times(count)}" for name, count in known.items() if count > 1]
    indexes = Counter(gpu.index for gpu in gpus)
    faults += [f"devices: index {index} is there {_times(count)}" for index, count in indexes.items() if count > 1]
    for index, process in enumerate(processes):
        if process.gpu_uuid and process.gpu_uuid not in known:
            faults.append(f"processes[{index}].gpu_uuid: no device has the uuid {process.gpu_uuid}")


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"


_PLACE = ("gpu_instance", "compute_instance")
_NUMBERS = ("utilization_percent", "memory_utilization_percent", "temperature_celsius", "power_watts")
_NESTED = ("ecc", "repair", "clocks_event", "nvlinks", "xids", "mig", "details", "facts")
_NOT_SIMULATED = {"uuid", "index", "name", "processes", "fault", "absent", "read_seconds"}
# every plain field that GpuReading has beside those above: one that is absent from the file is just not known
_SCALARS = tuple(
    field.name
    for field in dataclasses.fields(GpuReading)
    if field.name not in {*MEMORY_FIELDS, *_NUMBERS, *_NESTED, *_NOT_SIMULATED}
)
