"""From a Hugging Face `config.json` to the layers of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from tandemkv.errors import GeometryError, UnsupportedModelError
from tandemkv.geometry.checks import check_choice, check_size, show
from tandemkv.geometry.config import BY_HAND, MAX_LAYERS, ConfigView
from tandemkv.geometry.dtypes import config_kv_dtype, parse_kv_dtype, parse_state_dtype
from tandemkv.geometry.families import WRAPPERS, Family, find_family, supported_model_types
from tandemkv.geometry.families.common import MTP_LAYERS, POSITIONS, refuse_other_kv
from tandemkv.geometry.layers import ROLES, Layer, ModelGeometry, Role


@dataclass(frozen=True, kw_only=True, slots=True)
class _Loaded:
    """A config and where it came from; `quantization` is hf_quant_config.json beside it."""

    data: Mapping[str, Any]
    source: str
    name: str
    quantization: Mapping[str, Any]


def read_geometry(
    source: str | PathLike[str] | Mapping[str, Any],
    *,
    kv_dtype: str | None = None,
    state_dtype: str | None = None,
    role: Role = "target",
    num_layers: int | None = None,
    mtp: bool = False,
) -> ModelGeometry:
    """Read a config; `ModelGeometry.from_hf` and `mtp_from_hf` describe the arguments and errors.

    Args:
        source: a file, a directory that contains `config.json`, or the object itself.
        kv_dtype: dtype of the KV, or None for what the config says.
        state_dtype: dtype of recurrent states, or None for what the config says.
        role: `target` or `draft`.
        num_layers: an explicit number of layers, or None for what the config says.
        mtp: whether the multi-token-prediction module is asked for, and nothing else will do.
    """
    check_choice("from_hf", "role", role, ROLES)
    if num_layers is not None and check_size("from_hf", "num_layers", num_layers) > MAX_LAYERS:
        raise GeometryError(
            f"from_hf: num_layers is {num_layers}; at most {MAX_LAYERS} layers are supported",
            field="num_layers",
            value=num_layers,
        )
    explicit_dtype = None if kv_dtype is None else parse_kv_dtype(kv_dtype)
    explicit_state = None
    if state_dtype is not None:
        explicit_state = parse_state_dtype(state_dtype, "from_hf", "state_dtype")
    loaded = _load(source)
    prefix, data = _language_model(loaded)
    model_type = _model_type(loaded.source, prefix, data)
    family = find_family(loaded.source, f"{prefix}model_type", model_type)
    levels = [(prefix, data)]
    if prefix:
        levels.append(("", loaded.data))
    quantised = [*levels, ("hf_quant_config.json: ", loaded.quantization)]
    config = ConfigView(
        data=data,
        source=loaded.source,
        prefix=prefix,
        model_type=model_type,
        kv_dtype=explicit_dtype or config_kv_dtype(loaded.source, quantised),
        levels=tuple(levels),
        state_dtype=explicit_state,
        num_layers=num_layers,
    )
    refuse_other_kv(config, family.reads)
    architectures = _architectures(loaded)
    try:
        layers = _layers(config, family, role, mtp=mtp, architectures=architectures)
    except GeometryError as error:
        if error.source == loaded.source:
            raise
        # Fields that are fine one by one may make a layer that is not: say whose they are.
        raise GeometryError(
            f"{loaded.source}: {error}", source=loaded.source, field=error.field, value=error.value
        ) from None
    return ModelGeometry(
        layers=layers,
        name=loaded.name,
        model_type=model_type,
        role=role,
        max_position_embeddings=_positions(config),
    )


def _layers(
    config: ConfigView, family: Family, role: Role, *, mtp: bool, architectures: tuple[str, ...]
) -> tuple[Layer, ...]:
    if mtp:
        if family.mtp_layers is None:
            raise UnsupportedModelError(
                f"{config.source}: model_type {config.model_type!r} ({family.name}) has no "
                "multi-token-prediction module; pass the config of the draft to from_hf",
                source=config.source,
                field="model_type",
                value=config.model_type,
                model_type=config.model_type,
                supported=supported_model_types(),
            )
        # A count of 0 says that there is no module, whatever num_layers asks for.
        if config.num_layers is None or any(field in config.data for field in MTP_LAYERS):
            config.size(*MTP_LAYERS)
        return family.mtp_layers(config)
    # An EAGLE head is often written from its target's config and may carry this field too.
    is_eagle = any("eagle" in name.lower() for name in architectures)
    has_module = any(config.data.get(field) for field in MTP_LAYERS)
    if role == "draft" and family.mtp_layers is not None and has_module and not is_eagle:
        return family.mtp_layers(config)
    return family.layers(config)


def _load(source: str | PathLike[str] | Mapping[str, Any]) -> _Loaded:
    if isinstance(source, Mapping):
        name = source.get("_name_or_path")
        name = name if isinstance(name, str) and name else "config"
        return _Loaded(data=source, source="config", name=name, quantization={})
    if not isinstance(source, str | PathLike):
        raise GeometryError(
            f"from_hf: source is {show(source)}; a path or a config object is needed",
            field="source",
            value=source,
        )
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    data = _read_json(path)
    beside = path.with_name("hf_quant_config.json")
    quantization = _read_json(beside) if path.name == "config.json" and beside.is_file() else {}
    # Every checkpoint calls its file config.json; the folder is what tells them apart.
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _Loaded(data=data, source=str(path), name=name or "config", quantization=quantization)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise GeometryError(f"{path}: cannot be read: {reason}", source=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise GeometryError(f"{path}: is not JSON: {error}", source=str(path)) from error
    if not isinstance(data, dict):
        raise GeometryError(
            f"{path}: holds a JSON {type(data).__name__}; a config is an object", source=str(path)
        )
    return data


def _language_model(loaded: _Loaded) -> tuple[str, Mapping[str, Any]]:
    """Return the object that describes the language model, and its prefix in the file."""
    path = WRAPPERS.get(_model_type(loaded.source, "", loaded.data), ())
    data, prefix = loaded.data, ""
    # A wrapper that is also a family may have the fields of its language model on the outside.
    if not path or path[0] not in data:
        return prefix, data
    for field in path:
        nested = data.get(field)
        if not isinstance(nested, Mapping):
            raise GeometryError(
                f"{loaded.source}: {prefix}{field} is {show(nested)}; an object is needed",
                source=loaded.source,
                field=f"{prefix}{field}",
                value=nested,
            )
        data, prefix = nested, f"{prefix}{field}."
    return prefix, data


def _model_type(source: str, prefix: str, data: Mapping[str, Any]) -> str:
    model_type = data.get("model_type")
    if isinstance(model_type, str) and model_type:
        return model_type
    found = f"is {show(model_type)}" if "model_type" in data else "is missing"
    raise UnsupportedModelError(
        f"{source}: {prefix}model_type {found}, so this is no config that can be read; "
        f"supported: {', '.join(supported_model_types())}; for any other model, {BY_HAND}",
        source=source,
        field=f"{prefix}model_type",
        value=model_type,
        supported=supported_model_types(),
    )


def _architectures(loaded: _Loaded) -> tuple[str, ...]:
    names = loaded.data.get("architectures") or ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise GeometryError(
            f"{loaded.source}: architectures is {show(names)}; a list of names is needed",
            source=loaded.source,
            field="architectures",
            value=names,
        )
    return tuple(names)


def _positions(config: ConfigView) -> int | None:
    """Return the first spelling of the longest sequence; several may differ, unlike geometry."""
    for field in POSITIONS:
        if config.data.get(field) is not None:
            return config.size(field)
    return None
