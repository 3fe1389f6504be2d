"""What may be shared, and when it becomes so. Hand-computed, on both ledgers.

Prefix identity, publishing with speculation, the draft beside the target, and eviction order.
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


# Prefixes


def test_a_shared_page_is_never_written(engine: str) -> None:
    """The second sequence diverges inside a full shared page (TensorRT-LLM#12306)."""
    s = Scenario(engine)
    first = s.prefill(tokens(8))
    shared = s.pages(first)
    step = s.begin()
    second, hit = s.try_admit(step, (0, 1, 2, 3, 4, 5, 90, 91))
    assert hit == 6
    assert s.pages(second)[0] == shared[0]
    own = s.pages(second)[1]
    assert own not in shared
    assert s.ledger.moves() == [(0, shared[1], own, 2)]
    assert s.ledger.moves() == []
    s.complete(step)
    s.advance(step, second)
    assert s.pages(first) == shared
    assert s.match(tokens(8)) == 8
    assert s.match((0, 1, 2, 3, 4, 5, 90, 91)) == 8


@pytest.mark.parametrize(
    ("length", "partial_reuse", "hit"),
    [(32, False, 16), (33, False, 32), (32, True, 31), (33, True, 32)],
)
def test_a_prompt_that_is_all_cached_still_runs(
    engine: str, length: int, partial_reuse: bool, hit: int
) -> None:
    """16 tokens per page, both pages cached (vllm#3239)."""
    s = Scenario(engine, tokens_per_block=16, partial_reuse=partial_reuse)
    s.serve(tokens(32))
    step = s.begin()
    handle, found = s.try_admit(step, tokens(length))
    assert found == hit
    assert s.sequence(handle)["outstanding"] == [(step, length - hit)]
    s.complete(step)
    s.advance(step, handle)
    assert s.match(tokens(length)) >= 32


def test_the_hit_is_known_before_the_width(engine: str) -> None:
    """465 tokens, 256 per page, one page hit: 209 run (nano-vllm#210)."""
    s = Scenario(engine, tokens_per_block=256, max_seq_len=512)
    s.serve(tokens(256))
    step = s.begin()
    handle = s.admit(step, tokens(465), first=465)
    assert s.sequence(handle)["outstanding"] == [(step, 209)]
    assert s.sequence(handle)["capacity"] == 512


def test_a_dropped_prefill_publishes_nothing(engine: str) -> None:
    """text-generation-inference#2489: the prefix was registered before it was computed."""
    s = Scenario(engine)
    step = s.begin()
    s.release(s.admit(step, tokens(16)))
    s.complete(step)
    assert s.match(tokens(16)) == 0
    assert s.count("cached") == 0


def test_a_dropped_copy_publishes_no_more_than_was_copied(engine: str) -> None:
    s = Scenario(engine)
    s.serve(tokens(6))
    step = s.begin()
    handle = s.admit(step, (0, 1, 2, 3, 4, 50, 51, 52, 53))
    assert s.sequence(handle)["history"] == 5
    s.release(handle)
    s.complete(step)
    assert s.match((0, 1, 2, 3, 4, 50, 51, 52, 53)) == 5
    assert s.count("cached") == 2  # nothing new: what it covers is in the tree


@pytest.mark.parametrize(("accepted", "committed"), [(1, 8), (0, 4)])
def test_rejected_drafts_are_never_published(engine: str, accepted: int, committed: int) -> None:
    """6 tokens stored, one sure and 3 drafts run, 4 per page (vllm#18668)."""
    s = Scenario(engine, reserve_tokens=3)
    handle = s.prefill(tokens(6), 6)
    step = s.begin()
    assert s.grow(step, handle, 4)
    assert s.sequence(handle)["committed"] == 4
    s.complete(step)
    s.advance(step, handle, *(70, 71)[: accepted + 1])
    state = s.sequence(handle)
    assert state["history"] == 6 + 1 + accepted
    assert (state["committed"], state["known"]) == (committed, state["history"] + 1)
    assert s.match((*tokens(7), 71)) == 7 - 3 * (committed == 4)
    assert s.stats()["rewound_tokens"] == 3 - accepted
    s.release(handle)
    assert s.match((*tokens(7), 70, 99)) == 7 + accepted


def test_results_that_come_a_step_late_are_published_once(engine: str) -> None:
    """ROCm/ATOM#939: the prefix cache was dead when results lagged."""
    s = Scenario(engine)
    step = s.begin()
    handle = s.admit(step, tokens(8))
    later = s.begin()
    assert s.grow(later, handle, 1)
    assert s.stats()["published_blocks"] == 0
    s.complete(step)
    s.advance(step, handle, 8)
    assert s.stats()["published_blocks"] == 2
    s.complete(later)
    s.advance(later, handle, 9)
    assert s.stats()["published_blocks"] == 2
    assert s.match(tokens(8)) == 8


def test_the_lookup_comes_before_the_allocation(engine: str) -> None:
    """All pages are cached; making room must not evict what is about to be used (vllm#42948)."""
    s = Scenario(engine, num_pages=(9,))
    s.serve(tokens(32))
    assert s.count("free") == 0
    handle, hit = s.try_admit(s.begin(), tokens(32))
    assert hit == 28  # nothing is free for a copy of the last block: it is evicted and run again
    assert s.sequence(handle)["committed"] == 28
    assert s.stats()["evicted_blocks"] == 1


def test_a_batch_claims_its_matches_first(engine: str) -> None:
    """The first item evicts what nobody in the batch needs, though that was used last."""
    s = Scenario(engine, num_pages=(9,))
    s.serve(tokens(16))
    s.serve(tokens(16, 100))
    assert s.count("free") == 0
    step = s.begin()
    requests = [s.request(tokens(12, 500), scope=-1), s.request(tokens(17), max_total=17)]
    _, handles, hits = s.ledger.admit(step, requests)
    assert (hits, min(handles) > 0) == ([0, 16], True)
    assert s.match(tokens(16, 100)) == 0


def test_a_claim_does_not_open_a_fence(engine: str) -> None:
    """What is claimed goes before what a step in flight may still read."""
    s = Scenario(engine, num_pages=(4,))
    s.serve(tokens(4))
    fenced = s.prefill(tokens(4, 50))
    step = s.begin()
    s.release(fenced)
    requests = [s.request(tokens(8, 100), scope=-1), s.request(tokens(5))]
    assert s.ledger.admit(step, requests)[1][1] == -1
    assert (s.match(tokens(4)), s.match(tokens(4, 50))) == (0, 4)
    assert (s.count("cached"), s.count("evictable")) == (1, 0)


def test_a_claimed_node_may_be_split_and_lose_its_rest(engine: str) -> None:
    """Both items copy from block 0; the first one takes block 1, which nobody claimed."""
    s = Scenario(engine, num_pages=(4,))
    s.serve(tokens(8))
    requests = [s.request((0, 1, 2, 90, 91)), s.request((0, 1, 2, 92))]
    _, handles, hits = s.ledger.admit(s.begin(), requests)
    assert (handles[0] > 0, handles[1], hits) == (True, -1, [3, 0])
    assert s.match(tokens(8)) == 4


def test_a_repeated_single_token_is_no_hit(engine: str) -> None:
    """A tail counts its tokens, not its page (alibaba/tair-kvcache#168)."""
    s = Scenario(engine, tokens_per_block=16)
    for _ in range(3):
        s.serve((5,))
    assert s.stats()["hit_tokens"] == 0
    assert s.match((5,)) == 1
    assert s.stats()["hit_tokens"] <= s.stats()["prompt_tokens"]


# The draft beside the target


def test_hits_of_a_pair_cover_both_roles(engine: str) -> None:
    """What a sequence without a draft left is no hit for one that has it (sglang#31600)."""
    s = Scenario(engine, has_draft=True)
    s.serve(tokens(16), draft_from=-1)
    assert s.match(tokens(16), draft_from=-1) == 16
    assert s.match(tokens(16), draft_from=0) == 0
    assert s.try_admit(s.begin(), tokens(17))[1] == 0
    assert s.stats()["target_only_hits"] == 0
    assert s.try_admit(s.begin(), tokens(17), draft_from=-1)[1] == 16
    assert s.stats()["target_only_hits"] == 1


def test_a_draft_that_starts_late(engine: str) -> None:
    """512 of 600 tokens restored: the draft is valid in [512, 600) (vllm#47926)."""
    s = Scenario(engine, tokens_per_block=16, max_seq_len=1024, num_pages=(100,), has_draft=True)
    s.serve(tokens(512), draft_from=-1)
    handle = s.prefill(tokens(600), draft_from=512)
    assert s.stats()["hit_tokens"] == 512
    assert s.sequence(handle)["valid"] == [600, 600]
    s.release(handle)
    # 37 full blocks; those below 512 have no draft KV, the others do.
    assert s.match(tokens(600), draft_from=512) == 600
    assert s.match(tokens(600), draft_from=0) == 0
    assert s.match(tokens(600), draft_from=511) == 496
    assert s.match(tokens(600), draft_from=-1) == 600


def test_the_draft_valid_twin_wins(engine: str) -> None:
    """Equal tokens with and without draft KV are two blocks; one hit goes to the better."""
    s = Scenario(engine, has_draft=True)
    s.serve(tokens(4), draft_from=-1)
    paired = s.prefill(tokens(4))
    assert s.count("cached") == 2
    plain = s.prefill(tokens(5), draft_from=-1)
    assert s.pages(plain)[0] == s.pages(paired)[0]
    # Published again without a draft, it takes the twin that has one.
    s.release(paired)
    step = s.begin()
    again = s.admit(step, tokens(4), draft_from=-1)
    s.complete(step)
    s.advance(step, again)
    assert s.pages(again) == s.pages(plain)[:1]
    assert s.count("cached") == 2


def test_twins_are_compared_by_what_is_used_of_them(engine: str) -> None:
    """Without partial reuse 6 tokens that agree are worth 4: the twin with a draft wins."""
    s = Scenario(engine, has_draft=True, partial_reuse=False)
    s.serve(tokens(8), draft_from=-1)
    paired = s.prefill(tokens(4))
    plain = s.prefill((*tokens(6), 90), draft_from=-1)
    assert s.pages(plain)[0] == s.pages(paired)[0]


@pytest.mark.parametrize(("partial_reuse", "hit"), [(False, 4), (True, 7)])
def test_draft_pages_depend_on_the_next_token(engine: str, partial_reuse: bool, hit: int) -> None:
    """Agreement on 8 tokens, the ninth differs, one token of lookahead (TensorRT-LLM#18093)."""
    s = Scenario(engine, has_draft=True, lookahead=1, partial_reuse=partial_reuse)
    s.serve(tokens(16))
    other = (*tokens(8), 80, 81, 82)
    assert s.try_admit(s.begin(), other)[1] == hit
    assert s.try_admit(s.begin(), tokens(12))[1] == (8 if not partial_reuse else 11)


def test_history_never_leaves_the_capacity(engine: str) -> None:
    """Grown for 2 drafts, told of more (TensorRT-LLM#19120)."""
    s = Scenario(engine, has_draft=True, reserve_tokens=2)
    handle = s.prefill(tokens(4), 4)
    step = s.begin()
    assert s.grow(step, handle, 3)
    before = s.sequence(handle)
    with pytest.raises(ERRORS):
        s.advance(step, handle, 60, 61, 62, 63)  # 4 tokens from a width of 3
    with pytest.raises(ERRORS):
        s.advance(step, handle, 60, valid=[3, 4])  # below what is written
    with pytest.raises(ERRORS):
        s.advance(step, handle, 60, valid=[8, 5])  # beyond what ran
    assert s.sequence(handle) == before
    s.advance(step, handle, 60)
    state = s.sequence(handle)
    assert (state["history"], state["reach"], state["capacity"]) == (5, 5, 8)


def test_no_gap_between_what_is_written_and_what_is_appended(engine: str) -> None:
    """The last stored position is 16,382, the next asked 16,384 (llama.cpp#26478)."""
    s = Scenario(engine, tokens_per_block=64, num_pages=(300,), max_seq_len=20_000)
    step = s.begin()
    handle = s.admit(step, tokens(16_384), first=16_383)
    s.complete(step)
    with pytest.raises(ERRORS):
        s.advance(step, handle, 7)
    s.advance(step, handle)
    assert s.sequence(handle)["history"] == 16_383
    s.decode(handle, 7)
    assert (s.sequence(handle)["known"], s.sequence(handle)["history"]) == (16_385, 16_384)


def test_the_slower_role_holds_publishing_back(engine: str) -> None:
    s = Scenario(engine, has_draft=True)
    step = s.begin()
    handle = s.admit(step, tokens(8))
    s.complete(step)
    s.advance(step, handle, 8, valid=[8, 5])
    state = s.sequence(handle)
    assert (state["history"], state["reach"], state["committed"]) == (5, 8, 4)
    s.release(handle)
    assert s.match(tokens(8)) == 5


# Eviction


def test_the_least_recently_used_leaf_goes_first(engine: str) -> None:
    s = Scenario(engine, num_pages=(8,))
    a, b, c = ((n, n, n, n, n + 1, n + 1, n + 1, n + 1) for n in (10, 20, 30))
    for prompt in (a, b, c, a):
        s.serve(prompt)
    assert s.count("free") == 1  # the copy of the last block of `a`, given back at once
    order = []
    for blocks in range(2, 8):
        s.release(s.prefill(tokens(4 * blocks, 1000), scope=-1))
        order.append([s.match(prompt) for prompt in (a, b, c)])
    # The free pages of one round serve the next; each round needs one page more.
    assert order == [[8, 4, 8], [8, 0, 8], [8, 0, 4], [8, 0, 0], [4, 0, 0], [0, 0, 0]]


def test_reading_does_not_refresh(engine: str) -> None:
    s = Scenario(engine, num_pages=(3,))
    s.serve(tokens(4))
    s.serve(tokens(4, 50))
    assert s.match(tokens(4)) == 4
    s.prefill(tokens(4, 90), scope=-1)
    assert (s.match(tokens(4)), s.match(tokens(4, 50))) == (0, 4)


def test_eviction_takes_one_block_of_every_class(engine: str) -> None:
    s = Scenario(engine, num_pages=(9, 5))
    s.serve(tokens(16))
    assert (s.count("free", 0), s.count("free", 1)) == (4, 0)
    s.prefill(tokens(8, 100), scope=-1)
    assert (s.count("free", 0), s.count("free", 1)) == (4, 0)
    assert s.match(tokens(16)) == 8


def test_a_late_draft_does_not_pass_through_a_block_without_it(engine: str) -> None:
    """Draft KV is missing in [4, 8), which a draft valid from 5 on needs."""
    s = Scenario(engine, has_draft=True)
    s.serve(tokens(8), draft_from=-1)
    s.serve(tokens(12), draft_from=8)
    assert s.match(tokens(12), draft_from=8) == 12
    assert s.match(tokens(12), draft_from=5) == 4
    assert s.match(tokens(12), draft_from=3) == 0


def test_a_claim_ends_with_the_hit(engine: str) -> None:
    """An earlier item may evict what lies past the hit of a later one; the hit stays."""
    s = Scenario(engine, tokens_per_block=1, num_pages=(7,))
    s.serve((1, 2, 3))
    s.serve((1, 2))
    s.serve((9,))
    assert s.count("free") == 2
    requests = [s.request((7, 7, 7), scope=-1), s.request((1, 2, 4), max_total=3)]
    _, handles, hits = s.ledger.admit(s.begin(), requests)
    assert (hits, min(handles) > 0) == ([0, 2], True)
    assert (s.match((1, 2, 3)), s.match((9,))) == (2, 0)
