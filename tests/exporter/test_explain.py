import pytest

from exporter.__main__ import main
from exporter.catalogue import BY_NAME
from exporter.dialects import DIALECTS
from exporter.explain import explained, nearest


def test_a_foreign_name_is_told_with_its_unit_ours_and_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "DCGM_FI_DEV_FB_USED"]) == 0
    said = capsys.readouterr().out
    assert "--dialect dcgm" in said
    assert "unit: MiB; type: gauge" in said
    assert "ours: aom_node_gpu_memory_used_megabytes" in said
    assert "differs: MiB rounded down" in said


def test_a_native_name_is_told_with_what_others_call_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "aom_node_gpu_power_watts"]) == 0
    said = capsys.readouterr().out
    for name in (
        "dcgm: DCGM_FI_DEV_POWER_USAGE",
        "nvidia_smi: nvidia_smi_power_draw_watts",
        "cce: cce_gpu_power_usage",
    ):
        assert name in said


def test_a_name_with_two_meanings_is_told_with_both() -> None:
    ours, aoms = explained("aom_node_gpu_memory_free_megabytes")
    assert "native" in ours
    assert "--dialect aom" in aoms
    assert "differs: The capacity" in aoms


@pytest.mark.parametrize("name", [*BY_NAME, *(row.metric.name for d in DIALECTS.values() for row in d.rows)])
def test_every_name_has_an_explanation(name: str) -> None:
    assert list(explained(name))


@pytest.mark.parametrize(
    ("asked", "near"), [("dcgm_fi_dev_fb_usde", "DCGM_FI_DEV_FB_USED"), ("gpu_util", "gpuUtil"), ("☃", None)]
)
def test_an_unknown_name_gives_the_nearest_and_exit_code_2(
    asked: str, near: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", asked]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert (near or "none") in said.err
    assert bool(nearest(asked)) == (near is not None)


def test_of_several_names_the_known_ones_are_told_although_one_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "gpuUtil", "nonsense_of_no_kind_at_all", "cce_gpu_clock"]) == 2
    said = capsys.readouterr().out
    assert "gpuUtil: " in said
    assert "cce_gpu_clock: " in said
