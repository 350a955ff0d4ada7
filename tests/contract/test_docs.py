"""The documentation tells the truth: its manifests are valid, its links lead somewhere."""

import re
from pathlib import Path

import pytest
import yaml

from controller.resources import parse_pool_scaler, parse_workload_scaler

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
PARSERS = {"GPUWorkloadScaler": parse_workload_scaler, "GPUNodePoolScaler": parse_pool_scaler}


def manifests(page: Path) -> list[dict[str, object]]:
    """Every whole custom resource of ours in the page's YAML blocks."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    documents = [document for block in blocks for document in yaml.safe_load_all(block)]
    return [one for one in documents if isinstance(one, dict) and one.get("kind") in PARSERS and "metadata" in one]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_custom_resource_that_a_page_shows_is_valid(page: Path) -> None:
    for manifest in manifests(page):
        PARSERS[str(manifest["kind"])](manifest)


def test_the_readme_shows_both_custom_resources() -> None:
    assert {one["kind"] for one in manifests(ROOT / "README.md")} == set(PARSERS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_project_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= named
    assert named - targets == set()
