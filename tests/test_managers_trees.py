"""Draft trees through the managers: after the token copies a request's KV is as if run in line."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from managers_setup import TPB, decode, new, run, small_managers
from test_managers_moves import Engine, kv_bytes

import tandemkv as tkv
from tandemkv.errors import BatchError, LedgerError, PoolError, StepError

DRAFT_LEN = 7


class TreeEngine(Engine):
    """Runs trees: node i is written at position history + i, and knows its own branch only."""

    def __init__(self, managers: tkv.Managers, rng: random.Random) -> None:
        super().__init__(managers)
        self.rng = rng

    def tree(self, request_id: str, draft_len: int) -> tuple[list[int], list[int]]:
        """Write a random tree of both roles; return one of its branches and what it accepts."""
        known = self.texts[request_id]
        branches, path = [list(known)], [0]
        for node in range(1, draft_len + 1):
            parent = self.rng.randrange(node)
            branches.append([*branches[parent], self.rng.randrange(3)])
            if parent == path[-1] and self.rng.random() < 0.7:
                path.append(node)
        history = self.managers.sequence(request_id)["history"]
        for role, spec, position, place in self.tokens(request_id):
            node = position - history
            if 0 <= node <= draft_len:
                place[:] = kv_bytes(role, spec, branches[node], place.size)
        return path, [*(branches[node][-1] for node in path[1:]), self.rng.randrange(3)]

    def run_trees(self, as_arrays: bool) -> int:
        """Run one step of a tree per request; return the tokens that were moved."""
        ids = sorted(self.texts)
        batch = decode(ids, DRAFT_LEN)
        assert self.managers.prepare_resources(batch).all()
        self.managers.run_moves()
        results = [self.tree(request_id, DRAFT_LEN) for request_id in ids]
        accepted = [tokens for _, tokens in results]
        paths: Any = [path for path, _ in results]
        if as_arrays:
            flat = np.array([node for path in paths for node in path], np.int32)
            paths = flat, np.cumsum([0, *map(len, paths)])
        self.managers.update_resources(batch, accepted, paths=paths, draft_paths=paths)
        moved = self.managers.run_token_moves()
        for request_id, tokens in zip(ids, accepted, strict=True):
            self.texts[request_id] += tokens
            self.check(request_id, self.managers.sequence(request_id)["history"])
        return moved


@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
@pytest.mark.parametrize("as_arrays", [False, True])
def test_kept_nodes_are_gathered_in_line(arrangement: Any, as_arrays: bool) -> None:
    rng = random.Random(arrangement)
    managers = small_managers(65, draft_len=DRAFT_LEN, arrangement=arrangement)
    engine = TreeEngine(managers, rng)
    moved = 0
    for round_ in range(6):
        for name in "abc":
            # Equal prompts, so that what one request gathered is what another one reads.
            engine.texts[name] = list(range(100, 109))
            engine.step(new(name, engine.texts[name], max_total=64), [[7]])
        for _ in range(5):
            moved += engine.run_trees(as_arrays)
        for name in "abc":
            managers.free_resources(name)
        engine.texts.clear()
        assert round_ == 0 or managers.ledger.stats()["hit_tokens"] > 0
    assert moved > 100
    managers.ledger.validate()


def test_roles_without_a_path_stay_as_they_are() -> None:
    managers = small_managers(draft_len=DRAFT_LEN)
    run(managers, new("a", range(5)), [[5]])
    batch = decode(["a"], 3)
    assert managers.prepare_resources(batch).all()
    managers.run_moves()
    for view in managers.views:
        view.pool.buffer[...] = np.arange(view.pool.num_bytes) % 251
    managers.update_resources(batch, [[6, 7]], paths=[[0, 2]])
    assert managers.run_token_moves() == 1
    changed = [
        int((view.pool.buffer != np.arange(view.pool.num_bytes) % 251).sum())
        for view in managers.views
    ]
    per_token = managers.target.get_cache_size_per_token()
    assert 0 < changed[0] <= per_token
    assert changed[1] == 0


def test_nothing_is_prepared_before_the_copies_are_taken() -> None:
    managers = small_managers(draft_len=DRAFT_LEN, materialize=False)
    run(managers, new("a", range(5)), [[5]])
    batch = decode(["a"], 4)
    assert managers.prepare_resources(batch).all()
    table, _ = managers.block_tables(["a"])
    managers.update_resources(batch, [[6, 7, 8]], paths=[[0, 2, 4]])
    digest = managers.ledger.digest()
    for call in (
        lambda: managers.prepare_resources(decode(["a"], 1)),
        lambda: managers.add_dummy_requests(["d"], [4]),
        lambda: managers.fork("a", ["b"], 1),
        lambda: managers.resume(["a"], [1], 1),
    ):
        with pytest.raises(StepError, match="run_token_moves"):
            call()
    with pytest.raises(PoolError, match="materialize=False"):
        managers.run_token_moves()
    assert managers.ledger.digest() == digest
    moves = managers.token_moves()
    first, second = table[0, 0, 1], table[0, 0, 2]
    # Nodes at 5 to 9: those at 7 and 9 go to 6 and 7.
    assert moves.target.tolist() == [[0, first, 3, first, 2], [0, second, 1, first, 3]]
    assert len(moves.draft) == 0
    assert managers.prepare_resources(decode(["a"], 1)).all()


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([[0]], r"paths\[0\] has 1 nodes, but 2 tokens were accepted"),
        ([[0, 1, 2]], r"paths\[0\] has 3 nodes, but 2 tokens were accepted"),
        ([], "paths has 0 items, expected 1"),
        (7, "paths is int; "),
        (([0, 2], [0, 1]), r"paths: offsets\[-1\] is 1, but there are 2 tokens"),
    ],
)
def test_a_path_belongs_to_what_was_accepted(paths: object, message: str) -> None:
    managers = small_managers(draft_len=DRAFT_LEN)
    run(managers, new("a", range(TPB)), [[5]])
    batch = decode(["a"], 4)
    assert managers.prepare_resources(batch).all()
    digest = managers.ledger.digest()
    with pytest.raises(BatchError, match=message):
        managers.update_resources(batch, [[6, 7]], paths=paths)
    with pytest.raises(LedgerError, match=r"path\[0\] has node 5 at 1") as caught:
        managers.update_resources(batch, [[6, 7]], paths=[[0, 5]])
    assert caught.value.__notes__ == ["item 0 is request 'a'"]
    assert managers.ledger.digest() == digest
    managers.update_resources(batch, [[6, 7]], paths=[[]])
    assert managers.run_token_moves() == 0
