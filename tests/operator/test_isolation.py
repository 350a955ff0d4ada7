"""One object's fault, of whatever kind and in whatever step, ends as that object's condition: the others go on."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from controller import pool_round, workload_round
from controller.policy import PolicyDefaults
from controller.pool_round import PoolRound
from controller.registry import Entry, entry_of
from controller.workload_round import WorkloadRound


@dataclass
class Noting:
    """Stands for the reports: notes whose fault was told."""

    faults: list[tuple[str, str]] = field(default_factory=list)
    told: int = 0

    def forget_gone(self, _present: set[str]) -> list[str]:
        return []

    def latest(self, _subject: Any, on_server: Any) -> Any:
        return on_server

    def fault(self, subject: Any, _on_server: Any, _generation: int, fault: Exception) -> None:
        self.faults.append((subject.name, f"{fault}"))

    def tell_news(self) -> None:
        self.told += 1


def entry(kind: str, name: str, spec: dict[str, Any]) -> Entry:
    metadata = {"name": name, "uid": name, "generation": 1}
    if kind == "GPUWorkloadScaler":
        metadata["namespace"] = "ml"
    return entry_of({"apiVersion": "gpuscale.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})


def view_of(kind: Any, *entries: Entry) -> Any:
    keyed = {(one.manifest["metadata"].get("namespace", ""), one.uid): one for one in entries}
    return SimpleNamespace(registry=SimpleNamespace(scalers={kind: SimpleNamespace(entries=keyed)}))


def workload_entry(name: str) -> Entry:
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    return entry("GPUWorkloadScaler", name, {"scaleTargetRef": ref, "maxReplicas": 3})


def pool_entry(name: str) -> Entry:
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": name}
    return entry("GPUNodePoolScaler", name, {"pool": {"ref": ref, "nodeSelector": {"a": "b"}}, "bounds": {"max": 5}})


def workloads(reports: Noting) -> WorkloadRound:
    view: Any = view_of(workload_round.KIND, workload_entry("bad"), workload_entry("good"))
    other: Any = None
    return WorkloadRound(view, other, reports, PolicyDefaults(), lambda: 0.0)  # type: ignore[arg-type]


def pools(reports: Noting) -> PoolRound:
    view: Any = view_of(pool_round.KIND, pool_entry("bad"), pool_entry("good"))
    other: Any = None
    return PoolRound(view, other, other, reports, other, lambda: 0.0)  # type: ignore[arg-type]


async def failing_for_bad(plan: Any) -> None:
    if plan.subject.name == "bad":
        raise OverflowError("too large")


@pytest.mark.parametrize(
    ("module", "parser", "round_of"),
    [(workload_round, "parse_workload_scaler", workloads), (pool_round, "parse_pool_scaler", pools)],
    ids=["workload", "pool"],
)
def test_a_scaler_that_cant_even_be_read_does_not_keep_the_others(
    module: Any, parser: str, round_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(module, parser)

    def parse(manifest: Any) -> Any:
        if manifest["metadata"]["name"] == "bad":
            raise OverflowError("too large")
        return real(manifest)

    monkeypatch.setattr(module, parser, parse)
    reports = Noting()
    assert [one.subject.name for one in round_of(reports).begin()] == ["good"]
    assert reports.faults == [("bad", "too large")]


@pytest.mark.parametrize(("word", "round_of"), [("workload", workloads), ("pool", pools)])
async def test_a_fault_while_one_is_acted_on_is_told_and_the_pass_goes_on(
    word: str, round_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Noting()
    round_ = round_of(reports)
    monkeypatch.setattr(round_, "_perform", lambda plan: failing_for_bad(getattr(plan, word)))
    await round_.perform([SimpleNamespace(**{word: one}) for one in round_.begin()])
    assert (reports.faults, reports.told) == ([("bad", "too large")], 1)
