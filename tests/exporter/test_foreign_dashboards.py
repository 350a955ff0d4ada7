"""Public dashboards find their series: the metric and label names that Grafana's 12239 and 14574 ask for."""

import pytest

from tests.exporter.foreign import heard, rich, spoken

_GPU_LABELS = {"Hostname", "gpu"}
_INSTANCE_LABELS = _GPU_LABELS | {"GPU_I_ID", "GPU_I_PROFILE"}

DCGM_12239 = {
    "DCGM_FI_DEV_GPU_TEMP": _GPU_LABELS,
    "DCGM_FI_DEV_POWER_USAGE": _GPU_LABELS,
    "DCGM_FI_DEV_SM_CLOCK": _GPU_LABELS | {"UUID"},
    "DCGM_FI_DEV_FB_FREE": _GPU_LABELS,
    "DCGM_FI_DEV_FB_USED": _INSTANCE_LABELS,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _GPU_LABELS,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": _GPU_LABELS,
    "DCGM_FI_DEV_GPU_UTIL": _GPU_LABELS,
}
"""What it asks for in either revision. Per instance, GPM activity is read for SMs alone: those two have boards only."""

_REASONS = (
    "gpu_idle",
    "hw_thermal_slowdown",
    "sw_power_cap",
    "applications_clocks_setting",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "sync_boost",
)
NVIDIA_14574 = {
    "nvidia_smi_gpu_info": {"uuid", "name", "vbios_version"},
    **{
        name: {"uuid"}
        for name in (
            "nvidia_smi_pstate",
            "nvidia_smi_utilization_gpu_ratio",
            "nvidia_smi_utilization_memory_ratio",
            "nvidia_smi_power_draw_watts",
            "nvidia_smi_power_default_limit_watts",
            "nvidia_smi_fan_speed_ratio",
            "nvidia_smi_temperature_gpu",
            "nvidia_smi_driver_version",
            "nvidia_smi_memory_used_bytes",
            "nvidia_smi_memory_total_bytes",
            *(f"nvidia_smi_clocks_current_{clock}_clock_hz" for clock in ("graphics", "sm", "memory", "video")),
            "nvidia_smi_clocks_max_graphics_clock_hz",
            "nvidia_smi_clocks_max_memory_clock_hz",
            *(f"nvidia_smi_clocks_throttle_reasons_{reason}" for reason in _REASONS),
            *(f"nvidia_smi_clocks_event_reasons_{reason}" for reason in _REASONS),
        )
    },
}


@pytest.mark.parametrize(("dialect", "asked"), [("dcgm", DCGM_12239), ("nvidia_smi", NVIDIA_14574)])
def test_a_dashboard_finds_every_series_with_the_labels_it_asks_for(dialect: str, asked: dict[str, set[str]]) -> None:
    found: dict[str, set[str]] = {}
    for name, labels in heard(spoken(rich(), dialect).plain):
        found.setdefault(name, set()).update(label for label, _ in labels)
    missing = {name: labels - found.get(name, set()) for name, labels in asked.items()}
    assert {name for name in asked if name not in found} == set()
    assert {name: labels for name, labels in missing.items() if labels} == {}


def test_the_memory_chart_of_12239_adds_up_over_instances() -> None:
    """Its max by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE) meets one series a group, also where MIG is on."""
    groups = [
        tuple(dict(labels).get(name, "") for name in ("Hostname", "gpu", "GPU_I_ID", "GPU_I_PROFILE"))
        for name, labels in heard(spoken(rich(), "dcgm").plain)
        if name == "DCGM_FI_DEV_FB_USED"
    ]
    assert len(groups) == len(set(groups)) >= 4
