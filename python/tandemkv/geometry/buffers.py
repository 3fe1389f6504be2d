"""What a layer keeps beside or instead of keys and values: side buffers and recurrent states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from tandemkv.geometry.checks import check_choice, check_count, check_name, check_size, show

StateDtype = Literal["bf16", "fp16", "fp32", "fp8"]
STATE_DTYPES: tuple[str, ...] = get_args(StateDtype)


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
        check_name("SideBuffer", "name", self.name)
        check_size(f"SideBuffer {show(self.name)}", "bytes_per_token", self.bytes_per_token)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {"name": self.name, "bytes_per_token": self.bytes_per_token}


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBuffer:
    """One tensor of a recurrent state: a matrix per head, or the last inputs of a convolution.

    A sequence keeps it once, whatever its length.

    Args:
        name: what it is, such as `ssm` or `conv_x`; not empty.
        split_units: heads, groups or channels of the whole model, which tensor parallelism
            divides as it does KV heads, >= 1.
        unit_elements: elements of one of them, >= 1.
        replicated_elements: elements that every rank keeps besides, >= 0.
        dtype: `bf16`, `fp16`, `fp32` or `fp8`.

    Raises:
        GeometryError: an empty name, a size out of range, or an unknown dtype.
    """

    name: str
    split_units: int
    unit_elements: int
    dtype: StateDtype
    replicated_elements: int = 0

    def __post_init__(self) -> None:
        check_name("StateBuffer", "name", self.name)
        owner = f"StateBuffer {show(self.name)}"
        check_size(owner, "split_units", self.split_units)
        check_size(owner, "unit_elements", self.unit_elements)
        check_count(owner, "replicated_elements", self.replicated_elements)
        check_choice(owner, "dtype", self.dtype, STATE_DTYPES)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "name": self.name,
            "split_units": self.split_units,
            "unit_elements": self.unit_elements,
            "replicated_elements": self.replicated_elements,
            "dtype": self.dtype,
        }
