"""Models with cross attention: the decoder keeps its own tokens, and the encoder's once."""

from __future__ import annotations

from dataclasses import replace

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import LAYERS, attention_layers, grouped_query_layer
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer

_READS = ("is_encoder_decoder", "add_cross_attention")


def _decoder(
    config: ConfigView, *, heads: int, head_dim: int, count: int, encoder_tokens: int | None
) -> tuple[Layer, ...]:
    """Return decoder layers: attention, and cross attention of the same heads beside it."""
    own = attention_layers(config, heads, head_dim, count=1)[0]
    cross = replace(own, kind="cross_attention", max_cross_tokens=encoder_tokens)
    return (replace(own, beside=(cross,)),) * count


@family("T5", "t5", "mt5", "umt5", reads=_READS)
def t5(config: ConfigView) -> tuple[Layer, ...]:
    """Read T5: `d_kv` is the head size, and relative positions set the encoder no limit."""
    return _decoder(
        config,
        heads=config.size("num_heads"),
        head_dim=config.size("d_kv"),
        count=config.layer_count("num_decoder_layers")
        if config.data.get("num_decoder_layers") is not None
        else config.layer_count("num_layers"),
        encoder_tokens=config.optional_size("n_positions"),
    )


@family("BART and its relatives", "bart", "mbart", "marian", "pegasus", "m2m_100", reads=_READS)
def bart(config: ConfigView) -> tuple[Layer, ...]:
    """Read BART: the cross attention has the heads of the decoder."""
    heads = config.size("decoder_attention_heads")
    return _decoder(
        config,
        heads=heads,
        head_dim=config.split_evenly(config.size("d_model"), heads, "d_model"),
        count=config.layer_count("decoder_layers"),
        encoder_tokens=config.size("max_position_embeddings"),
    )


@family("Whisper", "whisper", reads=_READS)
def whisper(config: ConfigView) -> tuple[Layer, ...]:
    """Read Whisper, whose encoder gives `max_source_positions` tokens (1,500) for 30 seconds."""
    heads = config.size("decoder_attention_heads")
    return _decoder(
        config,
        heads=heads,
        head_dim=config.split_evenly(config.size("d_model"), heads, "d_model"),
        count=config.layer_count("decoder_layers"),
        encoder_tokens=config.size("max_source_positions"),
    )


@family("Llama 3.2 Vision", "mllama_text_model", reads=(*_READS, "cross_attention_layers"))
def mllama(config: ConfigView) -> tuple[Layer, ...]:
    """Read Llama 3.2 Vision: `cross_attention_layers` are among the layers, and read images only.

    How many image tokens a sequence has depends on its images, so the config sets no limit.
    """
    own = grouped_query_layer(config)
    cross = replace(own, kind="cross_attention")
    indices = config.items("cross_attention_layers", int)
    if indices is None:
        raise config.error("cross_attention_layers", "a list of layer numbers is needed")
    count = config.layer_count(*LAYERS)
    if indices and max(indices) >= count and config.num_layers is None:
        raise config.error("cross_attention_layers", f"the model has {count} layers")
    return tuple(cross if index in indices else own for index in range(count))
