"""From a row of a conformance table to the form of ``gpuscale decide``.

Why it exists: the rows are short and made for people; the code they test is the one that users run. Each kind of row is
translated whole, and a word that is not understood is said rather than skipped.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from controller.situation import without_floats

Case = Mapping[str, Any]
Form = dict[str, Any]

NOW = 1_000_000.0
LONG_AGO = 86_400.0
MOST = 100_000
FREE = {
    "scaleUp": {"policies": [{"type": "Pods", "value": 1_000_000, "periodSeconds": 15}]},
    "scaleDown": {"stabilizationWindowSeconds": 0},
}
COMMENTS = {"id", "from", "kind", "note", "why", "want", "cond", "condition", "conditions", "remove"}
STATES = {
    "ready": {},
    "unready": {"ready": False, "startedAt": NOW - 10, "readyChangedAt": NOW - 10},
    "pending": {"phase": "Pending"},
    "failed": {"phase": "Failed"},
    "deleting": {"deleting": True},
}


class NotUnderstoodError(ValueError):
    """A kind, a word or a value that no translation is known for."""


def form_of(case: Case) -> Form:
    """Give the form that asks what the row asks. Raises NotUnderstoodError."""
    kind = str(case.get("kind"))
    if kind not in TRANSLATIONS:
        raise NotUnderstoodError(f"kind {kind} is not understood; known are {', '.join(TRANSLATIONS)}")
    translate, known = TRANSLATIONS[kind]
    unknown = sorted(set(case) - known - COMMENTS)
    if unknown:
        raise NotUnderstoodError(f"{', '.join(unknown)}: not understood in a case of kind {kind}")
    return translate(case)


def quantity(milli: int) -> str:
    return f"{milli}m"


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def tolerances(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """The behavior and the settings that a row's tolerance asks for."""
    tolerance = case.get("tolerance")
    if isinstance(tolerance, Mapping):
        words = {"up": "scaleUp", "down": "scaleDown"}
        return {words[side]: {"tolerance": str(value)} for side, value in tolerance.items()}, {}
    return {}, {} if tolerance is None else {"tolerance": tolerance}


def with_tolerance(case: Case, form: Form) -> Form:
    behavior, settings = tolerances(case)
    if behavior:
        old = form["spec"].get("behavior", {})
        form["spec"]["behavior"] = {
            side: {**old.get(side, {}), **behavior.get(side, {})} for side in ("scaleUp", "scaleDown")
        }
    form["settings"] = {**settings, **form.get("settings", {})}
    return form


def proposals(*sizes: Any) -> tuple[list[Form], list[Form]]:
    """Metrics and readings that ask for just these sizes, or fail."""
    metrics = [
        {
            "type": "External",
            "external": {"metric": {"name": f"m{index}"}, "target": {"type": "AverageValue", "averageValue": "1"}},
        }
        for index in range(len(sizes))
    ]
    readings = [{"error": "no answer"} if size == "error" else {"values": [size]} for size in sizes]
    return metrics, readings


# --- kind: metric -----------------------------------------------------------------------------------------------


def metric_case(case: Case) -> Form:
    source, target = str(case["source"]), case["target"]
    size = int(case.get("replicas", case.get("statusReplicas", 0)))
    name = str(case.get("metric", "cpu" if source in ("Resource", "ContainerResource") else "queries"))
    per_pod = source in ("Resource", "ContainerResource", "Pods")
    rows = pod_rows(case, size, per_pod=per_pod)
    body = {
        "Resource": {"name": name},
        "ContainerResource": {"name": name, "container": str(case.get("container", "main"))},
        "Pods": {"metric": {"name": name}},
        "Object": {
            "metric": {"name": name},
            "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "front"},
        },
        "External": {"metric": {"name": name}},
    }
    if source not in body:
        raise NotUnderstoodError(f"source {source} is not understood")
    block = {**body[source], "target": target_of(target)}
    word = {"ContainerResource": "containerResource"}.get(source, source.lower())
    form = {
        "spec": {"minReplicas": 1, "maxReplicas": MOST, "metrics": [{"type": source, word: block}]},
        "target": {"replicas": size, "statusReplicas": int(case.get("statusReplicas", size))},
        "now": NOW,
        "pods": [pod_form(row, index, name) for index, row in enumerate(rows)],
        "metrics": [reading(case, rows, per_pod=per_pod)],
        "memory": {"scaledToZero": True},
    }
    return with_tolerance(case, form)


def target_of(target: Mapping[str, Any]) -> Form:
    kind, value = str(target["type"]), target["value"]
    if kind == "Utilization":
        return {"type": kind, "averageUtilization": value}
    return {"type": kind, "averageValue" if kind == "AverageValue" else "value": quantity(value)}


def pod_rows(case: Case, size: int, *, per_pod: bool) -> list[Mapping[str, Any]]:
    if "pods" in case:
        return list(case["pods"])
    if "podsRepeat" in case:
        repeat = dict(case["podsRepeat"])
        return [repeat] * int(repeat.pop("n"))
    if per_pod:
        return []
    ready = int(case.get("readyPods", size))
    return [{}] * ready + [{"state": "unready"}] * max(0, size - ready)


def pod_form(row: Mapping[str, Any], index: int, resource: str) -> Form:
    unknown = sorted(set(row) - {"v", "req", "state"})
    if unknown:
        raise NotUnderstoodError(f"{', '.join(unknown)}: not understood in a pod")
    state = str(row.get("state", "ready"))
    if state not in STATES:
        raise NotUnderstoodError(f"state {state} is not understood; known are {', '.join(STATES)}")
    requests = {resource: quantity(row["req"])} if row.get("req") is not None else {}
    return {"name": f"p{index}", "requests": {"main": requests}, **STATES[state]}


def reading(case: Case, rows: list[Mapping[str, Any]], *, per_pod: bool) -> Form:
    if case.get("usage") == "error" or case.get("error"):
        return {"error": "no answer"}
    if not per_pod:
        return {"values": [quantity(value) for value in listed(case["usage"])]}
    samples = {f"p{index}": row["v"] for index, row in enumerate(rows) if row.get("v") is not None}
    return {"samples": {name: value if is_nan(value) else quantity(value) for name, value in samples.items()}}


def is_nan(value: Any) -> bool:
    return value == "NaN" or (isinstance(value, float) and math.isnan(value))


# --- kinds: combine, limitUp, limitDown, sequence ---------------------------------------------------------------


def combine_case(case: Case) -> Form:
    metrics, readings = proposals(*case["proposals"])
    return {
        "spec": {"minReplicas": 0, "maxReplicas": MOST, "metrics": metrics, "behavior": FREE},
        "target": {"replicas": case["replicas"]},
        "now": NOW,
        "metrics": readings,
        "settings": {"tolerance": 0},
        "memory": {"scaledToZero": True},
    }


def limit_case(case: Case, side: str, proposal: int) -> Form:
    metrics, readings = proposals(proposal)
    rules = {"stabilizationWindowSeconds": 0, **without_floats(case["rules"])}
    return {
        "spec": {
            "minReplicas": case.get("min", 0),
            "maxReplicas": case.get("max", MOST),
            "metrics": metrics,
            "behavior": {side: rules},
        },
        "target": {"replicas": case["replicas"]},
        "now": NOW,
        "metrics": readings,
        "settings": {"tolerance": 0},
        "memory": {
            "upEvents": [[NOW - age, size] for age, size in case.get("upEvents", [])],
            "downEvents": [[NOW - age, size] for age, size in case.get("downEvents", [])],
            "scaledToZero": True,
        },
    }


def limit_up_case(case: Case) -> Form:
    return limit_case(case, "scaleUp", MOST)


def limit_down_case(case: Case) -> Form:
    return limit_case(case, "scaleDown", 0)


def sequence_case(case: Case) -> Form:
    metrics, _ = proposals(1)
    spec = {"minReplicas": case.get("min", 1), "maxReplicas": case["max"], "metrics": metrics}
    if "behavior" in case:
        spec["behavior"] = without_floats(case["behavior"])
    form = {
        "spec": spec,
        "target": {"replicas": case["replicas"]},
        "now": NOW,
        "steps": [{"at": at, "metrics": proposals(size)[1]} for at, size in case["steps"]],
        "settings": {"tolerance": 0, **case.get("settings", {})},
    }
    if case.get("scaledToZero") or case.get("scaledToZeroByUs"):
        form["memory"] = {"recommendations": [[NOW, case["replicas"]]], "scaledToZero": True}
    return form


# --- kind: gpu --------------------------------------------------------------------------------------------------

PERCENT = ("utilization", "memoryUtilization")


def gpu_case(case: Case) -> Form:
    values, extra = gpu_pods(case)
    victims = case.get("victims", {})
    size = int(case.get("replicas", victims.get("from", len(values) + len(extra) or case.get("reactive", 1))))
    metrics, readings = gpu_metrics(case, values)
    asked = [case[word] for word in ("reactive", "wake") if word in case] + [
        victims[w] for w in ("to",) if w in victims
    ]
    outer_metrics, outer_readings = proposals(*(asked or [0]))
    if asked or not metrics or case.get("minReplicas", 1) == 0:
        metrics, readings = metrics + outer_metrics, readings + outer_readings
    states = [*[{} for _ in values], *extra]
    if not states:
        states = [{} for _ in range(size)]
    form = {
        "spec": {
            "minReplicas": case.get("minReplicas", 1),
            "maxReplicas": case.get("maxReplicas", 100),
            "metrics": metrics,
            "behavior": FREE,
            "missingData": {"minSamplePercent": case.get("minSamplePercent", 50)},
            "victimSelection": protection(victims),
        },
        "target": {"replicas": size},
        "now": NOW,
        "pods": [
            {"name": f"p{index}", "createdAt": NOW - LONG_AGO, **state, **busy(victims, index)}
            for index, state in enumerate(states)
        ],
        "metrics": readings,
        "memory": {"scaledToZero": bool(case.get("scaledToZeroByUs", False))},
        "floors": [
            {"name": name, "replicas": case[word]}
            for word, name in (("forecastFloor", "forecast"), ("scheduleMin", "schedule"))
            if word in case
        ],
        "settings": {} if metrics and not asked else {"tolerance": 0},
    }
    if "idleSeconds" in case or "idle" in case:
        form["settings"]["idle"] = {"afterSeconds": 600, "maxUtilization": 5, **idle_words(case.get("idle", {}))}
    if "idleSeconds" in case:
        form["idleness"] = {"seconds": case["idleSeconds"], "maxUtilization": case["maxUtil"]}
    return with_tolerance(case, form)


def idle_words(idle: Any) -> Form:
    if not isinstance(idle, Mapping):
        return {}
    words = {"maxUtil": "maxUtilization", "seconds": "afterSeconds"}
    return {words.get(word, word): value for word, value in idle.items()}


def gpu_pods(case: Case) -> tuple[list[Any], list[Form]]:
    """The values of the pods that are ready, None or NaN for a silent one, and the states of the others."""
    values = [*case.get("ready", []), *case.get("values", []), *case.get("usedMB", [])]
    if "samples" in case:
        silent = int(case["pods"]) - int(case["samples"])
        values = [*values, *[40] * int(case["samples"]), *[None] * silent]
    if "idleSeconds" in case and not values:
        values = [case["maxUtil"]] * int(case.get("replicas", 1))
    victims = case.get("victims", {})
    if "utils" in victims and not values:
        return [], [{} for _ in victims["utils"]]
    values = [*values, *[None] * int(case.get("missing", 0))]
    warming = [{"ready": False, "createdAt": NOW - 30}] * count(case.get("warming", 0))
    pending = [{"phase": "Pending", "createdAt": NOW - 30}] * count(case.get("pending", 0))
    crashing = [{"ready": False, "crashing": True}] * count(case.get("crashing", 0))
    failed = [{"phase": "Failed"}] * count(case.get("failed", 0))
    return values, [*warming, *pending, *crashing, *failed]


def count(value: Any) -> int:
    return len(value) if isinstance(value, list) else int(value)


def gpu_metrics(case: Case, values: list[Any]) -> tuple[list[Form], list[Form]]:
    """The GPU metric and its reading, where the row has values of pods."""
    words = ("ready", "values", "usedMB", "samples", "warming", "pending", "crashing", "missing", "idleSeconds")
    if not any(word in case for word in words):
        return [], []
    name = str(case.get("metric", "headroom" if "headroomMB" in case else "utilization"))
    target = case.get("headroomMB" if name == "headroom" else "target", case.get("target", 80))
    gpu: Form = {"name": "memoryUsed" if name == "headroom" else name}
    if name == "headroom":
        gpu["target"] = {"type": "Headroom", "headroomMegabytes": target}
    elif name in PERCENT:
        gpu["target"] = {"type": "Utilization", "averageUtilization": target}
    else:
        gpu["target"] = {"type": "AverageValue", "averageValue": f"{target}Mi" if name == "memoryUsed" else str(target)}
    samples = {f"p{index}": value for index, value in enumerate(values) if value is not None}
    reading: Form = {"samples": {name: "NaN" if is_nan(value) else value for name, value in samples.items()}}
    capacity = case.get("capacityMB")
    if capacity is not None:
        each = capacity if isinstance(capacity, list) else [capacity] * len(values)
        reading["capacities"] = {f"p{index}": much for index, much in enumerate(each)}
    if "ageSeconds" in case:
        reading["ageSeconds"] = case["ageSeconds"]
    return [{"type": "GPU", "gpu": gpu}], [reading]


def busy(victims: Mapping[str, Any], index: int) -> Form:
    utils = victims.get("utils", [])
    if index >= len(utils) or utils[index] is None or is_nan(utils[index]):
        return {}
    return {"utilization": utils[index]}


def protection(victims: Mapping[str, Any]) -> Form:
    return {"protectAboveUtilization": victims["protectAbove"]} if "protectAbove" in victims else {}


TRANSLATIONS: dict[str, tuple[Callable[[Case], Form], set[str]]] = {
    "metric": (
        metric_case,
        {
            *("source", "metric", "container", "replicas", "statusReplicas", "readyPods", "tolerance", "target"),
            *("pods", "podsRepeat", "usage", "error"),
        },
    ),
    "combine": (combine_case, {"replicas", "proposals"}),
    "limitUp": (limit_up_case, {"replicas", "rules", "upEvents", "downEvents", "min", "max"}),
    "limitDown": (limit_down_case, {"replicas", "rules", "upEvents", "downEvents", "min", "max"}),
    "sequence": (
        sequence_case,
        {"min", "max", "replicas", "behavior", "steps", "settings", "scaledToZero", "scaledToZeroByUs"},
    ),
    "gpu": (
        gpu_case,
        {
            *(
                "ready",
                "warming",
                "values",
                "usedMB",
                "capacityMB",
                "headroomMB",
                "metric",
                "target",
                "samples",
                "pods",
            ),
            *("minSamplePercent", "replicas", "minReplicas", "maxReplicas", "tolerance", "idleSeconds", "maxUtil"),
            *("idle", "wake", "scaledToZeroByUs", "reactive", "forecastFloor", "scheduleMin", "victims", "missing"),
            *("pending", "crashing", "failed", "ageSeconds"),
        },
    ),
}
