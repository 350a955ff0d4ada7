import math

import pytest

from controller.sources.series import Fact, Holder, NotMetricsError, read_page

A = Holder("ml", "llm-0", "server", "GPU-a")
LABELS = b'node="n1",uuid="GPU-a",model="H100",namespace="ml",pod="llm-0",container="server"'


def page(*lines: bytes) -> bytes:
    return b"\n".join(lines) + b"\n"


def test_native_series_become_values_of_the_container_in_milli_units() -> None:
    found = read_page(
        page(
            b"# HELP aom_container_gpu_usage share",
            b"aom_container_gpu_usage{" + LABELS + b"} 87.5",
            b"aom_container_gpu_memory_used_megabytes{" + LABELS + b"} 1024",
            b"aom_container_gpu_memory_capacity_megabytes{" + LABELS + b"} 81559",
            b"aom_container_gpu_memory_free_megabytes{" + LABELS + b"} 5",
            b'aom_node_gpu_power_watts{node="n1",uuid="GPU-a",model="H100"} 300.5',
            b'aom_node_gpu_usage{node="n1",uuid="GPU-a",model="H100"} 99',
        ),
        at=10.0,
    )
    assert found.keys() == {A}
    assert found[A].at == 10.0
    assert found[A].values == {
        Fact.UTILIZATION: 87500,
        Fact.MEMORY_USED: 1024000,
        Fact.MEMORY_CAPACITY: 81559000,
        Fact.POWER: 300500,
    }


def test_dcgm_series_become_the_same_facts() -> None:
    labels = b'gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1",container="server",namespace="ml",pod="llm-0"'
    found = read_page(
        page(
            b"DCGM_FI_DEV_GPU_UTIL{" + labels + b"} 60",
            b"DCGM_FI_DEV_FB_USED{" + labels + b"} 1000",
            b"DCGM_FI_DEV_FB_FREE{" + labels + b"} 3000",
            b"DCGM_FI_DEV_POWER_USAGE{" + labels + b"} 100.25",
            b"DCGM_FI_DEV_SM_CLOCK{" + labels + b"} 1980",
        ),
        at=1.0,
    )
    assert found[A].values == {
        Fact.UTILIZATION: 60000,
        Fact.MEMORY_USED: 1000000,
        Fact.MEMORY_CAPACITY: 4000000,
        Fact.POWER: 100250,
    }


def test_exported_labels_win_over_those_of_the_scrape() -> None:
    line = (
        b'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a",namespace="monitoring",pod="dcgm-x",container="dcgm",'
        b'exported_namespace="ml",exported_pod="llm-0",exported_container="server"} 5'
    )
    assert read_page(page(line), at=1.0).keys() == {A}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"NaN", "NaN"),
        (b"+Inf", "infinite"),
        (b"-Inf", "infinite"),
        (b"-1", "negative"),
        (b"-9.2e15", "negative"),
        (b"9223372036854775792", "out of range: 9.22337e+18"),
        (b"100.5", "out of range: 100.5"),
        (b"N/A", "not a number: N/A"),
        (b"", "NaN"),
    ],
)
def test_p01_what_is_not_a_reading_is_missing_with_its_reason_and_never_a_number(text: bytes, why: str) -> None:
    found = read_page(page(b"aom_container_gpu_usage{" + LABELS + b"} " + text), at=1.0)
    assert found[A].values == {}
    assert found[A].rejected == {Fact.UTILIZATION: why}


def test_escapes_and_braces_inside_label_values_are_read() -> None:
    line = rb'aom_container_gpu_usage{uuid="GPU-a",namespace="ml",pod="a\\b\"c\nd}",container="x,y=\"1\""} 5'
    (holder,) = read_page(page(line), at=1.0)
    assert holder == Holder("ml", 'a\\b"c\nd}', 'x,y="1"', "GPU-a")


@pytest.mark.parametrize(
    "line",
    [
        b"aom_container_gpu_usage 5",
        b"aom_container_gpu_usage{",
        b'aom_container_gpu_usage{uuid="GPU-a} 5',
        b'aom_container_gpu_usage{uuid="GPU-a" pod="p"} 5',
        b'aom_container_gpu_usage}uuid="GPU-a"{ 5',
        b'aom_container_gpu_usage{namespace="ml",pod="p",container="c"} 5',
        b'aom_container_gpu_usage{uuid="GPU-a",namespace="ml",container="c"} 5',
        b'aom_container_gpu_usage_total{uuid="GPU-a",namespace="ml",pod="p",container="c"} 5',
        b"aom_container_gpu_usage{\xff\xfe} 5",
    ],
)
def test_a_line_that_is_broken_or_names_no_container_or_gpu_is_passed_over(line: bytes) -> None:
    good = b"aom_container_gpu_usage{" + LABELS + b"} 7"
    assert read_page(page(line, good), at=1.0).keys() == {A}


def test_a_page_that_ends_inside_a_line_is_refused() -> None:
    with pytest.raises(NotMetricsError, match="middle of a line"):
        read_page(b"aom_container_gpu_usage{" + LABELS + b"} 1", at=1.0)


@pytest.mark.parametrize("body", [b"<html>\n", b'  {"status":"ok"}\n', b"[]\n"])
def test_html_and_json_are_named_as_such(body: bytes) -> None:
    with pytest.raises(NotMetricsError, match="HTML or JSON"):
        read_page(body, at=1.0)


def test_power_of_a_board_that_two_containers_share_is_nobodys() -> None:
    other = LABELS.replace(b"llm-0", b"llm-1")
    found = read_page(
        page(
            b"aom_container_gpu_usage{" + LABELS + b"} 5",
            b"aom_container_gpu_usage{" + other + b"} 6",
            b'aom_node_gpu_power_watts{uuid="GPU-a"} 300',
        ),
        at=1.0,
    )
    assert [values.values.get(Fact.POWER) for values in found.values()] == [None, None]
    assert all("shared" in values.rejected[Fact.POWER] for values in found.values())


def test_instances_of_one_gpu_are_kept_apart_and_get_no_board_power() -> None:
    line = b'DCGM_FI_DEV_FB_USED{UUID="GPU-a",GPU_I_ID="%d",namespace="ml",pod="p",container="c"} %d'
    power = b'DCGM_FI_DEV_POWER_USAGE{UUID="GPU-a",GPU_I_ID="1",namespace="ml",pod="p",container="c"} 295'
    found = read_page(page(line % (1, 10), line % (2, 20), power), at=1.0)
    assert {holder.gpu: values.values[Fact.MEMORY_USED] for holder, values in found.items()} == {
        "GPU-a/1": 10000,
        "GPU-a/2": 20000,
    }
    assert not any(Fact.POWER in values.values for values in found.values())


def test_values_are_the_same_with_a_cache_kept_between_pages() -> None:
    cache: dict[bytes, object] = {}
    first = read_page(page(b"aom_container_gpu_usage{" + LABELS + b"} 5"), 1.0, cache)  # type: ignore[arg-type]
    second = read_page(page(b"aom_container_gpu_usage{" + LABELS + b"} 6"), 2.0, cache)  # type: ignore[arg-type]
    assert (first[A].values, second[A].values) == ({Fact.UTILIZATION: 5000}, {Fact.UTILIZATION: 6000})
    assert len(cache) == 1
    assert math.isclose(second[A].at, 2.0)


ATTRIBUTION = b'node="n1",uuid="GPU-b",namespace="ml",pod="llm-0",container="server",reason='


def test_a_device_that_is_held_and_says_nothing_is_a_gpu_of_the_pod_whose_values_are_unknown() -> None:
    found = read_page(
        page(
            b"aom_container_gpu_usage{" + LABELS + b"} 3",
            b"gpuscale_container_attribution{" + ATTRIBUTION + b'"gpu_absent"} 0',
        ),
        at=1.0,
    )
    lost = found[A._replace(gpu="GPU-b")]
    assert (lost.values, lost.unknown, lost.node) == ({}, "gpu_absent", "n1")


def test_a_device_that_is_published_or_no_gpu_is_not_counted_as_a_gpu() -> None:
    nic = ATTRIBUTION.replace(b"GPU-b", b"0000:3b:00.0")
    assert (
        read_page(
            page(
                b"gpuscale_container_attribution{" + ATTRIBUTION + b'""} 1',
                b"gpuscale_container_attribution{" + nic + b'"unknown_device"} 0',
            ),
            at=1.0,
        )
        == {}
    )


def test_a_boards_power_is_not_given_to_a_holder_that_is_not_known_to_hold_it_alone() -> None:
    found = read_page(
        page(
            b"aom_container_gpu_usage{" + LABELS + b"} 3",
            b'aom_node_gpu_power_watts{node="n1",uuid="GPU-a",model="H100"} 300',
        ),
        at=1.0,
    )
    assert Fact.POWER not in found[A].values
    assert "shared" in found[A].rejected[Fact.POWER]
