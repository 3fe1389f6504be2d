"""What a reader of events alone knows, and what it insists on."""

from __future__ import annotations

from typing import Any

KEYS_MAX = 64


class Mirror:
    """The cached blocks by key, built from events or from a snapshot.

    Attributes:
        number: the number of the last event applied.
        blocks: per key: `parent`, `tokens`, `media`, `adapter` and `salt`.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.blocks: dict[bytes, dict[str, Any]] = {}
        # Keys on host and disk, each with the copies that events told of: one.
        self.below: dict[str, set[bytes]] = {"host": set(), "disk": set()}

    @classmethod
    def of_snapshot(cls, snapshot: dict[str, Any]) -> Mirror:
        """Return the mirror of a reader that starts with a snapshot."""
        mirror = cls(snapshot["number"])
        for stored in snapshot["blocks"]:
            assert "number" not in stored
            mirror._store(stored)
        mirror.below = {tier: set(snapshot[tier]) for tier in mirror.below}
        return mirror

    def apply(self, event: dict[str, Any]) -> None:
        """Apply the next event."""
        assert event["number"] == self.number + 1, "a number was left out"
        self.number += 1
        if event["tier"] != "device":
            self._apply_below(self.below[event["tier"]], event)
        elif event["kind"] == "cleared":
            self.blocks.clear()
        elif event["kind"] == "removed":
            assert 0 < len(event["keys"]) <= KEYS_MAX
            for key in event["keys"]:
                del self.blocks[key]
        else:
            assert event["kind"] == "stored"
            self._store(event)

    def _apply_below(self, keys: set[bytes], event: dict[str, Any]) -> None:
        if event["kind"] == "cleared":
            keys.clear()
            return
        news = event["keys"]
        assert 0 < len(news) <= KEYS_MAX
        assert len({*news}) == len(news), "a key is named twice"
        if event["kind"] == "removed":
            assert keys >= {*news}, "a key is removed that was never stored"
            keys.difference_update(news)
        else:
            assert event["kind"] == "stored"
            assert not keys & {*news}, "a key is stored twice"
            keys.update(news)

    def _store(self, stored: dict[str, Any]) -> None:
        keys, size = stored["keys"], stored["tokens_per_block"]
        tokens = stored["tokens"].tolist()
        assert 0 < len(keys) <= KEYS_MAX
        assert len(tokens) == len(keys) * size
        parent = stored["parent"]
        assert parent is None or parent in self.blocks, "the parent was never announced"
        for index, key in enumerate(keys):
            assert key not in self.blocks, "a key is stored twice"
            start = index * size
            self.blocks[key] = {
                "parent": parent,
                "tokens": tuple(tokens[start : start + size]),
                "media": [
                    (position - start, length, digest)
                    for position, length, digest in stored["media"]
                    if start <= position < start + size
                ],
                "adapter": stored["adapter"],
                "salt": stored["salt"],
            }
            parent = key

    def check_closed(self) -> None:
        """Check that what stands before a cached block is cached."""
        for block in self.blocks.values():
            assert block["parent"] is None or block["parent"] in self.blocks
