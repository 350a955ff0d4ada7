"""Ctrl-C at one chosen moment of a program's start, the same each time."""


def interrupted_at(module: str, program: str) -> str:
    """Give Python text that runs ``program``, with a SIGINT at the moment at which it begins to import ``module``."""
    return f"""
import os, signal, sys

class Interrupting:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
{program}
"""
