"""Churn: every call's latency over minutes of service on a full pool, by kind, to the slowest one.

    .venv/bin/python benchmarks/churn.py --seconds 600                  # print the table
    .venv/bin/python benchmarks/churn.py --seconds 600 --json           # and keep it in results/
    .venv/bin/python benchmarks/churn.py --seconds 600 --update-docs    # and put it into the docs

A pool of 10^6 blocks, target and draft, is filled with cached blocks; then steps of up to 256
sequences run: admissions of new and of known texts, 1 + 4 tokens per step of which a random part
is accepted, releases, forks, suspends and resumes, blocks that expire, and now and then one prompt
whose 8,192 blocks are all paid for with evictions.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from latency import Histogram, Worst, cpu, wall
from numpy.typing import NDArray
from results import ROOT, keep, replace_part

from tandemkv import _core
from tandemkv.bench.measure import describe_machine, refuse_debug_build, verify
from tandemkv.bench.report import heading, number
from tandemkv.cli.bench import pin

BLOCK = 16
BATCH = 256
WIDTH = 5
"""Tokens per sequence and step: one and four drafted ones."""
BURST = 8192 * BLOCK
"""Tokens of the prompts that evict 8,192 blocks at once."""
STEPS_PER_BURST = 256
STEP_SECONDS = 0.02
"""Time that a step takes on the ledger's clock, which decides what expires."""

KINDS = (
    "begin_step",
    "admit",
    "admit, evicting 8,192 blocks",
    "resume",
    "grow",
    "moves",
    "updates",
    "complete_step",
    "advance",
    "fork",
    "suspend",
    "release",
)


class Running:
    """What an engine keeps of a running sequence."""

    __slots__ = ("handle", "steps_left")

    def __init__(self, handle: int, steps_left: int) -> None:
        self.handle = handle
        self.steps_left = steps_left


class Churn:
    """One ledger under load. `step` makes and times the calls of one scheduler step."""

    def __init__(self, blocks: int, seed: int, ttl_ms: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.text = self.rng.integers(0, 2**31 - 1, size=1 << 23, dtype=np.int32)
        self.ledger = _core.Ledger(
            tokens_per_block=BLOCK,
            num_pages=[blocks + 1],
            max_sequences=2 * BATCH,
            max_seq_len=BURST + 16_384,
            has_draft=True,
            lookahead=1,
            ttl_ms=ttl_ms,
        )
        self.blocks = blocks
        self.records = np.zeros((1 << 16, 4), np.int32)
        self.histograms = {kind: Histogram() for kind in KINDS}
        self.running: list[Running] = []
        self.suspended: list[Running] = []
        self.starts: list[int] = []
        self.steps = 0
        self.begun = 0.0
        self.records_on = False
        self.burst_evicted = 0

    def call(self, kind: str, items: int, blocks: int, run: Callable[..., Any], *args: Any) -> Any:
        """Make one call of the ledger and count how long it took."""
        cpu_start, wall_start = cpu(), wall()
        result = run(*args)
        wall_ns, cpu_ns = wall() - wall_start, cpu() - cpu_start
        histogram = self.histograms[kind]
        if self.records_on and histogram.add(wall_ns, cpu_ns):
            size = f"{items:,} items" + (f", {blocks:,} blocks" if blocks else "")
            histogram.worst = Worst(cpu_ns, wall_ns, size, time.monotonic() - self.begun)
        return result

    def prompt(self) -> NDArray[np.int32]:
        """Return a new text, or one of the last ones in another length."""
        length = int(2 ** self.rng.uniform(6, 13))
        if self.starts and self.rng.random() < 0.5:
            start = self.starts[int(self.rng.integers(len(self.starts)))]
        else:
            start = int(self.rng.integers(len(self.text) - BURST))
            self.starts = [*self.starts[-4095:], start]
        return self.text[start : start + length]

    def fill(self) -> None:
        """Admit and release until every page holds a cached block."""
        while self.ledger.stats()["classes"][0]["free"] > BURST // BLOCK:
            step = self.ledger.begin_step(self.now())
            handle = self.admit(step, [self.prompt() for _ in range(8)], "admit")
            self.ledger.moves(self.records)
            self.ledger.complete_step(step)
            count = np.ones(len(handle), np.int32)
            self.ledger.advance(step, handle, self.tokens(len(handle), 1), count)
            self.ledger.release(handle, np.ones(len(handle), np.uint8))
            self.steps += 1

    def now(self) -> float:
        return self.steps * STEP_SECONDS

    def tokens(self, rows: int, columns: int) -> NDArray[np.int32]:
        start = int(self.rng.integers(len(self.text) - rows * columns))
        return self.text[start : start + rows * columns].reshape(rows, columns)

    def admit(self, step: int, prompts: list[NDArray[np.int32]], kind: str) -> NDArray[np.int64]:
        """Admit prompts whole; the handles of those that found room."""
        n = len(prompts)
        handle, hit = np.zeros(n, np.int64), np.zeros(n, np.int32)
        scope, first = np.zeros(n, np.int32), np.full(n, 1 << 30, np.int32)
        limit = np.full(n, BURST + 16_384, np.int64)
        blocks = sum(-(-len(prompt) // BLOCK) for prompt in prompts)
        admit = self.ledger.admit
        self.call(kind, n, blocks, admit, step, prompts, scope, first, limit, None, handle, hit)
        return handle[handle >= 0]

    def step(self) -> None:
        """One scheduler step."""
        ledger, rng = self.ledger, self.rng
        step = self.call("begin_step", 1, 0, ledger.begin_step, self.now())
        decoding = self.running
        started = self._start(step)
        widths = np.full(len(decoding), WIDTH, np.int32)
        handle = np.array([each.handle for each in decoding], np.int64)
        ok = np.zeros(len(decoding), np.uint8)
        self.call("grow", len(decoding), 0, ledger.grow, step, handle, widths, ok)
        self.call("moves", 1, 0, ledger.moves, self.records)
        self.call("updates", len(decoding), 0, ledger.updates, self.records)
        self.call("complete_step", 1, 0, ledger.complete_step, step)
        grown = handle[ok > 0]
        ran = np.concatenate([grown, np.array([each.handle for each in started], np.int64)])
        count = rng.integers(1, WIDTH + 1, size=len(ran), dtype=np.int32)
        count[len(grown) :] = 1
        tokens = self.tokens(len(ran), WIDTH)
        self.call("advance", len(ran), 0, ledger.advance, step, ran, tokens, count)
        self.running = decoding + started
        for each in self.running:
            each.steps_left -= 1
        self._end()
        self._preempt({int(h) for h in handle[ok == 0]})
        self._fork()
        self.steps += 1

    def _start(self, step: int) -> list[Running]:
        """Resume and admit; what runs its first tokens in this step."""
        started: list[Running] = []
        if self.suspended and self.rng.random() < 0.5:
            each = self.suspended.pop(0)
            handle, ok = np.array([each.handle]), np.zeros(1, np.uint8)
            arguments = (step, handle, np.full(1, 1 << 30, np.int32), ok, np.zeros(1, np.int32))
            self.call("resume", 1, 0, self.ledger.resume, *arguments)
            (started if ok[0] else self.suspended).append(each)
        if self.steps % STEPS_PER_BURST == 0:
            start = int(self.rng.integers(len(self.text) - BURST))
            before = self.ledger.stats()["evicted_blocks"]
            kind = "admit, evicting 8,192 blocks"
            handles = self.admit(step, [self.text[start : start + BURST]], kind)
            self.burst_evicted += self.ledger.stats()["evicted_blocks"] - before
            started += [Running(int(handle), 4) for handle in handles]
        room = BATCH - len(self.running) - len(started)
        n = min(room, int(self.rng.integers(0, 4)))
        if n > 0:
            handles = self.admit(step, [self.prompt() for _ in range(n)], "admit")
            lives = self.rng.integers(16, 512, size=len(handles))
            started += [Running(int(h), int(life)) for h, life in zip(handles, lives, strict=True)]
        return started

    def _end(self) -> None:
        done = [each for each in self.running if each.steps_left <= 0]
        if not done:
            return
        handle = np.array([each.handle for each in done])
        tail = self.rng.integers(0, 2, size=len(done)).astype(np.uint8)
        self.call("release", len(done), 0, self.ledger.release, handle, tail)
        self.running = [each for each in self.running if each.steps_left > 0]

    def _preempt(self, refused: set[int]) -> None:
        """Suspend what found no room, and now and then others."""
        more = int(self.rng.integers(1, 5)) if self.rng.random() < 0.02 else 0
        victims = [each for each in self.running if each.handle in refused] + self.running[:more]
        victims = list({each.handle: each for each in victims}.values())
        if not victims or len(self.suspended) >= 64:
            return
        gone = np.array([each.handle for each in victims])
        self.call("suspend", len(gone), 0, self.ledger.suspend, gone, np.ones(len(gone), np.uint8))
        self.suspended += victims
        names = {each.handle for each in victims}
        self.running = [each for each in self.running if each.handle not in names]

    def _fork(self) -> None:
        if len(self.running) < 8 or len(self.running) > BATCH - 4 or self.rng.random() > 0.02:
            return
        step = self.call("begin_step", 1, 0, self.ledger.begin_step, self.now())
        parents = self.running[: int(self.rng.integers(1, 5))]
        handle, out = np.array([each.handle for each in parents]), np.zeros(len(parents), np.int64)
        self.call("fork", len(parents), 0, self.ledger.fork, step, handle, out)
        self.call("moves", 1, 0, self.ledger.moves, self.records)
        self.call("complete_step", 1, 0, self.ledger.complete_step, step)
        self.running += [Running(int(h), 64) for h in out if h >= 0]

    def run(self, seconds: float) -> None:
        """Make steps until the time is over."""
        self.ledger.updates(self.records)
        gc.collect()
        gc.freeze()
        gc.disable()
        self.records_on, self.begun = True, time.monotonic()
        while time.monotonic() - self.begun < seconds:
            for _ in range(64):
                self.step()
        gc.enable()
        stats = self.ledger.stats()
        counts = len(self.running) + len(self.suspended), len(self.suspended)
        found = stats["open_sequences"], stats["suspended_sequences"]
        verify("sequences at the end", found, counts)
        state = stats["classes"][0]
        parts = ("reserved", "free", "fenced", "live", "cached")
        verify("pages at the end", sum(state[part] for part in parts), self.blocks + 1)
        verify("forks, suspends and evictions happen", all(self.happened(stats)), True)

    @staticmethod
    def happened(stats: dict[str, Any]) -> list[bool]:
        names = ("forked", "suspended", "resumed", "evicted_blocks", "hit_tokens", "rewound_tokens")
        return [stats[name] > 0 for name in names]


def table(churn: Churn) -> str:
    """Return the histograms as a Markdown table, in microseconds."""
    lines = [
        "|call|calls|median|p99|p99.9|max|median CPU|p99.9 CPU|max CPU|that call had|",
        "|---|" + "---:|" * 8 + "---|",
    ]
    for kind, histogram in churn.histograms.items():
        if not histogram.calls:
            continue
        of = histogram.quantile
        times = [of(0.5), of(0.99), of(0.999), histogram.wall_max]
        times += [of(0.5, clock="cpu"), of(0.999, clock="cpu"), histogram.worst.cpu]
        cells = [kind, f"{histogram.calls:,}", *(number(ns / 1e3) for ns in times)]
        lines.append("|" + "|".join([*cells, histogram.worst.size]) + "|")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ttl-ms", type=int, default=120_000, help="on the ledger's clock")
    parser.add_argument("--core", type=int, help="core to run on; default: the last one")
    parser.add_argument("--json", action="store_true", help="keep the results in results/")
    parser.add_argument("--update-docs", action="store_true", help="rewrite docs/performance.md")
    arguments = parser.parse_args()
    refuse_debug_build()
    pin(arguments.core)
    machine = describe_machine()
    churn = Churn(arguments.blocks, arguments.seed, arguments.ttl_ms)
    churn.fill()
    print("filled", file=sys.stderr)
    churn.run(arguments.seconds)
    stats = churn.ledger.stats()
    page = (
        f"{table(churn)}\n\nMicroseconds. {arguments.seconds:,.0f} seconds, {churn.steps:,} steps, "
        f"{stats['admitted']:,} admissions, {stats['evicted_blocks']:,} evicted and "
        f"{stats['expired_blocks']:,} expired blocks, "
        f"{stats['cached_blocks']:,} of {arguments.blocks:,} blocks cached at the end.\n\n"
        f"Measured {heading(machine)}.\n"
    )
    print(page, end="")
    if arguments.json:
        content = {
            "machine": machine,
            "seconds": arguments.seconds,
            "blocks": arguments.blocks,
            "calls": {kind: histogram.to_dict() for kind, histogram in churn.histograms.items()},
        }
        path = keep("churn", machine, json.dumps(content, indent=1))
        print(f"kept in {path.relative_to(ROOT)}", file=sys.stderr)
    if arguments.update_docs:
        replace_part("churn", page)


if __name__ == "__main__":
    main()
