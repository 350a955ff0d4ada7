"""``python -m tests.demo_report demo.json``: does the demo's own record show what the demo promises?

Prints each promise with what was found; exit code 1 if one is not kept. The keys are those of docs/demo.md.
"""

import json
import sys
from pathlib import Path
from typing import Any

Found = tuple[str, bool, object]
REACTION_P95_SECONDS = 3.0


def promises(record: dict[str, Any]) -> list[Found]:
    """Give each promise as (sentence, kept, what was found)."""
    workload, pool, reaction = record["workload"], record["pool"], record["reaction"]["workloadUp"]
    removed, changes = record["podsRemoved"], record["changes"]
    unexplained = [change for change in changes if not change["reason"] or not change["sentence"]]
    return [
        ("it ran to its end", record["outcome"] == "finished", record["outcome"]),
        ("the workload began at its minimum", workload["start"] == workload["min"], workload["start"]),
        ("the workload went up", workload["highest"] > workload["start"], workload["highest"]),
        ("the workload came back to its minimum", workload["end"] == workload["min"], workload["end"]),
        ("the pool added nodes", pool["highest"] > pool["start"], pool["highest"]),
        ("the pool removed nodes", pool["end"] < pool["highest"], pool["end"]),
        ("every change has its reason", bool(changes) and not unexplained, unexplained or f"{len(changes)} changes"),
        ("reaction was measured", reaction["count"] > 0, reaction["count"]),
        ("reaction p95 <= 3 s", (reaction["p95Seconds"] or 99) <= REACTION_P95_SECONDS, reaction["p95Seconds"]),
        ("no busy pod went while an idle one stayed", removed["busyWhileIdleStayed"] == 0, removed),
        ("no node went that was not named", record["nodesRemovedUnmarked"] == 0, record["nodesRemovedUnmarked"]),
    ]


def main(path: str) -> int:
    """Print the promises of one record."""
    found = promises(json.loads(Path(path).read_text()))
    for sentence, kept, what in found:
        print(f"{'kept  ' if kept else 'BROKEN'} {sentence}: {what}")
    broken = sum(not kept for _, kept, _ in found)
    print(f"{len(found) - broken} passed, {broken} failed")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
