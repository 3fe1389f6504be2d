"""Runs the steps of `scenario` in a process of its own for each step, and kills it there.

    python kill_child.py FOLDER

Process N works in FOLDER/N and is killed at step N. The last one, which comes to its end, is the
only one that is not. Prints how many were killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from store_setup import KillingFiles, key_of, open_store, write


def scenario(path: Path, files: KillingFiles, *, direct: bool) -> None:
    """Make a store, fill it, open it again, overwrite, clear and fill it again."""
    with open_store(path, files=files, direct=direct) as store:
        for page in range(3):
            write(store, 0, page, key_of(page))
            write(store, 1, page, key_of(page))
    with open_store(path, files=files, direct=direct) as store:
        for page in range(2):
            write(store, 0, page, key_of(10 + page))
            write(store, 1, page + 2, key_of(10 + page))
        store.clear()
        write(store, 0, 3, key_of(20))
        write(store, 1, 3, key_of(0))


def main() -> None:
    folder = Path(sys.argv[1])
    killed = 0
    while True:
        child = os.fork()
        if child == 0:
            path = folder / str(killed)
            # Every other process goes through the page cache, where any byte can be the last one.
            scenario(path, KillingFiles(killed), direct=killed % 2 == 0)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            break
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed += 1
    print(killed)


if __name__ == "__main__":
    main()
