"""What a scheduler asks, on numbers worked out by hand; the faults that such questions prevent.

Every scenario runs on the real ledger and on the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference.scenario import ENGINES, Scenario, tokens

from tandemkv.errors import LedgerError


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> Any:
    """Build a scenario on one of the engines."""
    return lambda **options: Scenario(request.param, **options)


def fits(s: Scenario, *prompts: tuple[int, ...], **options: Any) -> list[int]:
    return s.ledger.fits([s.request(prompt, **options) for prompt in prompts])[1]


def victims(s: Scenario, handles: list[int], need: int) -> list[int]:
    """Return which of the handles are chosen, in order."""
    count, chosen = s.ledger.victims(handles, [need])
    picked = [handle for handle, is_chosen in zip(handles, chosen, strict=True) if is_chosen]
    assert len(picked) == count
    return picked


def reasons(s: Scenario, prompt: tuple[int, ...], scope: int = 0, **options: Any) -> list[tuple]:
    """Return (reason, position, tokens) of each missed range."""
    draft_from = options.get("draft_from", s.draft_from)
    answer = s.ledger.explain_match(prompt, scope, draft_from)
    at = answer["hit"]
    for missed in answer["missed"]:
        assert missed["position"] == at
        at += missed["tokens"]
    assert at == len(prompt)
    return [(item["reason"], item["position"], item["tokens"]) for item in answer["missed"]]


class TestFits:
    def test_a_large_request_does_not_hide_small_ones(self, make: Any) -> None:
        """vllm#35852: 10 pages free, the queue needs 40, 2 and 3."""
        s = make(num_pages=(41,), max_seq_len=512)
        s.prefill(tokens(4 * 30))
        assert s.count("free") == 10
        queue = [tokens(4 * blocks, start=1000 * blocks) for blocks in (40, 2, 3)]
        before = s.ledger.stats()
        total = [len(prompt) for prompt in queue]
        items = [s.request(p, max_total=n) for p, n in zip(queue, total, strict=True)]
        assert s.ledger.fits(items) == (2, [-1, 0, 0], [0, 0, 0])
        blocks = [(n, 0, n, n) for n in total]
        assert s.ledger.fits_blocks(blocks) == (2, [-1, 0, 0])
        assert s.ledger.stats() == before

    def test_a_refused_head_does_not_stop_a_request_that_fits(self, make: Any) -> None:
        """vllm#45388: of 2,048 pages B has its 1,249; A, first in the queue, needs 1,600."""
        s = make(num_pages=(2049,), max_seq_len=8000, max_sequences=3)
        loaded = s.prefill(tokens(4 * 1249 - 3))
        assert s.count("free") == 799
        first = tokens(4 * 1600, start=10_000)
        assert fits(s, first, max_total=4 * 1600) == [-1]
        step = s.begin()
        assert s.try_admit(step, first, max_total=4 * 1600)[0] == -1
        assert s.grow(step, loaded, 1)

    def test_evictable_pages_count_as_room(self, make: Any) -> None:
        """lmdeploy#4100: 5 % free and 80 % evictable are 85 % for a prompt."""
        s = make(num_pages=(101,), max_seq_len=512)
        s.serve(tokens(4 * 80))
        s.prefill(tokens(4 * 15, start=1000), first=4 * 15)
        assert (s.count("free"), s.count("evictable")) == (5, 80)
        assert fits(s, tokens(4 * 85, 2000), tokens(4 * 85 + 1, 2000), max_total=350) == [0, -1]

    def test_what_protects_itself_is_not_room(self, make: Any) -> None:
        """A prompt cannot evict the blocks that it reuses."""
        s = make(num_pages=(9,))
        s.serve(tokens(4 * 6))
        assert fits(s, tokens(4 * 8), max_total=32) == [0]
        step = s.begin()
        assert s.try_admit(step, tokens(4 * 8), max_total=32)[1] == 4 * 6
        # Two new blocks were the last: 6 shared ones are protected now.
        assert fits(s, tokens(1, 500), max_total=1) == [-1]

    def test_the_reasons_are_those_of_admit(self, make: Any) -> None:
        s = make(num_pages=(9,), max_sequences=1)
        assert fits(s, tokens(32), max_total=32) == [0]
        assert fits(s, tokens(33), max_total=33) == [-2]
        assert s.ledger.fits_blocks([(33, 0, 33, 33), (4, 0, 4, 34)]) == (0, [-2, -2])
        s.prefill(tokens(4))
        assert fits(s, tokens(4), max_total=8) == [-3]
        assert s.ledger.fits_blocks([(4, 0, 4, 8)]) == (0, [-3])

    def test_known_hits_are_counted_as_evictable(self, make: Any) -> None:
        """`fits_blocks` errs on the safe side where a sequence stands on the hit."""
        s = make(num_pages=(13,))
        s.serve(tokens(4 * 6))
        prompt, total = tokens(4 * 12), 48
        assert s.ledger.fits([s.request(prompt, max_total=total)]) == (1, [0], [24])
        assert s.ledger.fits_blocks([(48, 24, 48, total)]) == (1, [0])
        s.prefill(tokens(4 * 6) + tokens(4, 800))
        # Of the 12 pages 7 are held; the 6 of the hit among them, so 5 more are needed and there.
        assert s.count("free") == 5
        prompt, total = tokens(4 * 11), 44
        assert s.ledger.fits([s.request(prompt, max_total=total)]) == (1, [0], [24])
        assert s.ledger.fits_blocks([(44, 24, 44, total)]) == (
            1,
            [0],
        )  # nothing evictable to err about
        s.serve(tokens(4 * 3, 900))
        assert s.ledger.fits([s.request(prompt, max_total=total)]) == (1, [0], [24])
        assert s.ledger.fits_blocks([(44, 24, 44, total)]) == (0, [-1])

    @pytest.mark.parametrize(
        "item",
        [
            *[(0, 0, 1, 4), (4, 4, 1, 4), (4, -1, 1, 4), (4, 0, 1, 3), (4, 0, 1, 257)],
            *[(257, 0, 1, 257), (4, 0, 0, 4)],
        ],
    )
    def test_lengths_out_of_range_are_errors(self, item: tuple[int, int, int, int]) -> None:
        s = Scenario("core")
        with pytest.raises(LedgerError) as caught:
            s.ledger.fits_blocks([(4, 0, 4, 4), item])
        assert caught.value.details["item"] == 1

    def test_a_hit_without_partial_reuse_is_whole_blocks(self) -> None:
        s = Scenario("core", partial_reuse=False)
        assert s.ledger.fits_blocks([(9, 4, 9, 9)]) == (1, [0])
        for hit in (3, 9):
            with pytest.raises(LedgerError):
                s.ledger.fits_blocks([(9, hit, 9, 9)])


class TestNothingIsTouched:
    def test_questions_keep_nothing_alive(self, make: Any) -> None:
        """Mooncake#2187, LMCache#1034: what is only asked about is evicted as if it were not."""
        s = make(num_pages=(9,))
        s.serve(tokens(8))
        s.serve(tokens(8, 100))
        for _ in range(1000 if isinstance(s.ledger, ENGINES["core"]) else 5):
            assert s.match(tokens(8)) == 8
            assert fits(s, tokens(9), max_total=9) == [0]
            assert reasons(s, tokens(8)) == [("first_token_must_run", 7, 1)]
        assert s.count("protected") == 0
        s.serve(tokens(24, 200), max_total=24)
        assert (s.match(tokens(8)), s.match(tokens(8, 100))) == (0, 8)

    def test_a_burst_into_a_full_pool_is_one_call(self) -> None:
        """TensorRT-LLM#18541: a sequence grows by 8,192 pages, all of them taken from the cache."""
        pages = 8192
        s = Scenario(
            "core", tokens_per_block=16, num_pages=(pages + 2,), max_seq_len=16 * (pages + 1)
        )
        for at in range(pages // 64):
            s.serve(tokens(16 * 64, 10_000 * at))
        handle = s.prefill(tokens(15, 3_000_000))
        step = s.begin()
        assert s.count("evictable") == pages
        assert s.grow(step, handle, 16 * pages)
        assert s.sequence(handle)["blocks"] == pages + 1
        assert s.stats()["evicted_blocks"] == pages


class TestWatermark:
    def test_a_prompt_that_cannot_finish_waits(self) -> None:
        """vllm#21809: two prompts of 120k tokens, a pool for 150k, chunks of 2k: no preemption."""
        tpb, whole = 16, 120_000
        pages = 150_000 // tpb + 1
        s = Scenario("core", tokens_per_block=tpb, num_pages=(pages,), max_seq_len=whole + 64)
        step = s.begin()
        handle = s.admit(step, tokens(whole), first=2000, max_total=whole)
        assert s.try_admit(step, tokens(whole, whole), first=2000, max_total=whole)[0] == -1
        s.complete(step)
        s.advance(step, handle)
        for _ in range(whole // 2000 - 1):
            s.decode(handle, width=2000)
            assert fits(s, tokens(whole, whole), first=2000, max_total=whole) == [-1]
        assert s.stats()["refused_grows"] == 0

    def test_growth_may_use_what_admissions_leave(self, make: Any) -> None:
        s = make(num_pages=(11,), watermark_blocks=3)
        running = s.prefill(tokens(4 * 5))
        assert s.count("free") == 5
        assert fits(s, tokens(12, 100), tokens(8, 100), max_total=12) == [-1, 0]
        assert s.ledger.fits_blocks([(12, 0, 12, 12), (8, 0, 8, 12)]) == (1, [-1, 0])
        step = s.begin()
        assert s.grow(step, running, 20)
        assert s.count("free") == 0

    def test_an_idle_ledger_keeps_nothing_back(self, make: Any) -> None:
        s = make(num_pages=(11,), watermark_blocks=1000)
        step = s.begin()
        assert s.admit(step, tokens(40), max_total=40) > 0
        s.complete(step)
        assert fits(s, tokens(1, 100), max_total=1) == [-1]

    def test_items_of_one_call_see_each_other(self, make: Any) -> None:
        """The first opens a sequence, so that the second must leave the watermark."""
        s = make(num_pages=(11,), watermark_blocks=4)
        step = s.begin()
        items = [s.request(tokens(4 * n, 100 * n), max_total=4 * n) for n in (4, 3, 2)]
        _, handles, _ = s.ledger.admit(step, items)
        assert [min(handle, 0) for handle in handles] == [0, -1, 0]

    def test_a_cached_page_may_be_the_watermark(self, make: Any) -> None:
        s = make(num_pages=(11,), watermark_blocks=4)
        s.serve(tokens(4 * 6))
        s.prefill(tokens(4, 100))
        assert (s.count("free"), s.count("evictable")) == (3, 6)
        assert fits(s, tokens(20, 200), tokens(21, 200), max_total=21) == [0, -1]

    def test_a_negative_watermark_is_refused(self) -> None:
        with pytest.raises(LedgerError, match="watermark_blocks is -1"):
            Scenario("core", watermark_blocks=-1)

    @pytest.mark.parametrize(
        ("prompt", "max_new", "pages"), [(16, 1, 1), (17, 16, 2), (100, 24, 8)]
    )
    def test_the_last_token_needs_no_page(
        self, make: Any, prompt: int, max_new: int, pages: int
    ) -> None:
        """pegainfer#292: the KV of the last token is never written."""
        s = make(tokens_per_block=16, num_pages=(pages + 1,))
        assert fits(s, tokens(prompt), max_total=prompt + max_new) == [0]
        less = make(tokens_per_block=16, num_pages=(max(pages, 2),))
        expected = [-2] if pages > 1 else [0]
        assert fits(less, tokens(prompt), max_total=prompt + max_new) == expected

    def test_what_can_never_fit_is_said_at_once(self, make: Any) -> None:
        """inference-sim#297: 10 pages, every request needs 12."""
        s = make(num_pages=(11,))
        assert fits(s, tokens(48), tokens(4), max_total=48) == [-2, -2]

    def test_shortage_is_an_answer_and_other_errors_raise(self) -> None:
        """As in kvcached#453."""
        s = Scenario("core", num_pages=(3,))
        s.prefill(tokens(8))
        step = s.begin()
        assert s.try_admit(step, tokens(4, 50), max_total=5)[0] == -1
        with pytest.raises(LedgerError):
            s.try_admit(step + 1, tokens(4, 50), max_total=5)


class TestVictims:
    def test_shared_blocks_come_free_only_together(self, make: Any) -> None:
        s = make()
        shared = tokens(4 * 5)
        one = s.prefill(shared + tokens(4 * 2, 100))
        two = s.prefill(shared + tokens(4 * 3, 200))
        assert s.ledger.reclaimable([one, two]) == [[2], [3]]
        assert victims(s, [one, two], 2) == [one]
        assert victims(s, [two, one], 2) == [two]
        assert victims(s, [one, two], 3) == [two]  # the first alone is too little, and not needed
        assert victims(s, [one, two], 4) == [one, two]
        assert victims(s, [one, two], 10) == [one, two]
        assert victims(s, [one, two], 11) == []
        assert victims(s, [one, two], 0) == []
        assert victims(s, [one], 3) == []

    def test_what_they_free_can_be_had(self, make: Any) -> None:
        """Releasing the victims makes exactly as many pages allocatable as was promised."""
        s = make(num_pages=(21,))
        shared = tokens(4 * 3)
        handles = [s.prefill(shared + tokens(4 * n + 1, 100 * n)) for n in (1, 2, 3)]
        assert s.ledger.reclaimable(handles) == [[2], [3], [4]]
        before = s.count("free") + s.count("evictable")
        chosen = victims(s, handles, 6)
        assert chosen == [handles[0], handles[2]]  # all three, then the second is not needed
        for handle in chosen:
            s.release(handle)
        assert s.count("free") + s.count("evictable") == before + 6

    def test_a_copy_in_flight_protects_nothing_for_long(self, make: Any) -> None:
        """The source of a pending copy is free of its reader once the step has completed."""
        s = make()
        s.serve(tokens(10))
        step = s.begin()
        handle, hit = s.try_admit(step, tokens(10) + tokens(2, 50))
        assert hit == 10
        # Two shared blocks and one private one; the source of the copy goes with the step.
        assert s.count("protected") == 3
        assert s.ledger.reclaimable([handle]) == [[3]]
        s.release(handle)
        s.complete(step)
        assert s.count("protected") == 0

    def test_private_sequences_have_only_their_own(self, make: Any) -> None:
        s = make()
        handle = s.prefill(tokens(9), scope=-1)
        assert s.ledger.reclaimable([handle]) == [[3]]
        assert victims(s, [handle], 3) == [handle]

    def test_each_class_counts(self, make: Any) -> None:
        s = make(num_pages=(33, 20))
        handle = s.prefill(tokens(9))
        assert s.ledger.reclaimable([handle]) == [[3, 3]]
        assert s.ledger.victims([handle], [0, 3]) == (1, [1])
        assert s.ledger.victims([handle], [0, 4]) == (0, [0])

    def test_misuse_is_an_error(self) -> None:
        s = Scenario("core")
        handle = s.prefill(tokens(9))
        core = s.ledger.core
        both = np.array([handle, handle], np.int64)
        with pytest.raises(LedgerError):
            core.victims(both, np.array([1], np.int64), np.zeros(2, np.uint8))
        with pytest.raises(LedgerError, match="need"):
            core.victims(both[:1], np.array([-1], np.int64), np.zeros(1, np.uint8))
        with pytest.raises(LedgerError):
            core.victims(both[:1], np.array([1, 1], np.int64), np.zeros(1, np.uint8))
        with pytest.raises(LedgerError, match="shape"):
            core.reclaimable(both[:1], np.zeros((1, 2), np.int64))
        s.release(handle)
        with pytest.raises(LedgerError):
            core.reclaimable(both[:1], np.zeros((1, 1), np.int64))

    def test_a_hundred_thousand_sequences_on_one_prefix(self) -> None:
        """Near linear: quadratic work would take minutes."""
        n = 100_000
        s = Scenario(
            "core", num_pages=(n + 40,), max_sequences=n, tokens_per_block=4, max_seq_len=256
        )
        s.serve(tokens(4 * 20))
        step = s.begin()
        items = [s.request((*tokens(80), 100 + at), max_total=82) for at in range(n)]
        count, handles, _ = s.ledger.admit(step, items)
        assert count == n
        assert victims(s, handles, 3) == handles[:3]
        assert victims(s, handles, n) == handles
        assert victims(s, handles, n + 20) == handles
        assert victims(s, handles, n + 21) == []


class TestExplainMatch:
    def test_where_the_text_differs_or_ends(self, make: Any) -> None:
        s = make()
        s.serve(tokens(10))
        assert reasons(s, tokens(10)) == [("first_token_must_run", 9, 1)]
        assert reasons(s, tokens(14)) == [("end_of_cached_text", 10, 4)]
        assert reasons(s, tokens(6) + tokens(3, 50)) == [("tokens", 6, 3)]
        assert reasons(s, tokens(3, 50)) == [("tokens", 0, 3)]
        assert reasons(make(), tokens(3)) == [("end_of_cached_text", 0, 3)]
        assert reasons(s, ()) == []

    def test_another_scope_is_named(self, make: Any) -> None:
        s = make()
        other = s.ledger.intern_scope(("sql", 1))
        s.serve(tokens(10), scope=other)
        s.serve(tokens(4))
        answer = s.ledger.explain_match(tokens(12), 0, -1)
        assert answer == {
            "tokens": 12,
            "matched": 4,
            "usable": 4,
            "hit": 4,
            "missed": [
                {"reason": "scope", "scope": other, "position": 4, "tokens": 6},
                {"reason": "end_of_cached_text", "position": 10, "tokens": 2},
            ],
        }

    def test_lookahead(self, make: Any) -> None:
        """Agreeing on m = 10 tokens gives 10 - 3."""
        s = make(has_draft=True, lookahead=3)
        s.serve(tokens(16))
        prompt = tokens(10) + tokens(4, 50)
        assert s.match(prompt) == 7
        assert reasons(s, prompt) == [("lookahead", 7, 3), ("tokens", 10, 4)]

    def test_blocks_without_draft_kv(self, make: Any) -> None:
        s = make(has_draft=True)
        s.serve(tokens(8), draft_from=-1)
        assert reasons(s, tokens(10)) == [("draft", 0, 8), ("end_of_cached_text", 8, 2)]
        assert reasons(s, tokens(10), draft_from=4) == [
            ("draft", 4, 4),
            ("end_of_cached_text", 8, 2),
        ]
        assert reasons(s, tokens(10), draft_from=-1) == [("end_of_cached_text", 8, 2)]

    def test_partial_reuse_off(self, make: Any) -> None:
        s = make(partial_reuse=False)
        s.serve(tokens(12))
        prompt = tokens(6) + tokens(3, 50)
        assert reasons(s, prompt) == [("partial", 4, 2), ("tokens", 6, 3)]
        # One token must run, and with it the rest of its block.
        assert reasons(s, tokens(12)) == [("first_token_must_run", 8, 4)]

    def test_what_never_matches(self, make: Any) -> None:
        s = make()
        s.serve(tokens(8))
        assert reasons(s, tokens(8), scope=-1) == [("private", 0, 8)]
        assert reasons(make(reuse=False), tokens(8)) == [("reuse_off", 0, 8)]

    def test_what_was_evicted_reads_as_the_end(self, make: Any) -> None:
        s = make(num_pages=(5,))
        s.serve(tokens(12))
        s.serve(tokens(8, 100), scope=-1)
        assert s.stats()["evicted_blocks"] == 1
        assert reasons(s, tokens(12)) == [("end_of_cached_text", 8, 4)]

    def test_arguments_out_of_range_are_errors(self) -> None:
        s = Scenario("core")
        for prompt, scope, draft_from in (((-1,), 0, -1), ((1,), -2, -1), ((1,), 0, 0)):
            with pytest.raises(LedgerError):
                s.ledger.explain_match(prompt, scope, draft_from)


class TestStatistics:
    def test_misses_and_hits_add_up(self, make: Any) -> None:
        """tair-kvcache#168, vllm#25787: a token is a hit or missed for one reason."""
        s = make()
        s.serve(tokens(12))  # all missed
        s.prefill(tokens(12))  # all but the last
        s.prefill(tokens(6) + tokens(2, 50))
        s.prefill(tokens(5), scope=-1)
        stats = s.stats()
        names = ("private", "text", "last", "copy")
        missed = {name: stats[f"missed_{name}_tokens"] for name in names}
        assert missed == {"private": 5, "text": 12 + 2, "last": 1, "copy": 0}
        assert stats["hit_tokens"] == 11 + 6
        assert stats["prompt_tokens"] == stats["hit_tokens"] + sum(missed.values())

    def test_a_source_that_cannot_be_protected(self, make: Any) -> None:
        """Two blocks of four are cached; using one and copying the other would leave no room."""
        s = make(num_pages=(4,))
        s.serve(tokens(7))
        handle = s.prefill(tokens(6) + tokens(3, 50), max_total=9)
        assert s.sequence(handle)["committed"] >= 4
        assert s.stats()["missed_copy_tokens"] == 2
        assert s.stats()["missed_text_tokens"] == 7 + 3

    def test_gauges_after_distinct_requests(self, make: Any) -> None:
        """imp#1120: 24 distinct requests of two blocks leave 48 cached, none live."""
        s = make(num_pages=(65,))
        for at in range(24):
            s.serve(tokens(8, 100 * at))
        counts = s.counts()
        assert (counts["live"], counts["cached"], counts["evictable"]) == (0, 48, 48)
        assert s.count("protected") == 0
