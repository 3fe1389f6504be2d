"""Times the movers of pages against plain copies and plain reads on the same machine.

    python benchmarks/tiers.py [--folder DIR] [--json FILE]

Host: pages of a pool in CPU memory to the host tier and back, through the executor, beside NumPy's
copy of as many bytes in pieces of the page's size. Disk: pages from
the store to the host tier, read, checked and reported, beside `preadv` of as many bytes at the same
places by as many threads with the same O_DIRECT flag. Each pair is timed in turn; printed are
medians, and the median of the ratios of neighbours. A goal that is missed makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tandemkv._core import DEBUG_BUILD
from tandemkv.geometry import Layer
from tandemkv.managers.layout import page_layout
from tandemkv.managers.pools import Pool
from tandemkv.tiers import DEVICE, DISK, HOST, DiskStore, StoreClass, TransferPlan, build_executor
from tandemkv.tiers.disk.files import DIRECT
from tandemkv.tiers.host import aligned_bytes

PAGE_BYTES = (64 << 10, 256 << 10, 2 << 20)
HOST_GOAL, DISK_GOAL = 0.8, 0.7
LAYERS = 8
KEYS = np.zeros((1, 32), np.uint8)


def pool_of(page_bytes: int, num_pages: int, arrangement: Any) -> Pool:
    """Return a pool whose page has `LAYERS` layers; 16 tokens of one head of fp8 keys, values."""
    layer = Layer(
        kind="attention", kv_dtype="fp8", num_kv_heads=1, head_dim=page_bytes // (32 * LAYERS)
    )
    layout = page_layout([layer] * LAYERS, tp_size=1, tokens_per_block=16, arrangement=arrangement)
    assert layout.page_bytes == page_bytes
    pool = Pool(layout, num_pages=num_pages + 1, planned_bytes=(num_pages + 1) * page_bytes)
    pool.buffer[...] = 1
    return pool


def rows_of(
    source: tuple[int, Sequence[int]], destination: tuple[int, Sequence[int]]
) -> TransferPlan:
    """Return one transfer per pair of pages."""
    count = len(source[1])
    rows = np.zeros((count, 6), np.int64)
    rows[:, 0] = np.arange(count)
    rows[:, 2], rows[:, 3] = source
    rows[:, 4], rows[:, 5] = destination
    return TransferPlan(rows, np.repeat(KEYS, count, axis=0))


def run(executor: Any, plan: TransferPlan) -> None:
    executor.submit(plan)
    left = len(plan)
    while left:
        ids, ok = executor.poll(wait=True)
        assert ok.all(), executor.stats()["last_error"]
        left -= len(ids)


def seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def compare(
    name: str,
    num_bytes: int,
    ours: Callable[[], None],
    plain: Callable[[], None],
    *,
    repeats: int,
    goal: float,
) -> dict[str, Any]:
    """Time our way and the plain one in turn, after a round that does not count."""
    ours()
    plain()
    pairs = [(seconds(ours), seconds(plain)) for _ in range(repeats)]
    result = {
        "case": name,
        "gb_per_s": num_bytes / median(mine for mine, _ in pairs) / 1e9,
        "plain_gb_per_s": num_bytes / median(other for _, other in pairs) / 1e9,
        "ratio": median(other / mine for mine, other in pairs),
        "goal": goal,
    }
    print(
        f"{name:<44}{result['gb_per_s']:>8.2f}{result['plain_gb_per_s']:>8.2f}"
        f"{result['ratio']:>8.2f}  (goal {goal})",
        flush=True,
    )
    return result


def host_cases(page_bytes: int, total_bytes: int, repeats: int) -> list[dict[str, Any]]:
    count = total_bytes // page_bytes
    order = np.random.default_rng(0).permutation(count)
    source, target = aligned_bytes(total_bytes), aligned_bytes(total_bytes)

    def in_pieces() -> None:
        for start in range(0, total_bytes, page_bytes):
            np.copyto(target[start : start + page_bytes], source[start : start + page_bytes])

    results = []
    for arrangement in ("interleaved", "per_layer"):
        pool = pool_of(page_bytes, count, arrangement)
        with build_executor([pool], 1, host_pages=[count]) as executor:  # type: ignore[attr-defined]
            pages, host = (1 + order).tolist(), list(range(count))
            down = rows_of((DEVICE, pages), (HOST, host))
            up = rows_of((HOST, host), (DEVICE, pages))
            for way, plan in (("to host", down), ("to device", up)):
                results.append(
                    compare(
                        f"{way}, {page_bytes >> 10} KiB, {arrangement}",
                        total_bytes,
                        lambda plan=plan: run(executor, plan),
                        in_pieces,
                        repeats=repeats,
                        goal=HOST_GOAL,
                    )
                )
    return results


def disk_case(
    folder: Path, page_bytes: int, total_bytes: int, threads: int, repeats: int
) -> dict[str, Any]:
    count = total_bytes // page_bytes
    order = np.random.default_rng(1).permutation(count).tolist()
    item = StoreClass((page_bytes,), count)
    store = DiskStore.open(folder, [item], bytes(32))
    content = aligned_bytes(page_bytes)
    content[...] = np.random.default_rng(2).integers(0, 256, page_bytes, np.uint8)
    for page in range(count):
        store.write(0, page, bytes(32), [content])
    direct = "O_DIRECT, persistent" in store.describe()
    descriptor = os.open(folder / "class-0.pages", os.O_RDONLY | (DIRECT if direct else 0))
    executor: Any = build_executor(
        [pool_of(page_bytes, 1, "interleaved")],
        1,
        host_pages=[count],
        disk=store,
        threads=threads,
        staging_pages=1,
    )
    plan = rows_of((DISK, order), (HOST, list(range(count))))
    memory = aligned_bytes(total_bytes)
    workers = ThreadPoolExecutor(threads)

    def read_some(first: int) -> None:
        for number in range(first, count, threads):
            start = number * page_bytes
            part = memory[start : start + page_bytes]
            assert os.preadv(descriptor, [part], order[number] * item.slot_bytes) == page_bytes

    def plain() -> None:
        list(workers.map(read_some, range(threads)))

    access = "O_DIRECT" if direct else "buffered"
    result = compare(
        f"disk to host, {page_bytes >> 10} KiB, {access}, {threads} threads",
        total_bytes,
        lambda: run(executor, plan),
        plain,
        repeats=repeats,
        goal=DISK_GOAL,
    )
    workers.shutdown()
    os.close(descriptor)
    executor.close()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Times the movers of pages beside plain copies.")
    parser.add_argument("--folder", type=Path, help="where the disk's files go; default: temporary")
    parser.add_argument("--mib", type=int, default=512, help="moved per run, 512")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=4, help="of the disk, 4")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    arguments = parser.parse_args()
    if DEBUG_BUILD:
        sys.exit("tandemkv._core is a debug build; make build")
    total = arguments.mib << 20
    print(f"{'':<44}{'GB/s':>8}{'plain':>8}{'ratio':>8}")
    results: list[dict[str, Any]] = []
    for page_bytes in PAGE_BYTES:
        results += host_cases(page_bytes, total, arguments.repeats)
    for page_bytes in PAGE_BYTES:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            results.append(
                disk_case(Path(folder), page_bytes, total, arguments.threads, arguments.repeats)
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    missed = [item["case"] for item in results if item["ratio"] < item["goal"]]
    for name in missed:
        print(f"goal missed: {name}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
