"""Writes gpuscale.json, the dashboard of the chart: the cluster, one node, the scalers.

Why it exists: a dashboard written by hand drifts from the names that exist. This one is made with Grafana's own
library (extra ``dashboards``), committed, and compared in a test. Run ``make chart`` after a change here.
"""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    VariableHide,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

TARGET = Path(__file__).with_name("gpuscale.json")
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
NODE = 'node=~"$node"'
WHOLE_WIDTH = 24


@dataclass(frozen=True)
class Line:
    """One query of a panel, and what its lines are called."""

    expr: str
    legend: str = ""


def query(line: Line, ref_id: str, *, instant: bool = False) -> prometheus.Dataquery:
    """Build one query."""
    built = prometheus.Dataquery().expr(line.expr).ref_id(ref_id).legend_format(line.legend).datasource(SOURCE)
    return built.instant().format(PromQueryFormat.TABLE) if instant else built.range()


def graph(title: str, unit: str, *lines: Line, width: int = 8, top: float | None = None, text: str = "") -> Any:
    """Build a panel of lines over time."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = timeseries.Panel().title(title).description(text).unit(unit).datasource(SOURCE).span(width).height(8)
    panel = panel.min(0).line_width(1).fill_opacity(8).legend(legend.show_legend(True))
    if top is not None:
        panel = panel.max(top)
    for position, line in enumerate(lines):
        panel = panel.with_target(query(line, chr(ord("A") + position)))
    return panel


def number(title: str, unit: str, line: Line, *, width: int = 4, text: str = "") -> Any:
    """Build a panel of one number."""
    panel = stat.Panel().title(title).description(text).unit(unit).datasource(SOURCE).span(width).height(4)
    return panel.with_target(query(line, "A")).no_value("no data")


def rows(title: str, line: Line, *hidden: str, text: str = "") -> Any:
    """Build a table of what is so now."""
    panel = table.Panel().title(title).description(text).datasource(SOURCE).span(WHOLE_WIDTH).height(7)
    unwanted = dict.fromkeys(("Time", "Value", "__name__", "job", "instance", *hidden), True)
    tidy = DataTransformerConfig(id_val="organize", options={"excludeByName": unwanted})
    return panel.with_target(query(line, "A", instant=True)).with_transformation(tidy).no_value("none")


def cluster() -> list[Any]:
    """Show the cluster, its pools, its models: from the recording rules."""
    return [
        number("GPUs", "short", Line("count(max by (node, uuid) (gpuscale_gpu_up))"), text="GPUs that are known."),
        number(
            "GPUs that can't be read",
            "short",
            Line("count(max by (node, uuid) (gpuscale_gpu_up) == 0) or vector(0)"),
            text="See the table below for the reasons.",
        ),
        number("Utilisation", "percent", Line("aom_cluster_gpu_usage"), text="Mean over all GPUs."),
        number("Memory used", "percent", Line("aom_cluster_gpu_memory_usage"), text="Of the whole capacity."),
        number("Memory free", "mbytes", Line("aom_cluster_gpu_memory_free_megabytes"), text="Without reserved."),
        number(
            "Nodes without metrics",
            "short",
            Line(
                "count(max by (node) (gpuscale_node_allocatable_gpus) > 0 unless on (node) gpuscale_gpu_up)"
                " or vector(0)"
            ),
            text="Nodes that offer GPUs and whose exporter tells nothing.",
        ),
        graph("Utilisation by pool", "percent", Line("aom_nodepool_gpu_usage", "{{pool}}"), top=100),
        graph("Memory used by pool", "percent", Line("aom_nodepool_gpu_memory_usage", "{{pool}}"), top=100),
        graph("Utilisation by model", "percent", Line("aom_model_gpu_usage", "{{model}}"), top=100),
        rows(
            "GPUs that can't be read, and why",
            Line("max by (node, uuid, model, reason) (gpuscale_gpu_absent) == 1"),
        ),
    ]


def node() -> list[Any]:
    """Show GPU by GPU, and who uses them: from the exporter."""
    owner = "{{namespace}}/{{pod}} {{container}}"
    return [
        graph("GPU utilisation", "percent", Line(f"aom_node_gpu_usage{{{NODE}}}", "{{node}} {{uuid}}"), top=100),
        graph("GPU memory used", "percent", Line(f"aom_node_gpu_memory_usage{{{NODE}}}", "{{node}} {{uuid}}"), top=100),
        graph("Power", "watt", Line(f"aom_node_gpu_power_watts{{{NODE}}}", "{{node}} {{uuid}}")),
        graph("Utilisation by container", "percent", Line(f"aom_container_gpu_usage{{{NODE}}}", owner), top=100),
        graph("Memory by container", "mbytes", Line(f"aom_container_gpu_memory_used_megabytes{{{NODE}}}", owner)),
        graph("Temperature", "celsius", Line(f"aom_node_gpu_temperature_centigrade{{{NODE}}}", "{{node}} {{uuid}}")),
        graph(
            "Age of the values",
            "s",
            Line(f"time() - gpuscale_snapshot_timestamp_seconds{{{NODE}}}", "{{node}}"),
            width=12,
            text="As Prometheus sees them: about the poll period plus the scrape interval.",
        ),
        graph(
            "Time to read a GPU",
            "s",
            Line(f"gpuscale_gpu_read_seconds{{{NODE}}}", "{{node}} {{uuid}}"),
            width=12,
            text="One that grows without end is a call of the driver that hangs.",
        ),
    ]


def scalers() -> list[Any]:
    """Show what the controller decides and how fast."""
    name = "{{kind}} {{namespace}}/{{name}}"
    return [
        graph(
            "Size: found and decided",
            "short",
            Line("max by (kind, namespace, name) (gpuscale_current_replicas)", f"{name} found"),
            Line("max by (kind, namespace, name) (gpuscale_desired_replicas)", f"{name} decided"),
            width=12,
        ),
        graph(
            "Decisions by reason",
            "ops",
            Line("sum by (reason) (rate(gpuscale_decisions_total[$__rate_interval]))", "{{reason}}"),
            width=12,
        ),
        rows(
            "Scalers that are held back, and why",
            Line("max by (kind, namespace, name, condition, reason) (gpuscale_scaler_held_back) == 1"),
        ),
        graph(
            "From reading to decision, 95 % of passes",
            "s",
            Line(
                "histogram_quantile(0.95,"
                " sum by (le) (rate(gpuscale_decision_delay_seconds_bucket[$__rate_interval])))",
                "p95",
            ),
        ),
        graph("Sources that fail", "short", Line("max by (source) (gpuscale_source_failing)", "{{source}}")),
        graph(
            "Writes",
            "ops",
            Line("sum by (what, result) (rate(gpuscale_writes_total[$__rate_interval]))", "{{what}} {{result}}"),
        ),
    ]


def build() -> dashboard.Dashboard:
    """Put the dashboard together."""
    source = dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    nodes = (
        dashboard.QueryVariable("node")
        .label("Node")
        .datasource(SOURCE)
        .query("label_values(gpuscale_gpus_expected, node)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .hide(VariableHide.DONT_HIDE)
        .multi(True)
        .include_all(True)
        .current(VariableOption(text="All", value="$__all"))
    )
    whole = (
        dashboard.Dashboard("gpuscale")
        .uid("gpuscale")
        .description("GPUs of the cluster, of its nodes, and the scalers that live on them.")
        .tags(["gpu", "gpuscale"])
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(source)
        .with_variable(nodes)
    )
    ids = itertools.count(1)
    for title, panels in (("Cluster", cluster()), ("Node", node()), ("Scalers", scalers())):
        whole = whole.with_row(dashboard.Row(title).id(next(ids)))
        for panel in panels:
            whole = whole.with_panel(panel.id(next(ids)))
    return whole


def render() -> str:
    """Give the dashboard's JSON, the same text for the same code."""
    return JSONEncoder(sort_keys=True, indent=2).encode(build().build()) + "\n"


def main() -> int:
    """Write the file beside this one."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
