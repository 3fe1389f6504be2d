"""The table of model families: one small function each, found by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile

from tandemkv.errors import UnsupportedModelError
from tandemkv.geometry.config import BY_HAND, ConfigView
from tandemkv.geometry.layers import Layer

Adapter = Callable[[ConfigView], tuple[Layer, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How to read the configs of some model types.

    Args:
        name: what people call it.
        model_types: the `model_type` values it reads.
        layers: returns every layer of the model that keeps KV, in order.
        mtp_layers: returns the layers of its multi-token-prediction module, or None where the
            family has none.
        reads: fields that change what layers keep and that `layers` understands; a config of any
            other family that has one of them is refused.
    """

    name: str
    model_types: tuple[str, ...]
    layers: Adapter
    mtp_layers: Adapter | None = None
    reads: frozenset[str] = frozenset()


_FAMILIES: dict[str, Family] = {}

# Model types that wrap a language model, and the objects that lead to its config. A type that is
# also a family has older files with the fields of its language model on the outside.
WRAPPERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "aya_vision",
            "gemma3",
            "gemma3n",
            "gemma4",
            "glm4v",
            "glm4v_moe",
            "internvl",
            "kimi_k25",
            "llama4",
            "llava",
            "llava_next",
            "llava_next_video",
            "llava_onevision",
            "mistral3",
            "mllama",
            "paligemma",
            "qwen2_5_vl",
            "qwen2_audio",
            "qwen2_vl",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_vl",
            "qwen3_vl_moe",
        ),
        ("text_config",),
    ),
    **dict.fromkeys(("h2ovl_chat", "internvl_chat"), ("llm_config",)),
    "deepseek_vl_v2": ("language_config",),
    **dict.fromkeys(("qwen2_5_omni", "qwen3_omni_moe"), ("thinker_config", "text_config")),
    **dict.fromkeys(("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), ("text_config",)),
}


def family(
    name: str, *model_types: str, mtp_layers: Adapter | None = None, reads: Iterable[str] = ()
) -> Callable[[Adapter], Adapter]:
    """Register the decorated function as the adapter of `model_types`."""

    def register(layers: Adapter) -> Adapter:
        entry = Family(
            name=name,
            model_types=model_types,
            layers=layers,
            mtp_layers=mtp_layers,
            reads=frozenset(reads),
        )
        for model_type in model_types:
            if model_type in _FAMILIES:
                raise RuntimeError(f"model_type {model_type!r} has two adapters")
            _FAMILIES[model_type] = entry
        return layers

    return register


def supported_model_types() -> tuple[str, ...]:
    """Return the model types that can be read, wrappers included, sorted."""
    return tuple(sorted(WRAPPERS.keys() | _FAMILIES.keys()))


def supported_families() -> tuple[Family, ...]:
    """Return the families, in the order in which they are registered."""
    return tuple(dict.fromkeys(_FAMILIES.values()))


def _nearest(model_type: str) -> str | None:
    """Return the known type with the most similar name, or None where none is similar."""
    # Families grow by suffixes (gemma -> gemma2, deepseek_v3 -> deepseek_v32), so a common
    # beginning says most, then whether it is a whole name. `jamba` is not near `llama`.
    ranked = []
    for name in sorted(_FAMILIES):
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(model_type, name, strict=False))
        is_stem = model_type.startswith(name)
        ratio = SequenceMatcher(None, model_type, name).ratio()
        ranked.append((sum(1 for _ in shared), is_stem, ratio, name))
    prefix, is_stem, _, name = max(ranked)
    if is_stem or prefix >= 3:
        return name
    ratio, name = max((ratio, name) for _, _, ratio, name in ranked)
    return name if ratio >= 0.8 else None


def find_family(source: str, field: str, model_type: str) -> Family:
    """Return the family of a model type.

    Args:
        source: the file, for messages.
        field: `model_type`, or `text_config.model_type`.
        model_type: the value found there.

    Raises:
        UnsupportedModelError: an unknown type; it names the nearest known one.
    """
    if model_type in _FAMILIES:
        return _FAMILIES[model_type]
    supported = supported_model_types()
    nearest = _nearest(model_type)
    hint = f"nearest known: {nearest!r} ({_FAMILIES[nearest].name})" if nearest else "none is near"
    raise UnsupportedModelError(
        f"{source}: {field} is {model_type!r}, which is not supported ({hint}); "
        f"supported: {', '.join(supported)}; for any other model, {BY_HAND}",
        source=source,
        field=field,
        value=model_type,
        model_type=model_type,
        supported=supported,
        nearest=nearest,
    )
