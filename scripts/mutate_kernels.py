#!/usr/bin/env python3
"""Breaks the kernels on purpose and shows that the tests' random cases notice every break.

Each mutation replaces one piece of a kernel's source, which must occur exactly once. The mutants
are compiled for the CPU with AddressSanitizer and UndefinedBehaviorSanitizer and run through the
cases of tests/device; a mutant that passes them all is reported, and the exit status is 1.

    scripts/mutate_kernels.py [--cases N] [--seed N] [--only WORD]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "device"
sys.path.insert(0, str(TESTS))

import kernel_harness as harness  # noqa: E402 (it lies beside the tests)

COPY, UPDATE, MOVES = "block_offsets.cu", "table_updates.cu", "page_moves.cu"


@dataclass(frozen=True)
class Mutation:
    """One break: in `file`, `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str

    def apply(self) -> str:
        """Return the broken source.

        Raises:
            ValueError: the source does not hold `old` exactly once.
        """
        text = (ROOT / "cuda" / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(
                f"mutation '{self.name}': {self.file} holds {self.old!r} "
                f"{text.count(self.old)} times, not once"
            )
        return text.replace(self.old, self.new)


MUTATIONS = [
    Mutation("copy: lost K/V offset", COPY, "scale * page + kv_offset;", "scale * page;"),
    Mutation("copy: lost scale of K", COPY, "? empty : scale * page;", "? empty : page;"),
    Mutation(
        "copy: lost scale of V",
        COPY,
        "? empty : scale * page + kv_offset",
        "? empty : page + kv_offset",
    ),
    Mutation(
        "copy: missing entry kept in K",
        COPY,
        "page < first_page ? empty : scale * page;",
        "scale * page;",
    ),
    Mutation(
        "copy: missing entry kept in V",
        COPY,
        "page < first_page ? empty : scale * page + kv_offset;",
        "scale * page + kv_offset;",
    ),
    Mutation("copy: past the length, first page", COPY, ": first_page - 1;", ": first_page;"),
    Mutation(
        "copy: length ignored by the tail", COPY, "column + i < length ?", "column + i < width ?"
    ),
    Mutation(
        "copy: length off by one",
        COPY,
        "length = entries < width ? entries : width;",
        "length = entries < width ? entries + 1 : width;",
    ),
    Mutation(
        "copy: vector load beyond the length",
        COPY,
        "column + COLUMNS_PER_THREAD <= length)",
        "column < length)",
    ),
    Mutation(
        "copy: vector load off by one",
        COPY,
        "column + COLUMNS_PER_THREAD <= length)",
        "column + COLUMNS_PER_THREAD <= length + 1)",
    ),
    Mutation(
        "copy: source alignment of strides dropped",
        COPY,
        "((table_stride | row_stride) % COLUMNS_PER_THREAD) == 0",
        "true",
    ),
    Mutation(
        "copy: source address alignment dropped",
        COPY,
        "((unsigned long long)pages % sizeof(int4)) == 0",
        "true",
    ),
    Mutation(
        "copy: destination width alignment dropped",
        COPY,
        "width % COLUMNS_PER_THREAD == 0",
        "true",
    ),
    Mutation(
        "copy: destination address alignment dropped",
        COPY,
        "((unsigned long long)destination % sizeof(int4)) == 0",
        "true",
    ),
    Mutation(
        "copy: scalar tail unbounded",
        COPY,
        "i < COLUMNS_PER_THREAD && column + i < width",
        "i < COLUMNS_PER_THREAD",
    ),
    Mutation(
        "copy: last columns left out",
        COPY,
        "column + i < width; ++i",
        "column + i < width - 1; ++i",
    ),
    Mutation("copy: count ignored", COPY, "count != nullptr && sequence >= count[0]", "false"),
    Mutation("copy: count off by one", COPY, "sequence >= count[0]", "sequence > count[0]"),
    Mutation(
        "copy: padding row read", COPY, "(unsigned)row < (unsigned)num_rows", "row < num_rows"
    ),
    Mutation(
        "copy: last row refused", COPY, "row < (unsigned)num_rows", "row < (unsigned)num_rows - 1"
    ),
    Mutation(
        "copy: used of another table",
        COPY,
        "used[descriptor.x * used_stride + sequence]",
        "used[sequence]",
    ),
    Mutation(
        "copy: table narrowed to 32 bits",
        COPY,
        "descriptor.x * table_stride",
        "(int)(descriptor.x * table_stride)",
    ),
    Mutation("copy: row narrowed to 32 bits", COPY, "row * row_stride", "(int)(row * row_stride)"),
    Mutation(
        "copy: destination narrowed to 32 bits",
        COPY,
        "((long long)group * num_sequences + sequence) * 2 * width",
        "(group * num_sequences + sequence) * 2 * width",
    ),
    Mutation("copy: K plane of V", COPY, "int* values = keys + width;", "int* values = keys;"),
    Mutation(
        "copy: group's own table ignored",
        COPY,
        "source += descriptor.x * table_stride",
        "source += 0",
    ),
    Mutation("copy: column tiles overlap", COPY, "blockIdx.z * blockDim.x", "blockIdx.z"),
    Mutation("copy: fourth column lost", COPY, "page[3] = four.w;", "page[3] = four.z;"),
    Mutation(
        "update: lost K/V offset",
        UPDATE,
        "descriptor.y * page + descriptor.z",
        "descriptor.y * page",
    ),
    Mutation(
        "update: missing entry kept in K",
        UPDATE,
        "key = page < first_page ? empty : descriptor.y * page;",
        "key = descriptor.y * page;",
    ),
    Mutation(
        "update: missing entry kept in V",
        UPDATE,
        "value = page < first_page ? empty : descriptor.y",
        "value = descriptor.y",
    ),
    Mutation("update: V written into K", UPDATE, "keys[width] = value", "keys[0] = value"),
    Mutation("update: other classes written too", UPDATE, "descriptor.x != table", "false"),
    Mutation(
        "update: position ignored",
        UPDATE,
        "row_position == nullptr ? row : row_position[row]",
        "row",
    ),
    Mutation(
        "update: row without a position written",
        UPDATE,
        "(unsigned)position >= (unsigned)num_sequences",
        "false",
    ),
    Mutation(
        "update: count ignored", UPDATE, "count != nullptr && (int)index >= count[0]", "false"
    ),
    Mutation("update: count off by one", UPDATE, "(int)index >= count[0]", "(int)index > count[0]"),
    Mutation("update: bound on records dropped", UPDATE, "index >= (unsigned)num_records", "false"),
    Mutation(
        "update: last column refused",
        UPDATE,
        "(unsigned)column >= (unsigned)width",
        "column >= width - 1",
    ),
    Mutation(
        "update: last row refused",
        UPDATE,
        "(unsigned)row >= (unsigned)num_rows",
        "row >= num_rows - 1",
    ),
    Mutation("update: first group only", UPDATE, "group < num_groups", "group < 1"),
    Mutation(
        "update: table narrowed to 32 bits",
        UPDATE,
        "((long long)table * num_rows + row) * width + column",
        "(table * num_rows + row) * width + column",
    ),
    Mutation(
        "update: destination narrowed to 32 bits",
        UPDATE,
        "((long long)group * num_sequences + position) * 2 * width + column",
        "(group * num_sequences + position) * 2 * width + column",
    ),
    Mutation(
        "update: table not written", UPDATE, "width + column] = page;", "width + column] += 0;"
    ),
    Mutation("moves: class ignored", MOVES, "move.x != (int)segment[7]", "false"),
    Mutation("moves: source page unbounded", MOVES, "move.y >= segment[6]", "false"),
    Mutation("moves: negative source page taken", MOVES, "move.y < 0", "false"),
    Mutation("moves: destination page unbounded", MOVES, "move.z >= segment[6]", "false"),
    Mutation("moves: reserved page written", MOVES, "move.z < 1", "move.z < 0"),
    Mutation("moves: tokens unbounded", MOVES, "tokens > segment[5]", "false"),
    Mutation("moves: last token refused", MOVES, "tokens > segment[5]", "tokens >= segment[5]"),
    Mutation("moves: no tokens taken", MOVES, "tokens < 1", "false"),
    Mutation(
        "moves: whole blocks copied",
        MOVES,
        "(unsigned)tokens * (unsigned)segment[4]",
        "(unsigned)segment[5] * (unsigned)segment[4]",
    ),
    Mutation("moves: count ignored", MOVES, "count != nullptr && (int)number >= count[0]", "false"),
    Mutation("moves: count off by one", MOVES, "(int)number >= count[0]", "(int)number > count[0]"),
    Mutation(
        "moves: first segment only",
        MOVES,
        "(long long)blockIdx.y * SEGMENT_FIELDS",
        "(long long)0 * SEGMENT_FIELDS",
    ),
    Mutation(
        "moves: source is the destination",
        MOVES,
        "(const char*)segment[0] + move.y",
        "(const char*)segment[0] + move.z",
    ),
    Mutation(
        "moves: source page narrowed to 32 bits",
        MOVES,
        "move.y * page_stride",
        "(int)(move.y * page_stride)",
    ),
    Mutation(
        "moves: destination page narrowed to 32 bits",
        MOVES,
        "move.z * page_stride",
        "(int)(move.z * page_stride)",
    ),
    Mutation(
        "moves: loaded row narrowed to 32 bits",
        MOVES,
        "(source + row * row_stride + at)",
        "(source + (int)(row * row_stride) + at)",
    ),
    Mutation(
        "moves: written row narrowed to 32 bits",
        MOVES,
        "offset = row * row_stride + at",
        "offset = (int)(row * row_stride) + at",
    ),
    Mutation(
        "moves: first row only", MOVES, "units_per_row * num_rows", "units_per_row * (num_rows > 0)"
    ),
    Mutation("moves: last unit lost", MOVES, "unit >= num_units)", "unit >= num_units - 1)"),
    Mutation("moves: units unbounded", MOVES, "if (unit >= num_units) {", "if (false) {"),
    Mutation(
        "moves: last bytes of a run lost",
        MOVES,
        "(run_bytes + UNIT_BYTES - 1) / UNIT_BYTES",
        "run_bytes / UNIT_BYTES",
    ),
    Mutation(
        "moves: alignment dropped",
        MOVES,
        "((segment[0] | page_stride | row_stride) % UNIT_BYTES) == 0",
        "true",
    ),
    Mutation(
        "moves: alignment of the address dropped",
        MOVES,
        "segment[0] | page_stride | row_stride",
        "page_stride | row_stride",
    ),
    Mutation(
        "moves: alignment of pages dropped",
        MOVES,
        "segment[0] | page_stride | row_stride",
        "segment[0] | row_stride",
    ),
    Mutation(
        "moves: alignment of rows dropped",
        MOVES,
        "segment[0] | page_stride | row_stride",
        "segment[0] | page_stride",
    ),
    Mutation(
        "moves: vector load beyond the run",
        MOVES,
        "aligned && at + UNIT_BYTES <= run_bytes) {\n            loaded",
        "aligned) {\n            loaded",
    ),
    Mutation(
        "moves: vector store beyond the run",
        MOVES,
        "aligned && at + UNIT_BYTES <= run_bytes) {\n            *(int4*)",
        "aligned) {\n            *(int4*)",
    ),
    Mutation(
        "moves: tail one byte long",
        MOVES,
        "byte < UNIT_BYTES && byte < rest",
        "byte < UNIT_BYTES && byte <= rest",
    ),
    Mutation(
        "moves: tail one byte short",
        MOVES,
        "byte < UNIT_BYTES && byte < rest",
        "byte < UNIT_BYTES && byte + 1 < rest",
    ),
    Mutation(
        "moves: tiles overlap",
        MOVES,
        "blockIdx.z * (blockDim.x * UNITS_PER_THREAD)",
        "blockIdx.z * blockDim.x",
    ),
    Mutation(
        "moves: threads do the same",
        MOVES,
        "UNITS_PER_THREAD) + threadIdx.x",
        "UNITS_PER_THREAD) + 0",
    ),
]


def build(folder: Path, mutation: Mutation | None) -> Path:
    """Compile a mutant, or the kernels as they are, with both sanitizers."""
    folder.mkdir()
    texts = None if mutation is None else {mutation.file: mutation.apply()}
    return harness.compile_shim(folder, texts, ("address", "undefined"), flags=("-O0",))


def survivors(mutations: list[Mutation], *, cases: int, seed: int) -> list[str]:
    """Return the names of the mutations that no case noticed.

    Raises:
        RuntimeError: the unbroken kernels fail the cases, or a mutant was not run.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        folders = [Path(folder) / str(number) for number in range(len(mutations) + 1)]
        libraries = list(pool.map(build, folders, [None, *mutations]))
        result = subprocess.run(
            [
                *(sys.executable, str(TESTS / "kernel_runner.py"), str(cases), str(seed)),
                *map(str, libraries),
            ],
            env=harness.sanitizer_environment(stack_traces=False),
            capture_output=True,
            text=True,
            check=False,
        )
    lines = result.stdout.splitlines()
    if result.returncode != 0 or len(lines) != len(libraries) or not lines[0].startswith("ok "):
        raise RuntimeError(f"the unbroken kernels were not run or failed:\n{result.stderr[-4000:]}")
    return [
        mutation.name
        for mutation, line in zip(mutations, lines[1:], strict=True)
        if line.startswith("ok ")
    ]


def main() -> int:
    """Run the mutations that the arguments select."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=100, help="random cases per mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="run mutations whose name holds this word")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if options.only in mutation.name]
    if not chosen:
        print(f"error: --only {options.only!r} selects no mutation", file=sys.stderr)
        return 2
    missed = survivors(chosen, cases=options.cases, seed=options.seed)
    for name in missed:
        print(f"not noticed: {name}")
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mutations noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
