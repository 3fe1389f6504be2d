"""Sliding windows, sinks and chunks: what a sequence holds, what a match needs, what goes first.

The numbers are those of published reports, named per test.
"""

from __future__ import annotations

import pytest
from reference.scenario import ENGINES, Scenario, tokens

FULL = ("full_attention", 0, 0)


def sliding(window: int, sinks: int = 0) -> tuple[str, int, int]:
    return ("sliding_window", window, sinks)


def chunked(chunk: int) -> tuple[str, int, int]:
    return ("chunked_attention", chunk, 0)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def hybrid(engine: str, *, full: int, windowed: int, rule: tuple[str, int, int], **options: object):
    """Build a ledger of a full and a windowed class with so many usable pages."""
    return Scenario(
        engine,
        **{"num_pages": (full + 1, windowed + 1), "lifetimes": (FULL, rule), **options},
    )


# What a sequence holds


def test_pages_behind_the_window_go_when_they_are_settled(engine: str) -> None:
    """TensorRT-LLM#14725: they stayed after a commit, and growth counted them again."""
    s = hybrid(
        engine, full=40, windowed=40, rule=sliding(128), tokens_per_block=32, max_seq_len=1200
    )
    handle = s.prefill(tokens(1024), 9000, scope=-1)
    assert s.held(handle, 1) == [28, 29, 30, 31]
    assert s.counts(1)["live"] == 4
    assert s.counts(0)["live"] == 32
    before = s.count("free", 1)
    assert s.grow(s.begin(), handle, 64)
    assert before - s.count("free", 1) == 2


def test_tokens_in_flight_free_no_page(engine: str) -> None:
    s = hybrid(engine, full=20, windowed=20, rule=sliding(8), max_seq_len=80)
    handle = s.prefill(tokens(16), 99, scope=-1)
    assert s.held(handle, 1) == [2, 3]
    step = s.begin()
    assert s.grow(step, handle, 12)
    assert s.held(handle, 1) == [2, 3, 4, 5, 6]
    s.complete(step)
    s.advance(step, handle, valid=[17, 0])  # one token of twelve was right
    assert s.held(handle, 1) == [2, 3, 4]


def test_a_window_that_starts_inside_a_page_takes_one_more() -> None:
    """vllm#48959: 98,012 tokens, window 4,096, page 32: 3,063 - 2,934 pages; the bound said 128."""
    chunk = 2048
    s = hybrid(
        "core",
        full=3100,
        # The window at its worst offset, and the chunk that runs.
        windowed=129 + chunk // 32,
        rule=sliding(4096),
        tokens_per_block=32,
        max_seq_len=99_000,
        max_step_tokens=chunk,
    )
    handle = s.prefill_in_chunks(tokens(98_012), chunk, scope=-1)
    assert s.held(handle, 1) == list(range(2934, 3063))
    assert s.count("live", 1) == 129
    assert s.grow(s.begin(), handle, 1)


@pytest.mark.parametrize("windowed", [10, 9])
def test_a_window_is_not_charged_the_whole_length(engine: str, windowed: int) -> None:
    """TensorRT-LLM#12968: window 512, page 64, length 10,000: 8 pages, 9 unaligned, never 157.

    One more for the 64 tokens of a step.
    """
    s = hybrid(
        engine,
        full=160,
        windowed=windowed,
        rule=sliding(512),
        tokens_per_block=64,
        max_seq_len=10_100,
        max_step_tokens=64,
    )
    handle, _ = s.try_admit(s.begin(), tokens(10_000), first=64, scope=-1)
    if windowed < 10:
        assert handle == -2  # can never fit at the worst offset
        return
    s.release(handle)
    s.complete(1)
    handle = s.prefill(tokens(10_000), first=64, scope=-1)
    for step in range(1, 157):
        s.decode(handle, width=min(64, 10_000 - 64 * step))
        assert len(s.held(handle, 1)) <= 9
    assert s.held(handle, 1) == list(range(148, 157))


def test_a_long_prompt_does_not_hold_its_window_pages(engine: str) -> None:
    """A prompt of 32 blocks runs in chunks of 2 in a window pool of 5 pages: 2 + 1 and a chunk."""
    s = hybrid(engine, full=33, windowed=5, rule=sliding(8), max_seq_len=160, max_step_tokens=8)
    handle = s.prefill_in_chunks(tokens(128), 8, 200)
    assert s.held(handle, 1) == [30, 31]
    assert s.held(handle, 0) == list(range(32))
    # In one step it would need all of them at once.
    s.release(handle, publish=0)
    s.ledger.reset_reuse_state()
    assert s.try_admit(s.begin(), tokens(128))[0] == -1
    assert s.try_admit(s.begin(), tokens(128), first=8)[0] > 0


def test_sinks_stay(engine: str) -> None:
    s = hybrid(engine, full=40, windowed=40, rule=sliding(8, sinks=5), max_seq_len=120)
    handle = s.prefill(tokens(64), 99)
    assert s.held(handle, 1) == [0, 1, 14, 15]


def test_a_chunk_goes_when_the_next_one_starts(engine: str) -> None:
    s = hybrid(engine, full=40, windowed=40, rule=chunked(12), max_seq_len=120)
    handle = s.prefill(tokens(22), 99)
    assert s.held(handle, 1) == [3, 4, 5]
    s.decode(handle, 1)
    assert s.held(handle, 1) == [3, 4, 5]
    s.decode(handle, 1)
    assert s.held(handle, 1) == []
    s.decode(handle, 1)
    assert s.held(handle, 1) == [6]


def test_the_row_reports_what_was_grown(engine: str) -> None:
    """transformers#48280: window 6, five drafts one by one: 13 columns where the mask said 6.

    A page per token; the columns with a page are the window and what is in flight, at each step.
    """
    s = hybrid(engine, full=40, windowed=40, rule=sliding(6), tokens_per_block=1, reserve_tokens=8)
    handle = s.prefill(tokens(13), 99, scope=-1)
    assert s.held(handle, 1) == list(range(8, 13))
    for drafts in range(1, 6):
        assert s.grow(s.begin(), handle, 1)
        assert s.sequence(handle)["capacity"] == 13 + drafts
        assert s.held(handle, 1) == list(range(8, 13 + drafts))


def test_a_page_behind_the_window_is_fenced_like_any(engine: str) -> None:
    s = hybrid(engine, full=20, windowed=20, rule=sliding(4), max_seq_len=80)
    handle = s.prefill(tokens(8), 99, scope=-1)
    first, second = s.begin(), None
    assert s.grow(first, handle, 4)
    second = s.begin()
    assert s.grow(second, handle, 4)
    s.complete(first)
    s.advance(first, handle, 1, 2, 3, 4)
    assert s.counts(1)["fenced"] == 1  # the step that runs may still read it
    s.complete(second)
    assert s.counts(1)["fenced"] == 0


# What a match needs


def test_only_the_window_is_needed_at_the_end(engine: str) -> None:
    """The window pages of the first blocks are evicted; the prompt is still a full hit."""
    s = hybrid(engine, full=40, windowed=8, rule=sliding(8), max_seq_len=64)
    s.serve(tokens(32))
    s.release(s.prefill(tokens(20, 100), scope=-1))
    assert (s.stats()["evicted_side_pages"], s.stats()["evicted_blocks"]) == (5, 0)
    assert s.match(tokens(32)) == 32
    assert s.match(tokens(28)) == 28  # (28 + 1 - 8) // 4 = 5
    assert s.match(tokens(27)) == 27
    assert s.match(tokens(26)) == 0  # needs block 4
    assert s.match((*tokens(24), 99)) == 0


def test_a_shorter_hit_where_the_window_is_whole(engine: str) -> None:
    """A window page is lost in the middle: the hit ends where all of its window is there."""
    s = hybrid(engine, full=80, windowed=40, rule=sliding(8), max_seq_len=200)
    s.serve(tokens(16))
    s.release(s.prefill((*tokens(16), *tokens(16, 50))))
    # Keep the first end in use, so that what follows it in the queue goes first.
    holder = s.admit(s.begin(), tokens(17))
    assert s.held(holder, 1)[:2] == [2, 3]
    # 31 pages are free; 0, 1, 4, 5 and 6 go, and 6 is in the window of the second end.
    s.prefill(tokens(4 * 36, 1000), scope=-1)
    assert s.stats()["evicted_side_pages"] == 5
    assert s.match((*tokens(16), *tokens(16, 50))) == 16


@pytest.mark.parametrize("start", [0, 100])
def test_lookup_comes_before_allocation(engine: str, start: int) -> None:
    """vllm#42948: a re-sent request evicted what it was about to find; 0 % hits on a warm pool."""
    s = hybrid(engine, full=8, windowed=8, rule=sliding(8), max_seq_len=40)
    s.serve(tokens(16))
    s.serve(tokens(16, 100))
    assert [s.counts(cls)["free"] for cls in (0, 1)] == [0, 0]
    handle, hit = s.try_admit(s.begin(), (*tokens(16, start), 7))
    assert (handle > 0, hit) == (True, 16)


def test_every_conversation_of_a_quarter_full_pool_is_found() -> None:
    """vllm#48435: reuse fell to zero for all conversations at about 25 % use.

    Eight of them, round robin, 35,000 of 153,000 tokens: each must be found in round two. The
    window pool has room for the ends of all and the step that runs, not for all of their prompts.
    """
    window, chunk = 1024, 512
    s = hybrid(
        "core",
        full=153_000 // 16,
        windowed=8 * (window // 16 + 1) + chunk // 16,
        rule=sliding(window),
        tokens_per_block=16,
        max_seq_len=8192,
        max_step_tokens=chunk,
    )
    prompts = [tokens(4375, 10_000 * i) for i in range(8)]
    for prompt in prompts:
        s.release(s.prefill_in_chunks(prompt, chunk))
    hits = []
    for prompt in prompts:
        hits.append(s.match(prompt))
        s.release(s.prefill_in_chunks((*prompt, 5), chunk))
    assert hits == [4375] * 8


@pytest.mark.parametrize(
    ("unit", "length", "expected"),
    [
        # vllm#54360: that engine found 0, 4,288, 8,576, 12,864 and 15,008.
        (2144, 3_784, 2_144),
        (2144, 7_542, 6_432),
        (2144, 11_292, 10_720),
        (2144, 15_019, 15_008),
        (2144, 18_770, 17_152),
        # vllm#52897: 6,592, 6,592 and, an exact multiple, 3,296.
        (1648, 8_702, 8_240),
        (1648, 9_155, 8_240),
        (1648, 6_592, 4_944),
    ],
)
def test_speculation_costs_no_unit_of_reuse(
    engine: str, unit: int, length: int, expected: int
) -> None:
    """A hit is the whole units below the last token; the draft's look-ahead takes none away."""
    s = Scenario(
        engine,
        num_pages=(24, 24),
        lifetimes=(FULL, sliding(4096)),
        tokens_per_block=unit,
        max_seq_len=20_000,
        has_draft=True,
        lookahead=1,
        partial_reuse=False,
    )
    s.serve(tokens(length))
    handle, hit = s.try_admit(s.begin(), tokens(length))
    assert (handle > 0, hit) == (True, expected)


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_a_window_keeps_what_a_draft_looks_back(engine: str, lookahead: int) -> None:
    """vllm#56449: a kept tail of one window was no hit once a draft backed the match off."""
    window, length = 32, 256
    s = Scenario(
        engine,
        num_pages=(80, 16),
        lifetimes=(FULL, sliding(window)),
        tokens_per_block=8,
        max_seq_len=400,
        max_step_tokens=16,
        has_draft=True,
        lookahead=lookahead,
    )
    handle = s.prefill_in_chunks(tokens(length), 16)
    kept = s.held(handle, 1)
    assert kept[0] == (length - lookahead + 1 - window) // 8
    s.release(handle)
    # All other window pages go.
    s.prefill(tokens(8 * (15 - len(kept)), 1000), scope=-1)
    assert s.count("cached", 1) == len(kept)
    assert s.match(tokens(length)) == length - lookahead


@pytest.mark.parametrize("tokens_per_block", [1, 16])
def test_pages_of_any_size_tell_the_same(engine: str, tokens_per_block: int) -> None:
    """sglang#32902: positions were taken for page ids, seen only with pages of several tokens."""
    s = Scenario(
        engine,
        num_pages=(128 // tokens_per_block + 20, 128 // tokens_per_block + 20),
        lifetimes=(FULL, sliding(24, sinks=3)),
        tokens_per_block=tokens_per_block,
        max_seq_len=128,
    )
    s.serve(tokens(70))
    assert [s.match(tokens(n)) for n in (1, 24, 69, 70)] == [1, 24, 69, 70]
    assert s.match((*tokens(40), 999)) == 40
    handle = s.prefill(tokens(80), 5)
    row = s.pages(handle, 1)
    slots = {
        position: row[position // tokens_per_block] * tokens_per_block + position % tokens_per_block
        for position in [0, 1, 2, *range(80 + 1 - 24, 80)]
    }
    assert all(slot >= tokens_per_block for slot in slots.values()), "a position on page 0"
    assert len(set(slots.values())) == len(slots)


# What goes first, and what is lost


def test_early_pages_go_before_the_tail(engine: str) -> None:
    s = hybrid(engine, full=40, windowed=10, rule=sliding(8), max_seq_len=64)
    s.release(s.prefill_in_chunks(tokens(32), 8))
    for taken in range(1, 7):
        handle = s.prefill(tokens(4 * (2 + taken), 1000), scope=-1)
        assert s.stats()["evicted_side_pages"] == taken
        assert s.match(tokens(32)) == 32
        s.release(handle)
    s.prefill(tokens(36, 1000), scope=-1)
    assert s.match(tokens(32)) == 0


def test_a_shared_beginning_stays_found(engine: str) -> None:
    """Prompts with one beginning of 64 tokens: its window must not go because each runs past it.

    The pool of windows is full of the ends of earlier prompts. The first two compute the beginning;
    the second shows that it is shared.
    """
    s = hybrid(engine, full=400, windowed=20, rule=sliding(16), max_seq_len=200, max_step_tokens=16)
    beginning, hits = tokens(64), []
    for i in range(12):
        prompt = (*beginning, *tokens(32, 1000 * (i + 1)))
        step = s.begin()
        handle, hit = s.try_admit(step, prompt, first=16)
        hits.append(hit)
        s.complete(step)
        s.advance(step, handle)
        while (ahead := len(prompt) - s.sequence(handle)["history"]) > 0:
            s.decode(handle, width=min(16, ahead))
        s.release(handle)
    assert hits[2:] == [64] * 10


def test_a_page_in_use_is_not_evicted(engine: str) -> None:
    s = hybrid(engine, full=40, windowed=6, rule=sliding(8), max_seq_len=64)
    s.serve(tokens(16))
    reader, hit = s.try_admit(s.begin(), (*tokens(16), 7))
    assert hit == 16
    pages = s.pages(reader, 1)
    assert s.held(reader, 1) == [2, 3, 4]
    # Three pages are left: two of the prompt's early blocks, one free.
    assert s.try_admit(s.begin(), tokens(16, 100), scope=-1)[0] == -1
    assert s.try_admit(s.begin(), tokens(12, 100), scope=-1)[0] > 0
    assert s.pages(reader, 1) == pages


def test_a_block_takes_its_window_page_along(engine: str) -> None:
    s = hybrid(engine, full=8, windowed=40, rule=sliding(8), max_seq_len=32)
    s.serve(tokens(16))
    assert (s.count("cached", 0), s.count("cached", 1)) == (4, 4)
    s.prefill(tokens(24, 100), scope=-1)
    assert (s.count("cached", 0), s.count("cached", 1)) == (2, 2)
    assert s.stats()["evicted_side_pages"] == 0


def test_equal_work_fills_what_was_lost(engine: str) -> None:
    """A block whose window page was evicted gets the page of the next sequence that computes it."""
    s = hybrid(engine, full=40, windowed=4, rule=sliding(8), max_seq_len=64)
    s.serve(tokens(16))
    s.release(s.prefill(tokens(16, 100), scope=-1))
    assert s.match(tokens(16)) == 0
    s.serve(tokens(16))
    assert s.stats()["rebased_blocks"] == 4
    assert s.match(tokens(16)) == 16
    assert s.count("cached", 0) == 4


def test_parts_add_up_with_windows(engine: str) -> None:
    """sglang#27789: the parts of a window pool added up to 323,072 of 322,816, one page of 256."""
    s = hybrid(
        engine, full=1261, windowed=1261, rule=sliding(600), tokens_per_block=256, max_seq_len=8192
    )
    handles = []
    for turn in range(12):
        if turn % 3 == 2:
            s.release(handles.pop(0), publish=turn % 2)
        handles.append(s.prefill(tokens(1000 + 300 * turn), 7))
        for cls in (0, 1):
            s.counts(cls)  # checks the sum
        s.decode(handles[-1], 1, width=4)
        for cls in (0, 1):
            assert (
                sum(s.counts(cls)[state] for state in ("free", "fenced", "live", "cached"))
                == 322_816 // 256
            )


# Tables


def test_no_null_page_reaches_a_pool(engine: str) -> None:
    """vllm#42571: null placeholders of a window's row were freed and given to other requests."""
    s = hybrid(engine, full=20, windowed=20, rule=sliding(4), max_seq_len=80)
    for publish in (0, 1):
        handle = s.prefill(tokens(40), 99, scope=-1 if publish == 0 else 0)
        assert s.pages(handle, 1)[:8] == [0] * 8
        s.release(handle, publish=publish)
    s.ledger.reset_reuse_state()
    assert [s.count("free", cls) for cls in (0, 1)] == [20, 20]
    handle = s.prefill(tokens(80), scope=-1, first=80)
    assert 0 not in s.pages(handle, 0)


def test_padded_columns_are_page_0() -> None:
    """TensorRT-LLM#12188: the kernel read page -1. What is stale or unused is page 0, all over."""
    s = hybrid("core", full=40, windowed=40, rule=sliding(8), max_seq_len=60)
    handles = [s.prefill(tokens(20, 100 * i), 7) for i in range(3)]
    tables, used = s.ledger.tables(handles)
    assert used.tolist() == [[5, 5, 5], [5, 5, 5]]
    assert tables.shape == (2, 3, 16)
    assert not tables[:, :, 5:].any()
    assert not tables[1, :, :3].any()
    assert tables[1, :, 3:5].all()
    assert tables.min() == 0


def test_classes_have_tables_of_their_own(engine: str) -> None:
    """TensorRT-LLM#18957: one table for layers with pages of two sizes gave wrong addresses."""
    s = hybrid(engine, full=40, windowed=6, rule=sliding(8), max_seq_len=120, max_step_tokens=8)
    s.release(s.prefill_in_chunks(tokens(40), 8, scope=-1))
    handle = s.prefill_in_chunks(tokens(64), 8, scope=-1)
    assert len(set(s.pages(handle, 0))) == 16
    assert s.held(handle, 1) == [14, 15]
    if engine == "core":
        assert max(s.pages(handle, 0)) <= 40
        assert max(s.pages(handle, 1)) <= 6
