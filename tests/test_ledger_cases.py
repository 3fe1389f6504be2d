"""The reference cases of tests/data/cases/runtime.json that a full-attention ledger covers.

The cases state what TensorRT-LLM's KV cache manager V2 does, or what this project does instead,
with the numbers. Every id of the file is either covered by a test here or listed in `ELSEWHERE`
with the reason; an id in neither fails.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse

from tandemkv.errors import LedgerError

CASES = json.loads((Path(__file__).parent / "data/cases/runtime.json").read_text())
ERRORS = (LedgerError, Misuse)

_BY_VALUE = "tables go out by value: no row of the caller's is attached"
_SIZING = "concerns the sizes of pools, which planning decides"
_SCRATCH = (
    "there are no scratch pages: a prompt gives its window pages back chunk by chunk "
    "(test_ledger_windows.py)"
)
_KEYS = "concerns keys that leave the process; inside it tokens are compared"
_EVENTS = "needs the event stream"
_OPTIONAL = "an optional feature of the case collection that is not built"

ELSEWHERE: dict[str, str] = {
    "runtime-001": "a sequence starts with its prompt here; there is none without tokens",
    "runtime-004": "shutting down belongs to the managers",
    "runtime-010": _BY_VALUE,
    "runtime-012": _OPTIONAL,
    "runtime-014": _SIZING,
    "runtime-015": "a resume is bounded by the promises of each class, not by a utilisation limit",
    "runtime-016": _SIZING,
    "runtime-017": _SIZING,
    "runtime-018": _SIZING,
    "runtime-019": _SIZING,
    "runtime-021": _SIZING,
    "runtime-034": _KEYS,
    "runtime-035": _KEYS,
    "runtime-036": _SCRATCH,
    "runtime-037": _SCRATCH,
    "runtime-038": _SCRATCH,
    "runtime-043": "nothing is committed by call here: what is published follows from the lengths",
    "runtime-047": _OPTIONAL,
    "runtime-048": _OPTIONAL,
    "runtime-049": _OPTIONAL,
    "runtime-050": _OPTIONAL,
    "runtime-051": _SIZING,
    "runtime-052": "concerns the tiers below the device (test_faults_tiers.py)",
    "runtime-053": "needs the per-step statistics (missed, generated) of the metrics",
    "runtime-054": "needs the per-step statistics of the metrics",
    "runtime-056": _EVENTS,
    "runtime-061": _BY_VALUE,
    "runtime-063": "concerns the device copy",
}

COVERED: dict[str, str] = {}


def covers(*ids: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Note which cases a test covers."""

    def note(test: Callable[..., None]) -> Callable[..., None]:
        COVERED.update(dict.fromkeys(ids, test.__name__))
        return test

    return note


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@covers("runtime-002")
def test_second_release_is_an_error(engine: str) -> None:
    """Upstream lets it pass; here a handle that is closed is an error everywhere."""
    s = Scenario(engine)
    handle = s.prefill(tokens(8))
    s.release(handle, publish=0)
    before = s.counts()
    with pytest.raises(ERRORS):
        s.release(handle)
    assert s.counts() == before
    assert before["live"] == 0


@covers("runtime-003")
def test_reset_waits_for_the_last_sequence(engine: str) -> None:
    s = Scenario(engine)
    handle = s.prefill(tokens(64))
    with pytest.raises(ERRORS, match="1"):
        s.ledger.reset_reuse_state()
    assert s.match(tokens(64)) == 64
    s.release(handle)
    s.ledger.reset_reuse_state()
    assert s.match(tokens(64)) == 0
    assert s.count("free") == 32


@covers("runtime-005")
def test_reset_counts_the_open_sequences(engine: str) -> None:
    s = Scenario(engine)
    handles = [s.prefill(tokens(4, 10 * i)) for i in range(3)]
    for still_open in (3, 2, 1):
        with pytest.raises(ERRORS, match=str(still_open)):
            s.ledger.reset_reuse_state()
        s.release(handles[still_open - 1])
    s.ledger.reset_reuse_state()


@covers("runtime-006")
def test_blocks_follow_the_capacity(engine: str) -> None:
    s = Scenario(engine)
    step = s.begin()
    handle = s.admit(step, tokens(4), scope=-1)
    later = s.begin()
    assert s.grow(later, handle, 4)
    assert (s.sequence(handle)["capacity"], len(s.pages(handle))) == (8, 2)
    s.advance(step, handle)
    s.advance(later, handle)
    assert (s.sequence(handle)["capacity"], len(s.pages(handle))) == (4, 1)


@covers("runtime-007")
def test_history_neither_falls_nor_leaves_the_capacity(engine: str) -> None:
    s = Scenario(engine, tokens_per_block=16)
    handle = s.prefill(tokens(10), 99)
    step = s.begin()
    assert s.grow(step, handle, 1)
    before = s.sequence(handle)
    assert (before["history"], before["capacity"]) == (10, 16)
    for end in (9, 17):
        with pytest.raises(ERRORS):
            s.advance(step, handle, valid=[end, 0])
        assert s.sequence(handle) == before


@covers("runtime-008")
def test_growth_that_does_not_fit_changes_nothing(engine: str) -> None:
    s = Scenario(engine, num_pages=(4,), max_seq_len=64)
    handle = s.prefill(tokens(8), 99, max_total=12)
    before, pages = s.sequence(handle), s.pages(handle)
    assert not s.grow(s.begin(), handle, 8)
    assert (s.sequence(handle), s.pages(handle)) == (before, pages)
    assert s.stats()["refused_grows"] == 1


@covers("runtime-009")
def test_table_rows_are_complete() -> None:
    s = Scenario("core")
    handle = s.prefill(tokens(12))
    handles, used = np.array([handle]), np.zeros((1, 1), np.int32)
    with pytest.raises(LedgerError):
        s.ledger.core.table(handles, np.zeros((1, 1, 2), np.int32), used)
    row = np.full((1, 1, 5), 123, np.int32)
    s.ledger.core.table(handles, row, used)
    assert used.tolist() == [[3]]
    assert row[0, 0, :3].all()
    assert row[0, 0, 3:].tolist() == [0, 0]


@covers("runtime-011")
def test_nothing_is_appended_after_the_end(engine: str) -> None:
    s = Scenario(engine)
    handle = s.prefill(tokens(8))
    step = s.begin()
    assert s.grow(step, handle, 1)
    s.advance(step, handle)
    assert (s.sequence(handle)["known"], s.sequence(handle)["committed"]) == (8, 8)
    s.release(handle)
    with pytest.raises(ERRORS):
        s.advance(step, handle, 1)
    assert s.match(tokens(8)) == 8


@covers("runtime-022")
def test_reuse_across_prefill_and_decode(engine: str) -> None:
    """163 prompt tokens, 97 generated; kernel pages of another size do not concern the ledger."""
    s = Scenario(engine, tokens_per_block=128, max_seq_len=512)
    text = tokens(261)
    handle = s.prefill(text[:163], 163)
    for token in text[164:]:
        s.decode(handle, token)
    assert s.sequence(handle)["history"] == 260
    s.release(handle)
    assert s.match(text[:260]) == 260


@covers("runtime-023")
@pytest.mark.parametrize("tokens_per_block", [8, 16, 32])
def test_prompts_of_every_form_are_one_prompt(tokens_per_block: int) -> None:
    s = Scenario("core", tokens_per_block=tokens_per_block)
    s.serve(tokens(96))
    for dtype in (np.int32, np.int64):
        for flat in (False, True):
            s.ledger.dtype, s.ledger.flat = dtype, flat
            assert s.match(tokens(96)) == 96
            step = s.begin()
            handle, hit = s.try_admit(step, tokens(97))
            assert hit == 96
            s.complete(step)
            s.release(handle, publish=0)


@covers("runtime-024")
def test_reuse_ends_inside_a_block(engine: str) -> None:
    s = Scenario(engine, tokens_per_block=32, max_seq_len=1024)
    s.serve(tokens(704))
    assert s.match(tokens(345)) == 345


@covers("runtime-025")
@pytest.mark.parametrize(("partial_reuse", "expected"), [(False, 8), (True, 9)])
def test_the_last_token_runs(engine: str, partial_reuse: bool, expected: int) -> None:
    s = Scenario(engine, partial_reuse=partial_reuse)
    s.serve(tokens(12))
    assert s.try_admit(s.begin(), tokens(10))[1] == expected


@covers("runtime-026")
def test_scopes_share_nothing(engine: str) -> None:
    s = Scenario(engine)
    s.serve(tokens(8), scope=s.ledger.intern_scope((7, 1), "11"))
    fields = [((7, 1), "11"), ((7, 1), "12"), ((8, 1), "11"), ((7, 1), None), (None, "11")]
    scopes = [s.ledger.intern_scope(*pair) for pair in fields]
    assert [s.match(tokens(8), scope) for scope in scopes] == [8, 0, 0, 0, 0]
    assert s.match(tokens(8)) == s.match(tokens(8), scope=-1) == 0
    fields = [(None, None), ((0, 0), None), (None, ""), ((0, 0), ""), (None, b""), ((7, 1), "11")]
    scopes = [s.ledger.intern_scope(*pair) for pair in fields]
    assert len(set(scopes)) == 6
    assert scopes[0] == 0
    assert scopes[-1] == 1


@covers("runtime-027")
def test_lookahead_holds_back_the_last_tokens(engine: str) -> None:
    s = Scenario(engine, tokens_per_block=8, lookahead=3, has_draft=True)
    s.serve(tokens(32))
    assert s.match(tokens(32)) == 29
    assert s.match(tokens(2)) == 0
    assert s.try_admit(s.begin(), tokens(32))[1] == 29


@covers("runtime-031")
def test_a_replaced_tail_is_freed_once(engine: str) -> None:
    s = Scenario(engine, num_pages=(9,))
    s.serve(tokens(6))
    assert s.counts()["cached"] == 2
    # The next one copies the tail, fills its block and replaces the tail in the tree.
    handle = s.prefill(tokens(8))
    assert s.counts() == {
        "free": 6,
        "fenced": 0,
        "live": 0,
        "cached": 2,
        "reserved": 1,
        "evictable": 0,
    }
    s.release(handle)
    assert s.counts()["evictable"] == 2
    # A tail that a pending copy reads stays until the copy is done.
    s.serve(tokens(10))
    step = s.begin()
    reader = s.admit(step, tokens(12))
    s.advance(step, reader)
    assert s.counts()["cached"] == 4
    s.release(reader)
    s.complete(step)
    assert s.counts() == {
        "free": 4,
        "fenced": 0,
        "live": 0,
        "cached": 4,
        "reserved": 1,
        "evictable": 4,
    }


@covers("runtime-032")
def test_equal_work_is_shared_when_it_is_published(engine: str) -> None:
    s = Scenario(engine)
    step = s.begin()
    first, second = s.admit(step, tokens(10)), s.admit(step, tokens(10))
    assert not set(s.pages(first)) & set(s.pages(second))
    s.complete(step)
    s.advance(step, first)
    s.advance(step, second)
    assert s.pages(first)[:2] == s.pages(second)[:2]
    assert s.pages(first)[2] != s.pages(second)[2]
    assert s.counts()["free"] == 32 - 4
    assert s.stats()["rebased_blocks"] == 2


@covers("runtime-033")
def test_a_second_pass_reuses_everything(engine: str) -> None:
    s = Scenario(engine, tokens_per_block=32, num_pages=(641,), max_seq_len=1024)
    prompts = [tokens(1000, 10_000 * i) for i in range(20)]
    for prompt in prompts:
        s.serve(prompt)
    assert [s.match(prompt) for prompt in prompts] == [1000] * 20
    assert s.stats()["evicted_blocks"] == 0


@covers("runtime-055")
def test_counts_of_a_hit_that_ends_inside_a_block(engine: str) -> None:
    s = Scenario(engine)
    s.serve(tokens(9))
    step = s.begin()
    handle, hit = s.try_admit(step, tokens(10))
    counts = s.counts()
    assert hit == 9
    assert s.sequence(handle)["committed"] == 8  # two full blocks are shared
    assert (counts["live"], s.stats()["copied_blocks"]) == (1, 1)
    moves = s.ledger.moves()
    assert [(cls, count) for cls, _, _, count in moves] == [(0, 1)]
    assert moves[0][2] == s.pages(handle)[2]


@covers("runtime-057")
def test_capacity_follows_the_width_of_the_step(engine: str) -> None:
    """One token per block, so that capacity counts tokens; a width is 1 + the draft tokens."""
    s = Scenario(engine, tokens_per_block=1, num_pages=(200,), reserve_tokens=8)
    handle = s.prefill(tokens(100), 100, scope=-1)
    assert s.sequence(handle)["capacity"] == 100
    step = s.begin()
    assert s.grow(step, handle, 1 + 8)
    assert s.sequence(handle)["capacity"] == 109
    assert s.sequence(handle)["outstanding"] == [(step, 9)]
    s.advance(step, handle, valid=[100, 0])  # the step was skipped
    assert s.sequence(handle)["capacity"] == 100
    assert s.sequence(handle)["outstanding"] == []
    assert s.grow(s.begin(), handle, 1 + 4)
    assert s.sequence(handle)["capacity"] == 105


@covers("runtime-058")
def test_a_step_grows_a_sequence_once(engine: str) -> None:
    s = Scenario(engine)
    handle = s.prefill(tokens(4), 4)
    step = s.begin()
    assert s.grow(step, handle, 5)
    before = s.sequence(handle)
    with pytest.raises(ERRORS):
        s.grow(step, handle, 5)
    assert s.sequence(handle) == before


@covers("runtime-059")
@pytest.mark.parametrize(
    ("position", "chunk", "extra", "capacity"),
    [(128, 32_000, 0, 32_128), (32_000, 29_901, 3, 61_904), (100, 20, 4, 124)],
)
def test_capacity_during_prefill(
    engine: str, position: int, chunk: int, extra: int, capacity: int
) -> None:
    """The case's "stays 70,000" does not arise: what is beyond the widths is given back."""
    s = Scenario(
        engine, tokens_per_block=1, num_pages=(70_000,), max_seq_len=69_000, extra_tokens=extra
    )
    prompt = tokens(position + chunk)
    handle = s.prefill(prompt, first=position, scope=-1, max_total=len(prompt) + 1)
    assert s.sequence(handle)["history"] == position
    assert s.grow(s.begin(), handle, chunk)
    assert s.sequence(handle)["capacity"] == capacity


@covers("runtime-060")
def test_chunks_are_published_as_they_end(engine: str) -> None:
    s = Scenario(engine, max_seq_len=300, num_pages=(101,))
    s.serve(tokens(192))
    handle = s.prefill(tokens(200), first=4)
    assert s.sequence(handle)["history"] == 196  # the hit of 192 and one chunk
    s.decode(handle, width=4)
    assert (s.sequence(handle)["history"], s.stats()["hit_tokens"]) == (200, 192)
    chunked = s.prefill(tokens(8, 500), first=4)
    assert s.sequence(chunked)["committed"] == 4
    s.serve(tokens(6, 600))
    assert s.match(tokens(6, 600)) == 6


@covers("runtime-062")
def test_lookahead_is_part_of_the_identity(engine: str) -> None:
    s = Scenario(engine, lookahead=3, has_draft=True)
    s.prefill(tokens(6))
    assert s.stats()["published_blocks"] == 0
    s.prefill(tokens(11))
    assert s.stats()["published_blocks"] == 2
    changed = (0, 1, 2, 3, 99, 5, 6, 7, 8, 9, 10)
    assert s.match(changed) == 1  # block 0 includes token 4; three tokens are held back
    s.prefill(changed)
    assert (s.stats()["published_blocks"], s.stats()["rebased_blocks"]) == (4, 0)


@covers("runtime-062")
@pytest.mark.parametrize(("length", "committed"), [(128, 64), (131, 128)])
def test_blocks_without_their_lookahead_wait(engine: str, length: int, committed: int) -> None:
    s = Scenario(engine, tokens_per_block=64, lookahead=3, has_draft=True)
    assert s.sequence(s.prefill(tokens(length)))["committed"] == committed


@covers("runtime-064")
def test_the_smallest_free_row_is_taken(engine: str) -> None:
    s = Scenario(engine)
    handles = [s.prefill(tokens(2, 10 * i)) for i in range(8)]
    assert [handle & 0xFFFFFFFF for handle in handles] == list(range(8))
    assert s.try_admit(s.begin(), tokens(2))[0] == -3
    s.release(handles[5])
    s.release(handles[2])
    new = s.admit(s.begin(), tokens(2))
    assert (new & 0xFFFFFFFF, new >> 32) == (2, 2)
    with pytest.raises(ERRORS):
        s.release(7 << 32 | 5)


@covers("runtime-065")
def test_threads_read_one_ledger() -> None:
    empty = Scenario("core")
    shared = Scenario("core", num_pages=(300,), max_seq_len=1100)
    handles = [shared.prefill(tokens(1024)) for _ in range(8)]
    before = shared.counts()
    answers: list[set[int]] = []

    def probe() -> None:
        answers.append({empty.match(tokens(64)) for _ in range(500)})

    def read(handle: int) -> None:
        answers.append({len(set(shared.pages(handle))) for _ in range(50)})

    threads = [threading.Thread(target=probe) for _ in range(8)]
    threads += [threading.Thread(target=read, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert sorted(answers, key=max) == [{0}] * 8 + [{256}] * 8
    assert shared.counts() == before


def test_every_case_is_accounted_for() -> None:
    importlib.import_module("test_ledger_cases_groups")
    ids = [case["id"] for case in CASES]
    assert len(ids) == len(set(ids)) == 65
    assert not COVERED.keys() & ELSEWHERE.keys()
    assert COVERED.keys() | ELSEWHERE.keys() == set(ids)
