"""A folder of pages for the disk tier of one rank, as its plan has it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tandemkv.managers.classes import cache_classes, class_of
from tandemkv.managers.layout import KvLayout, PageLayout, page_layout
from tandemkv.managers.pools import Pool
from tandemkv.planning import Plan
from tandemkv.tiers.build import tier_pages
from tandemkv.tiers.disk import DiskStore, Files, StoreClass

Layouts = Sequence[tuple[int, PageLayout]]
"""The class and the page of each cache group of a rank, the target's before the draft's."""


def open_disk_store(
    plan: Plan,
    path: str | Path,
    *,
    rank: int = 0,
    kv_layout: KvLayout = "NHD",
    fingerprint: bytes = b"",
    persistent: bool = True,
    direct: bool = True,
    files: Files | None = None,
) -> DiskStore:
    """Open the disk tier of one rank, or make it: as many pages as `tier_pages` says.

    Its files take no more than the plan's disk bytes of the rank.

    Args:
        plan: the plan.
        path: a folder for this rank alone.
        rank: the rank.
        kv_layout: see `build_managers`; pages of another one are not readable.
        fingerprint: see `build_managers`; pages of another one are not readable.
        persistent: whether pages are found again after `close`; see `DiskStore.open`.
        direct: whether to keep out of the system's page cache, where the file system can.
        files: calls to the system; None: those of the operating system.

    Raises:
        TierError: the store is another's, in use or damaged.
        OSError: the files cannot be had: no room, no right.
    """
    layouts = rank_layouts(plan, rank, kv_layout)
    classes = [
        StoreClass(
            tuple(layout.page_bytes for class_index, layout in layouts if class_index == number),
            pages,
        )
        for number, pages in enumerate(tier_pages(plan).disk)
    ]
    name = geometry_fingerprint(
        layouts, rank=rank, num_ranks=len(plan.ranks), fingerprint=fingerprint
    )
    return DiskStore.open(path, classes, name, persistent=persistent, direct=direct, files=files)


def rank_layouts(plan: Plan, rank: int, kv_layout: KvLayout = "NHD") -> Layouts:
    """Return what `build_managers` makes pools of, without making them."""
    classes, share = cache_classes(plan), plan.ranks[rank]
    return [
        (
            class_of(classes, group.rule),
            page_layout(
                group.layers,
                tp_size=role.tp_size,
                tokens_per_block=plan.tokens_per_block,
                kv_layout=kv_layout,
                numbers=[index - role.layer_indices[0] for index in group.layer_indices],
            ),
        )
        for role in (share.target, share.draft)
        if role is not None
        for group in role.groups
    ]


def pool_layouts(pools: Sequence[Pool]) -> Layouts:
    """Return the same for pools that there are."""
    return [(pool.class_index, pool.layout) for pool in pools]


def geometry_fingerprint(
    layouts: Layouts, *, rank: int = 0, num_ranks: int = 1, fingerprint: bytes = b""
) -> bytes:
    """Return 32 bytes that name what must be equal for stored pages to be readable.

    That is every buffer of a page: class, layer, name, dtype, shape and place; which rank's it is;
    and what the caller adds, such as the fingerprint of the weights. How a pool arranges its pages
    on the device does not matter.

    Args:
        layouts: the cache groups of the rank.
        rank: the rank.
        num_ranks: ranks of the engine.
        fingerprint: see `build_managers`.
    """
    described = {
        "rank": rank,
        "num_ranks": num_ranks,
        "fingerprint": fingerprint.hex(),
        "groups": [
            {
                "class": class_index,
                "tokens_per_block": layout.tokens_per_block,
                "buffers": [
                    {**spec.to_dict(), "token_axis": spec.token_axis} for spec in layout.buffers
                ],
            }
            for class_index, layout in layouts
        ],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).digest()
