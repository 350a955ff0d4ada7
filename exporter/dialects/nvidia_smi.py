"""The names of nvidia_gpu_exporter: nvidia-smi's query fields in base units, identified by a uuid without ``GPU-``.

Why it exists: dashboard 14574 asks for these names, and that exporter's users join everything on its gpu_info.
"""

from collections.abc import Callable, Iterator
from typing import Any

from exporter.dialects.rows import Row, Samples, View, fact, fill, metric, numeral, reads
from exporter.metric import Kind
from exporter.readings import GpuReading, MigReading

UNKNOWN = "[N/A]"
"""What this exporter writes into a label of gpu_info that is not known."""

GPU = ("uuid",)
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


def _row(
    name: str,
    unit: str,
    help_text: str,
    source: str,
    value: Callable[[Any], float | None],
    native: str = "",
    differs: str = "",
    *,
    labels: tuple[str, ...] = GPU,
    kind: Kind = "gauge",
) -> Row:
    return Row(metric(f"nvidia_smi_{name}", "node", unit, kind, labels, help_text, source), value, native, differs)


def _field(
    name: str, unit: str, help_text: str, field: str, native: str = "", differs: str = "", *, times: float = 1
) -> Row:
    native = native and f"aom_node_gpu_{native}"
    return _row(name, unit, help_text, f"GpuReading.{field}", reads(field, times), native, differs)


def _ratio(name: str, what: str, field: str, native: str) -> Row:
    return _field(name, "ratio", f"{what} as a ratio (0-1).", field, native, "0-1; ours is percent.", times=0.01)


def _bytes(name: str, what: str, field: str, native: str) -> Row:
    return _field(f"memory_{name}_bytes", "bytes", f"{what} in bytes.", field, native, "Bytes; ours is megabytes.")


def _clock(domain: str) -> Row:
    help_text = f"Present {domain} clock in Hz."
    name = f"clocks_current_{domain}_clock_hz"
    return _field(name, "hz", help_text, f"{domain}_clock_hertz", f"{domain}_clock_hertz")


def _flag(prefix: str, name: str, bit: int) -> Row:
    def value(gpu: GpuReading) -> float | None:
        return None if gpu.clocks_event_reasons is None else int(bool(gpu.clocks_event_reasons & bit))

    help_text = f"1 if clocks are held down for the reason {name}."
    native, differs = "aom_node_gpu_clocks_event", "One family a reason; ours is one family with a label reason."
    return _row(f"{prefix}_{name}", "", help_text, "GpuReading.clocks_event_reasons", value, native, differs)


def _fact(name: str, help_text: str, key: str = "", unit: str = "") -> Row:
    """One family whose value is a fact of the GPU."""
    key = key or name
    return _row(name, unit, help_text, f"GpuReading.facts[{key}]", fact(key))


def _part_of_address(number: int) -> Callable[[GpuReading], float | None]:
    """Domain, bus or device out of ``00000000:83:00.0``."""

    def value(gpu: GpuReading) -> float | None:
        parts = gpu.facts.get("pci_bus_id", "").replace(".", ":").split(":")
        return numeral("0x" + parts[number]) if len(parts) == 4 else None

    return value


REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}

READINGS: tuple[Row, ...] = (
    _field("index", "", "Index of the GPU.", "index", "info", "A value; ours is a label."),
    _ratio("utilization_gpu_ratio", "Utilisation of the GPU", "utilization_percent", "usage"),
    _ratio(
        "utilization_memory_ratio",
        "Utilisation of the memory controller",
        "memory_utilization_percent",
        "memory_controller_usage",
    ),
    _ratio("utilization_encoder_ratio", "Utilisation of the encoder", "encoder_utilization_percent", "encoder_usage"),
    _ratio("utilization_decoder_ratio", "Utilisation of the decoder", "decoder_utilization_percent", "decoder_usage"),
    _ratio("fan_speed_ratio", "Intended fan speed", "fan_percent", "fan_speed"),
    _bytes("total", "All memory", "memory_total_bytes", "memory_capacity_megabytes"),
    _bytes("used", "Used memory", "memory_used_bytes", "memory_used_megabytes"),
    _bytes("free", "Free memory", "memory_free_bytes", "memory_free_megabytes"),
    _bytes("reserved", "Memory reserved by the driver", "memory_reserved_bytes", "memory_reserved_megabytes"),
    _field("temperature_gpu", "", "Temperature in degrees Celsius.", "temperature_celsius", "temperature_centigrade"),
    _field(
        "temperature_memory",
        "",
        "Temperature of the memory in degrees Celsius.",
        "memory_temperature_celsius",
        "memory_temperature_centigrade",
    ),
    _field("power_draw_watts", "watts", "Power that the board draws.", "power_watts", "power_watts"),
    _field("enforced_power_limit_watts", "watts", "Power limit in force.", "power_limit_watts", "power_limit_watts"),
    *(_clock(domain) for domain in ("graphics", "sm", "memory", "video")),
    _field("clocks_event_reasons_active", "", "Bit mask of why clocks are held down.", "clocks_event_reasons"),
    *(_flag("clocks_event_reasons", *reason) for reason in REASONS.items()),
    *(_flag("clocks_throttle_reasons", *reason) for reason in REASONS.items()),
    _field("pstate", "", "Performance state, 0 = fastest.", "performance_state", "performance_state"),
    _field("pcie_link_gen_current", "", "PCIe generation in use.", "pcie_generation", "pcie_generation"),
    _field("pcie_link_gen_max", "", "Highest PCIe generation.", "pcie_generation_max", "pcie_generation_max"),
    _field("pcie_link_width_current", "", "PCIe lanes in use.", "pcie_width", "pcie_width"),
    _field("pcie_link_width_max", "", "Most PCIe lanes.", "pcie_width_max", "pcie_width_max"),
    _field("mig_mode_current", "", "1 if MIG is on.", "mig_enabled", "mig_enabled"),
    *(
        _field(
            f"ecc_errors_{kind}_{life}_total",
            "",
            f"ECC errors, {kind}, {life}.",
            f"ecc.{life}_{kind}",
            f"ecc_{life}_errors_total",
            "A gauge for each kind; ours is a counter with a label kind.",
        )
        for kind in ("corrected", "uncorrected")
        for life in ("volatile", "aggregate")
    ),
    *(
        _field(f"remapped_rows_{name}", "", help_text, f"repair.remapped_rows_{field}", native)
        for name, field, help_text, native in (
            ("correctable", "corrected", "Rows remapped for corrected errors.", "remapped_rows"),
            ("uncorrectable", "uncorrected", "Rows remapped for uncorrected errors.", "remapped_rows"),
            ("pending", "pending", "1 if a remapping waits for a reset.", "remapped_rows_pending"),
            ("failure", "failed", "1 if a remapping has failed.", "remapped_rows_failed"),
        )
    ),
    _field("retired_pages_single_bit_ecc_count", "", "Pages retired, corrected.", "repair.retired_pages_corrected"),
    _field("retired_pages_double_bit_count", "", "Pages retired, uncorrected.", "repair.retired_pages_uncorrected"),
    _field("retired_pages_pending", "", "1 if pages wait to be retired.", "repair.retired_pages_pending"),
    _row(
        "energy_joules_total",
        "joules",
        "Energy since the driver was loaded.",
        "GpuReading.energy_joules",
        reads("energy_joules"),
        "aom_node_gpu_energy_joules_total",
        kind="counter",
    ),
)

FACTS: tuple[Row, ...] = (
    _row("pci_domain", "", "PCI domain.", "GpuReading.facts[pci_bus_id]", _part_of_address(0)),
    _row("pci_bus", "", "PCI bus.", "GpuReading.facts[pci_bus_id]", _part_of_address(1)),
    _row("pci_device", "", "PCI device.", "GpuReading.facts[pci_bus_id]", _part_of_address(2)),
    _fact("pci_device_id", "PCI device and vendor."),
    _fact("pci_sub_device_id", "PCI subsystem device and vendor."),
    _fact("pci_base_class", "PCI base class."),
    _fact("pci_sub_class", "PCI subclass."),
    _fact("serial", "Serial number of the board, where it is a number."),
    _fact("compute_cap", "Compute capability as a decimal number."),
    _fact("inforom_ecc", "Version of the ECC object."),
    _fact("inforom_oem", "Version of the OEM object."),
    _fact("accounting_mode", "1 if accounting is on."),
    _fact("accounting_buffer_size", "Processes that accounting remembers."),
    _fact("compute_mode", "Compute mode: 0 default, 2 prohibited, 3 exclusive process."),
    _fact("persistence_mode", "1 if persistence mode is on."),
    _fact("display_attached", "1 if a display is attached."),
    _fact("display_active", "1 if a display is initialised."),
    _fact("ecc_mode_current", "1 if ECC is on."),
    _fact("ecc_mode_pending", "1 if ECC will be on after a restart."),
    _fact("mig_mode_pending", "1 if MIG will be on after a reset."),
    _fact("gsp_mode_current", "1 if the GSP firmware runs."),
    _fact("gsp_mode_default", "1 if the GSP firmware runs by default."),
    _fact("c2c_mode", "1 if chip-to-chip links are on."),
    _fact("clocks_event_reasons_supported", "Bit mask of the reasons that the GPU can tell."),
    *(
        _fact(f"power_{which}_limit_watts", f"{words} power limit.", unit="watts")
        for which, words in (("default", "Default"), ("min", "Lowest possible"), ("max", "Highest possible"))
    ),
    *(
        _fact(f"clocks_max_{d}_clock_hz", f"Highest {d} clock in Hz.", f"clocks_max_{d}_hertz", "hz")
        for d in ("graphics", "sm", "memory")
    ),
)

INFO = _row(
    "gpu_info",
    "",
    "Always 1. Identity of the GPU; its uuid has no GPU- in front.",
    "GpuReading, GpuReading.facts",
    reads("index"),
    "aom_node_gpu_info",
    labels=("uuid", "name", "driver_version", "index", *_INFO_FACTS),
)
NODE: tuple[Row, ...] = (
    _row(
        "last_collect_success",
        "",
        "1 if the driver answered at the last poll.",
        "Snapshot.driver",
        reads("driver.up"),
        "gpuscale_driver_up",
        labels=(),
    ),
    _row(
        "last_collect_success_timestamp_seconds",
        "seconds",
        "When the values began to be read.",
        "Snapshot.taken_at",
        lambda snapshot: snapshot.taken_at if snapshot.driver.up else None,
        "gpuscale_snapshot_timestamp_seconds",
        labels=(),
    ),
    _row(
        "last_collect_duration_seconds",
        "seconds",
        "How long the last poll took.",
        "Snapshot.poll_seconds",
        reads("poll_seconds"),
        "gpuscale_poll_duration_seconds",
        labels=(),
    ),
    _row(
        "failed_scrapes_total",
        "",
        "Polls at which the driver did not answer.",
        "Snapshot.driver_failures",
        reads("driver_failures"),
        "gpuscale_driver_failures_total",
        labels=(),
        kind="counter",
    ),
    _row(
        "compute_apps_last_collect_success",
        "",
        "1 if the processes of every readable GPU are known.",
        "GpuReading.processes",
        lambda snapshot: int(all(g.processes is not None for g in snapshot.gpus if not g.fault)),
        labels=(),
    ),
)
_APP = ("pid", "process_name", "uuid")
APP_INFO = _row("compute_app_info", "", "Always 1. A process on a GPU.", "ProcessReading", lambda _: 1, labels=_APP)
APP_MEMORY = _row(
    "compute_app_used_memory_bytes",
    "bytes",
    "GPU memory that a process uses.",
    "ProcessReading.memory_used_bytes",
    reads("memory_used_bytes"),
    labels=_APP,
)
GPU_COUNTS: tuple[Row, ...] = (
    _row("count", "", "GPUs of this node, on each of them.", "Snapshot.gpus", lambda n: n, "gpuscale_gpus_expected"),
    _row(
        "driver_version",
        "",
        "Version of the driver, where it is a decimal number.",
        "Snapshot.driver_version",
        lambda n: n,
        "aom_node_gpu_info",
        "A number; ours is a label.",
    ),
    _row("compute_apps", "", "Processes on the GPU.", "GpuReading.processes", lambda n: n),
)
XIDS: tuple[Row, ...] = (
    _row(
        "xid_errors_total",
        "",
        "Xid events since the exporter started.",
        "XidReading.count",
        reads("count"),
        "aom_node_gpu_xid_events_total",
        labels=("uuid", "xid"),
        kind="counter",
    ),
    _row(
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
        _row(
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
    _row(
        "mig_sm_activity_ratio",
        "ratio",
        "Part (0-1) of SMs with work.",
        "MigReading.sm_active_ratio",
        reads("sm_active_ratio"),
        "aom_mig_gpu_sm_active_ratio",
        labels=_INSTANCE,
    ),
)
MIG_INFO = _row(
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
        fill(samples, (*READINGS, *FACTS), (uuid,), gpu)
        for row, value in zip(GPU_COUNTS, _counts(view, gpu), strict=True):
            fill(samples, (row,), (uuid,), value)
        for process in gpu.processes or ():
            fill(samples, (APP_INFO, APP_MEMORY), (str(process.pid), process.name, uuid), process)
        for xid in gpu.xids or ():
            fill(samples, XIDS, (uuid, str(xid.xid)), xid)
        _partitions(gpu.mig, uuid, samples)


def _info(view: View, gpu: GpuReading, uuid: str) -> tuple[str, ...]:
    facts = (gpu.facts.get(name) or unknown for name, unknown in _INFO_FACTS.items())
    return (uuid, gpu.name, view.snapshot.driver_version, str(gpu.index), *facts)


def _counts(view: View, gpu: GpuReading) -> Iterator[float | None]:
    yield len(view.snapshot.gpus)
    yield numeral(view.snapshot.driver_version)
    yield None if gpu.processes is None else len(gpu.processes)


def _partitions(instances: tuple[MigReading, ...], uuid: str, samples: Samples) -> None:
    for mig in instances:
        ids = (str(mig.gpu_instance), str(mig.compute_instance))
        samples[MIG_INFO.metric][(uuid, mig.uuid, *ids, mig.profile)] = 1
        fill(samples, MIG, (uuid, ids[0]), mig)
