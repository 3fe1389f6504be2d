"""Keys of blocks, computed with hashlib from the record in docs/identity.md alone."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from reference.shelves import Name, Token
from reference.state import require
from reference.tree import Block

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger

MEDIA_TOKEN = 0xFFFFFFFF
Scope = tuple[tuple[int | str, int] | None, bytes | str | None]
Media = Mapping[int, tuple[bytes, int]]  # (digest, length) of each reference


def _field(tag: bytes, value: bytes) -> bytes:
    return tag + struct.pack("<I", len(value)) + value


def root_key(fingerprint: bytes, tokens_per_block: int, scope: Scope) -> bytes:
    """Return what stands before the first block of a scope."""
    record = (
        b"\x01R" + _field(b"f", fingerprint) + _field(b"b", struct.pack("<I", tokens_per_block))
    )
    adapter, salt = scope
    if adapter is not None:
        name, version = adapter
        if isinstance(name, str):
            record += _field(b"n", name.encode())
        else:
            record += _field(b"i", struct.pack("<q", name))
        record += _field(b"v", struct.pack("<q", version))
    if isinstance(salt, str):
        record += _field(b"S", salt.encode())
    elif salt is not None:
        record += _field(b"s", salt)
    return hashlib.sha256(record).digest()


def block_key(parent: bytes, tokens: Sequence[int], media: Media) -> bytes:
    """Return the key of a block after the one with key `parent`."""
    record = b"\x01B" + _field(b"p", parent) + _text_fields(tokens, media)
    return hashlib.sha256(record).digest()


def _text_fields(tokens: Sequence[int], media: Media) -> bytes:
    shown = [MEDIA_TOKEN if token < 0 else token for token in tokens]
    record = _field(b"t", struct.pack(f"<{len(shown)}I", *shown))
    for position, token in enumerate(tokens):
        if token < 0:
            digest, length = media[token]
            record += _field(b"m", struct.pack("<II", position, length) + digest)
    return record


def chained_key(fingerprint: bytes, tokens_per_block: int, name: Name) -> bytes:
    """Return the key of a block that is known by name."""
    key = root_key(fingerprint, tokens_per_block, name.scope)
    for start in range(0, len(name.tokens), tokens_per_block):
        key = block_key(key, *_with_media(name.tokens[start : start + tokens_per_block]))
    return key


def named_key(fingerprint: bytes, tokens_per_block: int, name: Name, has_lookahead: bool) -> bytes:
    """Return the key by which a block is found below the device; see docs/tiers.md."""
    key = chained_key(fingerprint, tokens_per_block, name)
    if not has_lookahead:
        return key
    record = b"\x01T" + _field(b"k", key) + _field(b"d", bytes([name.draft_valid]))
    return hashlib.sha256(record + _text_fields(*_with_media(name.following))).digest()


def _with_media(tokens: Sequence[Token]) -> tuple[list[int], Media]:
    """Put references in place of items of media that are written out."""
    items = {-1 - at: token for at, token in enumerate(tokens) if not isinstance(token, int)}
    return [t if isinstance(t, int) else -1 - at for at, t in enumerate(tokens)], items


class Keys:
    """What `ReferenceLedger` says of keys, and of what the events must add up to."""

    def _media_by_reference(self: ReferenceLedger) -> Media:
        return {-1 - number: item for number, item in self.media.values.items()}

    def _root_key(self: ReferenceLedger, scope: int) -> bytes:
        config = self.config
        return root_key(config.fingerprint, config.tokens_per_block, self.scopes.values[scope])

    def keys(self: ReferenceLedger, tokens: tuple[int, ...], scope: int) -> list[bytes]:
        require(scope >= 0, "private")
        self.check_scope(scope)
        self.check_prompt(tokens)
        size, media = self.config.tokens_per_block, self._media_by_reference()
        keys = [self._root_key(scope)]
        for start in range(0, len(tokens) - size + 1, size):
            keys.append(block_key(keys[-1], tokens[start : start + size], media))
        return keys[1:]

    def block_keys(self: ReferenceLedger, handle: int) -> list[bytes]:
        return [self.key_of(block) for block in self._look_up([handle])[0].path]

    def key_of(self: ReferenceLedger, block: Block) -> bytes:
        """Return the key of a full block of the tree."""
        if not block.key:
            above = block.parent
            parent = self._root_key(block.scope) if above is None else self.key_of(above)
            block.key = block_key(parent, block.tokens, self._media_by_reference())
        return block.key

    def cached_keys(self: ReferenceLedger) -> dict[bytes, dict[str, object]]:
        """Return every key with a full block in the tree, and what a reader should know of it."""
        found: dict[bytes, dict[str, object]] = {}
        for block in self.tree.blocks:
            if block.is_partial:
                continue
            media = self._media_by_reference()
            adapter, salt = self.scopes.values[block.scope]
            found[self.key_of(block)] = {
                "parent": None if block.parent is None else self.key_of(block.parent),
                "tokens": tuple(max(token, -1) for token in block.tokens),
                "media": [
                    (i, media[t][1], media[t][0]) for i, t in enumerate(block.tokens) if t < 0
                ],
                "adapter": adapter,
                "salt": salt,
            }
        return found
