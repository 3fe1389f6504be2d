"""Plans become pools to the byte; those that the managers cannot keep are refused by name."""

from __future__ import annotations

import pytest
from budget_cases import GIB, gqa, mla, model
from hypothesis import given
from hypothesis import strategies as st

import tandemkv as tkv


def plan(layers: tuple[tkv.Layer, ...], **layout: int) -> tkv.Plan:
    config = tkv.KvCacheConfig(max_gpu_total_bytes=GIB, max_seq_len=4096, max_batch_size=2)
    return tkv.plan(model(layers), config=config, mapping=tkv.Mapping(**layout))


def test_context_parallel_plans_are_refused():
    with pytest.raises(tkv.ConfigError, match="cp_size 2"):
        tkv.build_managers(plan(gqa(2), cp_size=2), materialize=False)


def test_a_window_that_no_sequence_outgrows_is_full_attention():
    managers = tkv.build_managers(plan(gqa(1) + gqa(1, window=4096)), materialize=False)
    assert managers.target.num_layers == 2


layers_of_a_model = st.lists(
    st.one_of(
        st.builds(
            lambda heads, dim, dtype: gqa(1, heads, dim, dtype)[0],
            st.sampled_from([1, 2, 4, 8]),
            st.sampled_from([16, 64, 96, 128]),
            st.sampled_from(["bf16", "fp16", "fp32", "fp8", "nvfp4"]),
        ),
        st.builds(
            lambda dtype, side: mla(1, dtype, **({"indexer_k": side} if side else {}))[0],
            st.sampled_from(["bf16", "fp8", "nvfp4"]),
            st.sampled_from([0, 68, 132]),
        ),
    ),
    min_size=2,
    max_size=6,
)


@given(
    targets=layers_of_a_model,
    drafts=layers_of_a_model,
    tp_size=st.sampled_from([1, 2, 4]),
    pages=st.integers(2, 6),
    spare=st.integers(0, 4096),
    tokens_per_block=st.sampled_from([4, 16, 32]),
)
def test_planned_bytes_are_the_bytes_of_the_pools_that_are_built(
    *,
    targets: list[tkv.Layer],
    drafts: list[tkv.Layer],
    tp_size: int,
    pages: int,
    spare: int,
    tokens_per_block: int,
):
    both = sum(layer.bytes_per_token(tp_size) for layer in (*targets, *drafts))
    budget = both * tokens_per_block * pages + min(spare, both * tokens_per_block - 1)
    made = tkv.plan(
        model(tuple(targets)),
        model(tuple(drafts), "draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=budget,
            max_seq_len=64,
            tokens_per_block=tokens_per_block,
            max_batch_size=2,
        ),
        mapping=tkv.Mapping(tp_size=tp_size),
        speculative=tkv.SpeculativeConfig(mode="draft_target_one_model", max_draft_len=2),
    )
    rank = made.ranks[0]
    managers = tkv.build_managers(made)
    built = managers.target.pool.buffer.nbytes + managers.draft.pool.buffer.nbytes
    assert built == rank.target.device_bytes + rank.draft.device_bytes
    assert built + rank.slack_bytes == budget
    assert made.num_blocks == pages
