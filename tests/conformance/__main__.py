"""``python -m tests.conformance FILE...``: run tables of cases through the code of ``gpuscale decide``.

Prints what came out and what was wanted for each id. Exit code 1 = one differs, 2 = a file can't be read.
"""

import sys
from pathlib import Path

import yaml

from tests.conformance.judge import judge


def main(paths: list[str]) -> int:
    if not paths:
        print("usage: python -m tests.conformance FILE...", file=sys.stderr)
        return 2
    verdicts = []
    for path in paths:
        try:
            cases = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            print(f"{path}: can't be read: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
        cases = cases.get("cases") if isinstance(cases, dict) else cases
        if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
            print(f"{path}: must be a list of cases", file=sys.stderr)
            return 2
        verdicts += [judge(case) for case in cases]
    for verdict in verdicts:
        print(f"{'ok  ' if verdict.passed else 'FAIL'} {verdict.id:6} got {verdict.got}  want {verdict.want}")
    failed = sum(not verdict.passed for verdict in verdicts)
    print(f"{len(verdicts) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
