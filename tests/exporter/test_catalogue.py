import re

import pytest

from exporter import catalogue
from exporter.process_metrics import ProcessMetrics
from tests.exporter.build import names, read


@pytest.mark.parametrize("metric", catalogue.BY_NAME.values(), ids=lambda metric: metric.name)
class TestRow:
    def test_name_and_labels_are_what_prometheus_allows(self, metric: catalogue.Metric) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in metric.labels)

    def test_has_at_most_ten_distinct_labels(self, metric: catalogue.Metric) -> None:
        assert len(set(metric.labels)) == len(metric.labels) <= 10

    def test_has_a_help_sentence_and_a_source(self, metric: catalogue.Metric) -> None:
        assert metric.help.endswith(".")
        assert "\n" not in metric.help
        assert metric.source

    def test_is_a_counter_exactly_if_it_is_called_total(self, metric: catalogue.Metric) -> None:
        assert (metric.kind == "counter") == metric.name.endswith("_total")

    def test_names_its_unit_where_the_unit_is_not_percent(self, metric: catalogue.Metric) -> None:
        if metric.unit not in {"", "percent"}:
            assert metric.name.removesuffix("_total").endswith("_" + metric.unit)


def test_no_name_is_there_twice() -> None:
    assert len(catalogue.BY_NAME) == len(catalogue.CATALOGUE) + len(catalogue.RECORDED)


def test_node_and_container_series_carry_the_identity_that_the_controller_joins_on() -> None:
    assert all(row.labels[:3] == ("node", "uuid", "model") for row in catalogue.NODE)
    assert all(row.labels == (*catalogue.GPU_LABELS, "namespace", "pod", "container") for row in catalogue.CONTAINER)


def test_what_the_process_says_of_itself_is_in_the_catalogue() -> None:
    printed = names(read(ProcessMetrics().render().plain))
    assert printed == {row.name for row in catalogue.SELF}
