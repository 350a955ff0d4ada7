"""How values and targets are said to people. One place, so that trace, sentence and status use the same words."""

from controller.core.model import Metric, Source, TargetType

GPU_PERCENT = ("utilization", "memoryUtilization")
UNKNOWN = "unknown"
GPU_UNITS = {"memoryUsed": " MiB", "power": " W"}


def amount(milli: int) -> str:
    """Write a value in milli-units in whole units where it can be: 15000 -> ``15``, 15500 -> ``15.5``."""
    whole, rest = divmod(abs(milli), 1000)
    sign = "-" if milli < 0 else ""
    return f"{sign}{whole}" if not rest else f"{sign}{whole}.{rest:03d}".rstrip("0")


def unit(metric: Metric) -> str:
    """Give the unit that values of this metric are said in, with its space; empty where the metric has none."""
    if metric.source is not Source.GPU:
        return ""
    if metric.target_type is TargetType.HEADROOM:
        return " MiB"
    return " %" if metric.name in GPU_PERCENT else GPU_UNITS.get(metric.name, "")


def target(metric: Metric) -> str:
    """Write a metric's target: ``80 %``, ``15 on average``, ``8000 MiB free``."""
    if metric.target_type is TargetType.UTILIZATION and metric.source is not Source.GPU:
        return f"{metric.target} % of requests"
    value = amount(metric.target) + unit(metric)
    if metric.target_type is TargetType.HEADROOM:
        return f"{value} left free on each pod"
    return f"{value} in total" if metric.target_type is TargetType.VALUE else f"{value} on average"


_BRIEF = (
    (" % on average", "%"),
    (" % of requests", "%"),
    (" left free on each pod", " free"),
    (" on average", " (avg)"),
    (" in total", ""),
    (" MiB", "Mi"),
    (" W", "W"),
    (" %", "%"),
)


def brief(label: str, current: str, target: str) -> str:
    """Write value and target of a metric as ``kubectl get hpa`` does: ``cpu: 95%/80%``, ``queue: 17/20 (avg)``.

    ``label``, ``current`` and ``target`` are those of a trace, in the words of this module.
    """
    _, _, name = label.partition("/")
    known = current and current != UNKNOWN
    return f"{name or label}: {_shortened(current) if known else '<unknown>'}/{_shortened(target)}"


def _shortened(text: str) -> str:
    for long, short in _BRIEF:
        text = text.replace(long, short)
    return text


def pods(count: int) -> str:
    """Write ``1 pod``, ``3 pods``."""
    return f"{count} pod" if count == 1 else f"{count} pods"
