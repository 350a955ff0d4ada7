"""Facts for other exporters' names, in the units and spellings that those ask for."""

from types import SimpleNamespace

import pynvml
import pytest

from exporter.dialects import nvidia_smi
from exporter.nvml.facts import ASKED

ANSWERS = {
    "nvmlDeviceGetCudaComputeCapability": [9, 0],
    "nvmlSystemGetCudaDriverVersion_v2": 13010,
    "nvmlDeviceGetPciInfo": SimpleNamespace(pciDeviceId=0x233510DE, pciSubSystemId=0x18BE10DE),
    "nvmlDeviceGetInforomVersion": "7.16",
    "nvmlDeviceGetAccountingBufferSize": 4000,
    "nvmlDeviceGetEccMode": [1, 0],
    "nvmlDeviceGetSupportedClocksThrottleReasons": 0x1FF,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
    "nvmlDeviceGetPowerManagementLimitConstraints": [200500, 700000],
    "nvmlDeviceGetMaxClockInfo": 1980,
}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("compute_cap", "9.0"),
        ("cuda_version", "13.1"),
        ("pci_device_id", "0x233510DE"),
        ("pci_sub_device_id", "0x18BE10DE"),
        ("inforom_ecc", "7.16"),
        ("accounting_buffer_size", "4000"),
        ("ecc_mode_current", "1"),
        ("clocks_event_reasons_supported", "0x1FF"),
        ("power_default_limit_watts", "700"),
        ("power_min_limit_watts", "200.5"),
        ("power_max_limit_watts", "700"),
        ("clocks_max_sm_hertz", "1980000000"),
    ],
)
def test_a_fact_is_told_as_the_dialects_spell_it(name: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for function, answer in ANSWERS.items():
        assert hasattr(pynvml, function)
        monkeypatch.setattr(pynvml, function, lambda *_, answer=answer: answer)
    assert ASKED[name](None) == told


def test_every_fact_is_one_that_a_dialect_asks_for() -> None:
    asked = {row.metric.source for row in nvidia_smi.FACTS}
    needed = {f"GpuReading.facts[{name}]" for name in ASKED} - {"GpuReading.facts[cuda_version]"}
    assert needed <= asked
