"""Our own rows of the conformance form, which need no folder beside the checkout."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.judge import judge

CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_row_is_decided_as_it_says(case: dict[str, Any]) -> None:
    verdict = judge(case)
    assert verdict.got == verdict.want
