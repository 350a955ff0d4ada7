"""The demo's closing words: the same facts once as a JSON document and once as lines for people.

docs/demo.md explains every key; a test compares the two.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controller.sandbox.load import Load
from controller.sandbox.plant import PlantState
from controller.sandbox.record import Moment, NodeRemoval, Record, Target
from controller.sandbox.report import Limits, Told, findings, is_busy
from controller.sandbox.scenario import POOL, WORKLOAD, Scenario

Document = dict[str, Any]

FORM = "gpuscale-demo/1"


@dataclass(frozen=True, slots=True)
class Run:
    """How the demo went: when the load began and ended (the world's clock), and why it ended.

    ``outcome`` is finished, interrupted or failed; ``failure`` is a sentence or None.
    """

    began: float
    ended: float
    asked_seconds: float
    start_seconds: float
    tick_seconds: float
    outcome: str
    failure: str | None = None


def limits_of(scenario: Scenario) -> Limits:
    """Pick what the judgement needs of the scenario."""
    return Limits(scenario.target_percent, scenario.max_replicas, scenario.gpus_per_node, scenario.max_nodes)


def summary(record: Record, plant: PlantState, scenario: Scenario, load: Load, run: Run) -> Document:
    """Make the JSON document. Times are seconds since the load began."""
    found = findings(record, limits_of(scenario))
    return {
        "form": FORM,
        "outcome": run.outcome,
        "failure": run.failure,
        "seconds": round(run.ended - run.began, 3),
        "askedSeconds": run.asked_seconds,
        "startSeconds": round(run.start_seconds, 3),
        "load": {
            "source": load.source,
            "timeFactor": load.time_factor,
            "demandFactor": load.demand_factor,
            "peakGpus": round(load.curve.peak, 3),
        },
        "settings": {
            "tickSeconds": run.tick_seconds,
            "targetUtilization": scenario.target_percent,
            "shortened": scenario.chosen,
            "simulated": scenario.simulated,
        },
        "workload": _sizes(
            WORKLOAD, scenario.min_replicas, scenario.max_replicas, [m.replicas for m in record.moments]
        ),
        "pool": _sizes(POOL, scenario.min_nodes, scenario.max_nodes, [m.pool_size for m in record.moments])
        | {"nodes": _path([m.nodes for m in record.moments])},
        "changes": [_change(told, run.began) for told in found.told],
        "reaction": {"workloadUp": found.workload.document(), "poolUp": found.pool.document()},
        "gpuHours": {
            "nodes": round(found.gpu_hours_nodes, 5),
            "pods": round(found.gpu_hours_pods, 5),
            "busy": round(plant.served / 3600, 5),
        },
        "overloadSeconds": round(plant.overload_seconds, 3),
        "work": {
            "offeredGpuSeconds": round(plant.offered, 3),
            "servedGpuSeconds": round(plant.served, 3),
            "givenUpGpuSeconds": round(plant.given_up, 3),
        },
        "podsRemoved": {
            "serving": len(record.removals),
            "busy": found.busy_removed,
            "busyWhileIdleStayed": found.busy_removed_while_idle_stayed,
        },
        "nodesRemoved": [_node(removal, run.began) for removal in record.node_removals],
        "nodesRemovedUnmarked": sum(not removal.marked for removal in record.node_removals),
    }


def _sizes(name: str, least: int, most: int, sizes: list[int]) -> Document:
    return {"name": name, "min": least, "max": most} | _path(sizes)


def _path(sizes: list[int]) -> Document:
    if not sizes:
        return {"start": None, "highest": None, "end": None}
    return {"start": sizes[0], "highest": max(sizes), "end": sizes[-1]}


def _change(told: Told, began: float) -> Document:
    reaction = told.reaction_seconds
    return {
        "seconds": round(told.change.at - began, 3),
        "target": told.change.target.value,
        "name": told.change.name,
        "from": told.change.before,
        "to": told.change.after,
        "reason": told.reason,
        "sentence": told.sentence,
        "reactionSeconds": None if reaction is None else round(reaction, 3),
    }


def _node(removal: NodeRemoval, began: float) -> Document:
    return {
        "seconds": round(removal.at - began, 3),
        "node": removal.node,
        "marked": removal.marked,
        "pods": removal.pods,
    }


def lines(document: Document, load: Load) -> list[str]:
    """Write the document for people."""
    return [
        *_head(document, load),
        *_changes(document["changes"]),
        "",
        *_reactions(document["reaction"]),
        *_costs(document),
        *_honesty(document),
    ]


def _head(document: Document, load: Load) -> Iterable[str]:
    workload, pool = document["workload"], document["pool"]
    yield f"Summary of {document['seconds']:.0f} s ({document['outcome']}). Load: {load.sentence}."
    yield (
        f"  workload {workload['name']}: {workload['start']} -> {workload['highest']} -> {workload['end']} replicas; "
        f"pool {pool['name']}: {pool['start']} -> {pool['highest']} -> {pool['end']} nodes"
    )
    yield "Changes, and the operator's reason for each:"


def _changes(changes: list[Document]) -> Iterable[str]:
    if not changes:
        yield "  none"
    for change in changes:
        took = "" if change["reactionSeconds"] is None else f" ({change['reactionSeconds']:.1f} s after its cause)"
        yield (
            f"  +{change['seconds']:6.1f} s  {change['target']:8} {change['from']:2} -> {change['to']:2}  "
            f"{change['reason'] or 'no reason seen in status'}{took}"
        )
        if change["sentence"]:
            yield f"{'':29}{change['sentence']}"


def _reactions(reaction: Document) -> Iterable[str]:
    names = {"workloadUp": "metric crossing -> scale PATCH", "poolUp": "GPUs short -> pool PATCH"}
    for key, name in names.items():
        found = reaction[key]
        if not found["count"]:
            yield f"Reaction, {name}: none measured"
            continue
        figures = ", ".join(
            f"{word} {found[of]:.2f} s"
            for word, of in (("p50", "p50Seconds"), ("p95", "p95Seconds"), ("max", "maxSeconds"))
        )
        yield f"Reaction, {name}: {figures} (n = {found['count']})"


def _costs(document: Document) -> Iterable[str]:
    hours, work, removed = document["gpuHours"], document["work"], document["podsRemoved"]
    yield (
        f"GPU-hours: {hours['nodes']:.4f} on nodes, {hours['pods']:.4f} held by pods, {hours['busy']:.4f} busy; "
        f"overload {document['overloadSeconds']:.1f} s, "
        f"{work['givenUpGpuSeconds']:.1f} of {work['offeredGpuSeconds']:.1f} GPU-seconds of work given up"
    )
    yield (
        f"Serving pods removed: {removed['serving']}, of them busy {removed['busy']}, "
        f"busy though an idle one stayed {removed['busyWhileIdleStayed']}; "
        f"nodes removed: {len(document['nodesRemoved'])}, of them not named by the operator "
        f"{document['nodesRemovedUnmarked']}"
    )


def _honesty(document: Document) -> Iterable[str]:
    settings = document["settings"]
    yield f"Shortened for the demo, not defaults: {_pairs(settings['shortened'])}"
    yield f"Simulated: {_pairs(settings['simulated'])}; no GPU, no container and no scheduler of Kubernetes took part"


def _pairs(values: Document) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in values.items())


def status_line(moment: Moment, began: float, target_percent: int) -> str:
    """Say in one line how things stand."""
    mean = moment.utilization / moment.serving if moment.serving else 0.0
    return (
        f"+{moment.at - began:5.0f} s  load {moment.demand:4.1f} GPUs  "
        f"replicas {moment.replicas} ({moment.serving} ready, {moment.waiting} unschedulable)  "
        f"utilisation {mean:3.0f} %/{target_percent} %  "
        f"pool {moment.pool_size} ({moment.nodes} nodes, {moment.gpus} GPUs)"
        + (f"  waiting work {moment.backlog:.1f} GPU-s" if is_busy(moment.backlog * 100) else "")
    )


def told_line(told: Told, began: float) -> str:
    """Say in one line what changed and why."""
    change = told.change
    word = "replicas" if change.target is Target.WORKLOAD else "nodes"
    why = f": {told.reason}: {told.sentence}" if told.reason else ""
    return f"+{change.at - began:5.1f} s  {change.name} {change.before} -> {change.after} {word}{why}"
