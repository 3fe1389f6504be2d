"""Small pools of every shape, and a model of where which content is."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tandemkv.geometry import Layer, SideBuffer, StateBuffer
from tandemkv.managers.layout import Arrangement, page_layout
from tandemkv.managers.pools import Pool
from tandemkv.tiers import DEVICE, DiskStore, StoreClass, TransferPlan, geometry_fingerprint
from tandemkv.tiers.disk_tier import pool_layouts

FULL_CLASS, WINDOW_CLASS, STATE_CLASS = 0, 1, 2
NUM_CLASSES = 3
DEVICE_PAGES = (9, 6, 5)  # the reserved page 0 included


def attention(kv_dtype: Any, heads: int, dim: int, **more: Any) -> Layer:
    return Layer(kind="attention", kv_dtype=kv_dtype, num_kv_heads=heads, head_dim=dim, **more)


def make_pools(
    arrangement: Arrangement = "interleaved", backend: Any = "numpy", device: str = "cpu"
) -> list[Pool]:
    """Return the pools of a target with full, window and state groups, and of a draft."""
    indexer = (SideBuffer(name="indexer_k", bytes_per_token=132),)
    latent = Layer(kind="mla", kv_dtype="bf16", kv_lora_rank=512, qk_rope_head_dim=64)
    state = Layer(
        kind="state",
        state_buffers=(
            StateBuffer(name="conv", dtype="bf16", split_units=2, unit_elements=12),
            StateBuffer(name="ssm", dtype="fp32", split_units=2, unit_elements=64),
        ),
    )
    full = [attention("nvfp4", 4, 32), latent, attention("fp8", 2, 16, side_buffers=indexer)]
    groups = (
        (full, FULL_CLASS),
        ([attention("bf16", 1, 8)] * 3, WINDOW_CLASS),
        ([state, state], STATE_CLASS),
        ([attention("fp32", 1, 4)] * 2, FULL_CLASS),  # the draft
    )
    pools = []
    for layers, class_index in groups:
        layout = page_layout(layers, tp_size=1, tokens_per_block=4, arrangement=arrangement)
        count = DEVICE_PAGES[class_index]
        pools.append(
            Pool(
                layout,
                num_pages=count,
                planned_bytes=count * layout.page_bytes,
                class_index=class_index,
                backend=backend,
                device=device,
            )
        )
    return pools


def open_pool_store(
    folder: Path, pools: Sequence[Pool], num_pages: Sequence[int], **options: Any
) -> DiskStore:
    """Return the store of pools, as `open_disk_store` has it for those of a plan."""
    layouts = pool_layouts(pools)
    classes = [
        StoreClass(tuple(layout.page_bytes for index, layout in layouts if index == number), count)
        for number, count in enumerate(num_pages)
    ]
    return DiskStore.open(folder, classes, geometry_fingerprint(layouts), **options)


def page_views(pool: Pool, page: int) -> list[np.ndarray]:
    """Return every buffer of one page as bytes, found through `Pool.view` alone."""
    views = [pool.view(spec.layer, spec.name)[page] for spec in pool.layout.buffers]
    if pool.backend == "cupy":
        return [view._host.view(np.uint8) for view in views]  # of the fake: see fake_cuda
    if pool.backend == "torch":
        torch = importlib.import_module("torch")
        return [view.view(torch.uint8).numpy() for view in views]
    return [view.view(np.uint8) for view in views]


def write_page(pools: Sequence[Pool], class_index: int, page: int, seed: int) -> None:
    """Fill a page of every group of a class with bytes of its own."""
    random = np.random.default_rng(seed)
    for pool in pools:
        if pool.class_index == class_index:
            for part in page_views(pool, page):
                part[...] = random.integers(0, 256, part.shape, np.uint8)


def digest(pools: Sequence[Pool], class_index: int, page: int) -> bytes:
    """Return the SHA-256 of a page on the device: all its buffers, in the order of the layers."""
    hasher = hashlib.sha256()
    for pool in pools:
        if pool.class_index == class_index:
            for part in page_views(pool, page):
                hasher.update(part.tobytes())
    return hasher.digest()


def key_of(seed: int) -> bytes:
    return hashlib.sha256(b"key %d" % seed).digest()


def plan_of(rows: Sequence[Sequence[int]], keys: Sequence[bytes] | None = None) -> TransferPlan:
    """Return a plan; the keys are those of the ids where none are given."""
    given = [key_of(row[0]) for row in rows] if keys is None else keys
    flat = np.frombuffer(b"".join(given), np.uint8).reshape(len(rows), 32)
    return TransferPlan(np.array(rows, np.int64).reshape(len(rows), 6), flat)


def wait_for_all(executor: Any) -> dict[int, bool]:
    """Poll until nothing is on its way, and return what became of each transfer."""
    answers: dict[int, bool] = {}
    while True:
        ids, ok = executor.poll(wait=True)
        if len(ids) == 0:
            return answers
        for number, good in zip(ids.tolist(), ok.tolist(), strict=True):
            assert number not in answers
            answers[number] = bool(good)


def move(executor: Any, rows: Sequence[Sequence[int]], **options: Any) -> dict[int, bool]:
    executor.submit(plan_of(rows, **options))
    return wait_for_all(executor)


def device_row(number: int, class_index: int, page: int, tier: int, lower: int) -> list[int]:
    """Return the row of an eviction."""
    return [number, class_index, DEVICE, page, tier, lower]


def load_row(number: int, class_index: int, tier: int, lower: int, page: int) -> list[int]:
    """Return the row of a load."""
    return [number, class_index, tier, lower, DEVICE, page]
