"""The event log, hand-computed: docs/identity.md, "Events"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference.mirror import Mirror
from reference.scenario import Scenario, tokens

from tandemkv.errors import EventGapError, LedgerError


def scenario(**options: Any) -> Scenario:
    return Scenario("core", **{"events": 100, **options})


def read(s: Scenario, after: int = 0) -> list[dict[str, Any]]:
    return s.ledger.core.events(after)


def brief(events: list[dict[str, Any]]) -> list[tuple[int, str, int]]:
    """Return (number, kind or reason, keys) of each."""
    return [
        (event["number"], event.get("reason", event["kind"]), len(event.get("keys", ())))
        for event in events
    ]


def test_a_stored_event_has_all_that_a_reader_needs() -> None:
    s = scenario()
    image = s.ledger.intern_media(b"i" * 32, 3)
    scope = s.ledger.intern_scope(("lora", 3), b"salt")
    text = (1, 2, image, 9, 9, 5, 6, 7, 8, 9)
    s.serve(text, scope=scope)
    (event,) = read(s)
    keys = s.ledger.keys(text, scope)
    assert event.pop("tokens").tolist() == [1, 2, -1, 9, 9, 5, 6, 7]
    assert event == {
        "number": 1,
        "kind": "stored",
        "tier": "device",
        "parent": None,
        "keys": keys,
        "tokens_per_block": 4,
        "adapter": ("lora", 3),
        "salt": b"salt",
        "media": [(2, 3, b"i" * 32)],
    }
    s.serve((*text[:8], *tokens(5, 50)), scope=scope)
    (later,) = read(s, 1)
    assert later["parent"] == keys[1]
    assert later["tokens"].tolist() == [50, 51, 52, 53]


def test_a_partial_block_logs_nothing() -> None:
    """A tail of 2 tokens, one of 3 that replaces it, a block that replaces that (vllm#58119)."""
    s = scenario()
    s.serve(tokens(6))
    s.serve(tokens(7))
    assert brief(read(s)) == [(1, "stored", 1)]
    s.serve(tokens(8))
    assert brief(read(s)) == [(1, "stored", 1), (2, "stored", 1)]
    assert read(s, 1)[0]["parent"] == read(s)[0]["keys"][0]


def test_equal_blocks_built_at_once_are_stored_once() -> None:
    """Two sequences build the same block: one enters the tree (kvcached#401)."""
    s = scenario()
    step = s.begin()
    handles = [s.admit(step, tokens(8)) for _ in range(2)]
    s.complete(step)
    for handle in handles:
        s.advance(step, handle, 99)
    assert brief(read(s)) == [(1, "stored", 2)]
    assert s.ledger.block_keys(handles[0]) == s.ledger.block_keys(handles[1])


def test_copies_of_a_key_are_counted() -> None:
    """Equal tokens before different ones: stored with the first, removed with the last."""
    s = scenario(has_draft=True, lookahead=1, num_pages=(7,), max_seq_len=20)
    s.serve((*tokens(4), 50))
    s.serve((*tokens(4), 60))
    assert s.count("cached") == 2
    assert brief(read(s)) == [(1, "stored", 1)]
    s.serve(tokens(17, 100), max_total=17)  # 5 blocks: one of the two must go
    assert s.stats()["evicted_blocks"] == 1
    assert brief(read(s, 1)) == [(2, "stored", 4)]
    s.serve(tokens(17, 200), max_total=17)
    assert brief(read(s, 2)) == [(3, "evicted", 1), (4, "evicted", 3), (5, "stored", 4)]
    assert read(s, 2)[0]["keys"] == read(s)[0]["keys"]


def test_evictions_come_before_what_they_made_room_for() -> None:
    """Evictions inside an admission are logged as well (dynamo#8451); the path's end first."""
    s = scenario(num_pages=(4,))
    s.serve(tokens(12))
    s.serve(tokens(8, 100), max_total=8)
    events = read(s, 1)
    assert brief(events) == [(2, "evicted", 2), (3, "stored", 2)]
    assert events[0]["keys"] == read(s)[0]["keys"][:0:-1]


def test_a_dropped_scope_and_a_reset() -> None:
    """One cleared event (llm-d-kv-cache#593), and removals by name for a scope."""
    s = scenario()
    scope = s.ledger.intern_scope(None, "x")
    s.serve(tokens(8))
    s.serve(tokens(8), scope=scope)
    s.ledger.drop_scope(scope)
    assert brief(read(s, 2)) == [(3, "dropped", 2)]
    assert read(s, 2)[0]["keys"] == read(s, 1)[0]["keys"][::-1]
    s.ledger.reset_reuse_state()
    assert read(s, 3) == [{"number": 4, "kind": "cleared", "tier": "device"}]
    s.serve(tokens(8))
    assert brief(read(s, 4)) == [(5, "stored", 2)]


def test_long_runs_are_cut() -> None:
    s = scenario(num_pages=(200,), max_seq_len=700)
    s.serve(tokens(600))
    assert brief(read(s)) == [(1, "stored", 64), (2, "stored", 64), (3, "stored", 22)]
    assert read(s)[1]["parent"] == read(s)[0]["keys"][-1]


def test_the_newest_events_are_kept() -> None:
    """runtime-056: a buffer of 2; a reader that fell behind is told what is left."""
    s = scenario(events=2)
    for start in (0, 100, 200):
        s.serve(tokens(4, start))
    assert brief(read(s, 1)) == [(2, "stored", 1), (3, "stored", 1)]
    assert read(s, 3) == []
    with pytest.raises(EventGapError, match="begin at 2 and the last number is 3") as caught:
        read(s)
    assert caught.value.details == {"after": 0, "oldest": 2, "last": 3}
    with pytest.raises(EventGapError):
        read(s, 4)


def test_a_late_reader_starts_with_a_snapshot() -> None:
    """vllm#45261, dynamo#7072: a snapshot, and the events after the number that it carries."""
    s = scenario(events=3, has_draft=True, lookahead=1, num_pages=(20,))
    for start in range(0, 60, 7):
        s.serve((*tokens(4), *tokens(9, start)))
    mirror = Mirror.of_snapshot(s.ledger.core.event_snapshot())
    assert mirror.number > 3
    for start in (200, 300):
        s.serve((*tokens(4), *tokens(5, start)))
        for event in read(s, mirror.number):
            mirror.apply(event)
    mirror.check_closed()
    assert vars(Mirror.of_snapshot(s.ledger.core.event_snapshot())) == vars(mirror)
    s.ledger.validate()


def test_without_reuse_there_are_no_events() -> None:
    """aisimulate#289."""
    s = scenario(reuse=False)
    s.serve(tokens(8))
    s.ledger.reset_reuse_state()
    assert read(s) == []
    assert s.ledger.core.event_snapshot() == {
        "number": 0,
        "blocks": [],
        "host": [],
        "disk": [],
    }


def test_events_are_off_by_default() -> None:
    s = Scenario("core")
    s.serve(tokens(8))
    for call in (s.ledger.core.events, s.ledger.core.event_snapshot):
        with pytest.raises(LedgerError, match="events are off: the ledger was built with events=0"):
            call()


def test_events_change_no_decision() -> None:
    with_events, without = scenario(num_pages=(9,)), Scenario("core", num_pages=(9,))
    for start in (0, 100, 0, 200):
        for s in (with_events, without):
            s.serve(tokens(13, start), max_total=14)
        read(with_events)
        assert with_events.ledger.digest() == without.ledger.digest()


def test_a_bad_number_is_an_error() -> None:
    s = scenario()
    with pytest.raises(LedgerError, match="after is -1, must be the number of an event, or 0"):
        s.ledger.core.events(-1)
    assert np.array_equal(read(s), [])
