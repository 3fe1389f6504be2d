"""Which layer does what: windows, and the lists and rules that say where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tandemkv.geometry.checks import show
from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import LAYERS, window_of
from tandemkv.geometry.layers import Layer

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
STATE = "linear_attention"
HYBRID = "hybrid"

# Spellings in `layer_types` and `layers_block_type` of older and newer configs.
_SPELLINGS = {
    FULL: FULL,
    "attention": FULL,
    SLIDING: SLIDING,
    CHUNKED: CHUNKED,
    STATE: STATE,
    "conv": STATE,
    "mamba": STATE,
    HYBRID: HYBRID,
}


def layer_kinds(
    config: ConfigView,
    kinds: Sequence[str],
    rule: Callable[[int], str] | None,
    field: str = "layer_types",
) -> list[str]:
    """Return the kind of every layer, by its number in the model.

    Args:
        config: the config.
        kinds: the kinds that the family has.
        rule: the class default, from the layer's number; None where the list is needed.
        field: the list.

    Raises:
        GeometryError: the list is missing, of another length than the layers, or has a kind that
            the family does not have.
    """
    count = config.layer_count(*LAYERS)
    names = config.items(field, str)
    if names is None:
        if rule is None:
            raise config.error(field, "a list of layer kinds is needed")
        return [rule(index) for index in range(count)]
    # An explicit count may ask for the first layers only.
    if len(names) != count and (config.num_layers is None or len(names) < count):
        raise config.error(field, f"it has {len(names)} entries for {count} layers")
    found = [_SPELLINGS.get(name, name) for name in names[:count]]
    for name in found:
        if name not in kinds:
            raise config.unsupported(field, f"layers of kind {show(name)}")
    return found


def windowed(layer: Layer, kinds: Sequence[str], window: int | None) -> tuple[Layer, ...]:
    """Return a layer per kind: `layer` with the window where the kind is sliding."""
    sliding = replace(layer, window=window)
    return tuple(sliding if kind == SLIDING else layer for kind in kinds)


def every(period: int, kind: str, other: str) -> Callable[[int], str]:
    """Return the rule that every `period`-th layer is of `kind`, the last of each period."""
    return lambda index: other if period and (index + 1) % period else kind


def need_window(
    config: ConfigView, kinds: Sequence[str], field: str = "sliding_window"
) -> int | None:
    """Return the window, as `window_of`, of a config whose layers have one.

    Raises:
        GeometryError: a layer is sliding, and the field is absent: null would say that it is not.
    """
    if SLIDING in kinds and field not in config.data:
        raise config.error(field, "the tokens of the window, or null, are needed")
    return window_of(config, field)


def switched_window(config: ConfigView, layer: Layer) -> tuple[Layer, ...]:
    """Return the layers of the Qwen2 rule.

    Windows count only with `use_sliding_window`, and from layer `max_window_layers` on; a list of
    `layer_types` says where they are instead.

    Raises:
        GeometryError: windows without the layer at which they start.
    """
    used = config.flag("use_sliding_window", default=False)
    first = 0
    if used and window_of(config) is not None and config.data.get("layer_types") is None:
        if config.data.get("max_window_layers") is None:
            raise config.error("max_window_layers", "the first layer with a window is needed")
        first = config.switch("max_window_layers", default=0)
    kinds = layer_kinds(config, (FULL, SLIDING), lambda index: SLIDING if index >= first else FULL)
    return windowed(layer, kinds, need_window(config, kinds) if used else None)


def window_everywhere(config: ConfigView, layer: Layer) -> tuple[Layer, ...]:
    """Return layers that all have the window of `sliding_window`, unless it is switched off.

    A list of `layer_types` says which of them have it instead. An absent window means none, so a
    family whose class has one by default asks for the field first.

    Raises:
        GeometryError: `layer_types` has windows, and the field is absent.
    """
    kinds = layer_kinds(config, (FULL, SLIDING), lambda _: SLIDING)
    if not config.flag("use_sliding_window", default=True):
        return windowed(layer, kinds, None)
    listed = config.data.get("layer_types") is not None
    return windowed(layer, kinds, need_window(config, kinds) if listed else window_of(config))
