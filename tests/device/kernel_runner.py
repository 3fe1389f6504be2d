"""Runs random cases through compiled kernels, for processes that load a sanitizer.

    python kernel_runner.py CASES SEED LIBRARY...

Each library is run in a fork of its own. One line per library says `ok` or how it failed; the exit
status is 0 when every library was run, whatever came of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from kernel_cases import Case, random_copy, random_update
from kernel_harness import Shim
from kernel_large_strides import check_large_moves, check_large_strides
from move_cases import MoveCase, almost_aligned_moves, check_hidden_moves, random_moves

from tandemkv.device import (
    apply_block_table_updates,
    apply_page_moves,
    copy_batch_block_offsets,
)

TIMEOUT_S = 60


@contextlib.contextmanager
def unreadable(case: Case | MoveCase) -> Iterator[None]:
    """Poison the memory that the call must not read, when AddressSanitizer is loaded."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "__asan_poison_memory_region"):
        yield
        return
    # Poison covers whole units of 8 bytes: a unit that holds a readable element is left out.
    regions = []
    for part in case.unread:
        start = -(-part.ctypes.data // 8) * 8
        size = part.ctypes.data + part.nbytes - start
        if size >= 8:
            regions.append((ctypes.c_void_p(start), ctypes.c_size_t(size // 8 * 8)))
    for region in regions:
        process.__asan_poison_memory_region(*region)
    try:
        yield
    finally:
        for region in regions:
            process.__asan_unpoison_memory_region(*region)


def run(library: Path, cases: int, seed: int) -> None:
    """Run all cases in both thread orders."""
    for reverse in (False, True):
        shim = Shim(library, reverse=reverse)
        with shim.installed():
            for number in range(cases):
                rng = np.random.default_rng([seed, number])
                copy, update = random_copy(rng), random_update(rng)
                with unreadable(copy):
                    copy_batch_block_offsets(**copy.arguments)
                copy.check()
                apply_block_table_updates(**update.arguments)
                update.check()
                moves = random_moves(rng)
                with unreadable(moves):
                    apply_page_moves(**moves.arguments)
                moves.check()
            for moves in almost_aligned_moves():
                with unreadable(moves):
                    apply_page_moves(**moves.arguments)
                moves.check()
            check_large_strides()
            check_large_moves()
            check_hidden_moves(shim.move)


def outcome(library: Path, cases: int, seed: int) -> str:
    """Run a library in a fork and return `ok`, `failed` or the signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(TIMEOUT_S)
            run(library, cases, seed)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        return "ok"
    return f"signal {-status}" if status < 0 else "failed"


if __name__ == "__main__":
    for name in sys.argv[3:]:
        print(outcome(Path(name), int(sys.argv[1]), int(sys.argv[2])), name, flush=True)
