"""The command `tandemkv`: one file per verb, `app` puts them together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from tandemkv.extras import install_hint


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    The status is 0 for success, 1 where the answer is "does not fit", and 2 for bad input, with
    one line on stderr that names the file, the field and the value.

    Args:
        argv: the arguments after the program's name; None: those of the process.
    """
    for module in ("click", "rich"):
        try:
            import_module(module)
        except ImportError:
            print(f"error: {module} is not installed: {install_hint('cli')}", file=sys.stderr)
            return 2
    # Only now: the verbs import both.
    status: int = import_module("tandemkv.cli.app").run(argv)
    return status
