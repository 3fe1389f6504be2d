"""The layers of a model and what each keeps: an explicit list, never a count and a ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Literal, get_args

from tandemkv import _core
from tandemkv.errors import GeometryError
from tandemkv.geometry.buffers import SideBuffer, StateBuffer
from tandemkv.geometry.checks import (
    MAX_SIZE,
    check_choice,
    check_count,
    check_name,
    check_size,
    show,
)

LayerKind = Literal["attention", "mla", "cross_attention", "state", "none"]
KvDtype = Literal["bf16", "fp16", "fp32", "fp8", "nvfp4"]
Role = Literal["target", "draft"]

LAYER_KINDS: tuple[str, ...] = get_args(LayerKind)
KV_DTYPES: tuple[str, ...] = get_args(KvDtype)
ROLES: tuple[str, ...] = get_args(Role)

# Which fields describe which kind; a field of another kind must keep its default.
_HEADS = ("kv_dtype", "num_kv_heads", "head_dim")
_LIFETIME = ("window", "sink_tokens", "chunk")
_REQUIRED: dict[str, tuple[str, ...]] = {
    "attention": _HEADS,
    "mla": ("kv_dtype", "kv_lora_rank", "qk_rope_head_dim"),
    "cross_attention": _HEADS,
    "state": ("state_buffers",),
    "none": (),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "attention": ("v_head_dim", "shared_kv", *_LIFETIME, "side_buffers", "beside"),
    "mla": (*_LIFETIME, "side_buffers", "beside"),
    "cross_attention": ("v_head_dim", "max_cross_tokens", "beside"),
    "state": ("beside",),
    "none": ("reads_layer",),
}
_SIZES = (
    "num_kv_heads",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "chunk",
    "max_cross_tokens",
)
_DEFAULTS: dict[str, object] = {
    "shared_kv": False,
    "sink_tokens": 0,
    "side_buffers": (),
    "state_buffers": (),
    "beside": (),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One layer of a model: what it keeps, and for how long.

    Args:
        kind: `attention` (MHA, GQA, MQA: keys and values per head), `mla` (one latent per token,
            shared by all heads), `cross_attention` (keys and values of an encoder's tokens,
            written once per sequence), `state` (a recurrent state per sequence: Mamba, gated delta
            nets, linear attention, short convolutions) or `none` (keeps nothing).
        kv_dtype: dtype of the stored KV: `bf16`, `fp16`, `fp32`, `fp8` or `nvfp4` (attention, mla,
            cross_attention).
        num_kv_heads: KV heads of the whole model, before tensor parallelism (attention,
            cross_attention).
        head_dim: elements of one key (attention, cross_attention).
        v_head_dim: elements of one value where it differs from a key; None: `head_dim`.
        shared_kv: the keys are the values, so one buffer holds both (attention).
        kv_lora_rank: elements of the compressed part of the latent (mla).
        qk_rope_head_dim: elements of the rotary part of the latent (mla).
        window: tokens that are kept, the one in flight included; None, 0 or less means all of
            them (attention, mla).
        sink_tokens: first tokens that are kept besides the window (attention, mla).
        chunk: a token attends only inside its chunk of that many tokens, so a chunk is dropped
            when the next one starts; None: no chunks (attention, mla).
        max_cross_tokens: most encoder tokens of a sequence; None where only the configuration
            limits them (cross_attention).
        state_buffers: tensors of the state, each in its own dtype (state).
        reads_layer: number in the model of the layer whose KV it reads; None: no attention (none).
        side_buffers: raw bytes kept per token beside the KV (attention, mla).
        beside: what the same layer of the model keeps besides this: the state of a layer with
            attention and a state space model in parallel, the cross attention of a decoder layer.

    Raises:
        GeometryError: an unknown kind or dtype, a size that is not an integer >= 1, a missing
            field, a field of another kind, or fields that contradict each other.
    """

    kind: LayerKind
    kv_dtype: KvDtype | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    shared_kv: bool = False
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    window: int | None = None
    sink_tokens: int = 0
    chunk: int | None = None
    max_cross_tokens: int | None = None
    state_buffers: tuple[StateBuffer, ...] = ()
    reads_layer: int | None = None
    side_buffers: tuple[SideBuffer, ...] = ()
    beside: tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        check_choice("Layer", "kind", self.kind, LAYER_KINDS)
        # Lists are accepted for convenience; the fields themselves stay immutable and hashable.
        for field, item in (
            ("side_buffers", SideBuffer),
            ("state_buffers", StateBuffer),
            ("beside", Layer),
        ):
            object.__setattr__(self, field, _tuple_of(self._owner, field, self, item))
        self._check_fields_of_the_kind()
        if "kv_dtype" in _REQUIRED[self.kind]:
            check_choice(self._owner, "kv_dtype", self.kv_dtype, KV_DTYPES)
        for field in _SIZES:
            if field in _REQUIRED[self.kind] or getattr(self, field) is not None:
                check_size(self._owner, field, getattr(self, field))
        if self.reads_layer is not None:
            check_count(self._owner, "reads_layer", self.reads_layer)
        if not isinstance(self.shared_kv, bool):
            raise self._error("shared_kv", "True or False is needed")
        self._check_lifetime()
        if self.kind == "state" and not self.state_buffers:
            raise self._error("state_buffers", "at least one StateBuffer is needed")
        if self.shared_kv and self.v_head_dim is not None:
            raise self._error("v_head_dim", "the keys are the values, so it must be None")
        for other in self.beside:
            if other.kind == "none" or other.beside:
                raise self._error("beside", "each must keep something, and have nothing beside it")

    @property
    def _owner(self) -> str:
        return f"Layer of kind {self.kind!r}"

    def _error(self, field: str, problem: str) -> GeometryError:
        value = getattr(self, field)
        return GeometryError(
            f"{self._owner}: {field} is {show(value)}; {problem}", field=field, value=value
        )

    def _check_fields_of_the_kind(self) -> None:
        own = _REQUIRED[self.kind] + _OPTIONAL[self.kind]
        for kind in LAYER_KINDS:
            for field in _REQUIRED[kind] + _OPTIONAL[kind]:
                default = _DEFAULTS.get(field)
                if field not in own and getattr(self, field) != default:
                    raise self._error(
                        field, f"it belongs to kind {kind!r} and must be {default!r} here"
                    )

    def _check_lifetime(self) -> None:
        window = self.window
        if window is not None:
            # Configs write 0 and negative windows for none (TensorRT-LLM: -2147483647).
            if isinstance(window, bool) or not isinstance(window, int) or window > MAX_SIZE:
                raise self._error("window", f"None or an integer up to {MAX_SIZE} is needed")
            object.__setattr__(self, "window", window if window > 0 else None)
        check_count(self._owner, "sink_tokens", self.sink_tokens)
        if self.sink_tokens and self.window is None:
            raise self._error("sink_tokens", "without a window every token is kept")
        if self.chunk is not None and self.window is not None:
            raise self._error("chunk", f"and window is {self.window}; only one can be given")

    @property
    def parts(self) -> tuple[Layer, ...]:
        """The layer without `beside`, then each of those: every part has one lifetime."""
        return (replace(self, beside=()), *self.beside) if self.beside else (self,)

    @property
    def keeps_all_tokens(self) -> bool:
        """Whether it keeps every token of a sequence; `beside` does not count."""
        return self.kind in ("attention", "mla") and self.window is None and self.chunk is None

    def bytes_per_token(self, tp_size: int = 1) -> int:
        """Return the bytes on one rank of one token that this layer keeps; `beside` not counted.

        The Rust core prices it; there is no second formula in Python. It is the size of a token
        while it is kept, in a window too; of an encoder token for cross attention; 0 for a state
        and for a layer that keeps nothing.

        Args:
            tp_size: width of the attention group, >= 1 (1 under attention data parallelism).

        Raises:
            GeometryError: `tp_size` does not fit `num_kv_heads`: below the number of heads the
                widest rank holds `ceil(num_kv_heads / tp_size)`, above it `tp_size` must be a
                multiple of `num_kv_heads`; or the elements of one rank do not fill whole nvfp4
                scale groups of 16.
        """
        check_size("Layer.bytes_per_token", "tp_size", tp_size)
        if self.kv_dtype is None:
            return 0
        return _core.layer_bytes_per_token(
            kind=self.kind,
            kv_dtype=self.kv_dtype,
            tp_size=tp_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            shared_kv=self.shared_kv,
            kv_lora_rank=self.kv_lora_rank,
            qk_rope_head_dim=self.qk_rope_head_dim,
            side_bytes=sum(buffer.bytes_per_token for buffer in self.side_buffers),
        )

    def state_bytes(self, tp_size: int = 1) -> int:
        """Return the bytes on one rank of the state of one sequence; `beside` not counted.

        The Rust core prices it. 0 for a layer without state.

        Args:
            tp_size: width of the group that shares the state, >= 1 (1 under attention data
                parallelism).

        Raises:
            GeometryError: a buffer's `split_units` do not fit `tp_size`, as for KV heads.
        """
        check_size("Layer.state_bytes", "tp_size", tp_size)
        return _core.layer_state_bytes(
            buffers=[
                (
                    buffer.name,
                    buffer.split_units,
                    buffer.unit_elements,
                    buffer.replicated_elements,
                    buffer.dtype,
                )
                for buffer in self.state_buffers
            ],
            tp_size=tp_size,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that describe this kind as plain values."""
        values: dict[str, Any] = {"kind": self.kind}
        for field in _REQUIRED[self.kind] + _OPTIONAL[self.kind]:
            value = getattr(self, field)
            plain = [item.to_dict() for item in value] if isinstance(value, tuple) else value
            values[field] = plain
        return values


def _tuple_of(owner: str, field: str, layer: Layer, item: type) -> tuple[Any, ...]:
    values = getattr(layer, field)
    if not isinstance(values, list | tuple) or not all(isinstance(one, item) for one in values):
        raise GeometryError(
            f"{owner}: {field} is {show(values)}; a list of {item.__name__} is needed",
            field=field,
            value=values,
        )
    return tuple(values)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelGeometry:
    """What a model keeps: its layers in order, and nothing that is guessed.

    `from_hf` reads a config of a known family; `ModelGeometry(layers=[...])` describes any other
    model by hand.

    Args:
        layers: every layer of the model, in order, those that keep nothing included: pipeline
            stages count them. At least one keeps something.
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
            check_name("ModelGeometry", field, getattr(self, field))
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
            self._check_read(owner, index, layer)
        if all(layer.kind == "none" for layer in self.layers):
            problem = "holds none that keeps anything" if self.layers else "is empty"
            raise GeometryError(
                f"{owner}: layers {problem}; a model that keeps nothing has no geometry",
                field="layers",
                value=self.layers,
            )
        if self.max_position_embeddings is not None:
            check_size(owner, "max_position_embeddings", self.max_position_embeddings)

    def _check_read(self, owner: str, index: int, layer: Layer) -> None:
        source = layer.reads_layer
        if source is not None and (source >= index or self.layers[source].kv_dtype is None):
            raise GeometryError(
                f"{owner}: layers[{index}] reads layer {source}; it must be one before it that "
                "keeps KV",
                field=f"layers[{index}]",
                value=source,
            )

    @property
    def num_layers(self) -> int:
        """Number of layers of the model, those that keep nothing included."""
        return len(self.layers)

    def bytes_per_token(self, tp_size: int = 1) -> int:
        """Return the bytes of one token on one rank over the layers that keep every token.

        Windows, chunks, states and cross attention do not grow with every token and are not
        counted.

        Args:
            tp_size: width of the attention group; see `Layer.bytes_per_token`.
        """
        return sum(
            price
            for part, price in self._prices(tp_size, Layer.bytes_per_token)
            if part.keeps_all_tokens
        )

    def state_bytes(self, tp_size: int = 1) -> int:
        """Return the bytes of the recurrent states of one sequence on one rank.

        Args:
            tp_size: width of the group that shares the states; see `Layer.state_bytes`.
        """
        return sum(price for _, price in self._prices(tp_size, Layer.state_bytes))

    def _prices(
        self, tp_size: int, price: Callable[[Layer, int], int]
    ) -> Iterator[tuple[Layer, int]]:
        # Most models repeat few layers: price each distinct part once.
        known: dict[Layer, int] = {}
        for layer in self.layers:
            for part in layer.parts:
                if part not in known:
                    known[part] = price(part, tp_size)
                yield part, known[part]

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
        state_dtype: str | None = None,
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
            state_dtype: dtype of recurrent states (`bf16`, `fp16`, `fp32`, `fp8`); None takes
                `mamba_ssm_cache_dtype`, else the model's dtype, as the engines do. What a
                convolution keeps has the model's dtype, the state of Kimi Delta Attention fp32.

        Raises:
            UnsupportedModelError: the model type, or a feature of it, is not supported.
            GeometryError: the file or a field of it cannot be read.
        """
        from tandemkv.geometry.hf import read_geometry  # noqa: PLC0415 (it imports this module)

        return read_geometry(
            source, kv_dtype=kv_dtype, state_dtype=state_dtype, role=role, num_layers=num_layers
        )

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
