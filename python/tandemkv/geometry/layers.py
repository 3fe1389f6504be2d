"""The layers of a model that keep KV: an explicit list, never a count and a ratio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tandemkv import _core
from tandemkv.errors import GeometryError

LayerKind = Literal["attention", "mla"]
KvDtype = Literal["bf16", "fp16", "fp32", "fp8", "nvfp4"]
Role = Literal["target", "draft"]

LAYER_KINDS: tuple[str, ...] = get_args(LayerKind)
KV_DTYPES: tuple[str, ...] = get_args(KvDtype)
ROLES: tuple[str, ...] = get_args(Role)

# Which fields describe which kind; a field of another kind must stay None.
_REQUIRED: dict[str, tuple[str, ...]] = {
    "attention": ("num_kv_heads", "head_dim"),
    "mla": ("kv_lora_rank", "qk_rope_head_dim"),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {"attention": ("v_head_dim",), "mla": ()}


def _check_choice(owner: str, field: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise GeometryError(
            f"{owner}: {field} is {value!r}; supported: {', '.join(choices)}",
            field=field,
            value=value,
        )


def _check_size(owner: str, field: str, value: object) -> None:
    # bool is an int in Python, but `num_kv_heads=True` is a mistake.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise GeometryError(
            f"{owner}: {field} is {value!r}; an integer >= 1 is needed", field=field, value=value
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBuffer:
    """Bytes per token that a layer keeps beside its KV, such as the keys of a sparse indexer.

    They have a dtype of their own, so they are raw bytes: the KV dtype never scales them, and
    each tensor-parallel rank keeps all of them.

    Args:
        name: what it is, such as `indexer_k`; not empty.
        bytes_per_token: bytes per token of one layer on one rank, >= 1.
    """

    name: str
    bytes_per_token: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise GeometryError(
                f"SideBuffer: name is {self.name!r}; a non-empty string is needed",
                field="name",
                value=self.name,
            )
        _check_size(f"SideBuffer {self.name!r}", "bytes_per_token", self.bytes_per_token)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {"name": self.name, "bytes_per_token": self.bytes_per_token}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One layer that keeps KV for every token.

    Args:
        kind: `attention` (MHA, GQA, MQA: keys and values per head) or `mla` (one latent per
            token, shared by all heads).
        kv_dtype: dtype of the stored KV: `bf16`, `fp16`, `fp32`, `fp8` or `nvfp4`.
        num_kv_heads: KV heads of the whole model, before tensor parallelism (attention).
        head_dim: elements of one key (attention).
        v_head_dim: elements of one value where it differs from a key; None: `head_dim`.
        kv_lora_rank: elements of the compressed part of the latent (mla).
        qk_rope_head_dim: elements of the rotary part of the latent (mla).
        side_buffers: raw bytes kept per token beside the KV.

    Raises:
        GeometryError: an unknown kind or dtype, a size that is not an integer >= 1, a missing
            field, or a field of the other kind.
    """

    kind: LayerKind
    kv_dtype: KvDtype
    num_kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    side_buffers: tuple[SideBuffer, ...] = ()

    def __post_init__(self) -> None:
        _check_choice("Layer", "kind", self.kind, LAYER_KINDS)
        owner = f"Layer of kind {self.kind!r}"
        _check_choice(owner, "kv_dtype", self.kv_dtype, KV_DTYPES)
        for field in _REQUIRED[self.kind]:
            _check_size(owner, field, getattr(self, field))
        for field in _OPTIONAL[self.kind]:
            if getattr(self, field) is not None:
                _check_size(owner, field, getattr(self, field))
        own = _REQUIRED[self.kind] + _OPTIONAL[self.kind]
        for kind in LAYER_KINDS:
            for field in _REQUIRED[kind] + _OPTIONAL[kind]:
                if field not in own and getattr(self, field) is not None:
                    raise GeometryError(
                        f"{owner}: {field} is {getattr(self, field)!r}; it belongs to kind "
                        f"{kind!r} and must be None here",
                        field=field,
                        value=getattr(self, field),
                    )
        # A list is accepted for convenience; the field itself stays immutable and hashable.
        object.__setattr__(self, "side_buffers", tuple(self.side_buffers))
        for buffer in self.side_buffers:
            if not isinstance(buffer, SideBuffer):
                raise GeometryError(
                    f"{owner}: side_buffers holds {buffer!r}; only SideBuffer is accepted",
                    field="side_buffers",
                    value=buffer,
                )

    def bytes_per_token(self, tp_size: int = 1) -> int:
        """Return the bytes that one token of this layer takes on one rank.

        The Rust core prices it; there is no second formula in Python.

        Args:
            tp_size: width of the attention group, >= 1 (1 under attention data parallelism).

        Raises:
            GeometryError: `tp_size` does not fit `num_kv_heads`: below the number of heads the
                widest rank holds `ceil(num_kv_heads / tp_size)`, above it `tp_size` must be a
                multiple of `num_kv_heads`; or the elements of one rank do not fill whole nvfp4
                scale groups of 16.
        """
        _check_size("Layer.bytes_per_token", "tp_size", tp_size)
        return _core.layer_bytes_per_token(
            kind=self.kind,
            kv_dtype=self.kv_dtype,
            tp_size=tp_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            kv_lora_rank=self.kv_lora_rank,
            qk_rope_head_dim=self.qk_rope_head_dim,
            side_bytes=sum(buffer.bytes_per_token for buffer in self.side_buffers),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that describe this kind as plain values."""
        fields = ("kind", "kv_dtype", *_REQUIRED[self.kind], *_OPTIONAL[self.kind])
        return {
            **{field: getattr(self, field) for field in fields},
            "side_buffers": [buffer.to_dict() for buffer in self.side_buffers],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelGeometry:
    """What a model keeps per token: its layers in order, and nothing that is guessed.

    Args:
        layers: the layers that keep KV, in model order; at least one.
        name: what to call the model in reports.
        model_type: the `model_type` it was read from, or `custom`.
        role: `target` or `draft`.
        max_position_embeddings: longest sequence the config declares, in tokens, or None. It is
            reported and not enforced on a draft, whose heads are often trained short.

    Raises:
        GeometryError: no layers, an entry that is not a Layer, an unknown role, or an empty name.
    """

    layers: tuple[Layer, ...]
    name: str = "custom"
    model_type: str = "custom"
    role: Role = "target"
    max_position_embeddings: int | None = None

    def __post_init__(self) -> None:
        _check_choice("ModelGeometry", "role", self.role, ROLES)
        for field in ("name", "model_type"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise GeometryError(
                    f"ModelGeometry: {field} is {value!r}; a non-empty string is needed",
                    field=field,
                    value=value,
                )
        owner = f"ModelGeometry {self.name!r}"
        if not isinstance(self.layers, Iterable) or isinstance(self.layers, Mapping | str):
            raise GeometryError(
                f"{owner}: layers is {self.layers!r}; a list of Layer is needed",
                field="layers",
                value=self.layers,
            )
        object.__setattr__(self, "layers", tuple(self.layers))
        for index, layer in enumerate(self.layers):
            if not isinstance(layer, Layer):
                raise GeometryError(
                    f"{owner}: layers[{index}] is {layer!r}; a Layer is needed",
                    field=f"layers[{index}]",
                    value=layer,
                )
        if not self.layers:
            raise GeometryError(
                f"{owner}: layers is empty; a model that keeps no KV has no geometry",
                field="layers",
                value=(),
            )
        if self.max_position_embeddings is not None:
            _check_size(owner, "max_position_embeddings", self.max_position_embeddings)

    @property
    def num_layers(self) -> int:
        """Number of layers that keep KV."""
        return len(self.layers)

    def bytes_per_token(self, tp_size: int = 1) -> int:
        """Return the bytes of one token over all layers on one rank; see `Layer`."""
        # Most models repeat one layer: price each distinct one once.
        prices: dict[Layer, int] = {}
        for layer in self.layers:
            if layer not in prices:
                prices[layer] = layer.bytes_per_token(tp_size)
        return sum(prices[layer] for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the geometry as plain values, one entry per layer."""
        return {
            "name": self.name,
            "model_type": self.model_type,
            "role": self.role,
            "max_position_embeddings": self.max_position_embeddings,
            "layers": [layer.to_dict() for layer in self.layers],
        }
