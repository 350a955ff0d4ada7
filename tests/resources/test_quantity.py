"""Kubernetes quantities in milli-units."""

from decimal import ROUND_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.quantity import milli

SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal("1e3"),
    "M": Decimal("1e6"), "G": Decimal("1e9"), "T": Decimal("1e12"), "P": Decimal("1e15"), "E": Decimal("1e18"),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60), "e3": Decimal("1e3"), "E-2": Decimal("1e-2"), "e+1": Decimal(10),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("500m", 500), ("1", 1000), (2, 2000), ("0", 0), ("8Gi", 8 * 2**30 * 1000), ("1.5", 1500), (".5", 500),
        ("5.", 5000), ("1e3", 1_000_000), ("1E3", 1_000_000), ("12e-3", 12), ("0.0001", 1), ("1n", 1), ("1001u", 2),
        ("-500m", -500), ("-1u", -1), ("+2", 2000), ("1Ki", 1_024_000), ("100k", 100_000_000), ("1E", 2**63 - 1),
        ("99999999999999999999", 2**63 - 1), ("-9E", -(2**63 - 1)),
    ],
)  # fmt: skip
def test_a_quantity_is_read_as_kubernetes_reads_it(text: str | int, want: int) -> None:
    assert milli(text) == want


@given(st.decimals(min_value=0, max_value=10**6, places=4, allow_nan=False), st.sampled_from(sorted(SUFFIXES)))
def test_every_suffix_scales_and_rounds_up(number: Decimal, suffix: str) -> None:
    exact = number * SUFFIXES[suffix] * 1000
    assert milli(f"{number}{suffix}") == min(int(exact.to_integral_value(ROUND_UP)), 2**63 - 1)


@pytest.mark.parametrize("text", ["", "Gi", "8GB", "8gi", "1 Gi", "1,5", "NaN", "inf", "--1", ".", "1e", "0x10", "1\n"])
def test_what_is_no_quantity_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity: write a number"):
        milli(text)


def test_a_huge_exponent_is_capped_and_not_computed_for_ever() -> None:
    assert milli("1e999") == 2**63 - 1
    assert milli("1e-999") == 1
