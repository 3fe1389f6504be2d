"""Pools hold exactly the planned bytes, and each layer's view is where its page says."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from tandemkv.errors import DeviceUnavailableError, PoolError
from tandemkv.geometry import Layer, SideBuffer, StateBuffer
from tandemkv.managers.layout import PageLayout, page_layout
from tandemkv.managers.memory import check_device
from tandemkv.managers.moves import PageMover
from tandemkv.managers.pools import Pool

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
BACKENDS = ["numpy", pytest.param("torch", marks=needs_torch)]


def attention(kv_dtype: Any = "bf16", heads: int = 8, dim: int = 128, **more: Any) -> Layer:
    return Layer(kind="attention", kv_dtype=kv_dtype, num_kv_heads=heads, head_dim=dim, **more)


def latent(kv_dtype: Any = "bf16") -> Layer:
    return Layer(kind="mla", kv_dtype=kv_dtype, kv_lora_rank=512, qk_rope_head_dim=64)


def pool_of(layout: PageLayout, num_pages: int = 5, **options: Any) -> Pool:
    return Pool(layout, num_pages=num_pages, planned_bytes=num_pages * layout.page_bytes, **options)


# Bytes per token and layer of 8 KV heads of 128, and of a latent of 512 + 64, from the published
# shapes of Llama-3-8B and DeepSeek-V2/V3: 2 tensors x 8 x 128 x 2 bytes, 576 x 2 bytes; nvfp4 has
# half a byte per element and one scale byte per 16.
@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (attention("bf16"), 4096),
        (attention("fp16"), 4096),
        (attention("fp32"), 8192),
        (attention("fp8"), 2048),
        (attention("nvfp4"), 1152),
        (latent("bf16"), 1152),
        (latent("fp8"), 576),
        (latent("nvfp4"), 324),
        (attention("fp8", side_buffers=(SideBuffer(name="indexer_k", bytes_per_token=132),)), 2180),
        (attention("bf16", v_head_dim=64), 3072),
    ],
)
def test_a_page_has_the_published_bytes(layer: Layer, expected: int) -> None:
    layout = page_layout([layer] * 3, tp_size=1, tokens_per_block=32)
    assert layout.page_bytes == 3 * 32 * expected
    assert sum(spec.num_bytes for spec in layout.buffers) == layout.page_bytes


@pytest.mark.parametrize(("tp_size", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_a_rank_holds_whole_heads(tp_size: int, heads: int) -> None:
    layout = page_layout([attention()], tp_size=tp_size, tokens_per_block=16)
    assert layout.find(0, "key").shape == (16, heads, 128)
    assert page_layout([latent()], tp_size=tp_size, tokens_per_block=16).page_bytes == 16 * 1152


def test_buffers_follow_each_other_without_gaps() -> None:
    side = (SideBuffer(name="indexer_k", bytes_per_token=132),)
    layers = [attention("nvfp4"), latent("bf16"), attention("fp8", side_buffers=side)]
    layout = page_layout(layers, tp_size=2, tokens_per_block=8)
    assert [(spec.layer, spec.name) for spec in layout.buffers] == [
        (0, "key"),
        (0, "key_scales"),
        (0, "value"),
        (0, "value_scales"),
        (1, "latent"),
        (2, "key"),
        (2, "value"),
        (2, "indexer_k"),
    ]
    end = 0
    for spec in layout.buffers:
        assert spec.offset_bytes == end
        end += spec.num_bytes
    assert end == layout.page_bytes
    assert layout.names(2) == ("key", "value", "indexer_k")


def expected_address(pool: Pool, spec: Any, page: int, index: tuple[int, ...]) -> int:
    """Return the byte where an element lies, by the rule of the layout's docstring."""
    element = 0
    for position, size in zip(index, spec.shape, strict=True):
        element = element * size + position
    return page * pool.page_bytes + spec.offset_bytes + element * spec.item_bytes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp16", "fp32", "fp8", "nvfp4"])
def test_every_element_of_every_view_is_where_the_layout_says(
    backend: Any, kv_layout: Any, kv_dtype: Any
) -> None:
    side = (SideBuffer(name="indexer_k", bytes_per_token=4),)
    layers = [
        attention(kv_dtype, 2, 16, side_buffers=side),
        latent(kv_dtype),
        attention(kv_dtype, 4, 32, v_head_dim=16),
    ]
    layout = page_layout(layers, tp_size=2, tokens_per_block=4, kv_layout=kv_layout)
    pool = pool_of(layout, backend=backend)
    base = pool.buffer.ctypes.data if backend == "numpy" else pool.buffer.data_ptr()
    covered = np.zeros(pool.num_bytes, np.int32)
    for spec in layout.buffers:
        view = pool.view(spec.layer, spec.name)
        assert tuple(view.shape) == (pool.num_pages, *spec.shape)
        for page in range(pool.num_pages):
            for index in ((0,) * len(spec.shape), tuple(size - 1 for size in spec.shape)):
                item = view[(page, *index)]
                there = item.data_ptr() if backend == "torch" else address(view, page, index)
                assert there - base == expected_address(pool, spec, page, index)
            start = page * pool.page_bytes + spec.offset_bytes
            covered[start : start + spec.num_bytes] += 1
    assert (covered == 1).all()  # no byte belongs to two buffers, none to no buffer


def address(view: np.ndarray, page: int, index: tuple[int, ...]) -> int:
    steps = zip((page, *index), view.strides, strict=True)
    return view.ctypes.data + sum(position * stride for position, stride in steps)


def test_shape_of_heads_follows_the_kv_layout() -> None:
    for kv_layout, shape in (("NHD", (16, 8, 128)), ("HND", (8, 16, 128))):
        layout = page_layout([attention()], tp_size=1, tokens_per_block=16, kv_layout=kv_layout)
        assert layout.find(0, "value").shape == shape


@pytest.mark.parametrize("backend", BACKENDS)
def test_kv_is_key_beside_value(backend: Any) -> None:
    layout = page_layout([attention("fp32", 2, 4)] * 2, tp_size=1, tokens_per_block=3)
    pool = pool_of(layout, backend=backend)
    kv = pool.kv(1)
    assert tuple(kv.shape) == (5, 2, 3, 2, 4)
    pool.view(1, "key")[2, 1, 0, 3] = 7.0
    pool.view(1, "value")[4, 2, 1, 0] = 8.0
    assert float(kv[2, 0, 1, 0, 3]) == 7.0
    assert float(kv[4, 1, 2, 1, 0]) == 8.0
    assert float(abs(pool.kv(0)).sum()) == 0.0


def test_torch_views_have_the_dtype_of_the_layer() -> None:
    torch = pytest.importorskip("torch")
    for kv_dtype, dtype in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)):
        layout = page_layout([attention(kv_dtype)], tp_size=1, tokens_per_block=2)
        assert pool_of(layout, backend="torch").view(0, "key").dtype == dtype


def test_a_pool_starts_at_zero_and_has_the_planned_size() -> None:
    layout = page_layout([attention("fp32")], tp_size=1, tokens_per_block=2)
    pool = pool_of(layout, num_pages=3)
    assert pool.buffer.nbytes == pool.num_bytes == 3 * 2 * 8192
    assert not pool.buffer.any()
    assert pool.pages.shape == (3, 2 * 8192)
    assert np.shares_memory(pool.pages, pool.buffer)


def test_bookkeeping_alone_takes_no_memory() -> None:
    layout = page_layout([attention("fp32")] * 40, tp_size=1, tokens_per_block=64)
    pool = pool_of(layout, num_pages=10_000, materialize=False)  # 195 GiB
    assert not pool.materialized
    assert pool.num_bytes == 10_000 * 40 * 64 * 8192
    for read in (lambda: pool.buffer, lambda: pool.pages, lambda: pool.view(0, "key")):
        with pytest.raises(PoolError, match="materialize=False"):
            read()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
def test_moves_copy_leading_tokens_of_every_buffer(
    backend: Any, arrangement: Any, kv_layout: Any
) -> None:
    """Each token of each buffer is marked; only the first ones arrive, in both pools."""
    side = (SideBuffer(name="indexer_k", bytes_per_token=132),)
    target = [attention("nvfp4", 4, 32), latent("bf16"), attention("fp8", 2, 16, side_buffers=side)]
    pools = []
    for layers in (target, [attention("fp32", 1, 4)]):
        layout = page_layout(
            layers, tp_size=1, tokens_per_block=4, kv_layout=kv_layout, arrangement=arrangement
        )
        pools.append(pool_of(layout, backend=backend))
    for pool in pools:
        pool.buffer[...] = 200
        for spec in pool.layout.buffers:
            for page in range(1, 5):
                for token in range(4):
                    tokens_of(pool, spec, page)[token] = 10 * page + token
    PageMover(pools, "cpu").run(np.array([[0, 1, 4, 3], [0, 2, 3, 4]], np.int32), None)
    for pool in pools:
        for spec in pool.layout.buffers:
            assert (tokens_of(pool, spec, 0) == 200).all()
            for page, wanted in ((4, [10, 11, 12, 43]), (3, [20, 21, 22, 23])):
                rows = tokens_of(pool, spec, page).reshape(4, -1)
                assert (rows == np.array(wanted)[:, None]).all(), (spec, page)


def tokens_of(pool: Pool, spec: Any, page: int) -> Any:
    """Return the bytes of one buffer in one page with the tokens first, as a writable view."""
    shape = [pool.num_pages, *spec.shape, spec.item_bytes]
    inner = [int(np.prod(shape[axis + 2 :])) for axis in range(len(spec.shape))]
    strides = [pool.layout.page_stride_bytes(spec.layer), *inner]
    start = pool.layout.start_bytes(spec, pool.num_pages)
    host = np.asarray(pool.buffer)
    whole = np.lib.stride_tricks.as_strided(host[start:], shape, [*strides, 1])
    return np.moveaxis(whole[page], spec.token_axis, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_of_a_per_layer_pool_follow_each_other(backend: Any) -> None:
    side = (SideBuffer(name="indexer_k", bytes_per_token=132),)
    layers = [attention("fp16", 2, 16, side_buffers=side), latent("fp16"), attention("fp32", 1, 4)]
    layout = page_layout(layers, tp_size=1, tokens_per_block=4, arrangement="per_layer")
    pool = pool_of(layout, num_pages=7, backend=backend)
    assert pool.num_bytes == 7 * layout.page_bytes
    base = start_of(pool.buffer)
    end = 0
    for layer, names in enumerate([("key", "value", "indexer_k"), ("latent",), ("key", "value")]):
        page = sum(layout.find(layer, name).num_bytes for name in names)
        within = 0
        for name in names:
            view = pool.view(layer, name)
            assert start_of(view) == base + end + within
            stride = view.stride(0) * view.element_size() if backend == "torch" else view.strides[0]
            assert stride == page
            within += layout.find(layer, name).num_bytes
        end += 7 * page
    assert end == pool.num_bytes
    with pytest.raises(PoolError, match="a per_layer pool keeps no page in one piece"):
        _ = pool.pages
    with pytest.raises(
        PoolError, match="arrangement is 'mixed'; supported: interleaved, per_layer"
    ):
        page_layout(layers, tp_size=1, tokens_per_block=4, arrangement="mixed")  # type: ignore[arg-type]


def start_of(array: Any) -> int:
    """Return the address of an array's or tensor's first element."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())


def test_a_pool_that_differs_from_its_plan_is_refused() -> None:
    layout = page_layout([latent()], tp_size=1, tokens_per_block=4)
    with pytest.raises(PoolError, match=f"are {5 * 4 * 1152} bytes; the plan has 23041"):
        Pool(layout, num_pages=5, planned_bytes=23041)


def test_a_layer_that_differs_from_its_price_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layer, "bytes_per_token", lambda self, tp_size=1: 1153)
    with pytest.raises(PoolError, match=r"layer 0: its buffers take 4608 .* the plan has 4612"):
        page_layout([latent()], tp_size=1, tokens_per_block=4)


def test_an_index_beyond_32_bits_is_refused_when_built() -> None:
    layout = page_layout([attention("fp8", 1, 16)] * 2, tp_size=1, tokens_per_block=1)
    # Four buffers of 16 bytes per page: the last of 2^29 pages has index 2^31 - 1.
    pool_of(layout, num_pages=2**29, materialize=False)
    with pytest.raises(PoolError, match="kernels index at most 2147483648"):
        pool_of(layout, num_pages=2**29 + 1, materialize=False)


def test_buffers_at_odd_bytes_are_refused() -> None:
    side = (SideBuffer(name="odd", bytes_per_token=3),)
    layers = [attention("bf16", 1, 16, side_buffers=side), attention("bf16", 1, 16)]
    with pytest.raises(PoolError, match="layer 1: buffer 'key' starts at byte 67"):
        page_layout(layers, tp_size=1, tokens_per_block=1)
    page_layout(layers, tp_size=1, tokens_per_block=2)


def test_nvfp4_scale_groups_do_not_cross_heads() -> None:
    with pytest.raises(PoolError, match="24 elements in a row; nvfp4 pools need a multiple of 16"):
        page_layout([attention("nvfp4", 2, 24)], tp_size=1, tokens_per_block=4)


@pytest.mark.parametrize(
    "layer",
    [
        attention(beside=(latent(),)),
        Layer(kind="none"),
    ],
)
def test_layers_that_pages_cannot_hold_are_refused(layer: Layer) -> None:
    with pytest.raises(PoolError, match=f"layer 1 of kind '{layer.kind}' keeps nothing, or"):
        page_layout([latent(), layer], tp_size=1, tokens_per_block=4)


def test_what_is_not_there_is_named() -> None:
    layout = page_layout([latent(), attention()], tp_size=1, tokens_per_block=4)
    pool = pool_of(layout)
    with pytest.raises(PoolError, match="layer 0 has no buffer 'key'; it has latent"):
        pool.view(0, "key")
    with pytest.raises(PoolError, match="layer is 2; the pool holds layers 0, 1"):
        pool.view(2, "key")
    with pytest.raises(PoolError, match="layer 0 keeps latent, not a key beside a value"):
        pool.kv(0)
    uneven = pool_of(page_layout([attention(v_head_dim=64)], tp_size=1, tokens_per_block=4))
    with pytest.raises(PoolError, match=r"a key page is \(4, 8, 128\), a value page \(4, 8, 64\)"):
        uneven.kv(0)
    with pytest.raises(PoolError, match="kv_layout is 'DHN'; supported: NHD, HND"):
        page_layout([latent()], tp_size=1, tokens_per_block=4, kv_layout="DHN")  # type: ignore[arg-type]
    with pytest.raises(PoolError, match="backend is 'jax'; supported: numpy, torch, cupy"):
        pool_of(layout, backend="jax")
    with pytest.raises(
        PoolError, match=r"'cupy' cannot hold a pool on device 'cpu'; .* numpy, torch"
    ):
        pool_of(layout, backend="cupy")
    with pytest.raises(
        PoolError, match=r"'numpy' cannot hold a pool on device 'cuda:0'; .*cupy, torch"
    ):
        pool_of(layout, backend="numpy", device="cuda:0")


def test_devices_that_cannot_hold_pools_say_why() -> None:
    check_device("cpu", materialize=True)
    check_device("cuda:7", materialize=False)
    with pytest.raises(
        DeviceUnavailableError, match=r"(?s)pools on device 'cuda:0' .*device='cpu'"
    ):
        check_device("cuda:0", materialize=True)
    for device in ("cuda", "tpu:0", "", 3):
        with pytest.raises(PoolError, match="supported: 'cpu', 'cuda:N'"):
            check_device(device, materialize=True)  # type: ignore[arg-type]


def mamba(tp_heads: int = 8) -> Layer:
    """Return a Mamba-2 layer: a matrix per head in fp32, and a convolution with shared groups."""
    return Layer(
        kind="state",
        state_buffers=(
            StateBuffer(name="ssm", split_units=tp_heads, unit_elements=64 * 16, dtype="fp32"),
            StateBuffer(
                name="conv",
                split_units=tp_heads,
                unit_elements=64 * 3,
                replicated_elements=2 * 16 * 3,
                dtype="bf16",
            ),
        ),
    )


@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_is_a_page_of_its_tensors(backend: Any, arrangement: Any) -> None:
    """Half of 8 heads and all shared elements: 4 x 1,024 x 4 + (4 x 192 + 96) x 2 bytes."""
    layout = page_layout(
        [mamba(), mamba()], tp_size=2, tokens_per_block=16, arrangement=arrangement, numbers=[3, 9]
    )
    one = 4 * 64 * 16 * 4 + (4 * 64 * 3 + 2 * 16 * 3) * 2
    assert layout.holds_states
    assert (layout.layers, layout.page_bytes) == ((3, 9), 2 * one)
    pool = pool_of(layout, num_pages=4, backend=backend)
    stride = 2 * one if arrangement == "interleaved" else one
    for layer in (3, 9):
        ssm, conv = pool.view(layer, "ssm"), pool.view(layer, "conv")
        assert tuple(ssm.shape) == (4, 4, 64 * 16)
        assert tuple(conv.shape) == (4, 4 * 64 * 3 + 2 * 16 * 3)
        starts = [start_of(ssm[page]) - start_of(pool.buffer) for page in range(4)]
        assert np.diff(starts).tolist() == [stride] * 3
        assert start_of(conv) == start_of(ssm) + 4 * 64 * 16 * 4
    with pytest.raises(PoolError, match="layer is 4; the pool holds layers 3, 9"):
        pool.view(4, "ssm")


@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
def test_a_move_of_a_state_copies_all_of_it(arrangement: Any) -> None:
    layout = page_layout([mamba()] * 3, tp_size=4, tokens_per_block=16, arrangement=arrangement)
    pool = pool_of(layout, num_pages=5)
    pool.buffer[...] = np.random.default_rng(1).integers(0, 256, pool.num_bytes)
    before = {(i, n): pool.view(i, n).copy() for i in range(3) for n in ("ssm", "conv")}
    PageMover([pool], "cpu").run(np.array([[0, 1, 4, 1]], np.int32), None)
    for (layer, name), old in before.items():
        new = pool.view(layer, name)
        np.testing.assert_array_equal(new[4].view(np.uint8), old[1].view(np.uint8))
        np.testing.assert_array_equal(new[:4].view(np.uint8), old[:4].view(np.uint8))


def test_states_and_tokens_share_no_pool() -> None:
    with pytest.raises(PoolError, match="layer 1 of kind 'state': states have pools of their own"):
        page_layout([attention(), mamba()], tp_size=1, tokens_per_block=4)
