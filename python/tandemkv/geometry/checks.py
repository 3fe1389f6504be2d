"""Checks of the values that describe a layer, with one style of message."""

from __future__ import annotations

from reprlib import Repr

from tandemkv.errors import GeometryError

# Keeps every product of sizes inside 64 bits in the core, and refuses nonsense early.
MAX_SIZE = 2**31 - 1

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


def check_count(owner: str, field: str, value: object) -> int:
    """Return `value` if it is a number that may be zero, else raise as `check_size` does.

    Raises:
        GeometryError: not an integer from 0 to `MAX_SIZE`.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE:
        return value
    raise GeometryError(
        f"{owner}: {field} is {show(value)}; an integer from 0 to {MAX_SIZE} is needed",
        source=owner,
        field=field,
        value=value,
    )


def check_name(owner: str, field: str, value: object) -> str:
    """Return `value` if it is a name, else raise an error naming owner and field.

    Raises:
        GeometryError: not a string, or empty.
    """
    if isinstance(value, str) and value:
        return value
    raise GeometryError(
        f"{owner}: {field} is {show(value)}; a non-empty string is needed",
        field=field,
        value=value,
    )
