from pathlib import Path

from exporter.explain import page

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_metrics_is_what_the_tables_say() -> None:
    """`make metrics-docs` rewrites it."""
    assert (ROOT / "docs" / "metrics.md").read_text() == page()
