"""The command ``gpuscale-exporter``: loads the program, and ends quietly if it is interrupted meanwhile.

Why it exists: loading takes longer than it takes to press Ctrl-C, and until the program minds signals itself Python
would answer with a traceback.
"""

INTERRUPTED = 128 + 2
"""The exit code by which shells know that a command was ended by Ctrl-C."""


def main() -> int:
    """Run the command; exit codes are those of ``exporter.__main__.main``, and 130 = interrupted."""
    try:
        from exporter.__main__ import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
