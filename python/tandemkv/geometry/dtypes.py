"""Which dtype a model keeps its KV in: what the caller says, else what its own config says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from tandemkv.errors import GeometryError
from tandemkv.geometry.buffers import STATE_DTYPES, StateDtype
from tandemkv.geometry.checks import show
from tandemkv.geometry.layers import KV_DTYPES, KvDtype

# Names of torch, vLLM and TensorRT-LLM for the same storage. e4m3 and e5m2 take the same bytes.
_ALIASES: dict[str, KvDtype] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}

# What weights are computed in. fp8 or 4-bit weights do not say how the KV is kept.
_MODEL_DTYPES: dict[str, KvDtype] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}

# `kv_cache_quant_algo` of ModelOpt checkpoints, in config.json or hf_quant_config.json.
_KV_ALGORITHMS: dict[str, KvDtype] = {"FP8": "fp8", "NVFP4": "nvfp4"}


def parse_kv_dtype(value: str) -> KvDtype:
    """Return the KV dtype of a name such as `fp8`, `bfloat16` or `float8_e4m3fn`.

    Raises:
        GeometryError: an unknown name.
    """
    if isinstance(value, str):
        if value in KV_DTYPES:
            return cast(KvDtype, value)
        if value in _ALIASES:
            return _ALIASES[value]
    raise GeometryError(
        f"kv_dtype is {show(value)}; supported: {', '.join((*KV_DTYPES, *_ALIASES))}",
        field="kv_dtype",
        value=value,
    )


def parse_state_dtype(value: object, source: str, field: str) -> StateDtype:
    """Return the dtype of a recurrent state of a name such as `fp32` or `float32`.

    Args:
        value: the name.
        source: the file or function, for messages.
        field: the field or argument.

    Raises:
        GeometryError: an unknown name, or a dtype that no state is kept in.
    """
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    dtype = _ALIASES.get(name, name)
    if dtype in STATE_DTYPES:
        return cast(StateDtype, dtype)
    raise GeometryError(
        f"{source}: {field} is {show(value)}; supported: {', '.join(STATE_DTYPES)}",
        source=source,
        field=field,
        value=value,
    )


def config_kv_dtype(source: str, levels: Sequence[tuple[str, Mapping[str, Any]]]) -> KvDtype:
    """Return the KV dtype that a config declares: its KV algorithm, else its model dtype.

    Args:
        source: the file, for messages.
        levels: (prefix, object) from the innermost (`text_config.`) to the outermost.

    Raises:
        GeometryError: no dtype, an unknown one, or two that contradict each other.
    """
    declared = [entry for prefix, data in levels for entry in _kv_algorithms(source, prefix, data)]
    if declared:
        return _agreed(source, declared)
    dtype = config_model_dtype(source, levels)
    if dtype is not None:
        return dtype
    raise GeometryError(
        f"{source}: torch_dtype is missing, so the KV dtype is not known; pass kv_dtype",
        source=source,
        field="torch_dtype",
    )


def config_model_dtype(
    source: str, levels: Sequence[tuple[str, Mapping[str, Any]]]
) -> StateDtype | None:
    """Return the dtype that a config says its model computes in, or None where it says none.

    Args:
        source: the file, for messages.
        levels: (prefix, object) from the innermost (`text_config.`) to the outermost.

    Raises:
        GeometryError: an unknown dtype, or two that contradict each other.
    """
    # The language model's own dtype wins over the wrapper's: only it keeps KV.
    for prefix, data in levels:
        found = [
            (f"{prefix}{field}", _model_dtype(source, f"{prefix}{field}", data[field]))
            for field in ("dtype", "torch_dtype")
            if data.get(field) is not None
        ]
        if found:
            return cast(StateDtype, _agreed(source, found))
    return None


def _agreed(source: str, found: list[tuple[str, KvDtype]]) -> KvDtype:
    first_field, first = found[0]
    for field, dtype in found[1:]:
        if dtype != first:
            raise GeometryError(
                f"{source}: {first_field} says {first} and {field} says {dtype}; pass kv_dtype",
                source=source,
                field=field,
                value=dtype,
            )
    return first


def _model_dtype(source: str, field: str, value: object) -> KvDtype:
    name = value.removeprefix("torch.") if isinstance(value, str) else None
    if name in _MODEL_DTYPES:
        return _MODEL_DTYPES[name]
    raise GeometryError(
        f"{source}: {field} is {show(value)}; "
        f"supported: {', '.join(_MODEL_DTYPES)}; or pass kv_dtype",
        source=source,
        field=field,
        value=value,
    )


def _kv_algorithms(
    source: str, prefix: str, data: Mapping[str, Any]
) -> Iterator[tuple[str, KvDtype]]:
    """Yield what the quantisation objects of one level say about the KV cache."""
    # config.json has `quantization_config`, ModelOpt's hf_quant_config.json has `quantization`.
    for name in ("quantization_config", "quantization"):
        quantization = data.get(name)
        if quantization is None:
            continue
        if not isinstance(quantization, Mapping):
            raise GeometryError(
                f"{source}: {prefix}{name} is {show(quantization)}; an object is needed",
                source=source,
                field=f"{prefix}{name}",
                value=quantization,
            )
        for key in sorted(key for key in quantization if key.startswith("kv_cache")):
            value, field = quantization[key], f"{prefix}{name}.{key}"
            # Empty means "not quantised" in every known writer.
            if not value:
                continue
            if key == "kv_cache_quant_algo":
                dtype = _KV_ALGORITHMS.get(value) if isinstance(value, str) else None
            elif key == "kv_cache_scheme":
                dtype = _scheme_dtype(value)
            else:
                dtype = None
            if dtype is None:
                raise GeometryError(
                    f"{source}: {field} is {show(value)}, which is not a known KV algorithm "
                    f"({', '.join(_KV_ALGORITHMS)}); pass kv_dtype",
                    source=source,
                    field=field,
                    value=value,
                )
            yield field, dtype


def _scheme_dtype(scheme: object) -> KvDtype | None:
    """Return the dtype of a compressed-tensors scheme: 8-bit float, or 4-bit float by 16."""
    if not isinstance(scheme, Mapping) or scheme.get("type") != "float":
        return None
    if scheme.get("num_bits") == 8:
        return "fp8"
    if scheme.get("num_bits") == 4 and scheme.get("group_size") in (None, 16):
        return "nvfp4"
    return None
