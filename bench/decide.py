"""Workload decisions per second on one core: the pure function alone, no I/O, no status, no JSON.

Isolates: controller.core.decide on prepared observations, memory passed on from decision to decision as in operation.
Bar: 25,000 decisions/s/core on the usual case (one GPU metric, four ready pods, behavior absent); --smoke checks the
decisions and judges no time.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from controller.core.decide import decide
from controller.core.model import (
    Behavior,
    GpuRules,
    Memory,
    Metric,
    Observation,
    Pod,
    PodValues,
    Policy,
    RatePolicy,
    Sample,
    ScalingRules,
    Source,
    TargetType,
    Total,
)

BAR_PER_SECOND = 25_000
ROUNDS, DECISIONS = 5, 4_000
UTILIZATION = Metric(Source.GPU, "utilization", TargetType.UTILIZATION, 80_000)
QUEUE = Metric(Source.EXTERNAL, "queue", TargetType.AVERAGE_VALUE, 20_000)
BEHAVIOR = Behavior(
    ScalingRules(30, (RatePolicy("Pods", 4, 60), RatePolicy("Percent", 100, 60))),
    ScalingRules(300, (RatePolicy("Percent", 10, 60),)),
)
Run = Callable[[int], int]


def pods(count: int, warming: int = 0) -> tuple[Pod, ...]:
    there = [Pod(f"llm-{index}", created_at=-7200.0, started_at=-7200.0) for index in range(count)]
    loading = [Pod(f"new-{index}", ready=False, created_at=-30.0) for index in range(warming)]
    return (*there, *loading)


def observed(count: int, values: tuple[int, ...], warming: int = 0, total: int | None = None) -> Observation:
    samples = {f"llm-{index}": Sample(value * 1000, 0.0) for index, value in enumerate(values)}
    readings = (PodValues(samples), *(() if total is None else (Total((total * 1000,), 0.0),)))
    return Observation(count + warming, count + warming, pods(count, warming), readings)


def driven(policy: Policy, observation: Observation, want: int) -> Run:
    """Decide again and again from what the last decision left; gives the last size, checked against ``want``."""
    policy = replace(policy, gpu=None if policy.gpu is None else replace(policy.gpu, max_age_seconds=math.inf))

    def run(times: int) -> int:
        memory: Memory | None = None
        desired = 0
        for index in range(times):
            decision = decide(policy, observation, memory, float(index))
            memory, desired = decision.memory_if_unwritten, decision.desired
        assert desired == want, (desired, want)
        return desired

    return run


def cases() -> dict[str, Run]:
    gpu = Policy(1, 100, (UTILIZATION,), None, GpuRules(max_startup_seconds=1e9))
    hpa = replace(gpu, metrics=(replace(UTILIZATION, source=Source.PODS),), gpu=None)
    return {
        "GPU metric, 4 ready pods": driven(gpu, observed(4, (78, 81, 80, 79)), 4),
        "same as a plain HPA": driven(hpa, observed(4, (78, 81, 80, 79)), 4),
        "same, it grows": driven(gpu, observed(4, (99, 99, 99, 99)), 5),
        "behavior, 2 metrics, 2 of 4 warming": driven(
            replace(gpu, metrics=(UTILIZATION, QUEUE), behavior=BEHAVIOR), observed(2, (95, 95), 2, 70), 4
        ),
        "GPU metric, 32 ready pods": driven(gpu, observed(32, (80,) * 32), 32),
    }


def main() -> int:
    best: dict[str, float] = {}
    for name, run in cases().items():
        run(200)
        for _ in range(ROUNDS):
            before = time.process_time()
            run(DECISIONS)
            best[name] = max(best.get(name, 0.0), DECISIONS / (time.process_time() - before))
    print(f"{'case':40} {'decisions/s/core':>17} {'us each':>8}")
    for name, rate in best.items():
        print(f"{name:40} {rate:17,.0f} {1e6 / rate:8.1f}")
    usual = next(iter(best.values()))
    print(f"bar {BAR_PER_SECOND:,}/s on the first case: {'reached' if usual >= BAR_PER_SECOND else 'MISSED'}")
    return int(usual < BAR_PER_SECOND and "--smoke" not in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
