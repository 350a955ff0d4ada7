"""Random cases for the HPA: specs that the API server would accept, pods and readings of every kind, step by step.

A case is plain JSON: ``spec`` (autoscaling/v2), ``replicas`` at the start, ``scaleToZero`` (the feature gate) and
``steps``, 15 s apart. Times in a step are seconds since the start. The same seed gives the same case.
"""

import random
from typing import Any

Case = dict[str, Any]
SYNC_SECONDS = 15
CONTAINERS = ("server", "sidecar")


def make(seed: int) -> Case:
    """Give the case of one seed."""
    rng = random.Random(seed)  # noqa: S311 - cases, not secrets
    metrics = _metrics(rng)
    may_be_zero = any(metric["type"] in {"Object", "External"} for metric in metrics) and rng.random() < 0.3
    low = 0 if may_be_zero and rng.random() < 0.7 else rng.randint(1, 5)
    high = max(low, 1) + rng.choice((0, 1, 3, 10, 50))
    spec: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "target"},
        "maxReplicas": high,
        "metrics": metrics,
    }
    if low != 1 or rng.random() < 0.5:
        spec["minReplicas"] = low
    if rng.random() < 0.6:
        spec["behavior"] = _behavior(rng)
    if len(metrics) == 1 and metrics[0]["type"] == "Resource" and rng.random() < 0.1:
        del spec["metrics"]
        metrics = [_resource("cpu", {"type": "Utilization", "averageUtilization": 80})]
    start = rng.randint(max(0, low - 2), high + 2)
    return {
        "id": f"seed-{seed}",
        "spec": spec,
        "replicas": start,
        "scaleToZero": low == 0,
        "steps": _steps(rng, metrics, start),
    }


def _metrics(rng: random.Random) -> list[dict[str, Any]]:
    makers = [_any_resource, _any_container_resource, _any_pods, _any_object, _any_external]
    metrics = [rng.choice(makers)(rng, i) for i in range(rng.choice((1, 1, 1, 2, 2, 3)))]
    seen: dict[str, dict[str, Any]] = {}
    for metric in metrics:
        block = next(value for key, value in metric.items() if key != "type")
        name = block.get("name") or block["metric"]["name"]
        seen.setdefault(f"{metric['type']}/{name}/{block.get('container')}", metric)
    return list(seen.values())


def _resource(name: str, target: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Resource", "resource": {"name": name, "target": target}}


def _resource_target(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.7:
        return {"type": "Utilization", "averageUtilization": rng.choice((1, 30, 50, 80, 100, 150))}
    return {"type": "AverageValue", "averageValue": _milli(rng.choice((100, 250, 500, 1000, 7)))}


def _any_resource(rng: random.Random, _: int) -> dict[str, Any]:
    return _resource(rng.choice(("cpu", "cpu", "memory")), _resource_target(rng))


def _any_container_resource(rng: random.Random, _: int) -> dict[str, Any]:
    block = {
        "name": rng.choice(("cpu", "memory")),
        "container": rng.choice(CONTAINERS),
        "target": _resource_target(rng),
    }
    return {"type": "ContainerResource", "containerResource": block}


def _any_pods(rng: random.Random, i: int) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": _milli(rng.choice((100, 1000, 15000, 333)))}
    return {"type": "Pods", "pods": {"metric": {"name": f"rate-{i}"}, "target": target}}


def _total_target(rng: random.Random) -> dict[str, Any]:
    amount = _milli(rng.choice((100, 1000, 5000, 14334)))
    return (
        {"type": "Value", "value": amount} if rng.random() < 0.5 else {"type": "AverageValue", "averageValue": amount}
    )


def _any_object(rng: random.Random, i: int) -> dict[str, Any]:
    described = {"apiVersion": "v1", "kind": "Service", "name": "web"}
    block = {"describedObject": described, "metric": {"name": f"hits-{i}"}, "target": _total_target(rng)}
    return {"type": "Object", "object": block}


def _any_external(rng: random.Random, i: int) -> dict[str, Any]:
    return {"type": "External", "external": {"metric": {"name": f"queue-{i}"}, "target": _total_target(rng)}}


def _milli(amount: int) -> str:
    return f"{amount}m"


def _behavior(rng: random.Random) -> dict[str, Any]:
    behavior: dict[str, Any] = {}
    for side in ("scaleUp", "scaleDown"):
        if rng.random() < 0.7:
            behavior[side] = _rules(rng)
    return behavior


def _rules(rng: random.Random) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    if rng.random() < 0.6:
        rules["stabilizationWindowSeconds"] = rng.choice((0, 15, 16, 30, 44, 45, 60, 120, 300))
    if rng.random() < 0.6:
        rules["policies"] = [_policy(rng) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        rules["selectPolicy"] = rng.choice(("Max", "Min", "Disabled"))
    if rng.random() < 0.3:
        rules["tolerance"] = rng.choice(("0", "0.01", "0.05", "0.1", "0.25", "50m"))
    return rules


def _policy(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(("Pods", "Percent"))
    value = rng.choice((1, 2, 4, 10)) if kind == "Pods" else rng.choice((1, 10, 33, 50, 100, 200))
    return {"type": kind, "value": value, "periodSeconds": rng.choice((15, 16, 30, 45, 60, 61, 120))}


def _steps(rng: random.Random, metrics: list[dict[str, Any]], start: int) -> list[dict[str, Any]]:
    steps = []
    guess, level = max(start, 1), rng.uniform(0.1, 2.5)
    steady = rng.random() < 0.5
    for i in range(rng.choice((1, 2, 5, 12, 30))):
        if not steady or rng.random() < 0.1:
            level = (
                rng.choice((0.0, 0.5, 0.9, 0.95, 1.0, 1.05, 1.1, 1.5, 3.0)) if rng.random() < 0.5 else rng.uniform(0, 3)
            )
        guess = max(0, guess + rng.choice((0, 0, 0, 1, 2, -1)))
        pods = [_pod(rng, j, (i + 1) * SYNC_SECONDS) for j in range(guess)]
        step: dict[str, Any] = {"pods": pods, "metrics": [_reading(rng, m, pods, level, i) for m in metrics]}
        if rng.random() < 0.05:
            step["replicas"] = rng.randint(0, 12)
        if rng.random() < 0.1:
            step["statusReplicas"] = rng.randint(0, 12)
        steps.append(step)
    return steps


def _pod(rng: random.Random, index: int, now: int) -> dict[str, Any]:
    state = rng.choices(("ready", "unready", "pending", "failed", "deleting", "bare"), (75, 8, 6, 4, 4, 3))[0]
    started = now - rng.choice((1, 10, 20, 40, 100, 299, 300, 301, 5000))
    changed = min(now, started + rng.choice((0, 5, 29, 30, 31, 60, 200)))
    pod: dict[str, Any] = {"name": f"pod-{index}", "phase": "Running", "requests": _requests(rng)}
    if state == "bare":
        return pod
    pod |= {"ready": state != "unready", "started": started, "readyChanged": changed}
    if state in {"pending", "failed"}:
        pod |= {"phase": state.capitalize(), "ready": False}
    if state == "deleting":
        pod["deleting"] = True
    return pod


def _requests(rng: random.Random) -> dict[str, dict[str, int]]:
    if rng.random() < 0.02:
        return {"server": {}, "sidecar": {"cpu": 100}}
    return {
        "server": {"cpu": rng.choice((100, 1000, 900, 1100)), "memory": rng.choice((1000, 64000))},
        "sidecar": {"cpu": 100, "memory": 1000},
    }


def _reading(
    rng: random.Random, metric: dict[str, Any], pods: list[dict[str, Any]], level: float, i: int
) -> dict[str, Any]:
    if rng.random() < 0.08:
        return {"error": True}
    kind = metric["type"]
    if kind in {"Object", "External"}:
        base = max(1, len(pods)) * level * rng.choice((100, 1000, 5000))
        return {
            "values": [int(base * rng.uniform(0.5, 1.5)) for _ in range(1 if kind == "Object" else rng.randint(1, 3))]
        }
    missing = rng.choice((0, 0, 0, 0.1, 0.5, 1.0))
    values: dict[str, Any] = {}
    for pod in pods:
        if rng.random() < missing:
            continue
        at = (i + 1) * SYNC_SECONDS - rng.choice((0, 1, 15, 30, 60))
        values[pod["name"]] = {
            "value": _value(rng, metric, pod, level),
            "at": at,
            "window": rng.choice((0, 15, 30, 60)),
        }
    if rng.random() < 0.03:
        values["stranger"] = {"value": 500, "at": i * SYNC_SECONDS, "window": 15}
    return {"pods": values}


def _value(rng: random.Random, metric: dict[str, Any], pod: dict[str, Any], level: float) -> int:
    block = next(value for key, value in metric.items() if key != "type")
    target = block["target"]
    if "averageUtilization" in target:
        asked = sum(requests.get(block["name"], 0) for requests in pod["requests"].values())
        base = asked * target["averageUtilization"] / 100
    else:
        base = int(target["averageValue"][:-1])
    return max(0, int(base * level * rng.choice((1.0, 1.0, rng.uniform(0.5, 1.5)))))
