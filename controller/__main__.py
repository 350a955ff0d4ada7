"""``gpuscale``: one command, a few verbs. Each verb's module is imported only when it is asked for.

All else is imported where it is used too: what Ctrl-C meets outside of ``main`` ends in a traceback.
"""

import sys
from collections.abc import Sequence

VERBS = {
    "run": ("controller.run", "run the operator against a cluster"),
    "demo": ("controller.sandbox.demo", "the whole product on an embedded cluster, no GPU and no cluster needed"),
    "decide": ("controller.offline", "one decision, or a sequence, offline, with its full trace"),
    "crds": ("controller.crds", "print or write the custom resource definitions"),
}


INTERRUPTED = 128 + 2
"""The exit code by which shells know that a command was ended by Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to the verb's ``add_arguments`` and ``main``. Exit code 2 = bad usage or unreadable input."""
    try:
        return dispatch(argv)
    except KeyboardInterrupt:  # before a verb that minds it has begun, or in one that doesn't
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone, as `head` does
        sys.stdout = None  # else Python complains at its own end
        return 1


def dispatch(argv: Sequence[str] | None) -> int:
    """Find the verb, load its module, run it."""
    import argparse
    import importlib
    import io

    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="gpuscale", description="Scale GPU workloads and node pools.")
    parser.add_argument("--version", action="version", version=f"gpuscale {version()}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    asked = next((word for word in words if word in VERBS), None)
    for verb, (module_name, summary) in VERBS.items():
        verb_parser = verbs.add_parser(verb, help=summary, description=summary)
        if verb == asked:
            module = importlib.import_module(module_name)
            module.add_arguments(verb_parser)
            verb_parser.set_defaults(run=module.main)
    args = parser.parse_args(words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name from a file may hold what this terminal can't show
            stream.reconfigure(errors="backslashreplace")
    return int(args.run(args))


def version() -> str:
    """Give the version that is installed; "unknown" for a bare checkout."""
    import contextlib
    import importlib.metadata

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("gpuscale")
    return "unknown"


if __name__ == "__main__":
    sys.exit(main())
