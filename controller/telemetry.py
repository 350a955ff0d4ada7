"""The operator's own metrics, in a registry of their own.

Why it exists: every name is defined once, with its help; the loop says what happened and knows no metric names.
"""

import contextlib
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from controller.facts import NodeFacts, is_gpu

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Telemetry:
    """All metrics of one operator."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._decisions = Counter(
            "gpuscale_decisions", "Decisions by kind of scaler and reason.", ["kind", "reason"], registry=registry
        )
        self._faults = Counter(
            "gpuscale_decision_faults", "Objects whose evaluation failed unexpectedly.", ["kind"], registry=registry
        )
        self._desired = Gauge(
            "gpuscale_desired_replicas", "Size that was decided.", ["kind", "namespace", "name"], registry=registry
        )
        self._current = Gauge(
            "gpuscale_current_replicas", "Size that was found.", ["kind", "namespace", "name"], registry=registry
        )
        self._held_back = Gauge(
            "gpuscale_scaler_held_back",
            "1 while a condition of a scaler is not as it should be.",
            ["kind", "namespace", "name", "condition", "reason"],
            registry=registry,
        )
        self._faults_shown: dict[tuple[str, str, str], set[tuple[str, str]]] = {}
        self._tick = Histogram(
            "gpuscale_tick_seconds", "Duration of one pass over everything.", buckets=_SECONDS, registry=registry
        )
        self._delay = Histogram(
            "gpuscale_decision_delay_seconds",
            "Age of a pass's readings when its decisions were written.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._failing = Gauge(
            "gpuscale_source_failing", "Sources that gave nothing at the last pass.", ["source"], registry=registry
        )
        self._exporters = Gauge("gpuscale_exporters", "GPU exporters that are scraped.", registry=registry)
        self._foreign = Gauge(
            "gpuscale_scrape_foreign_pods",
            "Pods of which an exporter on another node told at the last pass; it is not believed.",
            registry=registry,
        )
        self._leader = Gauge("gpuscale_leader", "1 while this process leads.", registry=registry)
        self._writes = Counter(
            "gpuscale_writes", "Writes to the API server by what and result.", ["what", "result"], registry=registry
        )
        self._node_info = Gauge(
            "gpuscale_node_info",
            "1 per node and the pool scaler that it belongs to.",
            ["node", "pool"],
            registry=registry,
        )
        self._node_gpus = Gauge(
            "gpuscale_node_allocatable_gpus",
            "Allocatable GPUs of a node, by resource.",
            ["node", "resource"],
            registry=registry,
        )
        self._lacking = Gauge(
            "gpuscale_definition_missing_fields",
            "Fields that this version reads and the served definition lacks.",
            ["definition"],
            registry=registry,
        )
        build = Gauge("gpuscale_build_info", "1, with version and Python.", ["version", "python"], registry=registry)
        build.labels(_version(), platform.python_version()).set(1)

    def decided(self, kind: str, namespace: str, name: str, reason: str, current: int, desired: int) -> None:
        """Note a decision."""
        self._decisions.labels(kind, reason).inc()
        self._current.labels(kind, namespace, name).set(current)
        self._desired.labels(kind, namespace, name).set(desired)

    def held(self, kind: str, reason: str) -> None:
        """Note that nothing could be decided."""
        self._decisions.labels(kind, reason).inc()

    def fault(self, kind: str) -> None:
        """Note an unexpected fault at one object."""
        self._faults.labels(kind).inc()

    def held_back(self, kind: str, namespace: str, name: str, faults: Iterable[tuple[str, str]]) -> None:
        """Show the (condition, reason) pairs of a scaler that are not as they should be, and no others."""
        key, wanted = (kind, namespace, name), set(faults)
        shown = self._faults_shown.get(key, set())
        for fault in shown - wanted:
            self._held_back.remove(*key, *fault)
        for fault in wanted - shown:
            self._held_back.labels(*key, *fault).set(1)
        self._faults_shown[key] = wanted

    def forget(self, kind: str, namespace: str, name: str) -> None:
        """End the series of a scaler that is gone, or that another process now leads."""
        self.held_back(kind, namespace, name, ())
        self._faults_shown.pop((kind, namespace, name), None)
        for gauge in (self._current, self._desired):
            with contextlib.suppress(KeyError):
                gauge.remove(kind, namespace, name)

    def passed(self, duration_seconds: float, *, leads: bool) -> None:
        """Note a pass over everything."""
        self._tick.observe(duration_seconds)
        self._leader.set(leads)

    def acted(self, delay_seconds: float) -> None:
        """Note how old the readings were when the pass had written its decisions."""
        self._delay.observe(delay_seconds)

    def sources(self, exporters: int, failing: Mapping[str, int], *, foreign_pods: int) -> None:
        """Note how many sources there are, how many fail, and of how many pods the wrong node's exporter told."""
        self._exporters.set(exporters)
        self._foreign.set(foreign_pods)
        for source, number in failing.items():
            self._failing.labels(source).set(number)

    def wrote(self, what: str, result: str) -> None:
        """Count a write."""
        self._writes.labels(what, result).inc()

    def definition_lacks(self, definition: str, fields: int) -> None:
        """Note how many fields a served definition lacks."""
        self._lacking.labels(definition).set(fields)

    def nodes(self, nodes: Iterable[NodeFacts], pools: Mapping[str, str]) -> None:
        """Show all nodes; ``pools`` is node -> pool scaler, "" = none."""
        self._node_info.clear()
        self._node_gpus.clear()
        for node in nodes:
            self._node_info.labels(node.name, pools.get(node.name, "")).set(1)
            for resource, amount in node.allocatable.items():
                if is_gpu(resource):
                    self._node_gpus.labels(node.name, resource).set(amount / 1000)

    def page(self) -> bytes:
        """Render everything in Prometheus' text form."""
        return generate_latest(self.registry)


def _version() -> str:
    try:
        return metadata.version("gpuscale")
    except metadata.PackageNotFoundError:
        return "unknown"
