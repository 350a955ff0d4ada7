"""PURE: node-pool decision -> status document, and back to memory and learned template.

Why it exists beside status.py: a pool's status has other words; comparing and conditions are the same and stay there.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from controller.core.model import Condition
from controller.core.pool_model import NodeTemplate, PoolDecision, PoolMemory, PoolObservation, Taint
from controller.facts import is_gpu, seconds
from controller.quantity import milli
from controller.resource_status import (
    BlockedNode,
    DecisionStatus,
    GpuCounts,
    LearnedTemplate,
    NeverFit,
    NodeCounts,
    PoolMemoryStatus,
    PoolStatus,
    TaintStatus,
)
from controller.schema import dump
from controller.status import Document, Moment, clipped, finished, timestamp

_MOST_LISTED = 50
_MOST_INPUTS = 32


def pool_document(
    old: Document,
    decision: PoolDecision,
    observation: PoolObservation,
    memory: PoolMemory,
    learned: NodeTemplate | None,
    moment: Moment,
    *,
    changed: bool = False,
    more: Iterable[Condition] = (),
) -> dict[str, Any]:
    """Make the status of a node-pool scaler; arguments as for ``workload_document``."""
    trace = decision.trace
    status = PoolStatus(
        observed_generation=moment.generation,
        nodes=NodeCounts(
            current=observation.size,
            desired=decision.desired,
            ready=trace.nodes_ready,
            coming=trace.nodes_coming,
        ),
        gpus=_gpus(observation),
        template=_template_status(learned) if learned is not None else None,
        decision=DecisionStatus(
            time=timestamp(moment.now),
            from_=observation.size,
            to=decision.desired,
            reason=decision.reason.value,
            sentence=clipped(decision.sentence, 4096),
            inputs=pool_inputs(decision),
        ),
        memory=_memory_status(memory),
        never_fit=tuple(
            NeverFit(pod=clipped(pod, 253), reason=clipped(why, 4096)) for pod, why in trace.never_fit.items()
        )[:_MOST_LISTED],
        blocked_nodes=tuple(
            BlockedNode(node=node, reason=clipped(why, 4096)) for node, why in sorted(trace.blocked.items())
        )[:_MOST_LISTED],
    )
    return finished(dump(status), old, (*decision.conditions, *more), moment, changed=changed)


def pool_inputs(decision: PoolDecision) -> dict[str, str]:
    """Say in words what the decision looked at."""
    trace = decision.trace
    found = {
        "pending pods": str(trace.pending_pods),
        "planned pods": str(trace.planned_pods),
        "GPUs requested": f"{trace.requested_gpus:g}",
        "nodes ready": str(trace.nodes_ready),
        "nodes coming": str(trace.nodes_coming),
        "nodes needed": str(trace.nodes_needed),
    }
    for step in trace.steps:
        found[clipped(step.stage, 253)] = clipped(f"{step.before} -> {step.after}: {step.why}", 1024)
    return dict(list(found.items())[:_MOST_INPUTS])


def load_pool_memory(document: Document) -> PoolMemory | None:
    """Read back the memory of a pool scaler; None where none was kept."""
    memory = document.get("memory")
    if not isinstance(memory, Mapping):
        return None
    lowered_to = memory.get("loweredTo")
    return PoolMemory(
        unneeded_since=_times(memory.get("unneededSince")),
        marked_at=_times(memory.get("markedAt")),
        lowered_at=_times(memory.get("loweredAt")),
        lowered_to=lowered_to if isinstance(lowered_to, int) else None,
        size_changed_at=seconds(memory.get("sizeChangedAt")),
        unseen_since=seconds(memory.get("unseenSince")),
    )


def load_template(document: Document) -> NodeTemplate | None:
    """Read back what was learned from the pool's nodes, so that a pool at zero can grow again."""
    template = document.get("template")
    if not isinstance(template, Mapping) or not isinstance(template.get("allocatable"), Mapping):
        return None
    allocatable = {str(name): _milli(amount) for name, amount in template["allocatable"].items()}
    labels, taints = template.get("labels"), template.get("taints")
    return NodeTemplate(
        allocatable=allocatable,
        labels=dict(labels) if isinstance(labels, Mapping) else {},
        taints=tuple(
            Taint(str(row.get("key", "")), str(row.get("value", "")), str(row.get("effect", "")))
            for row in (taints if isinstance(taints, list) else [])
            if isinstance(row, Mapping)
        ),
        gpu_resources=tuple(sorted(name for name, amount in allocatable.items() if is_gpu(name) and amount)),
    )


def _gpus(observation: PoolObservation) -> GpuCounts:
    total = sum(_gpu_amount(node.allocatable) for node in observation.nodes)
    requested = sum(_gpu_amount(node.requested) for node in observation.nodes)
    waiting = sum(_gpu_amount(one.requests) * one.count for one in (*observation.pending, *observation.planned))
    return GpuCounts(total=total // 1000, requested=requested / 1000, waiting=waiting / 1000)


def _gpu_amount(resources: Mapping[str, int]) -> int:
    return sum(amount for name, amount in resources.items() if is_gpu(name))


def _template_status(template: NodeTemplate) -> LearnedTemplate:
    return LearnedTemplate(
        allocatable={name: _quantity(amount) for name, amount in template.allocatable.items()},
        labels=dict(template.labels),
        taints=tuple(TaintStatus(key=t.key, value=t.value, effect=t.effect) for t in template.taints),
    )


def _memory_status(memory: PoolMemory) -> PoolMemoryStatus:
    return PoolMemoryStatus(
        unneeded_since=_stamps(memory.unneeded_since),
        marked_at=_stamps(memory.marked_at),
        lowered_at=_stamps(memory.lowered_at),
        lowered_to=memory.lowered_to,
        size_changed_at=None if memory.size_changed_at is None else timestamp(memory.size_changed_at),
        unseen_since=None if memory.unseen_since is None else timestamp(memory.unseen_since),
    )


def _stamps(times: Mapping[str, float]) -> dict[str, str]:
    return {node: timestamp(at) for node, at in times.items()}


def _times(stamps: object) -> dict[str, float]:
    rows = stamps.items() if isinstance(stamps, Mapping) else ()
    found = {str(node): seconds(at) for node, at in rows}
    return {node: at for node, at in found.items() if at is not None}


def _quantity(amount: int) -> str:
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def _milli(text: object) -> int:
    try:
        return milli(str(text))
    except ValueError:
        return 0
