"""Kernel indices of the managers' pools: they lead to exactly the buffers that the pools show."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest
from managers_setup import decode, new, run, small_managers

import tandemkv as tkv
from tandemkv.errors import ArrayError, DeviceUnavailableError, PoolError, RequestError
from tandemkv.managers.layout import page_layout
from tandemkv.managers.offsets import KernelGroup, kernel_groups


def destination(groups: int, rows: int, managers: tkv.Managers) -> Any:
    return np.full((groups, rows, 2, managers.ledger.row_width), -7, np.int32)


def test_indices_lead_to_the_buffers_of_the_pool() -> None:
    """Address by index equals address by `Pool.view`, for both roles, each layer, K and V."""
    managers = small_managers()
    run(managers, new("a", range(100, 118)), [[1]])
    run(managers, new("b", range(200, 205)), [[1]])
    run(managers, decode(["b", "a"], 2), [[2, 3], [4]])
    pages, used = managers.block_tables(["b", "a"])
    assert (used[0] > 0).all()
    for view in managers.views:
        dst = destination(len(view.kernel_groups), 3, managers)
        view.copy_batch_block_offsets(dst, ["b", "a"])
        assert (dst[:, 2] == -7).all()
        for group, rows in zip(view.kernel_groups, dst, strict=True):
            for layer in group.layers:
                base = view.pool.view(layer, "key").ctypes.data
                for row, length, planes in zip(pages[0], used[0], rows[:2], strict=True):
                    assert (planes[:, length:] == 0).all()
                    for block in range(length):
                        for plane, name in enumerate(("key", "value")):
                            address = base + int(planes[plane, block]) * group.buffer_bytes
                            shown = view.pool.view(layer, name)[row[block]]
                            assert address == shown.ctypes.data


def test_both_roles_in_one_copy() -> None:
    managers = small_managers()
    run(managers, new("a", range(100, 118)), [[1]])
    assert managers.draft is not None
    both = destination(2, 4, managers)
    managers.block_offsets.copy(both, ["a"], num_padding_rows=2)
    # Two target layers have 4 buffers per page, one draft layer 2.
    assert [group.scale for group in managers.block_offsets.groups] == [4, 2]
    for view, part in zip(managers.views, both, strict=True):
        alone = destination(1, 1, managers)
        view.copy_batch_block_offsets(alone, ["a"])
        np.testing.assert_array_equal(part[:1], alone[0])
    assert (both[:, 1:3] == 0).all()
    assert (both[:, 3] == -7).all()


def test_a_row_that_shrank_leaves_no_tail() -> None:
    managers = small_managers()
    run(managers, new("a", range(100, 130)), [[1]])
    run(managers, new("b", range(3)), [[1]])
    dst = destination(1, 1, managers)
    managers.target.copy_batch_block_offsets(dst, ["a"])
    managers.target.copy_batch_block_offsets(dst, ["b"])
    (length,) = managers.block_tables(["b"])[1][0]
    assert (dst[..., length:] == 0).all()
    assert (dst[0, 0, 0, :length] > 0).all()


def test_no_request_writes_nothing() -> None:
    managers = small_managers()
    dst = destination(1, 2, managers)
    managers.target.copy_batch_block_offsets(dst, [])
    assert (dst == -7).all()
    managers.target.copy_batch_block_offsets(dst, [], num_padding_rows=1)
    assert (dst[:, 0] == 0).all()
    assert (dst[:, 1] == -7).all()


def test_refusals_write_nothing_and_keep_the_slot() -> None:
    managers = small_managers()
    run(managers, new("a", range(100, 110)), [[1]])
    dst = destination(1, 1, managers)
    copy = managers.target.copy_batch_block_offsets
    for _ in range(5):
        with pytest.raises(RequestError):
            copy(dst, ["b"])
        with pytest.raises(ArrayError, match="destination: dtype int32 is needed, not int64"):
            copy(dst.astype(np.int64), ["a"])
        with pytest.raises(ValueError, match="num_padding_rows must be at least 0, not -1"):
            copy(dst, ["a"], num_padding_rows=-1)
        with pytest.raises(ValueError, match="1001 rows exceed the"):
            copy(dst, ["a"], num_padding_rows=1000)
    assert (dst == -7).all()
    copy(dst, ["a"])
    assert (dst[0, 0, 0, :3] > 0).all()


@pytest.mark.skipif(cupy.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_is_one_clear_error() -> None:
    managers = small_managers(device="cuda:0", materialize=False)
    with pytest.raises(DeviceUnavailableError, match="CuPy finds no GPU"):
        managers.target.copy_batch_block_offsets(destination(1, 1, managers), [])


def groups_of(*layers: tkv.Layer) -> tuple[KernelGroup, ...]:
    return kernel_groups(page_layout(layers, tp_size=1, tokens_per_block=4))


def attention(**changes: Any) -> tkv.Layer:
    return tkv.Layer(
        **{"kind": "attention", "kv_dtype": "bf16", "num_kv_heads": 2, "head_dim": 8, **changes}
    )


def test_groups_of_layers() -> None:
    # One K buffer: 4 tokens x 2 heads x 8 x 2 bytes = 128 bytes; half as many heads, 64.
    assert groups_of(attention(), attention()) == (KernelGroup((0, 1), 128, 4, 1),)
    assert groups_of(attention(), attention(num_kv_heads=1), attention()) == (
        KernelGroup((0, 2), 128, 5, 1),
        KernelGroup((1,), 64, 10, 1),
    )
    latent = tkv.Layer(kind="mla", kv_dtype="bf16", kv_lora_rank=24, qk_rope_head_dim=8)
    # A latent: 4 tokens x 32 x 2 bytes = 256 bytes, and no V.
    assert groups_of(latent, latent) == (KernelGroup((0, 1), 256, 2, 0),)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((attention(num_kv_heads=3), attention(num_kv_heads=2)), "layer 0 .* a page is 640 bytes"),
        ((attention(v_head_dim=4),), "layer 0 .* a page is 192 bytes"),
        ((attention(kv_dtype="nvfp4", head_dim=16),), "layer 0 .* a page is 144 bytes"),
    ],
)
def test_layers_that_no_index_reaches(layers: tuple[tkv.Layer, ...], message: str) -> None:
    with pytest.raises(PoolError, match=message):
        groups_of(*layers)
