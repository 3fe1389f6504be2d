"""The step with everything on, call by call: roles, classes, events, tables in three forms.

    .venv/bin/python benchmarks/step_profile.py                  # print the table
    .venv/bin/python benchmarks/step_profile.py --update-docs    # and put it into the docs

256 sequences of about 1,024 tokens run 1 + 4 tokens per step, of which a random part is accepted.
Each column adds something to the one before.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from results import replace_part

from tandemkv import _core
from tandemkv.bench.measure import describe_machine, now, refuse_debug_build, settle, verify
from tandemkv.bench.report import heading, number
from tandemkv.cli.bench import pin

BLOCK, BATCH, WIDTH, CONTEXT = 16, 256, 5, 1024
FULL, SLIDING = ("full_attention", 0, 0), ("sliding_window", 512, 0)
STATE = ("recurrent_state", 0, 0)

COLUMNS: dict[str, dict[str, Any]] = {
    "target": {"lifetimes": [FULL]},
    "+ draft": {"lifetimes": [FULL], "has_draft": True, "lookahead": 1},
    "+ window of 512": {"lifetimes": [FULL, SLIDING], "has_draft": True, "lookahead": 1},
    "+ state": {
        "lifetimes": [FULL, SLIDING, STATE],
        "has_draft": True,
        "lookahead": 1,
        "snapshot_interval": 256,
    },
    "+ events": {
        "lifetimes": [FULL, SLIDING, STATE],
        "has_draft": True,
        "lookahead": 1,
        "snapshot_interval": 256,
        "events": 1 << 16,
    },
}

STEP = ("begin_step", "grow", "moves", "complete_step", "advance")
TABLES = ("updates", "table", "csr", "slot_mapping")


class Profile:
    """One ledger, and the time of each call per step in microseconds."""

    def __init__(self, steps: int, options: dict[str, Any]) -> None:
        self.classes = len(options["lifetimes"])
        room = CONTEXT + (steps + 2) * WIDTH + BLOCK
        self.blocks = BATCH * (room // BLOCK + 3)
        self.ledger = _core.Ledger(
            tokens_per_block=BLOCK,
            num_pages=[self.blocks + 1] * self.classes,
            max_sequences=BATCH,
            max_seq_len=room,
            max_step_tokens=CONTEXT,
            **options,
        )
        self.steps = steps
        self.times: dict[str, list[float]] = {}
        self.records = np.zeros((1 << 16, 4), np.int32)

    def call(self, name: str, run: Callable[..., Any], *args: Any, **options: Any) -> Any:
        start = now()
        result = run(*args, **options)
        self.times.setdefault(name, []).append((now() - start) / 1e3)
        return result

    def run(self) -> dict[str, float]:
        """Run the steps; the median of each call."""
        rng = np.random.default_rng(7)
        self._place(rng)
        tokens = rng.integers(0, 2**31 - 1, size=(self.steps, BATCH, WIDTH), dtype=np.int32)
        counts = rng.integers(1, WIDTH + 1, size=(self.steps, BATCH), dtype=np.int32)
        self._arrays()
        settle()
        for at in range(self.steps):
            self._step(tokens[at], counts[at])
        lengths = [self.ledger.sequence(int(h))["known"] for h in self.handle]
        verify("lengths", lengths, (self.lengths + counts.sum(axis=0)).tolist())
        return {name: statistics.median(times) for name, times in self.times.items()}

    def _place(self, rng: np.random.Generator) -> None:
        text = rng.integers(0, 2**31 - 1, size=(BATCH, CONTEXT), dtype=np.int32)
        self.lengths = CONTEXT - np.arange(BATCH, dtype=np.int32) * 7 % BLOCK
        prompts = [row[:length] for row, length in zip(text, self.lengths, strict=True)]
        self.handle, hit = np.zeros(BATCH, np.int64), np.zeros(BATCH, np.int32)
        limit = np.full(BATCH, CONTEXT + (self.steps + 1) * WIDTH, np.int64)
        scope, first = np.zeros(BATCH, np.int32), np.full(BATCH, 1 << 30, np.int32)
        step = self.ledger.begin_step()
        admit = self.ledger.admit
        admitted = admit(step, prompts, scope, first, limit, None, self.handle, hit)
        verify("admitted prompts", admitted, BATCH)
        self.ledger.moves(self.records)
        self.ledger.complete_step(step)
        none = np.zeros(BATCH, np.int32)
        self.ledger.advance(step, self.handle, np.zeros((BATCH, 0), np.int32), none)

    def _arrays(self) -> None:
        width = self.ledger.row_width
        self.width = np.full(BATCH, WIDTH, np.int32)
        self.ok = np.zeros(BATCH, np.uint8)
        self.table = np.zeros((self.classes, BATCH, width), np.int32)
        self.used = np.zeros((self.classes, BATCH), np.int32)
        self.start, self.ran = np.zeros(BATCH, np.int32), np.zeros(BATCH, np.int32)
        self.indptr = np.zeros(BATCH + 1, np.int32)
        self.indices = np.zeros(BATCH * width, np.int32)
        self.last = np.zeros(BATCH, np.int32)
        self.slots = np.zeros(BATCH * WIDTH, np.int64)

    def _step(self, tokens: Any, count: Any) -> None:
        ledger, handle = self.ledger, self.handle
        step = self.call("begin_step", ledger.begin_step)
        self.call("grow", ledger.grow, step, handle, self.width, self.ok)
        self.call("moves", ledger.moves, self.records)
        self.call("updates", ledger.updates, self.records)
        self.call("table", ledger.table, handle, self.table, self.used)
        _core.spans(ledger, step, handle, self.start, self.ran)
        ends = self.start + self.ran
        self.call("csr", _core.csr, ledger, handle, ends, self.indptr, self.indices, self.last)
        slots = (ledger, handle, self.start, self.ran, self.slots)
        self.call("slot_mapping", _core.slot_mapping, *slots)
        self.call("complete_step", ledger.complete_step, step)
        self.call("advance", ledger.advance, step, handle, tokens, count)


def rows(found: dict[str, dict[str, float]]) -> list[list[str]]:
    """Rows of the table: each call, then the sum of what every step needs."""
    table = [
        [name, *(number(times[name]) for times in found.values())] for name in (*STEP, *TABLES)
    ]
    sums = [sum(times[name] for name in STEP) for times in found.values()]
    first = sums[0]
    table.insert(len(STEP), ["**the step**", *(f"**{number(total)}**" for total in sums)])
    table.insert(len(STEP) + 1, ["x of target", *(f"{total / first:.2f}x" for total in sums)])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--core", type=int, help="core to run on; default: the last one")
    parser.add_argument("--update-docs", action="store_true", help="rewrite docs/performance.md")
    arguments = parser.parse_args()
    refuse_debug_build()
    pin(arguments.core)
    found = {name: Profile(arguments.steps, options).run() for name, options in COLUMNS.items()}
    lines = ["|call|" + "|".join(found) + "|", "|---|" + "---:|" * len(found)]
    lines += ["|" + "|".join(row) + "|" for row in rows(found)]
    page = "\n".join(lines) + f"\n\nMeasured {heading(describe_machine())}.\n"
    print(page, end="")
    if arguments.update_docs:
        replace_part("step", page)


if __name__ == "__main__":
    main()
