"""A real Prometheus, set up as a cluster's is, but in a hurry.

It finds the exporters' pods through the API server and attaches ``namespace``, ``pod`` and ``container`` of the
exporter's own pod to what it scrapes; ``honor_labels`` leaves series that have such labels alone, as the chart's
ServiceMonitor asks. The recording rules are the product's files. The alerts are a copy in which every ``for:`` is
shortened, or a test would wait for 10 minutes.
"""

import asyncio
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.realparts.controlplane import free_port
from tests.realparts.machines import EXPORTER_LABELS
from tests.realparts.processes import Process

RULES = Path(__file__).resolve().parents[2] / "rules"
INTERVAL_SECONDS = 1
FOR_SECONDS = 2
START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """A running server. Raises StartError where it does not come up."""

    def __init__(self, program: Path, kubeconfig: Path, namespace: str, logs: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._operator = logs / "operator-targets.json"
        self._namespace = namespace
        config, alerts = logs / "prometheus.yaml", logs / "alerts.yaml"
        alerts.write_text(yaml.safe_dump(hurried_alerts()))
        config.write_text(yaml.safe_dump(self._config(kubeconfig, alerts)))
        command = [
            *(program, f"--config.file={config}", f"--storage.tsdb.path={logs / 'tsdb'}"),
            *(f"--web.listen-address={self.url.removeprefix('http://')}", "--scrape.discovery-reload-interval=1s"),
        ]
        self._process = Process(command, logs / "prometheus.log")
        self._process.wait_until(self._ready, START_SECONDS)

    def watch_operator(self, address: str) -> None:
        """Scrape the operator too, as one pod of the test's namespace."""
        labels = {"namespace": self._namespace, "pod": "gpuscale-0", "container": "controller"}
        part = self._operator.with_suffix(".part")
        part.write_text(json.dumps([{"targets": [address], "labels": labels}]))
        part.replace(self._operator)

    def end(self) -> None:
        """End it."""
        self._process.end()

    async def query(self, expression: str) -> list[Sample]:
        """Give the finite values of an instant query."""
        rows = (await self._get("query", query=expression))["result"]
        found = [Sample(row["metric"], float(row["value"][1])) for row in rows]
        return [sample for sample in found if math.isfinite(sample.value)]

    async def label_values(self, metric: str, label: str) -> list[str]:
        """Give what Grafana's ``label_values(metric, label)`` gives."""
        return list(await self._get(f"label/{label}/values", **{"match[]": metric}))

    async def firing(self, alert: str) -> list[dict[str, Any]]:
        """Give each firing alert of this name: labels and annotations."""
        alerts = (await self._get("alerts"))["alerts"]
        return [one for one in alerts if one["labels"]["alertname"] == alert and one["state"] == "firing"]

    async def _get(self, path: str, **words: str) -> Any:
        return await asyncio.to_thread(self._get_now, path, words)

    def _get_now(self, path: str, words: Mapping[str, str]) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 loopback
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{words}: {refused.read().decode()}") from None

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:  # noqa: S310 loopback
                return bool(answer.status == 200)
        except OSError:
            return False

    def _config(self, kubeconfig: Path, alerts: Path) -> dict[str, Any]:
        found = {"role": "pod", "kubeconfig_file": str(kubeconfig), "namespaces": {"names": [self._namespace]}}
        exporters = {
            "job_name": "exporters",
            "honor_labels": True,
            "kubernetes_sd_configs": [found],
            "relabel_configs": [
                _keep("pod_label_app_kubernetes_io_name", EXPORTER_LABELS["app.kubernetes.io/name"]),
                _keep("pod_container_port_name", "metrics"),
                _label("namespace", "namespace"),
                _label("pod_name", "pod"),
                _label("pod_container_name", "container"),
            ],
        }
        operator = {
            "job_name": "operator",
            "honor_labels": True,
            "file_sd_configs": [{"files": [str(self._operator)], "refresh_interval": "1s"}],
        }
        every = f"{INTERVAL_SECONDS}s"
        return {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(RULES / "recording.yaml"), str(alerts)],
            "scrape_configs": [exporters, operator],
        }


def hurried_alerts() -> dict[str, Any]:
    """Give the product's alerts with a short ``for:``."""
    document: dict[str, Any] = yaml.safe_load((RULES / "alerts.yaml").read_text(encoding="utf-8"))
    for group in document["groups"]:
        for rule in group["rules"]:
            assert "for" in rule, rule["alert"]
            rule["for"] = f"{FOR_SECONDS}s"
    return document


def _keep(meta: str, value: str) -> dict[str, Any]:
    return {"source_labels": [f"__meta_kubernetes_{meta}"], "regex": value, "action": "keep"}


def _label(meta: str, name: str) -> dict[str, Any]:
    return {"source_labels": [f"__meta_kubernetes_{meta}"], "target_label": name}
