"""What several families share: layers with heads or latents, and fields nobody may overlook."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from tandemkv.geometry.checks import show
from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.layers import Layer

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
HIDDEN = ("hidden_size", "n_embd", "d_model")
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "model_max_length",
    "max_target_positions",
)


def attention_layers(
    config: ConfigView, num_kv_heads: int, head_dim: int, count: int | None = None
) -> tuple[Layer, ...]:
    """Return `count` equal attention layers; None: as many as the config says."""
    layer = Layer(
        kind="attention",
        kv_dtype=config.kv_dtype,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )
    return (layer,) * (config.layer_count(*LAYERS) if count is None else count)


def grouped_query_layer(config: ConfigView, *, head_dim_required: bool = False) -> Layer:
    """Return one layer of a model with the usual field names (MHA, GQA and MQA alike).

    Args:
        config: the config.
        head_dim_required: whether the family's head size is not `hidden_size // heads`, so that
            a config without `head_dim` does not say it.
    """
    num_heads = config.size(*HEADS)
    num_kv_heads = config.kv_heads(num_heads, "num_key_value_heads", "n_head_kv")
    if head_dim_required:
        head_dim: int | None = config.size("head_dim")
    else:
        head_dim = config.optional_size("head_dim")
    if head_dim is None:
        head_dim = config.split_evenly(config.size(*HIDDEN), num_heads, "head_dim")
    return attention_layers(config, num_kv_heads, head_dim, count=1)[0]


def grouped_query(
    config: ConfigView, *, head_dim_required: bool = False, count: int | None = None
) -> tuple[Layer, ...]:
    """Return `count` layers as `grouped_query_layer`; None: as many as the config says."""
    layer = grouped_query_layer(config, head_dim_required=head_dim_required)
    return (layer,) * (config.layer_count(*LAYERS) if count is None else count)


def latent_layer(config: ConfigView) -> Layer:
    """Return one layer of a model with multi-head latent attention."""
    return Layer(
        kind="mla",
        kv_dtype=config.kv_dtype,
        kv_lora_rank=config.size("kv_lora_rank"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
    )


def latent(config: ConfigView, *, count: int | None = None) -> tuple[Layer, ...]:
    """Return `count` layers as `latent_layer`; None: as many as the config says."""
    return (latent_layer(config),) * (config.layer_count(*LAYERS) if count is None else count)


def window_of(config: ConfigView, field: str = "sliding_window") -> int | None:
    """Return the tokens of a window, the one in flight included, or None for none.

    A window as long as the model's positions never drops a token: that is full attention.

    Raises:
        GeometryError: not an integer.
    """
    window = config.data.get(field)
    if window is None or (type(window) is int and window <= 0):
        return None
    size = config.size(field)
    positions = config.optional_size("max_position_embeddings")
    return None if positions is not None and size >= positions else size


# Fields by which a config of a known type says that its layers keep something else. Each is
# harmless when absent, null, false, zero or empty.
_OTHER_KV = {
    "attention_chunk_size": "chunked attention",
    "attention_k_eq_v": "values that are the keys",
    "attn_type_list": "attention of several kinds",
    "block_configs": "layers of different shapes",
    "cross_attention_layers": "cross attention",
    "add_cross_attention": "cross attention",
    "full_attention_interval": "recurrent state",
    "hybrid_override_pattern": "recurrent state",
    "index_head_dim": "sparse attention with an indexer",
    "index_topk": "sparse attention with an indexer",
    "is_encoder_decoder": "cross attention",
    "layers_block_type": "recurrent state",
    "linear_attn_config": "recurrent state",
    "num_kv_shared_layers": "layers that share KV",
    "ssm_state_size": "recurrent state",
    "use_bidirectional_attention": "attention to later tokens",
    "use_cla": "layers that share KV",
}


def refuse_other_kv(config: ConfigView, reads: AbstractSet[str]) -> None:
    """Refuse fields that change what layers keep and that the family's adapter does not read.

    Args:
        config: the config.
        reads: the fields that the adapter understands.

    Raises:
        UnsupportedModelError: such a field or a window is set, or `layer_types` has more than full
            attention.
    """
    for field, reason in _OTHER_KV.items():
        if field not in reads and config.data.get(field):
            raise config.unsupported(field, reason)
    if "sliding_window" not in reads and config.flag("use_sliding_window", default=True):
        window = window_of(config)
        if window is not None:
            raise config.unsupported("sliding_window", f"a window of {window} tokens")
    layer_types = config.data.get("layer_types")
    if layer_types is None or "layer_types" in reads:
        return
    if not isinstance(layer_types, list | tuple):
        raise config.error("layer_types", "a list of layer kinds is needed")
    others = [kind for kind in layer_types if kind != "full_attention"]
    if others:
        raise config.unsupported("layer_types", f"layers of kind {show(others[0])}")
