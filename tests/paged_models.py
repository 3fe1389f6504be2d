"""Tiny random models for the tests of `tandemkv.integrations.transformers`, and their managers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    DeepseekV3Config,
    FalconH1Config,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    MistralConfig,
    NemotronHConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3NextConfig,
)

import tandemkv as tkv
from tandemkv.integrations.transformers import geometry_of

VOCAB = 128
_COMMON = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": VOCAB,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    # Far above the default, which gives nearly the same logits whatever the context is.
    "initializer_range": 0.2,
    "max_position_embeddings": 512,
}
CONFIGS: dict[str, Any] = {
    "llama": lambda n: LlamaConfig(num_hidden_layers=n, num_key_value_heads=2, **_COMMON),
    "qwen3": lambda n: Qwen3Config(
        num_hidden_layers=n, num_key_value_heads=1, head_dim=24, **_COMMON
    ),
    "mistral": lambda n: MistralConfig(
        num_hidden_layers=n, num_key_value_heads=4, sliding_window=None, **_COMMON
    ),
    "mistral_window": lambda n: MistralConfig(
        num_hidden_layers=n, num_key_value_heads=2, sliding_window=8, **_COMMON
    ),
    "gemma3": lambda n: Gemma3TextConfig(
        num_hidden_layers=n,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=8,
        layer_types=(["sliding_attention", "full_attention"] * n)[:n],
        **_COMMON,
    ),
    "gpt_oss": lambda n: GptOssConfig(
        num_hidden_layers=n,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        **_COMMON,
    ),
    "deepseek_v3": lambda n: DeepseekV3Config(
        num_hidden_layers=n,
        num_key_value_heads=4,
        kv_lora_rank=16,
        q_lora_rank=None,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        **_COMMON,
    ),
}

STATE_CONFIGS: dict[str, Any] = {
    "bamba": lambda n: BambaConfig(
        num_hidden_layers=n,
        num_key_value_heads=2,
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_n_groups=2,
        mamba_d_state=16,
        mamba_chunk_size=8,
        **_COMMON,
    ),
    "falcon_h1": lambda n: FalconH1Config(
        num_hidden_layers=n,
        num_key_value_heads=2,
        head_dim=16,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_ssm=128,
        mamba_n_groups=2,
        mamba_d_state=16,
        mamba_chunk_size=8,
        **_COMMON,
    ),
    "nemotron_h": lambda n: NemotronHConfig(
        layers_block_type=["mamba", "moe", "attention", "mamba"][:n],
        num_key_value_heads=2,
        head_dim=16,
        mamba_num_heads=4,
        mamba_head_dim=32,
        n_groups=2,
        ssm_state_size=16,
        chunk_size=8,
        time_step_min=1e-9,  # a bound that transformers applies to prompts, not to decode steps
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=32,
        **_COMMON,
    ),
    "qwen3_next": lambda n: Qwen3NextConfig(
        num_hidden_layers=n,
        layer_types=["linear_attention", "full_attention", "linear_attention"][:n],
        num_key_value_heads=2,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        # With larger weights, chunks of the delta rule and single steps differ by more than 1e-4.
        **{**_COMMON, "initializer_range": 0.1},
    ),
    "granite": lambda n: GraniteMoeHybridConfig(
        num_hidden_layers=n,
        layer_types=["mamba", "attention", "mamba"][:n],
        num_key_value_heads=2,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_chunk_size=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=32,
        **_COMMON,
    ),
    "qwen3_5": lambda n: Qwen3_5TextConfig(
        num_hidden_layers=n,
        layer_types=["linear_attention", "full_attention", "linear_attention"][:n],
        num_key_value_heads=2,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
        **{**_COMMON, "initializer_range": 0.1},
    ),
}
"""Models with recurrent states beside attention; each has a layer of every kind."""

STATE_LAYERS = dict.fromkeys(STATE_CONFIGS, 3) | {"falcon_h1": 2, "nemotron_h": 4}


def make_model(name: str, *, num_layers: int | None = None, seed: int = 0) -> Any:
    """Return a model with random weights, in float32; of two layers, or as `STATE_LAYERS` says."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    num_layers = num_layers or STATE_LAYERS.get(name, 2)
    config = (CONFIGS | STATE_CONFIGS)[name](num_layers)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def make_draft(model: Any, *, noise: float = 0.02) -> Any:
    """Return a copy of a model with noise on its weights, which guesses some tokens right."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(noise * torch.randn(weight.shape, generator=generator))
    config = draft.generation_config
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
    return draft


def make_managers(
    model: Any,
    draft: Any = None,
    *,
    tokens_per_block: int = 16,
    max_draft_len: int = 4,
    max_tokens: int = 1024,
    max_batch_size: int = 16,
    reuse: bool = True,
    mode: str = "draft_target_one_model",
    keep_all_tokens: bool = False,
    max_num_tokens: int | None = 128,
    **config: Any,
) -> tkv.Managers:
    """Return managers whose pools hold `max_tokens` tokens, rounded down to whole blocks."""
    speculative = None
    if draft is not None:
        speculative = tkv.SpeculativeConfig(mode=mode, max_draft_len=max_draft_len)
    plan = tkv.plan(
        geometry_of(model, keep_all_tokens=keep_all_tokens),
        None
        if draft is None
        else geometry_of(draft, role="draft", keep_all_tokens=keep_all_tokens),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes="64MiB",
            tokens_per_block=tokens_per_block,
            max_batch_size=max_batch_size,
            max_seq_len=256,
            max_tokens=max_tokens,
            enable_block_reuse=reuse,
            num_dummy_requests=0,
            max_num_tokens=max_num_tokens,
            **config,
        ),
        speculative=speculative,
    )
    return tkv.build_managers(plan, backend="torch")


def make_prompts(*lens: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random prompts of these lengths, padded on the left, and their attention mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros((len(lens), max(lens)), dtype=torch.int64)
    for row, length in enumerate(lens):
        ids[row, -length:] = torch.randint(1, VOCAB, (length,), generator=generator)
    return ids, (ids != 0).long()


def assert_empty(managers: tkv.Managers) -> None:
    """No request is open, and every page is free or cached."""
    managers.ledger.validate()
    stats = managers.ledger.stats()
    assert stats["open_sequences"] == stats["open_steps"] == 0
    for pages in stats["classes"]:
        assert pages["live"] == pages["fenced"] == 0
    managers.reset_reuse_state()
    for pages in managers.ledger.stats()["classes"]:
        assert pages["free"] == pages["total"] - 1
