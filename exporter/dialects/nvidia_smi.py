"""The names of nvidia_gpu_exporter: nvidia-smi's query fields in base units, identified by a uuid without ``GPU-``.

Why it exists: dashboard 14574 asks for these names, and that exporter's users join everything on its gpu_info.
"""

from collections.abc import Iterator

from exporter.dialects.nvidia_smi_board import READINGS, row
from exporter.dialects.nvidia_smi_details import DETAILS, FACTS
from exporter.dialects.rows import Row, Samples, View, fill, numeral, reads
from exporter.readings import GpuReading, MigReading, ProcessReading

UNKNOWN = "[N/A]"
"""What this exporter writes into a label of gpu_info that is not known."""

_INFO_FACTS = {
    "driver_model_current": UNKNOWN,
    "driver_model_pending": UNKNOWN,
    "vbios_version": UNKNOWN,
    "pci_bus_id": UNKNOWN,
    "serial": UNKNOWN,
    "compute_cap": UNKNOWN,
    "pci_sub_device_id": UNKNOWN,
    "cuda_version": "",
}

INFO = row(
    "gpu_info",
    "",
    "Always 1. Identity of the GPU; its uuid has no GPU- in front.",
    "GpuReading, GpuReading.facts",
    reads("index"),
    "aom_node_gpu_info",
    labels=("uuid", "name", "driver_version", "index", *_INFO_FACTS),
)
NODE: tuple[Row, ...] = (
    row(
        "last_collect_success",
        "",
        "1 if the driver answered at the last poll.",
        "Snapshot.driver",
        reads("driver.up"),
        "gpuscale_driver_up",
        labels=(),
    ),
    row(
        "last_collect_success_timestamp_seconds",
        "seconds",
        "When the values began to be read.",
        "Snapshot.taken_at",
        lambda snapshot: snapshot.taken_at if snapshot.driver.up else None,
        "gpuscale_snapshot_timestamp_seconds",
        labels=(),
    ),
    row(
        "last_collect_duration_seconds",
        "seconds",
        "How long the last poll took.",
        "Snapshot.poll_seconds",
        reads("poll_seconds"),
        "gpuscale_poll_duration_seconds",
        labels=(),
    ),
    row(
        "failed_scrapes_total",
        "",
        "Polls at which the driver did not answer.",
        "Snapshot.driver_failures",
        reads("driver_failures"),
        "gpuscale_driver_failures_total",
        labels=(),
        kind="counter",
    ),
    row(
        "compute_apps_last_collect_success",
        "",
        "1 if the processes of every readable GPU are known.",
        "GpuReading.processes",
        lambda snapshot: int(all(g.processes is not None for g in snapshot.gpus if not g.fault)),
        labels=(),
    ),
)
_APP = ("pid", "process_name", "uuid")
APP_INFO = row("compute_app_info", "", "Always 1. A process on a GPU.", "ProcessReading", lambda _: 1, labels=_APP)
APP_MEMORY = row(
    "compute_app_used_memory_bytes",
    "bytes",
    "GPU memory that a process uses.",
    "ProcessReading.memory_used_bytes",
    reads("memory_used_bytes"),
    labels=_APP,
)
GPU_COUNTS: tuple[Row, ...] = (
    row("count", "", "GPUs of this node, on each of them.", "Snapshot.gpus", lambda n: n, "gpuscale_gpus_expected"),
    row(
        "driver_version",
        "",
        "Version of the driver, where it is a decimal number.",
        "Snapshot.driver_version",
        lambda n: n,
        "aom_node_gpu_info",
        "A number; ours is a label.",
    ),
    row(
        "kmd_version",
        "",
        "Version of the kernel's part of the driver, where it is a decimal number.",
        "Snapshot.driver_version",
        lambda n: n,
        "aom_node_gpu_info",
        "A number; ours is a label.",
    ),
    row("compute_apps", "", "Processes on the GPU.", "GpuReading.processes", lambda n: n),
)
XIDS: tuple[Row, ...] = (
    row(
        "xid_errors_total",
        "",
        "Xid events since the exporter started.",
        "XidReading.count",
        reads("count"),
        "aom_node_gpu_xid_events_total",
        labels=("uuid", "xid"),
        kind="counter",
    ),
    row(
        "xid_last_timestamp_seconds",
        "seconds",
        "When this Xid came last.",
        "XidReading.last_at",
        reads("last_at"),
        "aom_node_gpu_xid_last_timestamp_seconds",
        labels=("uuid", "xid"),
    ),
)
_INSTANCE = ("uuid", "gpu_instance_id")
MIG: tuple[Row, ...] = (
    *(
        row(
            f"mig_memory_{part}_bytes",
            "bytes",
            f"Memory of the GPU instance, {part}.",
            f"MigReading.memory_{part}_bytes",
            reads(f"memory_{part}_bytes"),
            f"aom_mig_gpu_memory_{'capacity' if part == 'total' else part}_megabytes",
            "Bytes; ours is megabytes.",
            labels=_INSTANCE,
        )
        for part in ("total", "used", "free", "reserved")
    ),
    row(
        "mig_sm_activity_ratio",
        "ratio",
        "Part (0-1) of SMs with work.",
        "MigReading.sm_active_ratio",
        reads("sm_active_ratio"),
        "aom_mig_gpu_sm_active_ratio",
        labels=_INSTANCE,
    ),
)
MIG_INFO = row(
    "mig_info",
    "",
    "Always 1. A MIG device.",
    "MigReading",
    lambda _: 1,
    "aom_mig_gpu_info",
    labels=("uuid", "mig_uuid", "gpu_instance_id", "compute_instance_id", "profile"),
)

ROWS: tuple[Row, ...] = (
    INFO,
    *GPU_COUNTS,
    *READINGS,
    *DETAILS,
    *FACTS,
    APP_INFO,
    APP_MEMORY,
    *MIG,
    MIG_INFO,
    *XIDS,
    *NODE,
)


def speak(view: View, samples: Samples) -> None:
    """Add this dialect's samples."""
    fill(samples, NODE, (), view.snapshot)
    for gpu in view.gpus:
        uuid = gpu.uuid.removeprefix("GPU-")
        samples[INFO.metric][_info(view, gpu, uuid)] = 1
        fill(samples, (*READINGS, *DETAILS, *FACTS), (uuid,), gpu)
        for count, value in zip(GPU_COUNTS, _counts(view, gpu), strict=True):
            fill(samples, (count,), (uuid,), value)
        for process in _computing(gpu):
            fill(samples, (APP_INFO, APP_MEMORY), (str(process.pid), process.name, uuid), process)
        for xid in gpu.xids or ():
            fill(samples, XIDS, (uuid, str(xid.xid)), xid)
        _partitions(gpu.mig, uuid, samples)


def _computing(gpu: GpuReading) -> tuple[ProcessReading, ...]:
    return tuple(process for process in gpu.processes or () if process.computes)


def _info(view: View, gpu: GpuReading, uuid: str) -> tuple[str, ...]:
    facts = (gpu.facts.get(name) or unknown for name, unknown in _INFO_FACTS.items())
    return (uuid, gpu.name, view.snapshot.driver_version, str(gpu.index), *facts)


def _counts(view: View, gpu: GpuReading) -> Iterator[float | None]:
    yield len(view.snapshot.gpus)
    # the driver's two parts are of one version, or it answers nothing
    yield from (numeral(view.snapshot.driver_version),) * 2
    yield None if gpu.processes is None else len(_computing(gpu))


def _partitions(instances: tuple[MigReading, ...], uuid: str, samples: Samples) -> None:
    for mig in instances:
        ids = (str(mig.gpu_instance), str(mig.compute_instance))
        samples[MIG_INFO.metric][(uuid, mig.uuid, *ids, mig.profile)] = 1
        fill(samples, MIG, (uuid, ids[0]), mig)
