"""The layers of a model that keep KV: an explicit list, never a count and a ratio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from reprlib import Repr
from typing import Any, Literal, get_args

from tandemkv import _core
from tandemkv.errors import GeometryError

LayerKind = Literal["attention", "mla"]
KvDtype = Literal["bf16", "fp16", "fp32", "fp8", "nvfp4"]
Role = Literal["target", "draft"]

LAYER_KINDS: tuple[str, ...] = get_args(LayerKind)
KV_DTYPES: tuple[str, ...] = get_args(KvDtype)
ROLES: tuple[str, ...] = get_args(Role)

# Keeps every product of sizes inside 64 bits in the core, and refuses nonsense early.
MAX_SIZE = 2**31 - 1

# Which fields describe which kind; a field of another kind must stay None.
_REQUIRED: dict[str, tuple[str, ...]] = {
    "attention": ("num_kv_heads", "head_dim"),
    "mla": ("kv_lora_rank", "qk_rope_head_dim"),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {"attention": ("v_head_dim",), "mla": ()}


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def show(value: object) -> str:
    """Return `value` as a message shows it: long lists, objects and strings are cut."""
    return _SHORT.repr(value)


def check_choice(owner: str, field: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise an error naming owner and field unless `value` is one of `choices`.

    Raises:
        GeometryError: any other value.
    """
    if not isinstance(value, str) or value not in choices:
        raise GeometryError(
            f"{owner}: {field} is {show(value)}; supported: {', '.join(choices)}",
            field=field,
            value=value,
        )


def check_size(owner: str, field: str, value: object) -> int:
    """Return `value` if it is a count or a size, else raise an error naming owner and field.

    Raises:
        GeometryError: not an integer from 1 to `MAX_SIZE`.
    """
    # bool is an int in Python, but `num_kv_heads=True` is a mistake.
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIZE:
        return value
    raise GeometryError(
        f"{owner}: {field} is {show(value)}; an integer from 1 to {MAX_SIZE} is needed",
        source=owner,
        field=field,
        value=value,
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
                f"SideBuffer: name is {show(self.name)}; a non-empty string is needed",
                field="name",
                value=self.name,
            )
        check_size(f"SideBuffer {show(self.name)}", "bytes_per_token", self.bytes_per_token)

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
        check_choice("Layer", "kind", self.kind, LAYER_KINDS)
        owner = f"Layer of kind {self.kind!r}"
        check_choice(owner, "kv_dtype", self.kv_dtype, KV_DTYPES)
        for field in _REQUIRED[self.kind]:
            check_size(owner, field, getattr(self, field))
        for field in _OPTIONAL[self.kind]:
            if getattr(self, field) is not None:
                check_size(owner, field, getattr(self, field))
        own = _REQUIRED[self.kind] + _OPTIONAL[self.kind]
        for kind in LAYER_KINDS:
            for field in _REQUIRED[kind] + _OPTIONAL[kind]:
                if field not in own and getattr(self, field) is not None:
                    raise GeometryError(
                        f"{owner}: {field} is {show(getattr(self, field))}; it belongs to kind "
                        f"{kind!r} and must be None here",
                        field=field,
                        value=getattr(self, field),
                    )
        # A list is accepted for convenience; the field itself stays immutable and hashable.
        object.__setattr__(self, "side_buffers", tuple(self.side_buffers))
        for buffer in self.side_buffers:
            if not isinstance(buffer, SideBuffer):
                raise GeometryError(
                    f"{owner}: side_buffers holds {show(buffer)}; only SideBuffer is accepted",
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
        check_size("Layer.bytes_per_token", "tp_size", tp_size)
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

    `from_hf` reads a config of a known family; `ModelGeometry(layers=[...])` describes any other
    model by hand.

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
        check_choice("ModelGeometry", "role", self.role, ROLES)
        for field in ("name", "model_type"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise GeometryError(
                    f"ModelGeometry: {field} is {show(value)}; a non-empty string is needed",
                    field=field,
                    value=value,
                )
        owner = f"ModelGeometry {show(self.name)}"
        if not isinstance(self.layers, Iterable) or isinstance(self.layers, Mapping | str):
            raise GeometryError(
                f"{owner}: layers is {show(self.layers)}; a list of Layer is needed",
                field="layers",
                value=self.layers,
            )
        object.__setattr__(self, "layers", tuple(self.layers))
        for index, layer in enumerate(self.layers):
            if not isinstance(layer, Layer):
                raise GeometryError(
                    f"{owner}: layers[{index}] is {show(layer)}; a Layer is needed",
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
            check_size(owner, "max_position_embeddings", self.max_position_embeddings)

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

    @classmethod
    def from_hf(
        cls,
        source: str | PathLike[str] | Mapping[str, Any],
        kv_dtype: str | None = None,
        role: Role = "target",
        num_layers: int | None = None,
    ) -> ModelGeometry:
        """Read the `config.json` of a Hugging Face model.

        With `role="draft"`, a config that holds a multi-token-prediction module
        (`num_nextn_predict_layers` >= 1) gives the layers of that module, since it is what drafts;
        every other config gives all its layers.

        Args:
            source: a file, a directory that contains `config.json`, or the object itself.
            kv_dtype: dtype of the KV; None takes the KV algorithm of the config's quantisation,
                else its `dtype`. A draft reads its own config: the target's is never inherited.
            role: `target` or `draft`.
            num_layers: an explicit number of layers instead of the config's. It counts layers,
                never draft tokens: a one-layer head drafting four tokens has one layer.

        Raises:
            UnsupportedModelError: the model type, or a feature of it, is not supported.
            GeometryError: the file or a field of it cannot be read.
        """
        from tandemkv.geometry.hf import read_geometry  # noqa: PLC0415 (it imports this module)

        return read_geometry(source, kv_dtype=kv_dtype, role=role, num_layers=num_layers)

    @classmethod
    def mtp_from_hf(
        cls,
        source: str | PathLike[str] | Mapping[str, Any],
        kv_dtype: str | None = None,
        num_layers: int | None = None,
    ) -> ModelGeometry:
        """Read the multi-token-prediction module of a target's config, as a draft.

        Args:
            source: the target's config; see `from_hf`.
            kv_dtype: dtype of the module's KV; see `from_hf`.
            num_layers: an explicit number of layers instead of `num_nextn_predict_layers`: 1 where
                one module is replayed for every draft token (MTP-Eagle).

        Raises:
            UnsupportedModelError: the family has no such module.
            GeometryError: `num_nextn_predict_layers` is missing or not >= 1, or as in `from_hf`.
        """
        from tandemkv.geometry.hf import read_geometry  # noqa: PLC0415 (it imports this module)

        return read_geometry(
            source, kv_dtype=kv_dtype, role="draft", num_layers=num_layers, mtp=True
        )
