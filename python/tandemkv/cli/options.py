"""Options that several verbs share; a bad value is an error that names the option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click

from tandemkv.config import SpeculativeConfig
from tandemkv.errors import ConfigError
from tandemkv.modes import ALIASES, MODES
from tandemkv.sizes import parse_size

SPEC_HELP = (
    "Speculative mode and draft length, such as eagle3:4. Modes: "
    f"{', '.join(MODES)}; {', '.join(f'{short} is {name}' for short, name in ALIASES.items())}."
)
"""Help of `--spec`."""

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[_Command], _Command]


def size(name: str, **options: Any) -> _Decorator[Any]:
    """Add an option that takes a byte size: digits, or a number and a unit such as `40GiB`."""
    return click.option(name, callback=_read_size, metavar="SIZE", **options)


def sizes(name: str, **options: Any) -> _Decorator[Any]:
    """Add an option that takes one byte size, or one per rank: `40GiB` or `40GiB,38GiB`."""
    return click.option(name, callback=_read_sizes, metavar="SIZE[,SIZE...]", **options)


def length(name: str, **options: Any) -> _Decorator[Any]:
    """Add an option that takes a number of tokens, or `auto`."""
    return click.option(name, callback=_read_length, metavar="N|auto", **options)


def partition(name: str, **options: Any) -> _Decorator[Any]:
    """Add an option that takes the layer counts of pipeline stages: `31,30`."""
    return click.option(name, callback=_read_partition, metavar="N,N,...", **options)


def speculation(name: str, **options: Any) -> _Decorator[Any]:
    """Add an option that takes a speculative mode and its draft length: `eagle3:4`."""
    return click.option(name, callback=_read_speculation, metavar="MODE:K", **options)


def whole_number(text: str) -> int | None:
    """Return the number that at most 19 ASCII digits spell, None for any other text.

    Python converts no strings of thousands of digits, and no option takes more than 63 bits.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None


def _read_size(_ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else parse_size(value, _name(param))


def _read_sizes(
    _ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    if value is None:
        return None
    return tuple(parse_size(part.strip(), _name(param)) for part in value.split(","))


def _read_length(
    _ctx: click.Context, param: click.Parameter, value: str | None
) -> int | Literal["auto"] | None:
    if value is None:
        return None
    if value == "auto":
        return "auto"
    length = whole_number(value)
    if length is None:
        raise ConfigError(
            f"{_name(param)} is {value!r}; a number of tokens or auto is needed",
            field=_name(param),
            value=value,
        )
    return length


def _read_partition(
    _ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    if value is None:
        return None
    numbers = [whole_number(part.strip()) for part in value.split(",")]
    counts = tuple(number for number in numbers if number is not None)
    if len(counts) < len(numbers):
        raise ConfigError(
            f"{_name(param)} is {value!r}; layer counts such as 31,30 are needed",
            field=_name(param),
            value=value,
        )
    return counts


def _read_speculation(
    _ctx: click.Context, param: click.Parameter, value: str | None
) -> SpeculativeConfig | None:
    if value is None:
        return None
    mode, _, text = value.partition(":")
    length = whole_number(text)
    if length is None:
        raise ConfigError(
            f"{_name(param)} is {value!r}; MODE:DRAFT_LEN is needed, such as eagle3:4",
            field=_name(param),
            value=value,
        )
    try:
        return SpeculativeConfig(mode=mode, max_draft_len=length)
    except ConfigError as error:
        raise ConfigError(
            f"{_name(param)} is {value!r}: {error}", field=_name(param), value=value
        ) from None


def _name(param: click.Parameter) -> str:
    """Return `--gpu-memory` for the parameter of that option."""
    return max(param.opts, key=len)
