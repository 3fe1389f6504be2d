"""The arguments of `plan`, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.errors import ConfigError
from tandemkv.geometry.layers import ModelGeometry
from tandemkv.sizes import parse_size


def check_type(field: str, value: object, kind: type) -> None:
    """Raise a `ConfigError` that names the argument unless it is of this public type."""
    if not isinstance(value, kind):
        raise ConfigError(
            f"{field} is {value!r}; a tandemkv.{kind.__name__} is needed", field=field, value=value
        )


def check_roles(
    target: ModelGeometry,
    draft: ModelGeometry | None,
    mapping: Mapping,
    speculative: SpeculativeConfig | None,
) -> None:
    """Refuse roles that contradict each other, the mode or the layout.

    Raises:
        ConfigError: names the argument.
    """
    for field, geometry in (("target", target), ("draft", draft)):
        if geometry is not None and geometry.role != field:
            raise ConfigError(
                f"{field} is {geometry.name!r}, whose role is {geometry.role!r}; read it with "
                f"role={field!r}",
                field=field,
                value=geometry.role,
            )
    if draft is None:
        if speculative is not None and speculative.traits.has_draft:
            raise ConfigError(
                f"speculative mode {speculative.mode!r} keeps draft KV, but draft is None",
                field="draft",
            )
        if mapping.draft_tp_size is not None:
            raise ConfigError(
                f"draft_tp_size is {mapping.draft_tp_size}, but there is no draft",
                field="draft_tp_size",
                value=mapping.draft_tp_size,
            )
    elif speculative is None:
        raise ConfigError(
            f"draft is {draft.name!r}, but speculative is None: the mode decides which ranks hold "
            "the draft and how many tokens a step writes",
            field="speculative",
        )
    elif not speculative.traits.has_draft:
        raise ConfigError(
            f"draft is {draft.name!r}, but speculative mode {speculative.mode!r} keeps no draft KV",
            field="draft",
            value=draft.name,
        )
    elif speculative.traits.module_per_token and draft.num_layers < speculative.max_draft_len:
        # Priced with the layers that are there, the KV of the missing modules would be free.
        raise ConfigError(
            f"max_draft_len is {speculative.max_draft_len}, and speculative mode "
            f"{speculative.mode!r} runs as many MTP modules, each with KV of its own, but "
            f"{draft.name!r} has {draft.num_layers}; mtp_one_model replays one module",
            field="max_draft_len",
            value=speculative.max_draft_len,
        )


def declared_max_seq_len(
    target: ModelGeometry, config: KvCacheConfig, speculative: SpeculativeConfig | None
) -> int | None:
    """Return the longest sequence that is asked for; None: the longest that fits.

    Raises:
        ConfigError: neither the config nor the model says, or no draft would fit in it.
    """
    if config.max_seq_len == "auto":
        return None
    max_seq_len = config.max_seq_len or target.max_position_embeddings
    if max_seq_len is None:
        raise ConfigError(
            f"max_seq_len is None, and {target.name!r} declares no max_position_embeddings",
            field="max_seq_len",
        )
    if speculative is not None and speculative.max_draft_len >= max_seq_len:
        raise ConfigError(
            f"max_draft_len is {speculative.max_draft_len}, but max_seq_len is {max_seq_len}: no "
            "sequence could hold a draft",
            field="max_draft_len",
            value=speculative.max_draft_len,
        )
    return max_seq_len


def rank_budgets(
    field: str, sizes: Sequence[int | str] | None, cap_bytes: int, mapping: Mapping
) -> list[int]:
    """Return the budget of every rank: what it has, at most the configured size.

    Args:
        field: the argument's name.
        sizes: bytes of each rank, in rank order; None: every rank has `cap_bytes`.
        cap_bytes: what the configuration allows a rank.
        mapping: the layout.

    Raises:
        ConfigError: not one size per rank, or an entry that is no size.
    """
    if sizes is None:
        return [cap_bytes] * mapping.world_size
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise ConfigError(
            f"{field} is {sizes!r}; a list with the bytes of every rank is needed",
            field=field,
            value=sizes,
        )
    if len(sizes) != mapping.world_size:
        raise ConfigError(
            f"{field} has {len(sizes)} entries, but there are {mapping.world_size} ranks",
            field=field,
            value=tuple(sizes),
        )
    given = (parse_size(size, f"{field}[{rank}]") for rank, size in enumerate(sizes))
    return [min(size, cap_bytes) for size in given]


def max_pages(config: KvCacheConfig, mapping: Mapping) -> int | None:
    """Return the device pages that `max_tokens` allows, the reserved one included; None: any.

    Raises:
        ConfigError: `max_tokens` is less than a block.
    """
    if config.max_tokens is None:
        return None
    block_tokens = config.tokens_per_block * mapping.cp_size
    if config.max_tokens < block_tokens:
        raise ConfigError(
            f"max_tokens is {config.max_tokens}, less than a block of {block_tokens} tokens",
            field="max_tokens",
            value=config.max_tokens,
        )
    return config.max_tokens // block_tokens + 1
