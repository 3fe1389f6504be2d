"""A plan in the words of other engines' logs, so that the numbers can be compared.

Each engine counts in its own way: vLLM leaves the room for drafts out of its concurrency,
TensorRT-LLM counts a block's tokens whether or not it is reserved. What is printed here is the
plan's number under their name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemkv.sizes import format_size

if TYPE_CHECKING:
    from tandemkv.planning.result import Plan


def engine_lines(plan: Plan) -> list[tuple[str, str]]:
    """Return (name, text) lines, one per engine; none where tokens have no limit."""
    if plan.max_tokens is None:
        return []
    return [
        ("in vLLM's words", _vllm(plan)),
        ("in SGLang's words", _sglang(plan)),
        *_tensorrt_llm(plan),
    ]


def _vllm(plan: Plan) -> str:
    # vLLM divides by the blocks of max_model_len alone; room for drafts is not in its figure.
    blocks = -(-plan.max_seq_len // plan.block_tokens)
    return (
        f"GPU KV cache size: {plan.max_tokens:,} tokens; maximum concurrency for "
        f"{plan.max_seq_len:,} tokens per request: {(plan.num_blocks - 1) / blocks:.2f}x"
    )


def _sglang(plan: Plan) -> str:
    chunk = plan.config.max_num_tokens
    return (
        f"max_total_num_tokens={plan.max_tokens}, "
        f"chunked_prefill_size={-1 if chunk is None else chunk}, "
        f"max_running_requests={plan.max_batch_size}, context_len={plan.max_seq_len}"
    )


def _tensorrt_llm(plan: Plan) -> list[tuple[str, str]]:
    # Its log is of one rank's pools; the target's of the first one, as rank 0 prints it.
    target = plan.ranks[0].target
    return [
        (
            "in TensorRT-LLM's",
            f"Max KV cache blocks per sequence: {plan.blocks_of(plan.max_seq_len)} "
            f"[window size={plan.max_seq_len}], tokens per block={plan.tokens_per_block}, "
            f"primary blocks={plan.num_blocks}, secondary blocks={plan.num_host_blocks}",
        ),
        (
            "",
            f"Allocated {format_size(target.device_bytes)} for max tokens in paged KV cache "
            f"({plan.num_blocks * plan.block_tokens})",
        ),
    ]
