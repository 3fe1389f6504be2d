"""`Managers.retention`: priorities by request id, and leases by prompt."""

from __future__ import annotations

import pytest
from managers_setup import new, run, small_managers

from tandemkv.errors import BatchError, LedgerError, RequestError
from tandemkv.managers import Managers

# Eight usable pages and no draft: four prompts of two blocks fill them.
PROMPTS = {name: range(100 * at, 100 * at + 8) for at, name in enumerate("abcdef")}


def managers_of_eight_pages(**options: float) -> Managers:
    return small_managers(9, draft=False, max_seq_len=32, **options)


def serve(managers: Managers, name: str, **identity: object) -> None:
    run(managers, new(name, PROMPTS[name], max_total=9, **identity), [[1]])
    managers.free_resources(name)


def cached(managers: Managers) -> str:
    """Return the names of the prompts that are cached whole, in order."""
    return "".join(
        name
        for name, prompt in PROMPTS.items()
        if managers.probe.explain_match(list(prompt))["usable"] == 8
    )


def test_blocks_of_lower_priority_are_evicted_first() -> None:
    managers = managers_of_eight_pages()
    for name, priority in (("a", 80), ("b", 35), ("c", 0), ("d", 35)):
        run(managers, new(name, PROMPTS[name], max_total=9), [[1]])
        managers.retention.retain(name, priority=priority)
        managers.free_resources(name)
    serve(managers, "e")
    assert cached(managers) == "abde"
    serve(managers, "f")
    assert cached(managers) == "adef"


def test_a_priority_ends_after_its_duration() -> None:
    managers = managers_of_eight_pages()
    step = managers.begin_step(10.0)
    managers.complete_step(step)
    run(managers, new("a", PROMPTS["a"], max_total=9), [[1]])
    managers.retention.retain("a", priority=100, duration_ms=5_000)
    managers.free_resources("a")
    for name in "bcd":
        serve(managers, name)
    managers.complete_step(managers.begin_step(14.9))
    serve(managers, "e")
    assert cached(managers) == "acde"
    managers.complete_step(managers.begin_step(15.0))
    serve(managers, "f")
    assert cached(managers) == "cdef"


def test_a_lease_keeps_a_prompt_until_its_end() -> None:
    managers = managers_of_eight_pages(max_pinned_fraction=0.5)
    serve(managers, "a")
    lease, tokens = managers.retention.pin(list(PROMPTS["a"]))
    assert (lease, tokens) == (1, 8)
    for name in "bcdef":
        serve(managers, name)
    assert cached(managers) == "adef"
    assert managers.retention.pin(list(PROMPTS["b"])) == (0, 0)
    assert managers.retention.pin(list(PROMPTS["d"])) == (2, 8)
    # Half of eight blocks are leased.
    assert managers.retention.pin(list(PROMPTS["e"])) == (-1, 0)
    assert managers.retention.unpin(lease)
    assert not managers.retention.unpin(lease)
    assert managers.retention.pin(list(PROMPTS["e"]), until=7.0) == (3, 8)
    managers.complete_step(managers.begin_step(7.0))
    assert not managers.retention.unpin(3)


def test_a_lease_is_on_a_prompt_with_its_adapter_salt_and_media() -> None:
    managers = managers_of_eight_pages(max_pinned_fraction=1.0)
    fields = {"adapters": ("sql", 1), "cache_salts": "tenant", "media": [(0, 4, bytes(32))]}
    serve(managers, "a", **fields)
    prompt = list(PROMPTS["a"])
    pin = managers.retention.pin
    picture = [(0, 4, bytes(32))]
    assert pin(prompt) == (0, 0)
    assert pin(prompt, adapter=("sql", 1), cache_salt="tenant") == (0, 0)
    assert pin(prompt, adapter=("sql", 2), cache_salt="tenant", media=picture) == (0, 0)
    assert pin(prompt, adapter=("sql", 1), cache_salt="tenant", media=picture) == (1, 8)
    managers.drop_scope(("sql", 1), "tenant")
    assert not managers.retention.unpin(1)
    managers.ledger.validate()


def test_without_a_share_of_the_pool_there_are_no_leases() -> None:
    managers = managers_of_eight_pages()
    serve(managers, "a")
    assert managers.retention.pin(list(PROMPTS["a"])) == (-1, 0)


def test_errors_name_the_argument_and_change_nothing() -> None:
    managers = managers_of_eight_pages(max_pinned_fraction=1.0)
    run(managers, new("a", PROMPTS["a"]), [[1]])
    before = managers.ledger.digest()
    retention = managers.retention
    with pytest.raises(RequestError, match="'x' is not open"):
        retention.retain("x", priority=1)
    with pytest.raises(LedgerError, match="101") as caught:
        retention.retain("a", priority=101)
    assert "'a'" in caught.value.__notes__[0]
    with pytest.raises(BatchError, match="priority"):
        retention.retain("a", priority=0.5)
    with pytest.raises(BatchError, match="until"):
        retention.pin([1], until="tomorrow")
    with pytest.raises(BatchError, match="33"):
        retention.pin(list(range(33)))
    with pytest.raises(BatchError, match="tokens is empty"):
        retention.pin([])
    with pytest.raises(BatchError, match="draft"):
        retention.pin([1], draft_from=0)
    with pytest.raises(LedgerError, match="until"):
        retention.pin(list(PROMPTS["a"]), until=-1.0)
    with pytest.raises(LedgerError, match="7"):
        retention.unpin(7)
    assert managers.ledger.digest() == before


def test_a_quota_keeps_a_tenants_cache() -> None:
    managers = managers_of_eight_pages()
    managers.retention.set_quota(3, adapter=("sql", 1), cache_salt="tenant")
    serve(managers, "a", adapters=("sql", 1), cache_salts="tenant")
    serve(managers, "b", adapters=("sql", 1), cache_salts="tenant")
    for name in "cdefcdef":
        serve(managers, name)
    [quota] = managers.ledger.quotas()
    assert (quota["floor_blocks"], quota["cached_blocks"]) == (3, 3)
    managers.drop_scope(("sql", 1), "tenant")
    assert managers.ledger.quotas() == []


def test_a_quota_of_the_plain_scope() -> None:
    managers = managers_of_eight_pages()
    managers.retention.set_quota(2, 4)
    [quota] = managers.ledger.quotas()
    assert (quota["scope"], quota["floor_blocks"], quota["ceiling_blocks"]) == (0, 2, 4)
    with pytest.raises(LedgerError, match=r"must be in 0\.\.=6"):
        managers.retention.set_quota(7, cache_salt="other")
    with pytest.raises(BatchError, match="adapters"):
        managers.retention.set_quota(1, adapter="sql")  # type: ignore[arg-type]
    managers.retention.set_quota(0)
    assert managers.ledger.quotas() == []
