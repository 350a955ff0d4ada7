"""The verb ``decide``: one decision or a sequence of them, offline, with the full trace.

Why it exists: an HPA manifest or a scaler can be tried against a written-down situation before it touches a cluster;
the decision is the live one, as it is made by the same code.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from controller import user_yaml
from controller.explanation import lines
from controller.schema import Invalid
from controller.situation import Decided, decisions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own arguments."""
    parser.add_argument(
        "--file", required=True, metavar="FILE", help="the situation, YAML or JSON (docs/decide.md); - = standard input"
    )
    parser.add_argument("--json", action="store_true", help="print the decisions as one JSON list")


def main(args: argparse.Namespace) -> int:
    """Print the decisions. Exit code 2 = the file can't be read, or has faults (all are printed)."""
    try:
        document = user_yaml.load(text_of(args.file))
        made = decisions(document)
    except RecursionError:
        print(f"{args.file}: can't be read: it contains itself, or is nested too deeply", file=sys.stderr)
        return 2
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        print(f"{args.file}: can't be read: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Invalid as invalid:
        for fault in invalid.faults:
            print(f"{args.file}: {fault}", file=sys.stderr)
        return 2
    print(as_json(made) if args.json else "\n".join(as_text(made)))
    return 0


def text_of(name: str) -> str:
    """Read a file, or standard input for ``-``."""
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")


def as_text(made: Sequence[Decided]) -> Iterable[str]:
    """Explain the decisions, with a line between those of a sequence."""
    for index, one in enumerate(made):
        if len(made) > 1:
            yield from ("",) if index else ()
            yield f"== at {one.now:g} s"
        yield from lines(one.decision, one.observation)


def as_json(made: Sequence[Decided]) -> str:
    """Write the decisions as JSON: the fields of a Decision, with the time and the size it was made at."""
    rows: list[dict[str, Any]] = [
        {"now": one.now, "replicas": one.observation.replicas, **asdict(one.decision)} for one in made
    ]
    return json.dumps(rows, indent=2, sort_keys=True)
