"""Windows and states on host and disk: docs/tiers.md."""

from __future__ import annotations

import pytest
from reference.lifetimes import CHUNKED, FULL, SLIDING, STATE
from reference.scenario import ENGINES, Scenario, tokens

PROMPT = (*tokens(12), 9999)
"""Three blocks and the token that must run."""

FULL_RULE = (FULL, 0, 0)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def build(engine: str, rule: tuple[str, int, int], **options) -> Scenario:
    pages = {"num_pages": (17, 17), "host_pages": (8, 8), "lifetimes": (FULL_RULE, rule)}
    return Scenario(engine, **{**pages, **options})


def offload(s: Scenario) -> list[tuple[int, int]]:
    """Evict all that is cached; return (class, host page) of each copy."""
    s.ledger.offload(64)
    return [(row[1], row[5]) for row in s.copy()]


def test_a_block_goes_down_before_its_window_page(engine: str) -> None:
    s = build(engine, (SLIDING, 4, 0))
    s.serve(PROMPT)
    # Three blocks, the last one first, each with its page of the window's class.
    assert offload(s) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert s.below(PROMPT[:12]) == (0, 12, 0)
    assert (s.shelf("host", 0)["classes"], s.shelf("host", 1)["classes"]) == ([0], [1])


def test_only_the_window_before_the_end_is_loaded(engine: str) -> None:
    s = build(engine, (SLIDING, 4, 0))
    s.serve(PROMPT)
    offload(s)
    step = s.begin()
    handle, hit = s.try_admit(step, PROMPT)
    assert hit == 12
    # The token at 12 sees positions 9 to 12: block 2.
    assert s.held(handle, 1) == [2, 3]
    rows = s.take()
    assert [(row[1], row[3]) for row in rows] == [(0, 2), (0, 1), (0, 0), (1, 0)]
    s.finish(rows)
    assert s.sequence(handle)["history"] == 12
    s.complete(step)
    s.decode(handle, 5)
    assert s.held(handle, 1) == [2, 3]


def test_the_longest_end_with_its_window_counts(engine: str) -> None:
    """The window's shelf has one page: that of the block evicted last, the first of the prompt."""
    s = build(engine, (SLIDING, 4, 0), host_pages=(8, 1))
    s.serve(PROMPT)
    s.ledger.offload(64)
    rows = s.take()
    assert [(row[1], row[5]) for row in rows] == [(0, 0), (1, 0), (0, 1), (0, 2)]
    s.finish(rows)
    assert s.tiers("rejected") == 2, "the page is being written"
    assert s.below(PROMPT[:12]) == (0, 12, 0)
    assert s.below(PROMPT[:8]) == (0, 0, 0), "its window is not there"


def test_a_chunk_begins_without_pages_before_it(engine: str) -> None:
    s = build(engine, (CHUNKED, 8, 0))
    s.serve((*tokens(8), 9999))
    offload(s)
    step = s.begin()
    handle, hit = s.try_admit(step, (*tokens(8), 9999))
    assert hit == 8
    assert [row[1] for row in s.take()] == [0, 0], "a new chunk begins at 8"
    assert s.held(handle, 1) == [2]


def test_a_load_takes_no_pages_of_windows_that_it_does_not_fill(engine: str) -> None:
    """Five window pages serve ten blocks in chunks, so they have to load them as well."""
    s = build(engine, (SLIDING, 4, 0), num_pages=(17, 6), host_pages=(12, 12), max_step_tokens=4)
    prompt = (*tokens(40), 9999)
    s.release(s.prefill_in_chunks(prompt, 4))
    offload(s)
    step = s.begin()
    handle, hit = s.try_admit(step, prompt, first=4)
    assert hit == 40
    # Block 9 is the window before 40; block 10 is for the last token.
    assert s.held(handle, 1) == [9, 10]
    assert s.count("live", 1) == 2
    assert s.count("fenced", 1) == 0
    s.copy()
    assert s.sequence(handle)["history"] == 40


def test_a_failed_load_suspends(engine: str) -> None:
    s = build(engine, (SLIDING, 4, 0))
    s.serve(PROMPT)
    offload(s)
    step = s.begin()
    handle, _ = s.try_admit(step, PROMPT)
    rows = s.take()
    s.finish(rows[3:], ok=0)
    assert s.ledger.loading([handle]) == (1, [1])
    s.finish(rows[:3])
    assert s.ledger.loading([handle]) == (0, [2])
    counters = s.stats()
    assert (counters["suspended"], counters["loaded_blocks"]) == (1, 0)
    assert (counters["hit_tokens"], counters["missed_load_tokens"]) == (0, 12)
    assert [s.count("live", cls) for cls in (0, 1)] == [0, 0]
    # The window before 12 is lost, that before 8 is not: so much is loaded now.
    assert s.ledger.resume(step, [(handle, 5)]) == (1, [1], [8])
    assert [(row[1], row[3]) for row in s.copy()] == [(0, 2), (0, 1), (1, 1)]
    assert s.sequence(handle)["history"] == 8
    assert s.stats()["resumed_hit_tokens"] == 8


def serve_state(engine: str, prompt: tuple[int, ...], **options) -> Scenario:
    """Leave the state after a prompt as a snapshot, and drive all off the device."""
    s = build(engine, (STATE, 0, 0), num_pages=(17, 5), **options)
    s.serve(prompt)
    return s


def test_a_state_is_loaded_into_the_page_of_its_sequence(engine: str) -> None:
    s = serve_state(engine, tokens(12))
    assert offload(s) == [(0, 0), (1, 0), (0, 1), (0, 2)]
    step = s.begin()
    handle, hit = s.try_admit(step, PROMPT)
    assert (hit, s.ledger.moves()) == (12, [])
    rows = s.take()
    assert [(row[1], row[3]) for row in rows] == [(0, 2), (0, 1), (0, 0), (1, 0)]
    assert rows[3][5] == s.pages(handle, 1)[0]
    s.finish(rows)
    assert s.sequence(handle)["history"] == 12
    assert s.stats()["classes"][1]["cached"] == 0, "it is no snapshot"


def test_a_snapshot_inside_a_block_is_dropped(engine: str) -> None:
    """The state after 6 tokens is left on the block that a longer prompt fills."""
    s = serve_state(engine, tokens(6))
    longer = s.prefill(tokens(8))
    s.release(longer, publish=0)
    assert s.stats()["snapshots"] == 1
    s.ledger.offload(64)
    assert [row[1] for row in s.copy()] == [0, 0]
    assert s.below(tokens(8)) == (0, 0, 0)


def test_a_released_load_keeps_the_state_page_to_its_end(engine: str) -> None:
    s = serve_state(engine, tokens(12))
    offload(s)
    step = s.begin()
    handle, _ = s.try_admit(step, PROMPT)
    rows = s.take()
    s.release(handle)
    assert [s.count("live", cls) for cls in (0, 1)] == [3, 1]
    s.finish(rows[1:])
    assert [s.count("live", cls) for cls in (0, 1)] == [3, 1]
    s.finish(rows[:1])
    s.complete(step)
    assert [s.count("free", cls) for cls in (0, 1)] == [16, 4]
