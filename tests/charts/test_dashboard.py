"""The dashboard asks only for what exists, of the data source that the viewer chooses, and is what its code makes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.known_metrics import labels_of
from tests.contract.promql import names

FILE = Path(__file__).resolve().parents[2] / "charts/gpuscale/dashboards/gpuscale.json"
DASHBOARD = json.loads(FILE.read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(f"{panel['title']} {target['refId']}", target) for panel in PANELS for target in panel["targets"]]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


def sources(part: Any) -> list[Any]:
    """Every data source that is named anywhere."""
    if isinstance(part, dict):
        here = [part["datasource"]] if "datasource" in part else []
        return here + [found for value in part.values() for found in sources(value)]
    return [found for value in part for found in sources(value)] if isinstance(part, list) else []


def test_the_committed_file_is_what_the_code_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="needs the extra: pip install 'gpuscale[dashboards]'")
    from charts.gpuscale.dashboards.generate import render

    assert FILE.read_text(encoding="utf-8") == render(), "run: make chart"


def test_it_has_the_cluster_a_node_and_the_scalers() -> None:
    assert [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"] == ["Cluster", "Node", "Scalers"]


@pytest.mark.parametrize(("title", "target"), QUERIES, ids=[title for title, _ in QUERIES])
def test_every_metric_and_label_of_a_query_exists(title: str, target: dict[str, Any]) -> None:
    found = names(target["expr"])
    assert found.selected, title
    known: set[str] = set()
    for metric, selected in found.selected.items():
        assert selected <= labels_of(metric), metric
        known |= labels_of(metric)
    assert found.grouped <= known
    left = found.grouped or known
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left


def test_every_data_source_is_the_one_that_the_viewer_chooses() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    found = sources(DASHBOARD)
    assert len(found) > len(PANELS)
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in found)


def test_every_variable_of_a_query_is_there_and_is_filled_from_a_label_that_exists() -> None:
    used = {name for _, target in QUERIES for name in re.findall(r"\$(\w+)", target["expr"])} - {"__rate_interval"}
    assert used == set(VARIABLES) - {"datasource"}
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", VARIABLES["node"]["query"])
    assert asked is not None
    assert asked[2] in labels_of(asked[1])


def test_panels_do_not_overlap_and_have_titles_and_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
