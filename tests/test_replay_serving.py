"""Serving a trace under the virtual clock: admission, growth, preemption, acceptance, counting."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tandemkv as tkv
from tandemkv.errors import ReplayError
from tandemkv.managers import Managers, RequestIds, build_managers
from tandemkv.replay import PageSeries, ReplayReport, ServingOptions, read_trace, serve
from tandemkv.replay.acceptance import Acceptance

TRACES = Path(__file__).parent / "data" / "traces"
TAUBENCH = TRACES / "lmcache_agent_taubench_blk16_hashed.jsonl"
SHAREGPT = TRACES / "llmservingsim_sharegpt300_qwen3_blk16_hashed.jsonl"
AZURE = TRACES / "azure_llm_2023_code_head200.csv"

LAYER = tkv.Layer(kind="attention", kv_dtype="bf16", num_kv_heads=1, head_dim=8)
BYTES_PER_TOKEN = 2 * 8 * 2  # key and value, 8 elements of 2 bytes


def managers(
    usable_pages: int,
    *,
    tokens_per_block: int = 4,
    draft_len: int = 0,
    max_batch_size: int = 8,
    max_seq_len: int = 4096,
    **config: Any,
) -> Managers:
    """Build managers for one target layer, with a draft of one layer where `draft_len` > 0."""
    target = tkv.ModelGeometry(name="t", model_type="test", role="target", layers=(LAYER,))
    draft = tkv.ModelGeometry(name="d", model_type="test", role="draft", layers=(LAYER,))
    roles = 2 if draft_len else 1
    plan = tkv.plan(
        target,
        draft if draft_len else None,
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=(usable_pages + 1) * roles * BYTES_PER_TOKEN * tokens_per_block,
            tokens_per_block=tokens_per_block,
            max_batch_size=max_batch_size,
            max_seq_len=max_seq_len,
            **config,
        ),
        speculative=tkv.SpeculativeConfig(mode="draft_target_one_model", max_draft_len=draft_len)
        if draft_len
        else None,
    )
    return build_managers(plan, rank=0, device="cpu", materialize=False)


def options(draft_len: int = 0, **values: Any) -> ServingOptions:
    return ServingOptions(draft_len=draft_len, draft_slots=draft_len, **values)


def write(tmp_path: Path, *rows: tuple[float | None, int, int, list[int]], block: int = 4) -> Any:
    """Read a Mooncake trace of (time in ms, input, output, ids of started blocks)."""
    path = tmp_path / "trace.jsonl"
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(f"{json.dumps(dict(zip(keys, r, strict=True)))}\n" for r in rows))
    return read_trace(path, tokens_per_block=block, hash_rule="ceil", time_unit="ms")


def own(start: int, tokens: int, block: int = 4) -> list[int]:
    return list(range(start, start + -(-tokens // block)))


def detail(report: ReplayReport) -> dict[str, Any]:
    return report.to_dict()


# Conservation: whatever happens, every request gets its output once and every page comes back.


@pytest.mark.parametrize("usable_pages", [40, 90, 400])
@pytest.mark.parametrize("draft_len", [0, 3])
def test_every_request_is_served_and_every_page_comes_back(usable_pages, draft_len):
    trace = read_trace(TAUBENCH, tokens_per_block=16, time_unit="ms")
    built = managers(
        usable_pages, tokens_per_block=16, draft_len=draft_len, max_batch_size=16, max_seq_len=2048
    )
    report = serve(trace, built, options(draft_len, max_num_tokens=256))
    given = detail(report)
    totals = trace.input_tokens + trace.output_tokens
    extra = max(draft_len - 1, 0)
    worst = np.maximum(trace.input_tokens, totals - 1 + draft_len) + extra
    fits = -(-worst // 16) <= usable_pages
    assert given["served_requests"] == fits.sum() > 400
    assert given["refused_requests"] == len(trace) - fits.sum()
    assert given["generated_tokens"] == trace.output_tokens[fits].sum()
    pages = built.ledger.stats()["classes"][0]
    assert (pages["live"], pages["fenced"]) == (0, 0)
    assert pages["free"] + pages["cached"] == usable_pages
    assert pages["evictable"] == pages["cached"]
    built.ledger.validate()
    series = given["pages_over_time"]
    assert max(series["used_pages"]) == given["peak_used_pages"] <= usable_pages
    assert min(series["used_pages"]) >= 0


def test_a_pool_under_pressure_preempts_and_still_serves_all():
    trace = read_trace(AZURE, tokens_per_block=16)
    # The longest request needs 466 pages.
    built = managers(480, tokens_per_block=16, max_batch_size=32, max_seq_len=8192)
    report = detail(serve(trace, built, options(max_num_tokens=2048)))
    assert (report["served_requests"], report["refused_requests"]) == (200, 0)
    assert report["generated_tokens"] == trace.output_tokens.sum()
    assert report["refused_admissions"] > 0
    assert report["first_shortage_ms"] is not None
    assert report["hit_tokens"] == 0


def test_the_same_seed_gives_the_same_run_and_another_a_different_one():
    trace = read_trace(TAUBENCH, tokens_per_block=16, time_unit="ms")

    def run(seed: int) -> dict[str, Any]:
        built = managers(90, tokens_per_block=16, draft_len=3, max_seq_len=2048)
        report = detail(serve(trace, built, options(3, max_num_tokens=256, seed=seed)))
        assert report.pop("ledger_us_per_step") > 0
        return report

    first = run(1)
    assert first == run(1)
    assert first["accepted_tokens"] != run(2)["accepted_tokens"]


# Steps and budget.


def test_missing_times_and_the_token_budget(tmp_path):
    trace = write(tmp_path, (None, 4, 1, [1]), (None, 8, 1, [2, 3]), (100, 4, 1, [4]))
    report = detail(serve(trace, managers(16), options(max_num_tokens=8)))
    # First pass: 4 + 4 tokens. Second: the other 4. Third, at 100 ms: the last prompt.
    assert report["steps"] == 3
    assert report["duration_ms"] == 120.0
    assert report["pages_over_time"]["time"] == [0.0, 20.0, 100.0]
    assert report["pages_over_time"]["running_requests"] == [2, 1, 1]


def test_decodes_come_before_chunks(tmp_path):
    trace = write(tmp_path, (0, 4, 5, [1]), (0, 40, 1, own(10, 40)))
    report = detail(serve(trace, managers(32), options(max_num_tokens=8)))
    # Step 1 runs 4 + 4. Steps 2 to 5 decode the first request beside 7 tokens of the second's
    # prompt each, step 6 runs its last 8.
    assert report["steps"] == 6


def test_a_prompt_in_chunks_is_reused_whole(tmp_path):
    prompt = own(1, 32)
    trace = write(tmp_path, (0, 32, 1, prompt), (1000, 32, 1, prompt))
    report = detail(serve(trace, managers(32), options(max_num_tokens=4)))
    # 32 tokens in 8 chunks; the second time all but the last token, which must run, is cached.
    assert report["hit_tokens"] == 31
    assert report["hit_blocks"] == 7
    assert report["steps"] == 8 + 1


def test_prompts_that_come_one_by_one_share_what_their_ids_say(tmp_path):
    lines = SHAREGPT.read_text().splitlines()[:60]
    path = tmp_path / "head.jsonl"
    path.write_text("\n".join(lines))
    trace = read_trace(path, tokens_per_block=16, time_unit="s")
    built = managers(8000, tokens_per_block=16, draft_len=7, max_batch_size=64, max_seq_len=8192)
    report = serve(trace, built, options(7, max_num_tokens=4096, acceptance=1.0))
    known: set[int] = set()
    shared = 0
    for row in map(json.loads, lines):
        shared += len(list(itertools.takewhile(known.__contains__, row["hash_ids"])))
        known.update(row["hash_ids_with_output"])
    assert report.evicted_blocks == 0
    assert report.hit_blocks == shared > 0


def test_an_output_is_found_by_the_next_turn(tmp_path):
    path = tmp_path / "turns.jsonl"
    turns = [
        {"timestamp": 0, "input_length": 20, "output_length": 12, "hash_ids": [1]}
        | {"hash_ids_with_output": [1, 5]},
        {"timestamp": 9, "input_length": 40, "output_length": 1, "hash_ids": [1, 5]},
    ]
    path.write_text("\n".join(map(json.dumps, turns)))
    trace = read_trace(path, trace_block_tokens=16, tokens_per_block=4, time_unit="s")
    report = serve(trace, managers(32), options())
    # The first turn knows 32 tokens; the KV of the last one was never written.
    assert (report.hit_tokens, report.hit_blocks) == (31, 7)


# Refusal and preemption.


def test_requests_that_never_fit_end_the_run(tmp_path):
    trace = write(tmp_path, *((0, 48, 1, own(100 * i, 48)) for i in range(5)))
    report = detail(serve(trace, managers(10), options(max_num_tokens=16)))
    assert (report["served_requests"], report["refused_requests"], report["steps"]) == (0, 5, 0)
    assert [item["request"] for item in report["unservable"]] == [0, 1, 2, 3, 4]
    assert report["unservable"][0]["reason"] == "needs 12 pages, the pool has 10 usable"


def test_a_request_longer_than_max_seq_len_is_refused_and_others_run(tmp_path):
    trace = write(tmp_path, (0, 40, 30, own(1, 40)), (0, 8, 2, own(50, 8)))
    report = detail(serve(trace, managers(64, max_seq_len=64), options()))
    assert (report["served_requests"], report["refused_requests"]) == (1, 1)
    assert report["unservable"] == [{"request": 0, "reason": "has 70 tokens, max_seq_len is 64"}]


def test_a_prompt_in_chunks_is_promised_its_whole_length(tmp_path):
    # Two prompts of 120, room for 152. The first runs 17 chunks of 7 and one of 1, which leaves
    # room for 6 tokens of the second and 8 pages: not enough for all of it, so it waits.
    trace = write(tmp_path, (0, 120, 1, own(1, 120)), (0, 120, 1, own(500, 120)))
    report = detail(serve(trace, managers(38, max_seq_len=256), options(max_num_tokens=7)))
    assert report["preemptions"] == report["refused_grows"] == 0
    assert report["steps"] == 36
    assert report["peak_running_requests"] == 1
    assert report["first_shortage_ms"] == 17 * 20.0


@pytest.mark.parametrize("max_num_tokens", [8, 9, 10, 80])
def test_hits_after_a_preemption_are_counted_apart(tmp_path, max_num_tokens):
    # Two requests whose prompts fit together and whose outputs do not; they share nothing.
    rows = [(0, 40, 40, own(1, 40)), (0, 40, 40, own(100, 40))]
    trace = write(tmp_path, *rows)
    built = managers(24, max_seq_len=128)
    report = detail(serve(trace, built, options(max_num_tokens=max_num_tokens)))
    assert report["preemptions"] >= 1
    assert report["refused_grows"] >= 1
    assert report["served_requests"] == 2
    assert report["generated_tokens"] == 80
    assert report["hit_tokens"] == report["hit_blocks"] == 0
    assert report["resumed_hit_tokens"] + report["recomputed_tokens"] > 0


def test_the_request_admitted_last_is_preempted(tmp_path):
    trace = write(tmp_path, (0, 40, 40, own(1, 40)), (0, 40, 40, own(100, 40)))
    seen: list[int] = []
    built = managers(24, max_seq_len=128)
    preempt = built.preempt

    def watch(requests: RequestIds, publish: bool = True) -> None:
        seen.extend(requests)
        preempt(requests, publish)

    built.preempt = watch  # type: ignore[method-assign]
    serve(trace, built, options(max_num_tokens=80))
    assert set(seen) == {1}


# Drafts.


def test_all_drafts_accepted(tmp_path):
    trace = write(tmp_path, (0, 8, 13, own(1, 8)))
    report = detail(serve(trace, managers(16, draft_len=3), options(3, acceptance=1.0)))
    # The prompt gives 1 token, then three passes give 4 each.
    assert (report["steps"], report["decode_passes"]) == (4, 3)
    assert report["mean_accept_length"] == 4.0
    assert (report["accepted_tokens"], report["rewound_tokens"]) == (9, 0)


def test_no_draft_accepted(tmp_path):
    trace = write(tmp_path, (0, 8, 13, own(1, 8)))
    report = detail(serve(trace, managers(16, draft_len=3), options(3, acceptance=0.0)))
    assert (report["steps"], report["decode_passes"]) == (13, 12)
    assert report["mean_accept_length"] == 1.0
    assert (report["accepted_tokens"], report["rewound_tokens"]) == (0, 36)


def test_the_end_of_the_output_does_not_lower_the_accept_length(tmp_path):
    # 1 + 4 + 4 + 1: the last pass accepts 4 of which 1 is wanted.
    trace = write(tmp_path, (0, 8, 10, own(1, 8)))
    report = detail(serve(trace, managers(16, draft_len=3), options(3, acceptance=1.0)))
    assert report["decode_passes"] == 3
    assert report["mean_accept_length"] == 4.0
    assert report["accepted_tokens"] == 3 + 3 + 1
    assert report["generated_tokens"] == 10


def test_acceptance_follows_the_geometric_law():
    # P(at least k accepted) = p^k, so the mean of at most 4 is p + p^2 + p^3 + p^4.
    drawn = Acceptance(0.7, 4, seed=3).draw(200_000)
    assert drawn.mean() == pytest.approx(0.7 + 0.49 + 0.343 + 0.2401, abs=0.01)
    for k in range(1, 5):
        assert (drawn >= k).mean() == pytest.approx(0.7**k, abs=0.005)
    assert Acceptance(0.7, 0, seed=3).draw(5).tolist() == [0] * 5


def test_draws_do_not_depend_on_how_passes_are_batched():
    whole = Acceptance(0.5, 3, seed=9).draw(10)
    parts = Acceptance(0.5, 3, seed=9)
    assert np.concatenate([parts.draw(4), parts.draw(6)]).tolist() == whole.tolist()


# Bad input.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"acceptance": 1.5}, "acceptance is 1.5; must be from 0 to 1"),
        ({"acceptance": float("nan")}, "acceptance is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"step_ms": 0.0}, "step_ms is 0.0"),
        ({"step_ms": float("inf")}, "step_ms is inf"),
        ({"max_num_tokens": 0}, "max_num_tokens is 0; a decode pass runs 1 tokens"),
        ({"draft_len": 3, "draft_slots": 3}, "draft_slots 3; the plan keeps room for 0"),
        ({"draft_len": 1, "draft_slots": 0}, "draft_len is 1 and draft_slots 0"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path, values, message):
    trace = write(tmp_path, (0, 8, 2, own(1, 8)))
    built = managers(16)
    before = built.ledger.digest()
    with pytest.raises(ReplayError, match=message):
        serve(trace, built, ServingOptions(**values))
    assert built.ledger.digest() == before


def test_blocks_that_do_not_fit_are_refused(tmp_path):
    trace = write(tmp_path, (0, 8, 2, own(1, 8)))
    with pytest.raises(ReplayError, match="8 does not divide"):
        serve(trace, managers(16, tokens_per_block=8), options())


# Pages over time.


@pytest.mark.parametrize("samples", [0, 1, 7, 16, 17, 31, 32, 33, 100, 1000])
def test_a_series_is_bounded_and_keeps_the_extremes(samples):
    series = PageSeries("ms", limit=16)
    values = [(index * 37) % 101 for index in range(samples)]
    for index, value in enumerate(values):
        series.add(float(index), value, 2 * value, 1, samples - index)
    given = series.to_dict()
    assert given == series.to_dict()
    times = given["time"]
    assert len(times) <= 16
    assert times == sorted(set(times))
    if samples:
        assert times[0] == 0.0
        assert max(given["used_pages"]) == max(values)
        assert max(given["cached_pages"]) == 2 * max(values)
        assert given["waiting_requests"][0] == samples
        edges = [int(time) for time in times] + [samples]
        for bar, (begin, end) in enumerate(itertools.pairwise(edges)):
            assert given["used_pages"][bar] == max(values[begin:end])
