"""Where `nvidia-smi -q -x` prints what each family of the exporter says, and which families it does not print.

Why it exists: "every value was compared" is a claim. Each family of a GPU or of its instances stands in exactly one of
the two tables here, which a contract test holds against the catalogue.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Reader = Callable[[ET.Element], Iterator[tuple[str, float]]]
"""A <gpu> of nvidia-smi -> further labels such as ``kind=corrected`` and the value; what is N/A is left out."""
_FIGURE = re.compile(r"P?(-?\d+(?:\.\d+)?)(?:$|x$|%$| )")
_WORDS = {"No": 0.0, "Disabled": 0.0, "Not Active": 0.0, "Yes": 1.0, "Enabled": 1.0, "Active": 1.0}


@dataclass(frozen=True)
class Field:
    """One family: where nvidia-smi prints it, and how far apart the two may be.

    labels: those of the family that tell its series of one GPU apart. words: it is an info series whose labels are
    compared one by one, each as ``label=text``.
    """

    family: str
    read: Reader
    tolerance: float = 0.0
    labels: tuple[str, ...] = ()
    words: bool = False


def figure(text: str | None) -> float | None:
    """Return the number in what nvidia-smi prints (``4000 MiB``, ``16x``, ``P0``, ``Yes``); None = none is told."""
    told = (text or "").strip()
    match = _FIGURE.match(told)
    return float(match[1]) if match else _WORDS.get(told)


def _sum(of: ET.Element, *paths: str) -> float | None:
    parts = [figure(of.findtext(path)) for path in paths]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(paths) else None


def _first(of: ET.Element, *ways: str) -> float | None:
    """Return the figure at the first way that has one; a way is a path, or several with + between: their sum."""
    sums = (_sum(of, *way.split("+")) for way in ways)
    return next((value for value in sums if value is not None), None)


def at(*ways: str, scale: float = 1) -> Reader:
    """Read one figure of the GPU."""
    return by("", {"": ways}, scale=scale)


def by(label: str, values: Mapping[str, tuple[str, ...]], *, scale: float = 1) -> Reader:
    """Read one figure for each value of a label."""

    def read(gpu: ET.Element) -> Iterator[tuple[str, float]]:
        for value, ways in values.items():
            if (one := _first(gpu, *ways)) is not None:
                yield f"{label}={value}" if label else "", one * scale

    return read


def _printed(path: str) -> Callable[[ET.Element], float | None]:
    return lambda of: _first(of, path)


def _share(part: str, whole: str) -> Callable[[ET.Element], float | None]:
    def read(of: ET.Element) -> float | None:
        used, total = _first(of, part), _first(of, whole)
        return None if used is None or not total else 100 * used / total

    return read


def _of_gpu(read: Callable[[ET.Element], float | None]) -> Reader:
    def read_one(gpu: ET.Element) -> Iterator[tuple[str, float]]:
        if (value := read(gpu)) is not None:
            yield "", value

    return read_one


def _of_instances(read: Callable[[ET.Element], float | None], *labels: tuple[str, str]) -> Reader:
    """Read one figure of each instance; compute instances of one GPU instance repeat its own."""
    names = labels or (("gi", "gpu_instance_id"),)

    def read_all(gpu: ET.Element) -> Iterator[tuple[str, float]]:
        for one in gpu.iterfind("mig_devices/mig_device"):
            if (value := read(one)) is not None:
                yield ",".join(f"{name}={one.findtext(path)}" for name, path in names), value

    return read_all


def _texts(labels: Mapping[str, str]) -> Reader:
    def read(gpu: ET.Element) -> Iterator[tuple[str, float]]:
        for label, path in labels.items():
            if (text := (gpu.findtext(path) or "N/A").strip()) != "N/A":
                yield f"{label}={text}", 1.0

    return read


def _processes(gpu: ET.Element) -> Iterator[tuple[str, float]]:
    """Those that compute: what only draws is told by neither side alike."""
    for one in gpu.iterfind("processes/process_info"):
        computes = "C" in (one.findtext("type") or "C")
        if computes and (memory := _first(one, "used_memory")) is not None:
            yield f"pid={one.findtext('pid')}", memory * 2**20


def _ecc(span: str) -> dict[str, tuple[str, ...]]:
    """Newer drivers print parts that add up to NVML's total, older ones the total."""
    place = f"ecc_errors/{span}"
    return {
        "corrected": (f"{place}/sram_correctable+{place}/dram_correctable", f"{place}/single_bit/total"),
        "uncorrected": (
            f"{place}/sram_uncorrectable_parity+{place}/sram_uncorrectable_secded+{place}/dram_uncorrectable",
            f"{place}/sram_uncorrectable+{place}/dram_uncorrectable",
            f"{place}/double_bit/total",
        ),
    }


def _action(gpu: ET.Element) -> float | None:
    told = (gpu.findtext("gpu_recovery_action") or "").strip()
    return float(_ACTIONS.index(told)) if told in _ACTIONS else None


def _counters(**theirs: str) -> dict[str, tuple[str, ...]]:
    place = "clocks_event_reasons_counters"
    return {ours: (f"{place}/{place}_{name}",) for ours, name in theirs.items()}


def _reasons(*reasons: str, **renamed: str) -> dict[str, tuple[str, ...]]:
    names = {reason: reason for reason in reasons} | renamed
    return {
        ours: tuple(f"clocks_{word}_reasons/clocks_{word}_reason_{theirs}" for word in ("event", "throttle"))
        for ours, theirs in names.items()
    }


_ACTIONS = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
_SRAM = "ecc_errors/aggregate/sram_uncorrectable"
_LINK = "pci/pci_gpu_link_info"
_CAUSES = ("cause",)
FIELDS = (
    Field("aom_node_gpu_usage", at("utilization/gpu_util"), 5),
    Field("aom_node_gpu_memory_controller_usage", at("utilization/memory_util"), 5),
    Field("aom_node_gpu_encoder_usage", at("utilization/encoder_util"), 5),
    Field("aom_node_gpu_decoder_usage", at("utilization/decoder_util"), 5),
    Field("aom_node_gpu_memory_capacity_megabytes", at("fb_memory_usage/total"), 1),
    Field("aom_node_gpu_memory_used_megabytes", at("fb_memory_usage/used"), 1),
    Field("aom_node_gpu_memory_free_megabytes", at("fb_memory_usage/free"), 1),
    Field("aom_node_gpu_memory_reserved_megabytes", at("fb_memory_usage/reserved"), 1),
    Field("aom_node_gpu_memory_usage", _of_gpu(_share("fb_memory_usage/used", "fb_memory_usage/total")), 0.1),
    Field("aom_node_gpu_bar1_memory_capacity_megabytes", at("bar1_memory_usage/total"), 1),
    Field("aom_node_gpu_bar1_memory_used_megabytes", at("bar1_memory_usage/used"), 1),
    Field("aom_node_gpu_temperature_centigrade", at("temperature/gpu_temp"), 1),
    Field("aom_node_gpu_memory_temperature_centigrade", at("temperature/memory_temp"), 1),
    Field("aom_node_gpu_temperature_margin_centigrade", at("temperature/gpu_temp_tlimit"), 1),
    Field("aom_node_gpu_recovery_action", _of_gpu(_action)),
    Field(
        "aom_node_gpu_power_watts",
        at(
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/power_draw",
            "gpu_power_readings/instant_power_draw",
            "power_readings/power_draw",
        ),
        10,
    ),
    Field(
        "aom_node_gpu_power_limit_watts",
        at("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
        1,
    ),
    Field("aom_node_gpu_fan_speed", at("fan_speed"), 2),
    Field("aom_node_gpu_graphics_clock_hertz", at("clocks/graphics_clock", scale=1e6), 50e6),
    Field("aom_node_gpu_sm_clock_hertz", at("clocks/sm_clock", scale=1e6), 50e6),
    Field("aom_node_gpu_memory_clock_hertz", at("clocks/mem_clock", scale=1e6), 50e6),
    Field("aom_node_gpu_video_clock_hertz", at("clocks/video_clock", scale=1e6), 50e6),
    Field("aom_node_gpu_performance_state", at("performance_state")),
    Field(
        "aom_node_gpu_clocks_event",
        by(
            "reason",
            _reasons(
                *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost"),
                *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
                display_clock_setting="display_clocks_setting",
            ),
        ),
        labels=("reason",),
    ),
    Field(
        "aom_node_gpu_clocks_event_seconds_total",
        by(
            "reason",
            _counters(
                sw_power_cap="sw_power_cap",
                sync_boost="sync_boost",
                sw_thermal_slowdown="sw_therm_slowdown",
                hw_thermal_slowdown="hw_therm_slowdown",
                hw_power_brake_slowdown="hw_power_brake",
            ),
            scale=1e-6,
        ),
        2,
        ("reason",),
    ),
    Field("aom_node_gpu_pcie_generation", at(f"{_LINK}/pcie_gen/current_link_gen")),
    Field("aom_node_gpu_pcie_generation_max", at(f"{_LINK}/pcie_gen/max_link_gen")),
    Field("aom_node_gpu_pcie_width", at(f"{_LINK}/link_widths/current_link_width")),
    Field("aom_node_gpu_pcie_width_max", at(f"{_LINK}/link_widths/max_link_width")),
    Field("aom_node_gpu_pcie_replays_total", at("pci/replay_counter")),
    Field("aom_node_gpu_ecc_volatile_errors_total", by("kind", _ecc("volatile")), labels=("kind",)),
    Field("aom_node_gpu_ecc_aggregate_errors_total", by("kind", _ecc("aggregate")), labels=("kind",)),
    Field("aom_node_gpu_ecc_sram_uncorrected_errors_total", at(f"{_SRAM}_parity+{_SRAM}_secded", _SRAM)),
    Field(
        "aom_node_gpu_retired_pages",
        by(
            "cause",
            {
                "corrected": ("retired_pages/multiple_single_bit_retirement/retired_count",),
                "uncorrected": ("retired_pages/double_bit_retirement/retired_count",),
            },
        ),
        labels=_CAUSES,
    ),
    Field(
        "aom_node_gpu_retired_pages_pending", at("retired_pages/pending_retirement", "retired_pages/pending_blacklist")
    ),
    Field(
        "aom_node_gpu_remapped_rows",
        by(
            "cause",
            {"corrected": ("remapped_rows/remapped_row_corr",), "uncorrected": ("remapped_rows/remapped_row_unc",)},
        ),
        labels=_CAUSES,
    ),
    Field("aom_node_gpu_remapped_rows_pending", at("remapped_rows/remapped_row_pending")),
    Field("aom_node_gpu_remapped_rows_failed", at("remapped_rows/remapped_row_failure")),
    Field("aom_node_gpu_mig_enabled", at("mig_mode/current_mig")),
    Field(
        "aom_node_gpu_info",
        _texts({"minor_number": "minor_number", "pci_bus_id": "pci/pci_bus_id"}),
        words=True,
    ),
    Field(
        "aom_node_gpu_board_info",
        _texts({"serial": "serial", "vbios_version": "vbios_version"}),
        words=True,
    ),
    *(
        Field(
            f"aom_mig_gpu_memory_{ours}_megabytes",
            _of_instances(_printed(f"fb_memory_usage/{theirs}")),
            1,
            ("gi",),
        )
        for ours, theirs in (("capacity", "total"), ("used", "used"), ("free", "free"), ("reserved", "reserved"))
    ),
    Field(
        "aom_mig_gpu_memory_usage",
        _of_instances(_share("fb_memory_usage/used", "fb_memory_usage/total")),
        0.1,
        ("gi",),
    ),
    Field(
        "aom_mig_gpu_info",
        _of_instances(lambda _: 1.0, ("gi", "gpu_instance_id"), ("ci", "compute_instance_id")),
        labels=("gi", "ci"),
    ),
    # of the nvidia_smi dialect: processes have native series by container only
    Field("nvidia_smi_compute_app_used_memory_bytes", _processes, 2**20, ("pid",)),
)
BY_FAMILY: Mapping[str, Field] = {field.family: field for field in FIELDS}

_GPM = "only `nvidia-smi dmon --gpm-metrics` prints it; the table of GPM figures below says whether this GPU gives it"
_NVLINK = "only `nvidia-smi nvlink` prints it"
_OURS = "the exporter's own sum of utilisation over time"
_XID = "only the kernel log has Xids; they are counted from the exporter's start"
NOT_PRINTED: Mapping[str, str] = {
    "aom_node_gpu_energy_joules_total": "only the driver's library tells the energy",
    **dict.fromkeys((f"aom_node_gpu_{name}_ratio" for name in ("sm_active", "sm_occupancy", "tensor_active")), _GPM),
    **dict.fromkeys(("aom_node_gpu_dram_active_ratio", "aom_mig_gpu_sm_active_ratio"), _GPM),
    **dict.fromkeys((f"aom_node_gpu_nvlink_{what}_bytes_total" for what in ("received", "transmitted")), _NVLINK),
    "aom_node_gpu_nvlink_errors_total": _NVLINK,
    "aom_node_gpu_xid_events_total": _XID,
    "aom_node_gpu_xid_last_timestamp_seconds": _XID,
    **dict.fromkeys(
        ("aom_node_gpu_busy_seconds_total", "aom_node_gpu_unattributed_busy_seconds_total"),
        _OURS,
    ),
}
"""Families that have no counterpart in nvidia-smi -q -x, and why."""
