"""How to install what an extra brings, for messages."""

from __future__ import annotations


def install_hint(*extras: str) -> str:
    """Return a command that installs extras; no package index holds tandemkv itself.

    Args:
        extras: names in `[project.optional-dependencies]` of `pyproject.toml`.
    """
    return f"pip install '.[{','.join(extras)}]' in a checkout of tandemkv"
