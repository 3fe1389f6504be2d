"""The life of requests in the managers: admitted, grown, rewound, reused, freed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from managers_setup import (
    DRAFT_BYTES,
    TARGET_BYTES,
    TPB,
    assert_drained,
    chunk,
    decode,
    new,
    run,
    small_managers,
    small_plan,
)

from tandemkv.errors import (
    BatchError,
    ConfigError,
    DeviceUnavailableError,
    LedgerError,
    PoolError,
    StepError,
)
from tandemkv.managers import Batch, Managers, build_managers

PROMPT = list(range(100, 110))  # 10 tokens


def test_a_request_from_admission_to_the_empty_pool() -> None:
    managers = small_managers()
    assert managers.request_ids == ()
    run(managers, new("a", PROMPT), [[1]])
    # EAGLE with K = 4 keeps K - 1 = 3 extra tokens: ceil((10 + 3) / 4) blocks.
    state = managers.sequence("a")
    assert (state["known"], state["history"], state["capacity"]) == (11, 10, 16)

    batch = decode(["a"], 4)
    assert managers.prepare_resources(batch).tolist() == [True]
    assert managers.sequence("a")["capacity"] == 20  # 10 + (1 + 4) + 3 tokens, whole blocks
    managers.update_resources(batch, [[2, 3]])  # one draft token accepted, and the bonus
    state = managers.sequence("a")
    assert (state["known"], state["history"]) == (13, 12)
    assert state["capacity"] == 16  # 12 + 3: the rejected rest of the step is given back
    assert managers.stats().ledger["rewound_tokens"] == 3
    assert managers.stats().ledger["accepted_tokens"] == 3

    managers.free_resources("a")
    assert managers.request_ids == ()
    assert_drained(managers)


@pytest.mark.parametrize("accepted", range(1, 6))
def test_a_speculative_step_keeps_exactly_what_was_accepted(accepted: int) -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    run(managers, decode(["a"], 4), [list(range(accepted))])
    state = managers.sequence("a")
    assert state["known"] == 11 + accepted
    assert state["valid"] == [10 + accepted] * 2  # both roles, the last token not yet written
    assert state["capacity"] == -(-(10 + accepted + 3) // TPB) * TPB
    assert managers.stats().ledger["rewound_tokens"] == 5 - accepted


def test_a_step_of_all_kinds_in_one_batch() -> None:
    managers = small_managers(max_seq_len=32)
    scopes = [managers.ledger.intern_scope(salt=salt) for salt in ("one", "two")]
    run(managers, new("old", PROMPT), [[1]])
    run(managers, new("slow", [7] * 12, chunk=4), [[]])
    batch = Batch(
        ["first", "old", "slow", "second"],
        chunk_lens=[3, 0, 5, 2],
        draft_lens=[0, 2, 0, 0],
        prompts=[[1, 2, 3], [], [], [4, 5]],
        max_total_tokens=[20, 0, 0, 20],
        scopes=[scopes[0], 0, 0, scopes[1]],
    )
    assert managers.prepare_resources(batch).all()
    managers.update_resources(batch, [[9], [8, 8, 8], [], [7]])
    managers.ledger.validate()
    assert [managers.sequence(r)["known"] for r in batch.request_ids] == [4, 14, 12, 3]
    assert [managers.sequence(r)["history"] for r in batch.request_ids] == [3, 13, 9, 2]
    assert [managers.sequence(r)["scope"] for r in batch.request_ids] == [1, 0, 0, 2]
    managers.free_many(batch.request_ids)
    assert_drained(managers)


def test_a_prompt_in_chunks() -> None:
    managers = small_managers()
    prompt = list(range(23))
    first = new("a", prompt, chunk=8)
    run(managers, first, [[]])
    assert managers.sequence("a")["history"] == 8
    run(managers, chunk("a", 8), [[]])
    with pytest.raises(BatchError, match=r"'a' is 8, but 7 of its 23 prompt tokens are left"):
        managers.prepare_resources(chunk("a", 8))
    with pytest.raises(LedgerError, match="appends nothing"):  # 2 of the last 7 run
        run(managers, chunk("a", 2), [[1]])
    managers.update_resources(chunk("a", 2), [[]])
    run(managers, chunk("a", 5), [[77]])
    assert managers.sequence("a")["history"] == 23
    with pytest.raises(BatchError, match="0 of its 23 prompt tokens are left"):
        managers.prepare_resources(chunk("a", 1))
    managers.free_resources("a")
    assert_drained(managers)


def test_a_chunk_of_a_new_request_is_cut_to_what_is_left_after_the_hit() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    run(managers, new("b", [*PROMPT, 50, 51], chunk=100), [[2]])
    # EAGLE looks one token ahead, so of 10 equal tokens 9 are reused.
    assert managers.hit_lengths(["b", "a"]).tolist() == [8, 0]
    assert managers.sequence("b")["history"] == 12


# --- reuse -------------------------------------------------------------------------------------


def write_kv(managers: Managers, request_id: str, start: int, tokens: list[int]) -> None:
    """Write, for each token, its number into every element of its KV in both roles."""
    tables, _ = managers.block_tables([request_id])
    for view in managers.views:
        for layer in range(view.num_layers):
            kv = view.pool.kv(layer)
            for position, token in enumerate(tokens, start):
                kv[tables[0, 0, position // TPB], :, position % TPB] = token


def read_kv(managers: Managers, request_id: str, length: int) -> list[set[float]]:
    """Return per position the distinct values found in all layers of both roles."""
    tables, _ = managers.block_tables([request_id])
    found: list[set[float]] = []
    for position in range(length):
        page = tables[0, 0, position // TPB]
        found.append(
            {
                float(value)
                for view in managers.views
                for layer in range(view.num_layers)
                for value in np.ravel(view.pool.kv(layer)[page, :, position % TPB])
            }
        )
    return found


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_second_turn_finds_the_kv_of_the_first(backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    managers = small_managers(backend=backend)
    assert managers.prepare_resources(new("a", PROMPT)).all()
    write_kv(managers, "a", 0, PROMPT)
    managers.update_resources(new("a", PROMPT), [[50]])
    step = decode(["a"], 4)
    managers.prepare_resources(step)
    write_kv(managers, "a", 10, [50, 51, 52, -1, -1])  # the last two drafts are rejected
    managers.update_resources(step, [[51, 52, 53]])
    managers.free_resources("a")

    turn = [*PROMPT, 50, 51, 52, 53, 60, 61, 62]
    batch = new("b", turn)
    assert managers.prepare_resources(batch).all()
    # 13 positions are written; the last of them is reusable once its next token agrees.
    assert managers.hit_lengths(["b"]).tolist() == [13]
    with pytest.raises(StepError, match="page copies that were not taken"):
        managers.update_resources(batch, [[1]])
    assert managers.run_moves() == 1  # the block of positions 12 to 15 is shared in part
    assert read_kv(managers, "b", 13) == [{float(token)} for token in turn[:13]]
    managers.update_resources(batch, [[1]])
    managers.free_resources("b")
    assert_drained(managers)


def test_a_private_or_another_scope_shares_nothing() -> None:
    managers = small_managers()
    assert managers.ledger.intern_scope(salt="another") == 1
    for request_id, scope in (("a", -1), ("b", 0), ("c", 1), ("d", -1)):
        run(managers, new(request_id, PROMPT, scope=scope), [[1]])
    assert managers.hit_lengths(["a", "b", "c", "d"]).tolist() == [0, 0, 0, 0]
    managers.free_many(["a", "b", "c", "d"])
    run(managers, new("e", PROMPT, scope=1), [[1]])
    assert managers.hit_lengths(["e"]).tolist() == [9]


def test_a_target_only_request_does_not_give_its_kv_to_one_with_a_draft() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT, draft_from=-1), [[1]])
    managers.free_resources("a")
    run(managers, new("b", PROMPT), [[1]])
    assert managers.hit_lengths(["b"]).tolist() == [0]
    run(managers, new("c", PROMPT, draft_from=-1), [[1]])
    assert managers.hit_lengths(["c"]).tolist() == [9]
    assert managers.stats().ledger["target_only_hits"] == 1


def test_unpublished_tails_are_not_reused() -> None:
    for publish, hit in ((True, 9), (False, 8)):
        managers = small_managers()
        run(managers, new("a", PROMPT), [[1]])
        managers.free_resources("a", publish=publish)
        run(managers, new("b", PROMPT), [[1]])
        assert managers.hit_lengths(["b"]).tolist() == [hit]


# --- views and reports -------------------------------------------------------------------------


def test_views_show_the_planned_bytes() -> None:
    plan = small_plan(33)
    managers = build_managers(plan)
    target, draft = managers.views
    assert draft is managers.draft
    assert (target.get_cache_size_per_token(), draft.get_cache_size_per_token()) == (
        TARGET_BYTES,
        DRAFT_BYTES,
    )
    assert [target.get_cache_size_per_token(layers) for layers in (0, 1, 2)] == [0, 16, 32]
    assert (target.num_layers, draft.num_layers) == (2, 1)
    assert target.layer_indices == (0, 1)
    assert target.num_pages == draft.num_pages == 33
    assert target.page_bytes == TPB * TARGET_BYTES
    assert target.device_bytes + draft.device_bytes == plan.config.max_gpu_total_bytes
    assert target.pool.buffer.nbytes == target.device_bytes
    assert draft.pool.buffer.nbytes == draft.device_bytes
    assert target.to_dict()["device_bytes"] == target.device_bytes
    for wrong in (-1, 3, True, "1", 1.0):
        with pytest.raises(ValueError, match="the target has 2 layers on this rank"):
            target.get_cache_size_per_token(wrong)  # type: ignore[arg-type]


def test_statistics_come_from_the_one_ledger() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    run(managers, new("b", [*PROMPT, 4, 5]), [[1]])
    managers.free_resources("a")
    step = managers.begin_step()
    managers.free_resources("b")  # its unpublished pages wait for the step
    stats = managers.stats()
    for view in managers.views:
        usage = dict(stats.role_bytes[view.role])
        assert usage == view.usage()
        assert 0 < usage.pop("evictable_bytes") <= usage["cached_bytes"]
        assert usage["fenced_bytes"] > 0
        assert sum(usage.values()) == view.pool.num_bytes
    ratio = TARGET_BYTES / DRAFT_BYTES
    for state, held in stats.role_bytes["target"].items():
        assert held == ratio * stats.role_bytes["draft"][state]
    assert stats.hit_rate_tokens == 8 / 22
    assert 0 < stats.usage[0] < 1
    assert json.loads(json.dumps(stats.to_dict()))["hit_tokens"] == 8
    managers.complete_step(step)
    assert managers.stats().usage == (0.0,)


def test_tables_go_into_the_callers_arrays() -> None:
    managers = small_managers()
    for request_id in ("a", "b"):
        run(managers, new(request_id, [*PROMPT, ord(request_id)] * 2), [[1]])
    tables, used = managers.block_tables(["b", "a"])
    assert tables.shape == (1, 2, managers.ledger.row_width)
    assert used.tolist() == [[7, 7]]  # ceil((22 + 3) / 4)
    assert (tables[0, :, 7:] == 0).all()
    assert (tables[0, :, :7] > 0).all()
    out, count = np.full((1, 2, 8), -1, np.int32), np.zeros((1, 2), np.int32)
    given = managers.block_tables(["a", "b"], out, count)
    assert given[0] is out
    assert given[1] is count
    assert np.array_equal(out, tables[:, ::-1, :8])


@pytest.mark.parametrize("rank", [-1, 1, True, "0", None])
def test_a_rank_that_is_not_in_the_plan_is_an_error(rank: Any) -> None:
    with pytest.raises(ConfigError, match="the plan has ranks 0 to 0"):
        build_managers(small_plan(), rank)


def test_managers_that_cannot_be_built_say_why() -> None:
    plan = small_plan()
    with pytest.raises(DeviceUnavailableError, match="cuda:0"):
        build_managers(plan, device="cuda:0")
    with pytest.raises(PoolError, match="supported: 'cpu', 'cuda:N'"):
        build_managers(plan, device="gpu")
    with pytest.raises(ConfigError, match="num_dummy_requests"):
        build_managers(plan, num_dummy_requests=-1)
    bookkeeping = build_managers(plan, device="cuda:0", materialize=False)
    run(bookkeeping, new("a", PROMPT), [[1]])
    with pytest.raises(PoolError, match="materialize=False"):
        bookkeeping.run_moves()


def test_rows_for_dummies_follow_the_draft_lengths() -> None:
    # Graphs are captured for 0 to K draft tokens, each with its own padding request.
    assert small_managers(draft=False).ledger.max_sequences == 4 + 1
    assert small_managers(draft_len=4).ledger.max_sequences == 4 + 5
    assert small_managers(draft_len=4, pp_size=2).ledger.max_sequences == 8 + 5
