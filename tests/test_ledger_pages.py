"""Who owns which page: leaks, double frees, fences, admission. Hand-computed, on both ledgers.

The kinds of fault are those that users of such systems reported; each test names the outcome that
is right, and its source where the numbers come from a public report.
"""

from __future__ import annotations

import pytest
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse

from tandemkv.errors import LedgerError

ERRORS = (LedgerError, Misuse)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


# Leaks


def test_release_returns_what_was_allocated_not_what_was_committed(engine: str) -> None:
    """Committed 100, allocated 107, 4 tokens per page (sglang#19518)."""
    s = Scenario(engine, num_pages=(300,))
    for round_number in range(3):
        handles = [s.prefill(tokens(100, 1000 * (8 * round_number + i)), 7) for i in range(8)]
        step = s.begin()
        for handle in handles:
            assert s.grow(step, handle, 7)
            assert s.sequence(handle)["committed"] == 100
            assert len(s.pages(handle)) == 27
        s.complete(step)
        for handle in handles:
            s.release(handle, publish=0)
        assert s.counts()["live"] == 0
        assert s.counts()["free"] + s.counts()["evictable"] == 299
        s.ledger.reset_reuse_state()
        assert s.count("free") == 299


def test_a_shared_page_counts_once(engine: str) -> None:
    """One page that two sequences use is neither evictable twice nor live (sglang#35270)."""
    s = Scenario(engine, num_pages=(9,))
    s.serve(tokens(8))
    step = s.begin()
    s.complete(step)
    first, second = (s.prefill((*tokens(8), 50 + i)) for i in range(2))
    assert s.pages(first)[:2] == s.pages(second)[:2]
    assert s.counts() == {
        "free": 4,
        "fenced": 0,
        "live": 2,
        "cached": 2,
        "reserved": 1,
        "evictable": 0,
    }
    s.release(first, publish=0)
    assert s.count("evictable") == 0
    s.release(second, publish=0)
    assert s.counts() == {
        "free": 6,
        "fenced": 0,
        "live": 0,
        "cached": 2,
        "reserved": 1,
        "evictable": 2,
    }


def test_protection_nets_to_zero(engine: str) -> None:
    """Refused admissions and finished sequences leave no page protected (sglang#12774, #16067)."""
    s = Scenario(engine, num_pages=(9,), max_sequences=2)
    s.serve(tokens(12))
    blocker = s.prefill(tokens(16, 100), scope=-1)
    before = s.counts()
    for _ in range(20):
        # Shares three blocks, but two more are not there: the match has to be let go again.
        assert s.try_admit(s.begin(), tokens(32))[0] == -1
    assert s.counts() == before
    assert before["evictable"] == 3
    s.release(blocker)
    for step in range(3, 23):
        s.complete(step)
    s.release(s.prefill(tokens(12)), publish=0)
    assert s.count("evictable") == s.count("cached")


def test_skipped_steps_do_not_grow_the_capacity(engine: str) -> None:
    """200 cycles of scheduling and skipping (TensorRT-LLM#13104)."""
    s = Scenario(engine, has_draft=True, reserve_tokens=4, extra_tokens=1)
    handle = s.prefill(tokens(10), 10)
    before, pages = s.sequence(handle), s.counts()
    for _ in range(200):
        step = s.begin()
        assert s.grow(step, handle, 5)
        s.complete(step)
        s.advance(step, handle, valid=before["valid"])
    assert (s.sequence(handle), s.counts()) == (before, pages)


def test_a_failed_prefill_gives_its_match_back(engine: str) -> None:
    """Three pages matched, the suffix never runs (Avarok-Cybersecurity/atlas#373)."""
    s = Scenario(engine)
    s.serve(tokens(12))
    before = s.counts()
    step = s.begin()
    handle = s.admit(step, tokens(20))
    assert s.count("evictable") == 0
    s.release(handle, publish=0)
    s.complete(step)
    assert s.counts() == before


# Double frees and counts of users


def test_the_second_release_is_refused_and_pages_stay_apart(engine: str) -> None:
    """A second release must not free a page that somebody else owns by then (LMCache#5005)."""
    s = Scenario(engine)
    a = s.prefill(tokens(8), scope=-1)
    s.release(a)
    with pytest.raises(ERRORS):
        s.release(a)
    b, c = s.prefill(tokens(8), scope=-1), s.prefill(tokens(8), scope=-1)
    assert not set(s.pages(b)) & set(s.pages(c))
    with pytest.raises(ERRORS):
        s.release(a)
    assert len(s.pages(b)) == 2


def test_eviction_takes_no_page_in_use(engine: str) -> None:
    """A cached page that a sequence uses stays, and so does the path above it (mini-sglang#52)."""
    s = Scenario(engine, num_pages=(5,))
    s.serve(tokens(8))
    user = s.prefill(tokens(8))
    pages = s.pages(user)
    other = s.prefill(tokens(8, 100), scope=-1)
    assert (s.count("free"), s.count("evictable")) == (0, 0)
    assert s.try_admit(s.begin(), tokens(4, 200))[0] == -1
    assert s.pages(user) == pages
    assert not set(s.pages(other)) & set(pages)
    assert s.stats()["evicted_blocks"] == 0


def test_an_exact_multiple_fills_its_last_block(engine: str) -> None:
    """8 tokens at 4 per page: two pages, the last one full (MinivLLM#87)."""
    s = Scenario(engine)
    handle = s.prefill(tokens(8), scope=-1)
    assert s.sequence(handle)["blocks"] == 2
    assert s.sequence(handle)["capacity"] == s.sequence(handle)["history"] == 8
    s.release(handle)
    assert s.count("free") == 32


# Fences


def test_pages_of_a_finished_request_wait_for_the_step_in_flight(engine: str) -> None:
    """Step N+1 was launched before the end was known (vllm#45357)."""
    s = Scenario(engine, num_pages=(3,))
    step = s.begin()
    handle = s.admit(step, tokens(7), scope=-1)
    later = s.begin()
    assert s.grow(later, handle, 1)
    s.complete(step)
    s.advance(step, handle, 7)
    s.release(handle)
    assert (s.count("free"), s.count("fenced")) == (0, 2)
    assert s.try_admit(s.begin(), tokens(4))[0] == -1
    s.complete(later)
    # The step that was begun before the release is done; the one begun after it does not matter.
    assert (s.count("free"), s.count("fenced")) == (2, 0)
    assert s.try_admit(later + 1, tokens(4))[0] > 0


def test_cached_pages_keep_the_fence_of_their_last_user(engine: str) -> None:
    s = Scenario(engine, num_pages=(3,))
    handle = s.prefill(tokens(8))
    step = s.begin()
    assert s.grow(step, handle, 1) is False
    s.release(handle)
    assert (s.count("cached"), s.count("evictable")) == (2, 0)
    assert s.try_admit(step, tokens(4, 100))[0] == -1
    assert s.match(tokens(8)) == 8  # it can still be shared
    s.complete(step)
    assert s.count("evictable") == 2


def test_same_stream_needs_no_fence(engine: str) -> None:
    s = Scenario(engine, num_pages=(3,), same_stream=True)
    handle = s.prefill(tokens(8), scope=-1)
    s.begin()
    s.release(handle)
    assert (s.count("free"), s.count("fenced")) == (2, 0)


def test_preemption_frees_nothing_before_its_fence(engine: str) -> None:
    """The victim's pages are fenced: growth waits a step, it does not preempt more (vllm#49674)."""
    s = Scenario(engine, num_pages=(9,))
    handles = [s.prefill(tokens(4, 10 * i), 99, scope=-1) for i in range(8)]
    step = s.begin()
    for handle in handles:
        assert not s.grow(step, handle, 4)
    s.release(handles[0], publish=0)
    assert (s.count("free"), s.count("fenced")) == (0, 1)
    assert not s.grow(step, handles[1], 4)
    s.complete(step)
    assert s.grow(s.begin(), handles[1], 4)
    assert s.stats()["released"] == 1


def test_the_source_of_a_copy_stays_until_the_step_is_done(engine: str) -> None:
    """TensorRT-LLM#7510: the source was released while the copy was pending."""
    s = Scenario(engine, num_pages=(5,))
    s.serve(tokens(6))
    source = 2
    step = s.begin()
    reader = s.admit(step, (*tokens(5), 77), max_total=8)
    assert s.sequence(reader)["history"] == 5
    assert len(s.pages(reader)) == source
    s.release(reader, publish=0)
    assert (s.count("cached"), s.count("evictable"), s.count("fenced")) == (2, 0, 1)
    s.complete(step)
    assert (s.count("cached"), s.count("evictable"), s.count("fenced")) == (2, 2, 0)


# Admission


def test_a_prompt_that_cannot_end_is_not_begun(engine: str) -> None:
    """Two prompts of 120k, room for 150k, chunks of 2k: the second one waits (vllm#21809)."""
    s = Scenario(engine, tokens_per_block=1000, num_pages=(151,), max_seq_len=130_000)
    first = s.prefill(tokens(120_000), first=2_000, scope=-1)
    assert s.count("live") == 2
    assert s.stats()["promised"] == 118
    for _ in range(10):
        assert s.try_admit(s.begin(), tokens(120_000), first=2_000, scope=-1)[0] == -1
        s.decode(first, width=2_000)
    assert s.stats()["refused_grows"] == 0
    # What is left beside the promise can be used.
    assert s.try_admit(s.begin(), tokens(30_000), scope=-1)[0] > 0
    assert s.stats()["promised"] == 98
    while s.sequence(first)["history"] < 120_000:
        s.decode(first, width=2_000)
    assert s.stats()["promised"] == 0


def test_cached_pages_count_as_available(engine: str) -> None:
    """Free 5 %, evictable 80 %: 85 % can be had (lmdeploy#4100)."""
    s = Scenario(engine, num_pages=(101,), max_seq_len=400)
    s.serve(tokens(320))
    s.prefill(tokens(60, 500), scope=-1)
    assert (s.count("free"), s.count("evictable")) == (5, 80)
    step = s.begin()
    assert s.try_admit(step, tokens(86 * 4, 1000), scope=-1)[0] == -1
    assert s.try_admit(step, tokens(85 * 4, 1000), scope=-1)[0] > 0
    assert s.stats()["evicted_blocks"] == 80


def test_requests_that_never_fit_are_refused_for_ever(engine: str) -> None:
    """10 pages, every request needs 12 (inference-sim#297)."""
    s = Scenario(engine, num_pages=(11,))
    for _ in range(5):
        assert s.try_admit(s.begin(), tokens(4), max_total=48)[0] == -2
    assert s.try_admit(s.begin(), tokens(4), max_total=41)[0] > 0
    assert s.stats()["refused_never"] == 5


@pytest.mark.parametrize(("prompt", "new", "pages"), [(16, 1, 1), (17, 16, 2), (100, 24, 8)])
def test_the_last_token_is_never_written(engine: str, prompt: int, new: int, pages: int) -> None:
    """Worst case of prompt + new tokens at 16 per page (pegainfer-project/pegainfer#292)."""
    for usable, fits in ((pages, True), (pages - 1, False)):
        if usable == 0:
            continue
        s = Scenario(engine, tokens_per_block=16, num_pages=(usable + 1,))
        reason, _ = s.try_admit(s.begin(), tokens(prompt), max_total=prompt + new)
        assert reason > 0 if fits else reason == -2


def test_the_worst_case_includes_extra_tokens_and_reserve(engine: str) -> None:
    for usable, fits in ((9, True), (8, False)):
        s = Scenario(
            engine, num_pages=(usable + 1,), has_draft=True, extra_tokens=1, reserve_tokens=4
        )
        # 29 - 1 + 4 + 1 = 33 tokens.
        reason, _ = s.try_admit(s.begin(), tokens(4), max_total=29)
        assert reason > 0 if fits else reason == -2


def test_admission_stops_at_the_smaller_class(engine: str) -> None:
    """12 requests, one pool holds many more than the other (TensorRT-LLM#18660)."""
    s = Scenario(engine, num_pages=(101, 25), max_sequences=12)
    step = s.begin()
    requests = [s.request(tokens(20, 100 * i)) for i in range(12)]
    count, handles, _ = s.ledger.admit(step, requests)
    assert (count, handles.count(-1)) == (4, 8)
    assert (s.count("free", 0), s.count("free", 1)) == (80, 4)


def test_small_requests_pass_a_big_one(engine: str) -> None:
    """Free 10; the queue needs 40, 2 and 3 (vllm#35852)."""
    s = Scenario(engine, num_pages=(51,))
    s.prefill(tokens(160), scope=-1)
    requests = [s.request(tokens(4 * n, 1000 * n), scope=-1) for n in (40, 2, 3)]
    step = s.begin()
    assert s.ledger.admit(step, requests, True)[1] == [-1, -4, -4]
    count, handles, _ = s.ledger.admit(step, requests)
    assert (count, handles[0]) == (2, -1)
    assert s.count("free") == 5


def test_room_for_the_longest_request(engine: str) -> None:
    """Length 1,024, 32 per page, 1 extra and 4 drafts: 33 pages; the visible length stays 1,024."""
    s = Scenario(
        engine,
        tokens_per_block=32,
        num_pages=(40,),
        max_seq_len=1024,
        has_draft=True,
        extra_tokens=1,
        reserve_tokens=4,
    )
    handle = s.prefill(tokens(1023), 5)
    assert s.sequence(handle)["known"] == 1024
    assert s.grow(s.begin(), handle, 5)
    assert s.sequence(handle)["capacity"] == 33 * 32
    with pytest.raises(ERRORS):
        s.grow(s.begin(), handle, 5)
    with pytest.raises(ERRORS):
        s.try_admit(s.begin(), tokens(1025))
    if engine == "core":
        assert s.ledger.core.row_width == 36


def test_page_zero_belongs_to_nobody(engine: str) -> None:
    s = Scenario(engine, num_pages=(9,))
    handle = s.prefill(tokens(32), scope=-1)
    assert s.count("free") == 0
    assert sorted(s.pages(handle)) == list(range(1, 9))
    s.release(handle)
    assert (s.count("free"), s.count("reserved")) == (8, 1)


def test_slots_follow_the_table() -> None:
    """The slot after the last of a page lies in another page (text-generation-inference#2711)."""
    s = Scenario("core", num_pages=(10,), max_sequences=9)
    singles = [s.prefill(tokens(4, 10 * i), scope=-1) for i in range(9)]
    page_of = {s.pages(handle)[0]: handle for handle in singles}
    for page in (7, 2, 9):
        s.release(page_of[page], publish=0)
    handle = s.prefill(tokens(7), 7, scope=-1, max_total=10)
    assert s.grow(s.begin(), handle, 1 + 3 - 1)
    table = s.pages(handle)
    assert sorted(table) == [2, 7, 9]
    slots = [table[position // 4] * 4 + position % 4 for position in (7, 8, 9)]
    assert slots == [table[1] * 4 + 3, table[2] * 4, table[2] * 4 + 1]
