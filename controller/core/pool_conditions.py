"""What a pool's conditions say: whether it can decide, what limits it, whether pods fit, whether its nodes come.

Why it exists: a size that stays right while nothing comes of it looks fine. These are the words that tell.
"""

from controller.core.model import Condition, Reason
from controller.core.packing import NeverFit
from controller.core.pool_model import PodClass, PoolPolicy
from controller.core.pool_view import PoolView

_LIMIT_TEXT = {
    Reason.POOL_AT_MAXIMUM: "the maximum of nodes limits the size",
    Reason.POOL_AT_MINIMUM: "the minimum of nodes limits the size",
    Reason.SCALE_UP_LIMIT: "the step limits how many nodes are ordered at once",
    Reason.VICTIM_NOT_NAMEABLE: "the provider cannot be told which node to remove",
}


def pool_conditions(
    policy: PoolPolicy, view: PoolView, never: tuple[NeverFit, ...], limit: Reason | None, *, short: bool
) -> tuple[Condition, ...]:
    """Give all conditions of one decision. ``short``: nodes are needed beyond those that work or come."""
    if policy.template is None:
        active = Condition("ScalingActive", "False", Reason.TEMPLATE_UNKNOWN, "what a new node offers is not known")
    else:
        active = Condition("ScalingActive", "True", Reason.VALID_METRIC_FOUND, "pods and nodes of the pool are known")
    if limit is None:
        limited = Condition("ScalingLimited", "False", Reason.DESIRED_WITHIN_RANGE, "nothing limits the size")
    else:
        limited = Condition("ScalingLimited", "True", limit, _LIMIT_TEXT[limit])
    if never:
        fits = Condition("DemandFits", "False", Reason.NEVER_FITS, first_never(never))
    else:
        fits = Condition("DemandFits", "True", Reason.DEMAND_MET, "a node of this pool can take every pod that waits")
    return (active, limited, fits, _in_time(policy, view, short=short))


def _in_time(policy: PoolPolicy, view: PoolView, *, short: bool) -> Condition:
    """Tell of nodes that never came, and of those that came without their GPUs while others are needed for them."""
    late = []
    if view.overdue:
        late.append(f"{_nodes(view.overdue)} of the pool's size never came")
    if view.lost and (short or view.all_coming):
        late.append(f"{_nodes(len(view.lost))} came and had no GPUs, such as {view.lost[0].name}")
    if not late:
        return Condition("NodesInTime", "True", Reason.NODES_IN_TIME, "no node is overdue")
    deadline = f"the deadline is {policy.provision_deadline_seconds:g} s"
    return Condition("NodesInTime", "False", Reason.NODES_OVERDUE, f"{'; '.join(late)}; {deadline}")


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def first_never(never: tuple[NeverFit, ...]) -> str:
    """Name one of the pods that no node of the pool can take, and why."""
    fault = never[0]
    count = sum(one.pods.count for one in never)
    return f"{count} pods can't run on this pool, such as {_name(fault.pods)}: {fault.reason}"


def _name(pods: PodClass) -> str:
    return pods.names[0] if pods.names else "one without a name"
