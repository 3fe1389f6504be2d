"""Typed reads of a model config, whose errors name the file, the field and the value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tandemkv.errors import GeometryError, UnsupportedModelError
from tandemkv.geometry.buffers import StateDtype
from tandemkv.geometry.checks import check_size, show
from tandemkv.geometry.dtypes import config_model_dtype, parse_state_dtype
from tandemkv.geometry.layers import KvDtype

BY_HAND = (
    "describe the layers by hand: ModelGeometry(layers=[Layer(kind='attention', kv_dtype='bf16', "
    "num_kv_heads=8, head_dim=128)] * 32)"
)


# Far above any model, and low enough that a wrong number cannot fill the memory with layers.
MAX_LAYERS = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigView:
    """The object of a config that describes the language model.

    Args:
        data: its fields.
        source: the file, or `config` for a dict.
        prefix: where it sits in the file: empty, or `text_config.`.
        model_type: its `model_type`.
        kv_dtype: the resolved dtype of the KV.
        levels: (prefix, object) from this one to the outermost, where its dtype may be.
        state_dtype: the caller's dtype for recurrent states, or None.
        num_layers: an explicit layer count that replaces the config's, or None.
    """

    data: Mapping[str, Any]
    source: str
    prefix: str
    model_type: str
    kv_dtype: KvDtype
    levels: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    state_dtype: StateDtype | None = None
    num_layers: int | None = None

    def nested(self, field: str, data: Mapping[str, Any]) -> ConfigView:
        """Return a view of an object inside this one."""
        return replace(self, data=data, prefix=f"{self.prefix}{field}.")

    def error(self, field: str, problem: str) -> GeometryError:
        """Return the error for a field: `file: field is value; problem`."""
        return GeometryError(
            f"{self._found(field)}; {problem}",
            source=self.source,
            field=self.prefix + field,
            value=self.data.get(field),
        )

    def unsupported(self, field: str, what: str) -> UnsupportedModelError:
        """Return the error for a field that asks for KV which cannot be priced."""
        return UnsupportedModelError(
            f"{self._found(field)}; not supported for model_type {self.model_type!r}: {what}; "
            f"for layers as you know them, {BY_HAND}",
            source=self.source,
            field=self.prefix + field,
            value=self.data.get(field),
            model_type=self.model_type,
        )

    def _found(self, field: str) -> str:
        found = f"is {show(self.data[field])}" if field in self.data else "is missing"
        return f"{self.source}: {self.prefix}{field} {found}"

    def optional_size(self, *fields: str) -> int | None:
        """Return the first of several spellings of one size, or None where all are absent.

        Raises:
            GeometryError: not an integer >= 1, or two spellings that disagree.
        """
        found: tuple[str, int] | None = None
        for field in fields:
            value = self.data.get(field)
            if value is None:
                continue
            size = check_size(self.source, self.prefix + field, value)
            if found is not None and found[1] != size:
                raise self.error(field, f"{self.prefix}{found[0]} is {found[1]}")
            found = found or (field, size)
        return None if found is None else found[1]

    def size(self, *fields: str) -> int:
        """Return a size that must be there; see `optional_size`."""
        size = self.optional_size(*fields)
        if size is None:
            problem = "an integer >= 1 is needed"
            if len(fields) > 1:
                problem += f" (also read from {', '.join(fields[1:])})"
            raise self.error(fields[0], problem)
        return size

    def flag(self, field: str, *, default: bool) -> bool:
        """Return a boolean; `default` is the class default of transformers.

        Raises:
            GeometryError: neither a boolean nor absent.
        """
        value = self.data.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(field, "true or false is needed")
        return value

    def switch(self, *fields: str, default: int) -> int:
        """Return a number >= 0 that chooses a pattern; `default` is the class default.

        Raises:
            GeometryError: not an integer >= 0.
        """
        for field in fields:
            value = self.data.get(field)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self.error(field, "an integer >= 0 is needed")
            return value
        return default

    def items(self, field: str, kind: type) -> list[Any] | None:
        """Return a list of strings or numbers, or None where it is absent.

        Raises:
            GeometryError: not a list, or an entry of another type.
        """
        values = self.data.get(field)
        if values is None:
            return None
        # bool is an int in Python, but a list of layer numbers has none.
        if not isinstance(values, list | tuple) or not all(type(one) is kind for one in values):
            name = {str: "strings", int: "integers", dict: "objects"}[kind]
            raise self.error(field, f"a list of {name} is needed")
        return list(values)

    def object(self, field: str) -> ConfigView:
        """Return a view of an object inside this one.

        Raises:
            GeometryError: missing, or not an object.
        """
        value = self.data.get(field)
        if not isinstance(value, Mapping):
            raise self.error(field, "an object is needed")
        return self.nested(field, value)

    def convolution_dtype(self) -> StateDtype:
        """Return the dtype of the inputs that a convolution keeps: the model's own.

        Raises:
            GeometryError: the config names none, and the caller gave no `state_dtype`.
        """
        dtype = config_model_dtype(self.source, self.levels) or self.state_dtype
        if dtype is None:
            raise GeometryError(
                f"{self.source}: torch_dtype is missing, so the dtype of the state is not known; "
                "pass state_dtype",
                source=self.source,
                field="torch_dtype",
            )
        return dtype

    def recurrent_dtype(self) -> StateDtype:
        """Return the dtype of recurrent states.

        It is the caller's, else `mamba_ssm_cache_dtype`, else the model's own, as the engines keep
        them; `mamba_ssm_dtype`, in which a model was trained to compute them, says nothing of that.

        Raises:
            GeometryError: an unknown dtype, or none at all.
        """
        if self.state_dtype is not None:
            return self.state_dtype
        declared = self.data.get("mamba_ssm_cache_dtype")
        if declared is not None and declared != "auto":
            return parse_state_dtype(declared, self.source, f"{self.prefix}mamba_ssm_cache_dtype")
        return self.convolution_dtype()

    def layer_count(self, *fields: str) -> int:
        """Return the explicit layer count, else the config's; there is no default.

        Raises:
            GeometryError: missing, or more layers than any model has.
        """
        if self.num_layers is not None:
            return self.num_layers
        count = self.size(*fields)
        if count > MAX_LAYERS:
            raise self.error(fields[0], f"at most {MAX_LAYERS} layers are supported")
        return count

    def kv_heads(self, num_heads: int, *fields: str) -> int:
        """Return the KV heads, which are the query heads where the config names none.

        Raises:
            GeometryError: the query heads are not a multiple of the KV heads.
        """
        num_kv_heads = self.optional_size(*fields)
        if num_kv_heads is None:
            return num_heads
        if num_heads % num_kv_heads:
            field = next(name for name in fields if self.data.get(name) is not None)
            raise self.error(field, f"{num_heads} attention heads are not a multiple of it")
        return num_kv_heads

    def split_evenly(self, hidden_size: int, num_heads: int, field: str) -> int:
        """Return `hidden_size // num_heads`, the size of a head where no field gives it.

        Raises:
            GeometryError: it does not divide, so the head size is not known.
        """
        if hidden_size % num_heads:
            raise self.error(
                field,
                f"and a hidden size of {hidden_size} does not divide by {num_heads} attention "
                "heads, so the head size is not known",
            )
        return hidden_size // num_heads
