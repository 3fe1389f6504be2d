"""Plans with windows, chunks, states and cross attention: what is in the pools is what was written.

A stand-in for an engine runs random requests with shared prefixes. It writes each token's number
at the token's slot in every layer, folds the tokens into each state, and checks, before each step,
that everything a layer of that kind reads is there: the definitions are those of the layers, not of
the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from budget_cases import GIB, gqa, model

import tandemkv as tkv
from tandemkv.managers import Managers, Pool
from tandemkv.managers.views import RoleView

TPB = 4
STATE = tkv.Layer(
    kind="state",
    state_buffers=(
        tkv.StateBuffer(name="ssm", split_units=2, unit_elements=3, dtype="fp32"),
        tkv.StateBuffer(
            name="conv", split_units=2, unit_elements=4, replicated_elements=2, dtype="fp32"
        ),
    ),
)
CROSS = tkv.Layer(
    kind="cross_attention", kv_dtype="fp32", num_kv_heads=1, head_dim=2, max_cross_tokens=10
)
FULL = gqa(1, 1, 2, "fp32")[0]
WINDOW = gqa(1, 1, 2, "fp32", window=10)[0]
SINKS = gqa(1, 1, 2, "fp32", window=6, sink_tokens=5)[0]
CHUNK = gqa(1, 1, 2, "fp32", chunk=8)[0]

MODELS: dict[str, tuple[tkv.Layer, ...]] = {
    "window": (FULL, WINDOW, FULL, WINDOW),
    "sinks": (FULL, SINKS),
    "chunk": (FULL, CHUNK, CHUNK),
    "state": (FULL, STATE, STATE),
    "everything": (WINDOW, STATE, FULL, CHUNK, SINKS),
    "window only": (WINDOW, WINDOW),
    "state only": (STATE,),
    "parallel": (
        tkv.Layer(kind="attention", kv_dtype="fp32", num_kv_heads=1, head_dim=2, beside=(STATE,)),
        WINDOW,
    ),
}


def hybrid_plan(
    layers: tuple[tkv.Layer, ...],
    draft: tuple[tkv.Layer, ...] | None = None,
    *,
    num_bytes: int | None = None,
    **config: Any,
) -> tkv.Plan:
    settings = {
        "tokens_per_block": TPB,
        "max_batch_size": 3,
        "max_seq_len": 64,
        "max_num_tokens": 8,
        "cached_endpoints": 2,
        "state_snapshot_interval": 8,
        "max_gpu_total_bytes": 40_000 if num_bytes is None else num_bytes,
    }
    return tkv.plan(
        model(layers),
        None if draft is None else model(draft, "draft"),
        config=tkv.KvCacheConfig(**{**settings, **config}),
        speculative=None
        if draft is None
        else tkv.SpeculativeConfig(mode="draft_target_one_model", max_draft_len=2),
    )


def fold(state: float, token: int) -> float:
    """Return what a state holds after one more token; exact in float32."""
    return float((int(state) * 31 + token + 1) % 65_521)


@dataclass
class Request:
    tokens: list[int]
    prompt_len: int
    total: int
    written: int = 0
    states: list[float] = field(default_factory=lambda: [0.0])

    def state(self, length: int) -> float:
        while len(self.states) <= length:
            self.states.append(fold(self.states[-1], self.tokens[len(self.states) - 1]))
        return self.states[length]


def readable(part: tkv.Layer, start: int) -> Iterator[int]:
    """Yield the positions before `start` that a layer reads for the token at `start`."""
    for position in range(start):
        inside = True
        if part.window is not None:
            inside = position > start - part.window or position < part.sink_tokens
        elif part.chunk is not None:
            inside = position // part.chunk == start // part.chunk
        if inside:
            yield position


def parts(view: RoleView) -> Iterator[tuple[Pool, int, tkv.Layer]]:
    for pool, group in zip(view.pools, view.plan.groups, strict=True):
        for number, part in zip(pool.layout.layers, group.layers, strict=True):
            yield pool, number, part


class Engine:
    """Runs requests on the managers and checks the memory before each step."""

    def __init__(self, managers: Managers) -> None:
        self.managers = managers
        self.requests: dict[int, Request] = {}
        self.hits = 0

    def step(self, ids: list[int], chunks: dict[int, int], new: list[int]) -> list[int]:
        """Run one step of open requests and try to admit new ones; return those that ran."""
        order = [*ids, *new]
        batch = tkv.Batch(
            order,
            chunk_lens=[chunks.get(number, 0) for number in order],
            prompts=[self.requests[number].tokens if number in new else [] for number in order],
            max_total_tokens=[self.requests[number].total for number in order],
        )
        ran = self.managers.prepare_resources(batch)
        self.managers.run_moves()
        granted = [number for number, ok in zip(order, ran, strict=True) if ok]
        if granted:
            starts, widths = self.managers.tables.spans(granted)
            for number, start, width in zip(granted, starts.tolist(), widths.tolist(), strict=True):
                if number in new:
                    self.hits += start
                self.run(number, start, width)
        accepted = [self.sample(number) if number in granted else [] for number in order]
        self.managers.update_resources(batch, accepted)
        self.managers.ledger.validate()
        return granted

    def sample(self, number: int) -> list[int]:
        request = self.requests[number]
        if request.written < len(request.tokens):
            return []
        request.tokens.append(1 + int(request.state(request.written)) % 5)
        return request.tokens[-1:]

    def run(self, number: int, start: int, width: int) -> None:
        request = self.requests[number]
        pages, used = self.managers.block_tables([number])
        for view in self.managers.views:
            for pool, layer, part in parts(view):
                row = pages[pool.class_index, 0]
                if part.kind == "state":
                    assert used[pool.class_index, 0] == 1
                    assert row[0] > 0
                    for name in ("ssm", "conv"):
                        run_state(pool.view(layer, name)[row[0]], request, start, width)
                elif part.kind == "attention":
                    kv = pool.kv(layer)
                    for position in readable(part, start):
                        found = kv[row[position // TPB], :, position % TPB]
                        assert (found == request.tokens[position]).all(), (number, layer, position)
                    for position in range(start, start + width):
                        assert row[position // TPB] > 0
                        kv[row[position // TPB], :, position % TPB] = request.tokens[position]
        request.written = start + width


def run_state(tensor: Any, request: Request, start: int, width: int) -> None:
    """Check one tensor of a state before a step, and run the step's tokens."""
    if start:
        assert (tensor == request.state(start)).all(), (start, tensor)
    tensor[...] = request.state(start + width)


def serve(managers: Managers, seed: int, num_requests: int) -> Engine:
    """Serve requests whose prompts share prefixes; preempt the youngest when nothing runs."""
    rng = np.random.default_rng(seed)
    engine = Engine(managers)
    prompts = [rng.integers(1, 4, int(rng.integers(5, 30))).tolist() for _ in range(4)]
    waiting = list(range(num_requests))
    for number in waiting:
        prompt = prompts[int(rng.integers(4))]
        tail = rng.integers(1, 4, int(rng.integers(0, 9))).tolist()
        tokens = prompt[: int(rng.integers(1, len(prompt) + 1))] + tail
        total = min(len(tokens) + int(rng.integers(1, 14)), 60)
        engine.requests[number] = Request(tokens, len(tokens), total)
    running: list[int] = []
    while waiting or running:
        new = waiting[: int(rng.integers(0, 3))] if running else waiting[:1]
        chunks = {number: int(rng.integers(1, 9)) for number in new}
        for number in running:
            request = engine.requests[number]
            if request.written < request.prompt_len:
                left = request.prompt_len - request.written
                chunks[number] = min(int(rng.integers(1, 9)), left)
        granted = engine.step(running, chunks, new)
        assert granted or running, "a request alone always fits"
        if not granted:
            victim = running.pop()
            managers.free_resources(victim)
            request = engine.requests[victim]
            # Everything known so far is the prompt of its next life.
            request.prompt_len, request.written = len(request.tokens), 0
            waiting.insert(0, victim)
            continue
        admitted = [number for number in new if number in granted]
        waiting = [number for number in waiting if number not in admitted]
        running += admitted
        for number in list(running):
            request = engine.requests[number]
            if len(request.tokens) >= request.total:
                managers.free_resources(number)
                running.remove(number)
    return engine


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_finds_what_it_reads(name: str) -> None:
    hits = 0
    for seed in range(4):
        managers = tkv.build_managers(hybrid_plan(MODELS[name]))
        hits += serve(managers, seed, 40).hits
        for pages in managers.ledger.stats()["classes"]:
            assert pages["live"] == pages["fenced"] == 0
            assert pages["cached"] == pages["evictable"]
        managers.reset_reuse_state()
        for pages in managers.ledger.stats()["classes"]:
            assert pages["free"] == pages["total"] - 1
    assert hits > 0, "shared prefixes are reused"


def test_a_draft_with_another_lifetime_shares_the_ledger() -> None:
    """The target keeps everything, the draft a window: two classes, in step."""
    made = hybrid_plan((FULL, FULL), (WINDOW,))
    managers = tkv.build_managers(made)
    assert managers.ledger.num_classes == 2
    assert [pool.class_index for pool in managers.target.pools] == [0]
    assert [pool.class_index for pool in managers.draft.pools] == [1]
    assert serve(managers, 7, 30).hits > 0


@pytest.mark.parametrize("name", MODELS)
def test_planned_bytes_are_the_bytes_of_the_pools(name: str) -> None:
    made = hybrid_plan(MODELS[name])
    managers = tkv.build_managers(made)
    role = made.ranks[0].target
    built = sum(pool.buffer.nbytes for pool in managers.target.pools)
    assert built == role.device_bytes - role.unused_bytes
    usage = managers.target.usage()
    assert sum(usage.values()) - usage["evictable_bytes"] == built


def test_every_ranks_ledger_has_the_classes_of_all_ranks() -> None:
    """The window layer is on the second stage only; both stages count for it."""
    made = tkv.plan(
        model((FULL, WINDOW)),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=GIB // 256, tokens_per_block=TPB, max_seq_len=64, max_batch_size=2
        ),
        mapping=tkv.Mapping(pp_size=2),
    )
    ranks = [tkv.build_managers(made, rank=rank, materialize=False) for rank in range(2)]
    assert [managers.ledger.num_classes for managers in ranks] == [2, 2]
    assert [pool.class_index for pool in ranks[0].target.pools] == [0]
    assert [pool.class_index for pool in ranks[1].target.pools] == [1]
    totals = [
        [pages["total"] for pages in managers.ledger.stats()["classes"]] for managers in ranks
    ]
    assert totals[0] == totals[1]


def test_cross_attention_has_its_pages_from_admission_to_release() -> None:
    managers = tkv.build_managers(hybrid_plan((FULL, CROSS)))
    batch = tkv.Batch(["a"], chunk_lens=[3], prompts=[[1, 2, 3]], max_total_tokens=[20])
    assert managers.prepare_resources(batch).all()
    pages, used = managers.block_tables(["a"])
    assert used[:, 0].tolist() == [1, 3]  # 3 tokens in one block; 10 encoder tokens in three
    assert (pages[1, 0, :3] > 0).all()
    managers.update_resources(batch, [[4]])
    assert managers.block_tables(["a"])[1][1, 0] == 3
    managers.free_resources("a")
    assert managers.ledger.stats()["classes"][1]["live"] == 0


def test_kernel_groups_name_their_class() -> None:
    managers = tkv.build_managers(hybrid_plan(MODELS["everything"]))
    groups = managers.target.kernel_groups
    assert [group.class_index for group in groups] == [0, 1, 2, 3]
    assert [group.layers for group in groups] == [(2,), (4,), (0,), (3,)]
    run = tkv.Batch(["a"], chunk_lens=[8], prompts=[list(range(1, 9))], max_total_tokens=[40])
    assert managers.prepare_resources(run).all()
    dst = np.full((4, 1, 2, managers.ledger.row_width), -7, np.int32)
    managers.target.copy_batch_block_offsets(dst, ["a"])
    pages, _ = managers.block_tables(["a"])
    for number, group in enumerate(groups):
        row = pages[group.class_index, 0]
        np.testing.assert_array_equal(dst[number, 0, 0], group.scale * row)
        np.testing.assert_array_equal(
            managers.tables.block_table(["a"], group=group)[0], group.scale * row
        )
        own = managers.tables.block_table(["a"], class_index=group.class_index)
        np.testing.assert_array_equal(own[0], row)


def test_snapshots_inside_blocks_are_refused_by_name() -> None:
    with pytest.raises(tkv.ConfigError, match=r"state_snapshot_interval is 6.*multiple of"):
        hybrid_plan((FULL, STATE), state_snapshot_interval=6)
    # Nothing takes any without reuse, and models without states have none.
    hybrid_plan((FULL, STATE), state_snapshot_interval=6, enable_block_reuse=False)
    hybrid_plan((FULL,), state_snapshot_interval=6)


def test_dummies_count_in_every_class() -> None:
    made = hybrid_plan((FULL, STATE), num_dummy_requests=2)
    managers = tkv.build_managers(made)
    states = managers.ledger.stats()["classes"][1]
    before = managers.ledger.digest()
    many = [f"d{number}" for number in range(states["total"])]
    assert managers.add_dummy_requests(many, [1] * len(many)) is None
    assert managers.ledger.digest() == before
    assert managers.add_dummy_requests(["d0", "d1"], [1, 5]) == ["d0", "d1"]
    assert managers.ledger.stats()["classes"][1]["live"] == 2


@pytest.mark.parametrize("tokens", [8, 12, 16, 20, 24, 28, 30, 32, 36, 40])
def test_dummies_leave_a_prompt_its_window_pages(tokens: int) -> None:
    """Private requests amid their prompts are promised pages of windows, not records."""
    managers = tkv.build_managers(
        hybrid_plan((WINDOW, WINDOW), num_bytes=2800), num_dummy_requests=2
    )
    step = managers.begin_step()
    for number in range(3):
        batch = tkv.Batch(
            [number], chunk_lens=[1], prompts=[[5] * 20], max_total_tokens=[24], scopes=[-1]
        )
        managers.prepare_resources(batch, step=step)
    before = managers.ledger.stats()
    made = managers.add_dummy_requests(["d0", "d1"], [1, tokens])
    after = managers.ledger.stats()
    if made is None:
        assert after == before
    else:
        assert after["open_sequences"] == before["open_sequences"] + 2
    assert after["open_steps"] == 1
