"""Attention of many sequences at a time over pages: gather, then SDPA for each sequence.

On a GPU, with the package flash-attn, that takes all sequences in one call where it can.

The tokens of a step lie one sequence after the other, without padding. transformers calls the
function below in every attention layer, with the bounds of the sequences as keyword arguments that
have the names of its own variable-length attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from tandemkv.integrations.transformers import PagedCacheError

NAME = "tandemkv_paged"

# What some models ask of attention that the function below does not do.
_UNSUPPORTED = ("softcap", "position_bias")

_MAX_FLASH_SIZE = 256  # of a head, in flash-attn


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend, each sequence to itself.

    Args:
        module: the attention layer.
        query: `[1, heads, tokens, size]`, the tokens that the step runs.
        key: `[1, KV heads, KV tokens, size]`, all tokens that are read, gathered from the pages.
        value: the same.
        attention_mask: not used; the bounds say all.
        scaling: factor of the scores; None: one over the root of the size.
        sliding_window: tokens that a token sees, itself included; None: all before it.
        s_aux: `[heads]`, the score of a sink that takes weight and gives no value; None: no sinks.
        cu_seq_lens_q: int `[sequences + 1]`, where the tokens of each sequence start.
        cu_seq_lens_k: the same for the KV tokens.
        kwargs: what else transformers passes.

    Returns:
        `[1, tokens, heads, size]`, and None for the weights.

    Raises:
        PagedCacheError: a model whose attention needs more than this.
    """
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise PagedCacheError(f"{type(module).__name__} needs {name!r}, which is not supported")
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        raise PagedCacheError(f"{NAME} runs under a ModelRunner only")
    queries, keys = cu_seq_lens_q.tolist(), cu_seq_lens_k.tolist()
    if s_aux is None and (flash := flash_attention_of(query, value)) is not None:
        output = flash(
            *(state[0].transpose(0, 1) for state in (query, key, value)),
            cu_seqlens_q=cu_seq_lens_q.to(query.device),
            cu_seqlens_k=cu_seq_lens_k.to(query.device),
            max_seqlen_q=max(end - start for start, end in pairwise(queries)),
            max_seqlen_k=max(end - start for start, end in pairwise(keys)),
            softmax_scale=scaling,
            causal=True,
            window_size=(-1, -1) if sliding_window is None else (sliding_window - 1, 0),
        )
        return output[None], None
    parts = []
    for item in range(len(queries) - 1):
        q = query[:, :, queries[item] : queries[item + 1]]
        k = key[:, :, keys[item] : keys[item + 1]]
        v = value[:, :, keys[item] : keys[item + 1]]
        mask = _mask(q.shape[2], k.shape[2], sliding_window, q.device)
        if s_aux is None:
            part = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True
            )
        else:
            part = _with_sinks(q, k, v, mask=mask, scaling=scaling, sinks=s_aux)
        parts.append(part)
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def flash_attention_of(query: torch.Tensor, value: torch.Tensor) -> Any:
    """Return `flash_attn_varlen_func` of the package flash-attn, or None where SDPA is needed.

    It runs on a GPU, in half precision, for keys and values of one size up to 256.

    Args:
        query: `[1, heads, tokens, size]`.
        value: `[1, KV heads, KV tokens, size]`.
    """
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = query.shape[-1] == value.shape[-1] <= _MAX_FLASH_SIZE
    if not (half and fits and _is_on_gpu(query) and find_spec("flash_attn") is not None):
        return None
    return import_module("flash_attn").flash_attn_varlen_func


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def _with_sinks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    scaling: float | None,
    sinks: torch.Tensor,
) -> torch.Tensor:
    """Attend with one more score per head in the softmax, which SDPA has no place for."""
    groups = q.shape[1] // k.shape[1]
    k, v = (state.repeat_interleave(groups, dim=1) for state in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
    weights = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]
    return weights @ v


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Return which of the last `queries` of `keys` tokens sees which, or None for all."""
    if queries == 1 and (window is None or keys <= window):
        return None
    position = torch.arange(keys - queries, keys, device=device)[:, None]
    other = torch.arange(keys, device=device)[None]
    mask = other <= position
    return mask if window is None else mask & (other > position - window)


AttentionInterface.register(NAME, paged_attention)


@contextmanager
def attention_of(model: Any) -> Iterator[None]:
    """Let every layer of `model` attend over pages while the context is open."""
    configs = {
        id(module.config): module.config
        for module in model.modules()
        if hasattr(module, "config") and hasattr(module.config, "_attn_implementation")
    }
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation = NAME
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]
