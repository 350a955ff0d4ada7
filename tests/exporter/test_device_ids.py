import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.device_ids import DeviceId, MigPlace, cdi_device, cdi_driver, is_nvidia, parse_device_id

UUID = "6b1b2c3d-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"GPU-{UUID}", DeviceId(gpu=f"GPU-{UUID}")),
        (f"GPU-{UUID}::3", DeviceId(gpu=f"GPU-{UUID}", replica=True)),
        (f"GPU-{UUID}-3", DeviceId(gpu=f"GPU-{UUID}", replica=True)),
        (f"MIG-{UUID}", DeviceId(mig=f"MIG-{UUID}")),
        (f"MIG-{UUID}::0", DeviceId(mig=f"MIG-{UUID}", replica=True)),
        (f"MIG-GPU-{UUID}/7/0", DeviceId(gpu=f"GPU-{UUID}", gpu_instance=7, compute_instance=0)),
        ("nvidia0", DeviceId(minor=0)),
        ("nvidia12/gi3", DeviceId(minor=12, gpu_instance=3)),
        ("nvidia1/vgpu2", DeviceId(minor=1, replica=True)),
        ("nvidia1/gi4/vgpu2", DeviceId(minor=1, gpu_instance=4, replica=True)),
        ("gpu-5", DeviceId(minor=5)),
        ("gpu-5-mig-1g10gb-19-0", DeviceId(minor=5, place=MigPlace(19, 0, 1))),
        ("gpu-0-mig-1g24gb-me-20-5", DeviceId(minor=0, place=MigPlace(20, 5, 1))),
        ("gpu-1-mig-1c4g71gb-5-0", DeviceId(minor=1, place=MigPlace(5, 0, 4))),
        ("gpu-11-mig-9-4-4", DeviceId(minor=11, place=MigPlace(9, 4))),
        ("gpu-11-mig-9-4-4::0", DeviceId(minor=11, place=MigPlace(9, 4), replica=True)),
        ("gpu-5-mig-1g10gb-0", DeviceId(minor=5, some_instance=True)),
        ("gpu-5-mig-19-0", DeviceId(minor=5, some_instance=True)),
    ],
)
def test_each_grammar_is_read(text: str, named: DeviceId) -> None:
    assert parse_device_id(text) == named


@pytest.mark.parametrize("resource", ["gpu.example.com", "gpu.amd.com", "example.com/gpu", ""])
def test_what_another_driver_calls_gpu_0_is_not_taken_for_ours(resource: str) -> None:
    assert parse_device_id("gpu-0", resource) is None
    assert parse_device_id("gpu-0-mig-19-0-1", resource) is None
    assert parse_device_id(f"GPU-{UUID}", resource) == DeviceId(gpu=f"GPU-{UUID}")


@pytest.mark.parametrize("text", ["", "0", "nvidia", "nvidiactl", "nvidia0/gi", "eth7", "::1", "gpu-", "GPU-a/b"])
def test_an_id_of_no_known_form_is_not_guessed_at(text: str) -> None:
    assert parse_device_id(text) is None


@given(st.text())
def test_no_text_breaks_the_reading(text: str) -> None:
    found = parse_device_id(text)
    assert found is None or found.gpu or found.mig or found.minor is not None


def test_other_vendors_devices_are_not_ours_to_explain() -> None:
    assert not is_nvidia("eth7", "example.com/nic")
    assert is_nvidia("GPU-a", "example.com/renamed")
    assert is_nvidia("odd", "nvidia.com/gpu")
    assert is_nvidia("odd", "gpu.nvidia.com")


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("k8s.gpu.nvidia.com/device=gpu-0", "gpu-0"),
        ("k8s.gpu.nvidia.com/claim=0a1b2c3d-gpu-11", "gpu-11"),
        ("k8s.gpu.nvidia.com/device=gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-0"),
        (f"nvidia.com/gpu=GPU-{UUID}", f"GPU-{UUID}"),
        ("nvidia.com/gpu=all", ""),
    ],
)
def test_a_cdi_name_gives_its_device(name: str, device: str) -> None:
    assert cdi_device(name) == device


def test_a_cdi_name_gives_its_driver() -> None:
    assert cdi_driver("k8s.gpu.nvidia.com/claim=0a1b-gpu-11") == "gpu.nvidia.com"
    assert cdi_driver(f"nvidia.com/gpu=GPU-{UUID}") == "nvidia.com"
