"""What several families share: layers with heads, latents, and the windows nobody may overlook."""

from __future__ import annotations

from tandemkv.geometry.checks import show
from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.layers import Layer

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
HIDDEN = ("hidden_size", "n_embd", "d_model")
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "model_max_length",
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


def grouped_query(
    config: ConfigView, *, head_dim_required: bool = False, count: int | None = None
) -> tuple[Layer, ...]:
    """Return the layers of a model with the usual field names (MHA, GQA and MQA alike).

    Args:
        config: the config.
        head_dim_required: whether the family's head size is not `hidden_size // heads`, so that
            a config without `head_dim` does not say it.
        count: layers; None: as many as the config says.
    """
    num_heads = config.size(*HEADS)
    num_kv_heads = config.kv_heads(num_heads, "num_key_value_heads")
    if head_dim_required:
        head_dim: int | None = config.size("head_dim")
    else:
        head_dim = config.optional_size("head_dim")
    if head_dim is None:
        head_dim = config.split_evenly(config.size(*HIDDEN), num_heads, "head_dim")
    return attention_layers(config, num_kv_heads, head_dim, count)


def latent(config: ConfigView, *, count: int | None = None) -> tuple[Layer, ...]:
    """Return the layers of a model with multi-head latent attention."""
    layer = Layer(
        kind="mla",
        kv_dtype=config.kv_dtype,
        kv_lora_rank=config.size("kv_lora_rank"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
    )
    return (layer,) * (config.layer_count(*LAYERS) if count is None else count)


def refuse_window(
    config: ConfigView, *, use_by_default: bool = True, full_below: str | None = None
) -> None:
    """Refuse a config whose sliding window drops tokens; it is never priced as full attention.

    A window as long as the model's positions never drops any and is full attention.

    Args:
        config: the config.
        use_by_default: whether the window counts where `use_sliding_window` is absent.
        full_below: the field that says up to which layer attention is full, if the family has one.

    Raises:
        UnsupportedModelError: an active window.
    """
    if not config.flag("use_sliding_window", default=use_by_default):
        return
    window = config.data.get("sliding_window")
    if window is None or (isinstance(window, int) and window <= 0):
        return
    if full_below is not None:
        first_window_layer = config.optional_size(full_below)
        if first_window_layer is not None and first_window_layer >= config.layer_count(*LAYERS):
            return
    size = config.size("sliding_window")
    positions = config.optional_size("max_position_embeddings")
    if positions is None or size < positions:
        limit = "" if positions is None else f" below max_position_embeddings {positions}"
        raise config.unsupported("sliding_window", f"a sliding window{limit}")


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
    "use_cla": "layers that share KV",
}


def refuse_other_kv(config: ConfigView) -> None:
    """Refuse fields that no adapter of this package reads but that change what layers keep.

    Raises:
        UnsupportedModelError: such a field is set, or `layer_types` has more than full attention.
    """
    for field, reason in _OTHER_KV.items():
        if config.data.get(field):
            raise config.unsupported(field, reason)
    layer_types = config.data.get("layer_types")
    if layer_types is None:
        return
    if not isinstance(layer_types, list | tuple):
        raise config.error("layer_types", "a list of layer kinds is needed")
    others = [kind for kind in layer_types if kind != "full_attention"]
    if others:
        raise config.unsupported("layer_types", f"layers of kind {show(others[0])}")
