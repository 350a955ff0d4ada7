"""The comparison with nvidia-smi on a real GPU says of every family either where it is printed, or why it is not."""

from bench.device.fields import FIELDS, NOT_PRINTED
from exporter import catalogue
from exporter.dialects import nvidia_smi

OF_A_GPU = {metric.name for metric in (*catalogue.NODE, *catalogue.MIG)}
COMPARED = {field.family for field in FIELDS}


def test_every_family_of_a_gpu_is_compared_or_has_its_reason() -> None:
    missing = sorted(OF_A_GPU - COMPARED - set(NOT_PRINTED))
    assert not missing, (
        f"bench/device/fields.py: say in FIELDS where nvidia-smi prints {missing}, or in NOT_PRINTED why not"
    )


def test_no_family_is_both_or_unknown() -> None:
    assert not COMPARED & set(NOT_PRINTED)
    known = OF_A_GPU | {nvidia_smi.APP_MEMORY.metric.name}
    assert known >= COMPARED | set(NOT_PRINTED)
    assert all(why for why in NOT_PRINTED.values())


def test_series_are_told_apart_by_labels_that_the_family_has() -> None:
    for field in FIELDS:
        metric = catalogue.BY_NAME.get(field.family, nvidia_smi.APP_MEMORY.metric)
        assert set(field.labels) <= set(metric.labels), field.family
