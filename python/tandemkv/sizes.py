"""Byte sizes: reading `40GiB`, `64GB` or a number of bytes, and printing them."""

from __future__ import annotations

import re
from fractions import Fraction

from tandemkv.errors import ConfigError

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("kB", "MB", "GB", "TB", "PB")

UNIT_BYTES: dict[str, int] = {
    "B": 1,
    **{unit: 1024 ** (power + 1) for power, unit in enumerate(_BINARY)},
    **{unit: 1000 ** (power + 1) for power, unit in enumerate(_DECIMAL)},
}
"""Bytes of each unit: `KiB` is 1,024 bytes, `kB` is 1,000."""

MAX_BYTES = 2**63 - 1
"""Largest size that is accepted; the core computes in 64 bits."""

_UNITS_BY_LOWER = {unit.lower(): factor for unit, factor in UNIT_BYTES.items()}
# Python converts no strings of thousands of digits; 40 are more than any size has.
_SIZE = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(value: int | str, field: str = "size") -> int:
    """Return a size in bytes.

    Args:
        value: bytes as an int, or a string: digits alone (bytes), or a number and a unit out of
            B, kB, MB, GB, TB, PB (powers of 1,000) and KiB, MiB, GiB, TiB, PiB (powers of 1,024),
            upper or lower case. A fraction such as `5.29GiB` is rounded down to whole bytes.
        field: what the size is for; the error names it.

    Raises:
        ConfigError: not a size, negative, or above `MAX_BYTES`. A bare `G` is refused, because
            it means 10^9 to some and 2^30 to others.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _refuse(field, value)
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        factor = match and _UNITS_BY_LOWER.get(match[2].lower() or "b")
        if not match or not factor or ("." in match[1] and not match[2]):
            raise _refuse(field, value)
        size = int(Fraction(match[1]) * factor)
    else:
        size = value
    if not 0 <= size <= MAX_BYTES:
        raise _refuse(field, value)
    return size


def format_size(size_bytes: int) -> str:
    """Return a size as people read it, such as `9.70 GiB`; exact below 1 KiB.

    Args:
        size_bytes: a number of bytes, >= 0.
    """
    for unit in reversed(_BINARY):
        if size_bytes >= UNIT_BYTES[unit]:
            return f"{size_bytes / UNIT_BYTES[unit]:.2f} {unit}"
    return f"{size_bytes} B"


def _refuse(field: str, value: object) -> ConfigError:
    return ConfigError(
        f"{field} is {value!r}; a size is a number of bytes from 0 to 2^63 - 1, or a string with "
        f"a unit out of {', '.join(UNIT_BYTES)}, such as '40GiB'",
        field=field,
        value=value,
    )
