"""What a scheduler asks the managers, and what they count of preemptions."""

from __future__ import annotations

import numpy as np
import pytest
from managers_setup import assert_drained, decode, new, run, small_managers

from tandemkv.errors import BatchError, ConfigError, LedgerError, RequestError
from tandemkv.managers import Batch, Managers

PROMPT = list(range(100, 112))


def both(*batches: tuple[str, list[int], int]) -> Batch:
    """Return a batch of new requests: (id, prompt, most tokens) each."""
    return Batch(
        [name for name, _, _ in batches],
        chunk_lens=[len(prompt) for _, prompt, _ in batches],
        prompts=[prompt for _, prompt, _ in batches],
        max_total_tokens=[total for _, _, total in batches],
    )


def test_fits_is_what_admission_would_answer() -> None:
    managers = small_managers(11)
    run(managers, new("a", PROMPT, max_total=20), [[1]])
    asked = both(("b", [*PROMPT, 9], 20), ("c", [5] * 30, 31), ("d", [6] * 50, 60))
    digest, stats = managers.ledger.digest(), managers.stats()
    answer = managers.probe.fits(asked)
    assert answer.mask.tolist() == [True, False, False]
    # All twelve agree; the draft KV of the last depends on the token after it.
    assert answer.hit_lengths.tolist() == [11, 0, 0]
    assert {name: refusal.reason for name, refusal in answer.refusals.items()} == {
        "c": "no_pages_now",
        "d": "never_fits",
    }
    assert (managers.ledger.digest(), managers.stats()) == (digest, stats)
    assert managers.refusals == {}
    assert managers.prepare_resources(asked).tolist() == answer.mask.tolist()
    assert managers.refusals == answer.refusals


def test_rows_of_dummies_are_not_offered() -> None:
    managers = small_managers(33, max_batch_size=1, num_dummy_requests=2)
    run(managers, new("a", PROMPT), [[1]])
    answer = managers.probe.fits(new("b", PROMPT))
    assert answer.refusals["b"].reason == "no_row"
    assert (answer.mask.tolist(), answer.hit_lengths.tolist()) == ([False], [0])


def test_fits_answers_for_new_requests() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    with pytest.raises(BatchError, match=r"'a' .* has no prompt"):
        managers.probe.fits(decode(["a"]))
    with pytest.raises(RequestError, match="already open"):
        managers.probe.fits(new("a", PROMPT))
    with pytest.raises(BatchError, match="max_seq_len"):
        managers.probe.fits(new("b", PROMPT, max_total=1000))
    assert managers.probe.fits(Batch([])).mask.tolist() == []


def test_the_watermark_is_left_to_what_runs() -> None:
    """10 usable pages: 3 run, 3 are kept back, so 4 are for a new prompt."""
    managers = small_managers(11, draft=False, watermark_blocks=3)
    run(managers, new("a", PROMPT, max_total=40), [[1]])
    asked = both(("fits", [7] * 16, 17), ("too long", [8] * 17, 18))
    assert managers.probe.fits(asked).mask.tolist() == [True, False]
    assert managers.add_dummy_requests(["pad"], [17]) is None
    assert managers.add_dummy_requests(["pad"], [16]) == ["pad"]
    with pytest.raises(ConfigError, match="watermark_blocks is -1"):
        small_managers(11, watermark_blocks=-1)


def test_dummies_may_fill_an_idle_pool_but_one_by_one() -> None:
    managers = small_managers(11, draft=False, watermark_blocks=3)
    assert managers.add_dummy_requests(["pad"], [40]) == ["pad"]
    managers.free_resources("pad")
    assert managers.add_dummy_requests(["one", "two"], [20, 20]) is None
    assert managers.add_dummy_requests(["one", "two"], [16, 12]) == ["one", "two"]


def crowd() -> Managers:
    """Return managers with three requests that share twelve tokens."""
    managers = small_managers(33, draft=False)
    for number, name in enumerate("abc"):
        run(managers, new(name, [*PROMPT, *[number] * (4 * number + 1)]), [[1]])
    return managers


def test_victims_are_chosen_by_what_they_free() -> None:
    managers = crowd()
    # Three blocks shared; beyond them one, two and three blocks of their own.
    assert managers.probe.reclaimable(["a", "b", "c"]).tolist() == [[1], [2], [3]]
    victims = managers.probe.victims
    assert victims(["c", "b", "a"], 3) == ("c",)
    assert victims(["a", "b", "c"], 3) == ("a", "b")
    assert victims(["a", "c"], 3) == ("c",)
    assert victims(["a", "b", "c"], 9) == ("a", "b", "c")
    assert victims(["a", "b", "c"], 10) == ()
    assert victims(["a", "b", "c"], [0]) == ()
    with pytest.raises(BatchError, match="num_pages has 2 items, expected 1"):
        victims(["a"], [1, 1])
    with pytest.raises(LedgerError, match="need"):
        victims(["a"], -1)
    with pytest.raises(RequestError, match="is not open"):
        managers.probe.reclaimable(["x"])


def test_explain_match_reads_lists_and_arrays() -> None:
    managers = crowd()
    prompt = [*PROMPT[:6], 1, 2]
    expected = {
        "tokens": 8,
        "matched": 6,
        "usable": 6,
        "hit": 6,
        "missed": [{"reason": "tokens", "position": 6, "tokens": 2}],
    }
    assert managers.probe.explain_match(prompt) == expected
    assert managers.probe.explain_match(np.array(prompt, np.int32)) == expected
    with pytest.raises(LedgerError):
        managers.probe.explain_match(prompt, scope=-2)


def test_what_a_preempted_request_reuses_is_no_hit() -> None:
    """vllm#25787: a request of 40 tokens is preempted and comes back; the hit rate stays."""
    managers = small_managers(33, draft=False)
    run(managers, new("a", PROMPT), [[1]])
    run(managers, new("b", [*PROMPT, *range(28)]), [[1]])
    rate = managers.stats().hit_rate_tokens
    assert rate == 12 / 52
    managers.preempt(["b"])
    assert managers.stats().preempted == 1
    run(managers, new("b", [*PROMPT, *range(28), 1]), [[2]])
    stats = managers.stats()
    assert (stats.readmitted, stats.readmitted_prompt_tokens) == (1, 41)
    assert stats.readmitted_hit_tokens == managers.hit_lengths(["b"])[0] == 40
    assert stats.hit_rate_tokens == rate
    assert stats.to_dict()["hit_tokens"] == 12 + 40
    # Back for good: a new request of this name counts as one.
    managers.free_resources("b")
    run(managers, new("b", PROMPT), [[1]])
    assert managers.stats().readmitted == 1
    assert managers.stats().hit_rate_tokens == (12 + 11) / (52 + 12)


def test_the_acceptance_length_is_that_of_decode_steps() -> None:
    """aisimulate#289: a prompt, then bursts of 3 and 3 are 6 / 2; a preemption adds nothing."""
    managers = small_managers()
    run(managers, new("a", PROMPT, chunk=8), [[]])
    run(managers, Batch(["a"], chunk_lens=[4]), [[1]])
    assert managers.stats().mean_acceptance_length == 0.0
    run(managers, decode(["a"], 2), [[2, 3, 4]])
    managers.preempt(["a"])
    run(managers, new("a", [*PROMPT, 1, 2, 3, 4]), [[5]])
    # A mixed step: another prompt ends in it.
    both = Batch(
        ["a", "b"],
        chunk_lens=[0, 12],
        draft_lens=[2, 0],
        prompts=[[], PROMPT],
        max_total_tokens=[0, 20],
    )
    run(managers, both, [[6, 7, 8], [1]])
    managers.add_dummy_requests(["pad"], [4])
    run(managers, decode(["pad"]), [[]])
    stats = managers.stats()
    assert (stats.decode_steps, stats.prompt_end_tokens) == (2, 3)
    assert stats.mean_acceptance_length == stats.to_dict()["mean_acceptance_length"] == 3.0


def test_a_preempted_request_may_be_aborted() -> None:
    managers = crowd()
    managers.preempt(["a", "b"], publish=[True, False])
    with pytest.raises(RequestError, match="'x' is not open"):
        managers.free_many(["a", "c", "x"])
    assert set(managers.request_ids) == {"c"}
    managers.free_many(["a", "c"])
    with pytest.raises(RequestError, match="is not open"):
        managers.free_resources("a")
    managers.free_resources("b")
    run(managers, new("a", [1, 2, 3]), [[1]])
    stats = managers.stats()
    assert (stats.preempted, stats.readmitted) == (2, 0)
    with pytest.raises(RequestError, match="is not open"):
        managers.preempt(["b"])
    managers.free_resources("a")
    assert_drained(managers)


def test_gauges_add_up_in_every_state() -> None:
    """vllm-ascend#10048, imp#1120: live, cached, protected, fenced, free, reserved: all pages."""
    managers = small_managers(33, draft=False)
    run(managers, new("a", PROMPT), [[1]])
    run(managers, new("b", [*PROMPT, 5]), [[1]])
    managers.free_resources("a")
    step = managers.begin_step()
    managers.free_resources("b", publish=False)
    managers.add_dummy_requests(["pad"], [4])
    stats = managers.stats()
    [pages] = stats.pages
    # The dummy's page is live; the private page of b waits for the step.
    expected = {"live": 1, "protected": 0, "cached": 3, "fenced": 1, "free": 27, "reserved": 1}
    assert pages == expected
    assert sum(pages.values()) == 33
    assert 0 <= stats.usage[0] <= 1
    ledger = stats.to_dict()
    missed = sum(ledger[f"missed_{name}_tokens"] for name in ("private", "text", "last", "copy"))
    assert ledger["hit_tokens"] + missed == ledger["prompt_tokens"] == 25
    managers.complete_step(step)
    managers.free_resources("pad")
    assert_drained(managers)
