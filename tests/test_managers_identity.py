"""Adapters, cache salts and media of requests, through the managers."""

from __future__ import annotations

import numpy as np
import pytest
from managers_setup import new, run, small_managers, small_plan

from tandemkv import build_managers
from tandemkv.errors import BatchError, ConfigError, LedgerError, SequencesOpenError
from tandemkv.managers import Batch

P = 9
PROMPT = [1, 2, 3, P, P, P, P, 8, 9, 10, 11, 12]
A, B = b"a" * 32, b"b" * 32


def serve(managers, request_id, prompt=PROMPT, **identity) -> int:
    """Run one request to its end; return how much of its prompt it reused."""
    run(managers, new(request_id, prompt, **identity), [[1]])
    hit = int(managers.hit_lengths([request_id])[0])
    managers.free_resources(request_id)
    managers.ledger.validate()
    return hit


ALL = len(PROMPT) - 1


def test_only_equal_adapters_and_salts_share() -> None:
    managers = small_managers(100)
    fields = [
        {},
        {"adapters": (7, 1)},
        {"adapters": (7, 2)},
        {"adapters": ("7", 1)},
        {"cache_salts": "7"},
        {"cache_salts": b"7"},
        {"cache_salts": ""},
        {"adapters": (7, 1), "cache_salts": "7"},
    ]
    assert [serve(managers, f"first {i}", **own) for i, own in enumerate(fields)] == [0] * 8
    again = [serve(managers, f"second {i}", **own) for i, own in enumerate(fields)]
    assert len(set(again)) == 1
    assert again[0] >= ALL - 1  # the plan's draft looks one token ahead


def test_a_batch_of_different_requests() -> None:
    managers = small_managers(100)
    batch = Batch(
        ["plain", "running", "tenant", "private"],
        chunk_lens=[12, 0, 12, 12],
        prompts=[PROMPT, [], PROMPT, PROMPT],
        max_total_tokens=[20, 0, 20, 20],
        scopes=[0, 0, 0, -1],
        adapters=[None, ("ignored", 1), ("lora", 1), ("lora", 1)],
        cache_salts=[None, None, "tenant", "tenant"],
        media=[[(3, 4, A)], [(3, 4, A)], [(3, 4, B)], None],
    )
    run(managers, new("running", [5, 6, 7]), [[1]])
    assert managers.prepare_resources(batch).all()
    managers.update_resources(batch, [[1], [1], [1], [1]])
    scopes = [managers.sequence(name)["scope"] for name in batch.request_ids]
    assert scopes[0] == scopes[1] == 0
    assert scopes[2] > 0
    assert scopes[3] == -1
    managers.free_many(batch.request_ids)
    image = {"media": [(3, 4, A)]}
    tenant = {"adapters": ("lora", 1), "cache_salts": "tenant"}
    assert serve(managers, "a", **image) >= ALL - 1
    assert serve(managers, "b", **tenant, media=[(3, 4, B)]) >= ALL - 1
    assert serve(managers, "c", **tenant, media=[(3, 4, A)]) < 4
    assert serve(managers, "d", media=[(3, 3, A)]) < 4


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_media_leave_the_callers_prompt_alone(dtype: type) -> None:
    managers = small_managers(100)
    prompt = np.array(PROMPT, dtype)
    batch = Batch(
        ["a"],
        chunk_lens=[12],
        prompts=(prompt, np.array([0, 12])),
        max_total_tokens=[20],
        media=[[(3, 2, A), (5, 2, B)]],
    )
    assert managers.probe.fits(batch).mask.all()
    run(managers, batch, [[1]])
    assert prompt.tolist() == PROMPT
    managers.free_resources("a")
    assert serve(managers, "b", media=[(3, 2, A), (5, 2, A)]) <= 5
    assert serve(managers, "c", media=[(3, 2, A), (5, 2, B)]) >= ALL - 1


def test_an_adapter_that_was_unloaded_is_forgotten() -> None:
    managers = small_managers(100)
    own = {"adapters": ("lora", 1)}
    serve(managers, "a", **own)
    serve(managers, "b")
    run(managers, new("open", PROMPT, **own), [[1]])
    with pytest.raises(SequencesOpenError, match="1 sequences are open"):
        managers.drop_scope(("lora", 1))
    managers.free_resources("open")
    managers.drop_scope(("lora", 1))
    assert serve(managers, "c", **own) == 0
    assert serve(managers, "d") >= ALL - 1
    managers.drop_scope(("never", 1), "seen")


def test_refused_requests_hold_nothing() -> None:
    """Numbers of requests that never ran are used again: a thousand tenants wait in turn."""
    managers = small_managers(9)
    run(managers, new("blocker", list(range(20)), max_total=20), [[]])
    highest = 0
    for tenant in range(1000):
        waiting = new("w", PROMPT, max_total=12, cache_salts=f"{tenant}", media=[(3, 4, A)])
        if managers.prepare_resources(waiting).any():
            pytest.fail("the pool is too small for both")
        managers.skip_step()
        scope = managers.ledger.intern_scope(None, f"{tenant}")
        managers.ledger.release_scope(scope)
        highest = max(highest, scope)
    assert highest <= 40
    managers.ledger.validate()


def test_events_and_keys_have_the_requests_own_fields() -> None:
    managers = small_managers(100, events=10, fingerprint=b"weights")
    own = {"adapters": ("lora", 1), "cache_salts": b"x", "media": [(3, 4, A)]}
    run(managers, new("a", PROMPT, **own), [[1]])
    (event,) = managers.ledger.events()
    assert (event["adapter"], event["salt"]) == (("lora", 1), b"x")
    assert event["media"] == [(3, 4, A)]
    handle = int(managers.handles(["a"])[0])
    keys = [key.tobytes() for key in managers.ledger.block_keys(handle)]
    assert event["keys"] == keys
    other = small_managers(100, events=10)
    run(other, new("a", PROMPT, **own), [[1]])
    assert not set(keys) & set(other.ledger.events()[0]["keys"])


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"adapters": [(1, 2)]}, "adapters", "has 1 items, expected 2"),
        ({"adapters": "ab"}, "adapters", "adapters is str; a sequence"),
        ({"adapters": [None, 7]}, "adapters", r"adapters\[1\] is 7; None or \(id, version\)"),
        ({"adapters": [None, (1.5, 1)]}, "adapters", r"adapters\[1\] has the id 1.5"),
        ({"adapters": [None, (2**63, 1)]}, "adapters", "has the id 9223372036854775808"),
        ({"adapters": [("a", "b"), None]}, "adapters", "has the version 'b'"),
        ({"adapters": [("\udc80", 1), None]}, "adapters", "which UTF-8 cannot hold"),
        ({"cache_salts": [None, 5]}, "cache_salts", r"cache_salts\[1\] is 5; None, bytes or"),
        ({"cache_salts": ["\udc80", None]}, "cache_salts", "which UTF-8 cannot hold"),
        ({"media": [A, None]}, "media", r"media\[0\] is b'aaa.*; a list of \(offset"),
        ({"media": [[(1, 2)], None]}, "media", r"holds \(1, 2\); \(offset, length, digest\)"),
        ({"media": [[(1.5, 2, A)], None]}, "media", "holds"),
        ({"media": [[(0, 1, A[:31])], None]}, "media", "a digest of 31 bytes; 32 bytes are needed"),
        ({"media": [[(0, 1, "a" * 32)], None]}, "media", "a digest of 'aaa"),
        ({"media": [[(0, 0, A)], None]}, "media", "has the length 0; at least 1"),
        ({"media": [[(-1, 1, A)], None]}, "media", "has the offset -1; at least 0"),
        ({"media": [[(0, 2, A), (1, 1, A)], None]}, "media", "has the offset 1; at least 2"),
        ({"media": [[(2, 3, A)], None]}, "media", "ends at 5; the prompt has 4 tokens"),
        ({"scopes": [5, 0], "cache_salts": ["x", None]}, "scopes", r"scopes\[0\] is 5 .*0 or -1"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, object], field: str, message: str) -> None:
    with pytest.raises(BatchError, match=message) as caught:
        Batch(
            ["a", "b"],
            chunk_lens=[4, 4],
            prompts=[[1, 2, 3, 4], [1, 2, 3, 4]],
            max_total_tokens=[8, 8],
            **fields,
        )
    assert caught.value.field == field


def test_a_scope_that_nobody_holds_is_refused() -> None:
    managers = small_managers(100)
    run(managers, new("running", [5, 6, 7]), [[1]])
    batch = Batch(
        ["running", "new"],
        chunk_lens=[0, 12],
        prompts=[[], PROMPT],
        max_total_tokens=[0, 20],
        scopes=[0, 3],
    )
    before = managers.ledger.stats()
    with pytest.raises(LedgerError, match="which is no scope that intern_scope gave"):
        managers.prepare_resources(batch)
    after = managers.ledger.stats()
    assert after["classes"] == before["classes"]
    assert managers.sequence("running")["outstanding"] == []


def test_bad_options_of_building_are_refused() -> None:
    plan = small_plan(33)
    with pytest.raises(ConfigError, match="fingerprint is 'x'; bytes are needed"):
        build_managers(plan, materialize=False, fingerprint="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="events"):
        build_managers(plan, materialize=False, events=-1)


def test_what_is_refused_or_only_asked_about_leaves_no_trace() -> None:
    """New adapters, salts and images: the digest says whether their numbers stayed."""
    managers = small_managers(9, draft=False, max_seq_len=32)
    run(managers, new("a", range(20), max_total=24), [[1]])
    image = bytes(range(32))
    identity = {"adapters": ("sql", 3), "cache_salts": "tenant", "media": [(1, 4, image)]}
    digest = managers.ledger.digest()
    for _ in range(40):  # more than unused numbers are kept
        batch = new("b", range(28), max_total=30, **identity)
        assert managers.probe.fits(batch).mask.tolist() == [False]
        pinned = managers.retention.pin(list(range(9)), cache_salt="x", media=[(1, 4, image)])
        assert pinned == (0, 0)
        managers.drop_scope(("never", 1), "seen")
        with pytest.raises(LedgerError):
            managers.retention.set_quota(9, cache_salt="new")
    assert managers.ledger.digest() == digest
    step = managers.begin_step()
    digest = managers.ledger.digest()
    assert not managers.prepare_resources(batch, step).any()
    assert managers.ledger.digest() == digest
    # What is admitted keeps its numbers.
    fitting = new("b", range(8), max_total=9, **identity)
    assert managers.prepare_resources(fitting, step).all()
    managers.update_resources(fitting, [[1]], step)
    managers.complete_step(step)
    managers.free_resources("b")
    again = new("c", range(8), max_total=9, **identity)
    assert managers.prepare_resources(again).all()
    assert managers.hit_lengths(["c"])[0] == 7
