"""``python -m tests.realparts.hpa_compare``: our decision core against Kubernetes' own controller, step by step.

The oracle is the test binary of ``tests/realparts/kubernetes/hpa``, which ``make real-parts`` builds. A difference
prints the seed, the step and what each said; ``--seed N`` replays one and shrinks it to its first steps.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from controller.core.decide import decide
from controller.core.model import Failed, Observation, Pod, PodValues, Reading, Reason, Sample, Total
from controller.policy import workload_policy
from controller.resources import parse_workload_scaler
from tests.realparts import build
from tests.realparts.hpa_cases import SYNC_SECONDS, Case, make

Step = tuple[int, dict[str, str]]
FAILED = {
    "Resource": Reason.FAILED_GET_RESOURCE_METRIC,
    "ContainerResource": Reason.FAILED_GET_CONTAINER_RESOURCE_METRIC,
    "Pods": Reason.FAILED_GET_PODS_METRIC,
    "Object": Reason.FAILED_GET_OBJECT_METRIC,
    "External": Reason.FAILED_GET_EXTERNAL_METRIC,
}
BATCH = 250


def ours(case: Case) -> list[Step]:
    """Give size and conditions after each step, as our core decides them."""
    manifest = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "scaler", "namespace": "test"},
        "spec": case["spec"],
    }
    policy = workload_policy(parse_workload_scaler(manifest).spec)
    kinds = [metric.source.value for metric in policy.metrics]
    size, memory, shown, steps = int(case["replicas"]), None, dict[str, str](), list[Step]()
    for i, step in enumerate(case["steps"]):
        size = step.get("replicas", size)
        readings = tuple(_reading(kind, one) for kind, one in zip(kinds, step["metrics"], strict=True))
        pods = tuple(_pod(pod) for pod in step["pods"])
        observation = Observation(size, step.get("statusReplicas", size), pods, readings)
        decision = decide(policy, observation, memory, float((i + 1) * SYNC_SECONDS))
        memory = decision.memory
        shown |= {one.type: f"{one.status}/{one.reason}" for one in decision.conditions}
        if decision.desired != size:
            shown["AbleToScale"] = f"True/{Reason.SUCCEEDED_RESCALE}"
        size = decision.desired
        steps.append((size, dict(shown)))
    return steps


def _pod(pod: dict[str, Any]) -> Pod:
    return Pod(
        name=pod["name"],
        phase=pod["phase"],
        deleting=pod.get("deleting", False),
        ready=pod.get("ready"),
        ready_changed_at=pod.get("readyChanged"),
        started_at=pod.get("started"),
        requests=pod["requests"],
    )


def _reading(kind: str, reading: dict[str, Any]) -> Reading:
    if reading.get("error"):
        return Failed(FAILED[kind], "scripted")
    if "values" in reading:
        return Total(tuple(reading["values"]), 0.0)
    samples = {name: Sample(one["value"], one["at"], one["window"]) for name, one in reading["pods"].items()}
    return PodValues(samples)


def theirs(cases: list[Case], binary: Path) -> Iterator[list[Step]]:
    """Give the same of Kubernetes' controller."""
    with tempfile.TemporaryDirectory(prefix="gpuscale-oracle-") as folder:
        asked, told = Path(folder) / "cases", Path(folder) / "answers"
        asked.write_text("".join(json.dumps(case) + "\n" for case in cases))
        environment = os.environ | {"ORACLE_CASES": str(asked), "ORACLE_ANSWERS": str(told)}
        ran = subprocess.run([binary], env=environment, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise SystemExit(f"the oracle failed:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
        for line in told.read_text().splitlines():
            answer = json.loads(line)
            if answer.get("error"):
                raise SystemExit(f"{answer['id']}: {answer['error']}")
            yield [
                (one["size"], {c["type"]: f"{c['status']}/{c['reason']}" for c in one["conditions"] or ()})
                for one in answer["steps"]
            ]


def difference(case: Case, mine: list[Step], other: list[Step]) -> str:
    """Say where the two first differ; empty = nowhere."""
    for i, (a, b) in enumerate(zip(mine, other, strict=True)):
        if a != b:
            return f"{case['id']} step {i}: ours {a}, Kubernetes {b}"
    return ""


def compare(seeds: Iterable[int], binary: Path) -> list[str]:
    """Give a line for every seed that differs."""
    cases = [make(seed) for seed in seeds]
    pairs = zip(cases, theirs(cases, binary), strict=True)
    return [line for case, answer in pairs if (line := difference(case, ours(case), answer))]


def compare_many(first: int, cases: int, binary: Path, processes: int) -> Iterator[list[str]]:
    """Compare batches of seeds in several processes; the differences of each batch, in order."""
    end = first + cases
    batches = [range(start, min(start + BATCH, end)) for start in range(first, end, BATCH)]
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(partial(compare, binary=binary), batches)


def oracle() -> Path:
    """Give the oracle. Raises MissingError where it is not built."""
    return build.programs("hpa-oracle") / "hpa-oracle"


def main() -> int:
    """Run; exit code 1 if anything differs, or if the oracle is absent with CI=true."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, help="replay this one and print it, cut behind its first difference")
    args = parser.parse_args()
    try:
        binary = oracle()
    except build.MissingError as missing:
        print(f"skipped: {missing}")
        return 1 if os.environ.get("CI", "").lower() == "true" else 0
    return run(args, binary) if args.seed is None else replay(args.seed, binary)


def run(args: argparse.Namespace, binary: Path) -> int:
    """Compare, and print the first differences and a closing line."""
    found: list[str] = []
    began = time.monotonic()
    for differences in compare_many(args.first, args.cases, binary, args.processes):
        for line in differences[: max(0, 20 - len(found))]:
            print(line, flush=True)
        found += differences
    print(f"seeds {args.first} to {args.first + args.cases - 1}, {time.monotonic() - began:.0f} s")
    print(f"{args.cases - len(found)} passed, {len(found)} failed")
    return 1 if found else 0


def replay(seed: int, binary: Path) -> int:
    """Print a case up to the step that differs, and both answers."""
    case = make(seed)
    answer = next(theirs([case], binary))
    line = difference(case, ours(case), answer)
    if line:
        last = int(line.split("step ")[1].split(":")[0])
        case["steps"] = case["steps"][: last + 1]
    print(json.dumps(case, indent=1))
    print(line or "no difference")
    return 1 if line else 0


if __name__ == "__main__":
    sys.exit(main())
