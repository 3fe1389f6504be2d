"""Times the table kernels on a GPU against plain copies and against the bytes they must move.

    python benchmarks/device_tables.py --results benchmarks/results

Needs a GPU. Writes <date>-<device>.json: per case the median device time and the time of the call
itself in microseconds, the bytes, and the bound: bytes over a bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tandemkv.device import OffsetGroups, apply_block_table_updates, copy_batch_block_offsets
from tandemkv.device.kernels import require_cupy
from tandemkv.errors import DeviceUnavailableError

BATCH, WIDTH, PAGES = 512, 2048, 1_000_000
LAUNCHES, REPEATS = 20, 50
GROUPS = OffsetGroups([0, 0], [64, 2], [1, 1], [PAGES])  # a 32-layer target and a 1-layer draft
INDEX_BYTES = 4


def median_us(cupy: Any, stream: Any, run: Callable[[], None]) -> float:
    """Return the median time of one run on the device.

    A graph of LAUNCHES runs is replayed, so that the time to queue a launch is not part of it.
    """
    run()  # compiles, and uploads what a capture must not
    with stream:
        stream.begin_capture()
        for _ in range(LAUNCHES):
            run()
        graph = stream.end_capture()
    times = []
    for _ in range(REPEATS + 5):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        times.append(1000 * cupy.cuda.get_elapsed_time(start, end) / LAUNCHES)
    return float(np.median(times[5:]))


def host_us(stream: Any, run: Callable[[], None]) -> float:
    """Return the median time that the caller's thread spends in one call."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(1e6 * (time.perf_counter() - start))
        stream.synchronize()
    return float(np.median(times))


def bandwidths(cupy: Any, cupyx: Any, stream: Any) -> dict[str, float]:
    """Return bytes per microsecond of device copies (read plus written) and of host-to-device."""
    size = 256 * 2**20
    source, target = cupy.ones(size, np.uint8), cupy.empty(size, np.uint8)
    host = cupyx.empty_pinned(size, np.uint8)
    host[:] = 1

    def device_copy() -> None:
        target.data.copy_from_device_async(source.data, size, stream)

    def host_copy() -> None:
        target.data.copy_from_host_async(host.ctypes.data, size, stream)

    return {
        "device": 2 * size / median_us(cupy, stream, device_copy),
        "host_to_device": size / median_us(cupy, stream, host_copy),
    }


def measure(cupy: Any) -> dict[str, Any]:
    """Run all cases on the current device."""
    import cupyx  # noqa: PLC0415 (only with a GPU)

    stream = cupy.cuda.Stream(non_blocking=True)
    rng = np.random.default_rng(0)
    pages = rng.integers(1, PAGES, (1, BATCH, WIDTH)).astype(np.int32)
    table, pinned = cupy.asarray(pages), cupyx.empty_pinned(pages.shape, np.int32)
    pinned[...] = pages
    index = cupy.arange(BATCH, dtype=np.int32)
    destination = cupy.zeros((len(GROUPS), BATCH, 2, WIDTH), np.int32)
    plain = cupyx.empty_pinned(destination.shape, np.int32)
    plain[...] = 1
    records = np.zeros((BATCH, 4), np.int32)
    records[:, 0], records[:, 2] = np.arange(BATCH), rng.integers(0, WIDTH, BATCH)
    records[:, 3] = rng.integers(1, PAGES, BATCH)
    on_device, staged = cupy.asarray(records), cupyx.empty_pinned(records.shape, np.int32)
    staged[...] = records
    cupy.cuda.get_current_stream().synchronize()
    speed = bandwidths(cupy, cupyx, stream)

    def full(source: Any, used: Any) -> Callable[[], None]:
        return lambda: copy_batch_block_offsets(
            source, index, GROUPS, destination, used=used, stream=stream
        )

    def update(source: Any) -> Callable[[], None]:
        return lambda: apply_block_table_updates(
            source, table=table, groups=GROUPS, destination=destination, stream=stream
        )

    def plain_copy() -> None:
        destination.data.copy_from_host_async(plain.ctypes.data, plain.nbytes, stream)

    quarter = cupy.full((1, BATCH), WIDTH // 4, np.int32)
    written = destination.nbytes
    entries = BATCH * (2 * len(GROUPS) + 1) * INDEX_BYTES
    cases = {
        "plain_copy_of_destination": (plain_copy, 0, written),
        "full_copy_from_pinned": (full(pinned, None), pages.nbytes, 0),
        "full_copy_from_device": (full(table, None), 0, 0),
        "full_copy_from_device_quarter_used": (full(table, quarter), 0, 0),
        "updates_from_pinned": (update(staged), records.nbytes, 0),
        "updates_from_device": (update(on_device), 0, 0),
    }
    device_bytes = {
        "plain_copy_of_destination": written,
        "full_copy_from_pinned": written,
        "full_copy_from_device": pages.nbytes + written,
        "full_copy_from_device_quarter_used": pages.nbytes // 4 + written,
        "updates_from_pinned": entries,
        "updates_from_device": records.nbytes + entries,
    }
    results = {}
    for name, (run, host_read, host_copied) in cases.items():
        bound_us = max(
            (host_read + host_copied) / speed["host_to_device"],
            device_bytes[name] / speed["device"],
        )
        time_us = median_us(cupy, stream, run)
        results[name] = {
            "median_us": round(time_us, 2),
            "host_us": round(host_us(stream, run), 2),
            "bound_us": round(bound_us, 2),
            "host_bytes": host_read + host_copied,
            "device_bytes": device_bytes[name],
        }
    return {
        "bandwidth_gb_per_s": {name: round(value / 1000, 1) for name, value in speed.items()},
        "batch": BATCH,
        "width": WIDTH,
        "groups": len(GROUPS),
        "changed_entries": BATCH,
        "cases": results,
    }


def main() -> int:
    """Measure, write the result file and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="folder of the result file")
    options = parser.parse_args()
    try:
        cupy = require_cupy()
    except DeviceUnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    results = {"date": today, "device": name, **measure(cupy)}
    options.results.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    path = options.results / f"{today}-{slug}.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    for case, row in results["cases"].items():
        print(f"{case:36} {row['median_us']:9.2f} us   bound {row['bound_us']:8.2f} us")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
