"""Scopes and media, hand-computed, on both ledgers: see docs/identity.md."""

from __future__ import annotations

import hashlib
from itertools import product

import numpy as np
import pytest
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse, SequencesOpen

from tandemkv import _core
from tandemkv.errors import LedgerError, SequencesOpenError

ERRORS = (LedgerError, Misuse)
P = 9  # a placeholder


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def digest(name: object) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


def plain_core(**options: object) -> _core.Ledger:
    fixed = {"tokens_per_block": 4, "num_pages": [33], "max_sequences": 4, "max_seq_len": 64}
    return _core.Ledger(**{**fixed, **options})


# Scopes


def test_equal_typed_fields_are_one_scope_and_no_others(engine: str) -> None:
    """Nothing collides by concatenation, by type, or because something is 0 or empty."""
    s = Scenario(engine)
    ids = [None, 0, 1, 12, -1, 2**63 - 1, "", "1", "12", "0", "\0", "é"]
    adapters = [None, *((id_, version) for id_ in ids[1:] for version in (0, 1, 2, 21))]
    salts = [None, "", "1", "11", "\0", "x" * 300, b"", b"1", b"11", b"\0", b"x" * 300]
    fields = list(product(adapters, salts))
    scopes = [s.ledger.intern_scope(*pair) for pair in fields]
    assert scopes == list(range(len(fields)))
    assert [s.ledger.intern_scope(*pair) for pair in fields] == scopes


def test_a_new_version_of_an_adapter_shares_nothing(engine: str) -> None:
    """Two adapters of one name, and one that was loaded again (vllm#30931)."""
    s = Scenario(engine)
    old = s.ledger.intern_scope(("sql", 1))
    s.serve(tokens(8), scope=old)
    assert s.match(tokens(8), s.ledger.intern_scope(("sql", 2))) == 0
    assert s.match(tokens(8), s.ledger.intern_scope((1, 1))) == 0
    assert s.match(tokens(8), s.ledger.intern_scope(("sql", 1))) == 8


def test_what_is_cached_survives_the_hold(engine: str) -> None:
    s = Scenario(engine)
    scope = s.ledger.intern_scope(None, "tenant")
    s.serve(tokens(8), scope=scope)
    s.ledger.release_scope(scope)
    with pytest.raises(ERRORS):
        s.match(tokens(8), scope)
    for other in range(100):
        s.ledger.release_scope(s.ledger.intern_scope(None, f"other {other}"))
    assert s.ledger.intern_scope(None, "tenant") == scope
    assert s.match(tokens(8), scope) == 8


def test_scopes_that_nothing_uses_are_freed(engine: str) -> None:
    s = Scenario(engine)
    most = 0
    for tenant in range(1000):
        scope = s.ledger.intern_scope(None, f"tenant {tenant}")
        assert s.match(tokens(4), scope) == 0
        s.serve(tokens(4), scope=scope)
        s.ledger.release_scope(scope)
        most = max(most, scope)
    # The cache holds 32 blocks, each of a scope of its own.
    assert most <= 2 * (32 + 1) + 16


def test_dropping_a_scope_gives_its_blocks_up(engine: str) -> None:
    s = Scenario(engine)
    scope = s.ledger.intern_scope(("a", 1))
    s.serve(tokens(10))
    s.serve(tokens(10), scope=scope)
    s.serve((*tokens(4), 70, 71, 72, 73, 74), scope=scope)
    assert s.count("cached") == 3 + 3 + 2
    handle = s.prefill(tokens(10), scope=scope)
    with pytest.raises((SequencesOpenError, SequencesOpen)) as caught:
        s.ledger.drop_scope(scope)
    if engine == "core":
        assert caught.value.details == {"open_sequences": 1}
    s.release(handle)
    s.ledger.drop_scope(scope)
    assert s.counts()["cached"] == 3
    assert s.count("free") == 32 - 3
    assert s.match(tokens(10)) == 10
    with pytest.raises(ERRORS):
        s.match(tokens(4), scope)
    assert s.ledger.intern_scope(None, "next") == scope
    assert s.match(tokens(10), scope) == 0


def test_dropping_a_scope_waits_for_running_steps_and_copies(engine: str) -> None:
    s = Scenario(engine)
    scope = s.ledger.intern_scope(("a", 1))
    s.serve(tokens(10), scope=scope)
    step = s.begin()
    handle, hit = s.try_admit(step, (*tokens(6), 50), scope=scope)
    assert hit == 6
    s.ledger.moves()
    s.release(handle, publish=0)
    s.ledger.drop_scope(scope)  # the copy's source is still being read
    counts = s.counts()
    # The shared block, the source and the sequence's own block were in use; the tail was not.
    assert (counts["cached"], counts["fenced"], counts["free"]) == (0, 3, 29)
    s.ledger.complete_step(step)
    assert s.count("free") == 32


def test_another_hold_keeps_a_dropped_scope(engine: str) -> None:
    s = Scenario(engine)
    scope = s.ledger.intern_scope(None, "x")
    assert s.ledger.intern_scope(None, "x") == scope
    s.serve(tokens(4), scope=scope)
    s.ledger.drop_scope(scope)
    assert s.match(tokens(4), scope) == 0
    assert s.ledger.intern_scope(None, "y") != scope


def test_the_plain_scope_stays(engine: str) -> None:
    s = Scenario(engine)
    s.serve(tokens(8))
    s.ledger.release_scope(0)
    assert s.match(tokens(8)) == 8
    s.ledger.drop_scope(0)
    assert s.match(tokens(8)) == 0
    assert s.ledger.intern_scope() == 0


@pytest.mark.parametrize("scope", [1, 5, 2**31 - 1])
def test_a_scope_that_was_not_interned_is_an_error(engine: str, scope: int) -> None:
    s = Scenario(engine)
    step = s.begin()
    with pytest.raises(ERRORS):
        s.admit(step, tokens(4), scope=scope)
    with pytest.raises(ERRORS):
        s.match(tokens(4), scope)
    for call in (s.ledger.release_scope, s.ledger.drop_scope):
        with pytest.raises(ERRORS):
            call(scope)
    assert s.stats()["admitted"] == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adapter": 7}, r"adapter is of type int, must be None or a tuple \(id, version\)"),
        ({"adapter": (7,)}, "adapter is of type tuple"),
        ({"adapter": (2**63, 1)}, r"adapter\[0\] is 9223372036854775808, must be a text or an int"),
        ({"adapter": (1.5, 1)}, r"adapter\[0\] is 1.5"),
        ({"adapter": ("a", None)}, r"adapter\[1\] \(version\) is None, must be an integer of 64"),
        (
            {"adapter": ("\ud800", 1)},
            r"adapter\[0\] is '\\ud800', must be text that UTF-8 can hold",
        ),
        ({"salt": 7}, "salt is of type int, must be None, bytes or str"),
        ({"salt": "\ud800"}, "salt is '\\\\ud800'"),
    ],
)
def test_fields_of_another_type_are_errors(fields: dict[str, object], message: str) -> None:
    core = plain_core()
    before = core.digest()
    with pytest.raises(LedgerError, match=message):
        core.intern_scope(**fields)
    assert core.digest() == before


# Media


def test_images_behind_equal_placeholders_differ(engine: str) -> None:
    """The text of two prompts is equal, their images are not (TensorRT-LLM#12306, vllm#11187)."""
    s = Scenario(engine)
    a, b = (s.ledger.intern_media(digest(name), 5) for name in "AB")

    def prompt(image: int) -> tuple[int, ...]:
        return (100, 101, image, P, P, P, P, 102)

    s.serve(prompt(a))
    assert s.match(prompt(a)) == 8
    assert s.match(prompt(b)) == 2
    # The same image somewhere else, and the placeholders without an image.
    assert s.match((100, a, P, P, P, P, 101, 102)) == 1
    assert s.match(prompt(P)) == 2
    handle, hit = s.try_admit(s.begin(), prompt(b))
    assert hit == 2
    assert s.sequence(handle)["committed"] == 0


def test_many_images_share_nothing() -> None:
    """A digest cut to 16 bits must collide among so many (LMCache#4086)."""
    core = plain_core(num_pages=[9])
    references = {core.intern_media(digest(image), 3) for image in range(70_000)}
    assert len(references) == 70_000
    assert min(references) == -70_000
    assert core.intern_media(digest(1234), 3) == -1235
    step = core.begin_step()
    handle, hit = np.zeros(1, np.int64), np.zeros(1, np.int32)
    one = np.ones(1, np.int32)

    def serve(reference: int, dtype: type) -> int:
        prompt = np.array([reference, P, P, 1, 2], dtype)
        core.admit(step, [prompt], 0 * one, 5 * one, np.array([6]), None, handle, hit)
        core.advance(step, handle, np.array([[3]], np.int32), one)
        core.release(handle, np.ones(1, np.uint8))
        return int(hit[0])

    assert serve(-1, np.int32) == 0
    core.complete_step(step)
    step = core.begin_step()
    assert serve(-1, np.int64) == 4
    core.complete_step(step)
    rest = [np.array([reference, P, P, 1], np.int32) for reference in sorted(references)]
    assert sum(core.match(prompt) for prompt in rest) == 4


def test_the_length_of_an_item_is_part_of_it(engine: str) -> None:
    s = Scenario(engine)
    assert s.ledger.intern_media(digest("A"), 4) != s.ledger.intern_media(digest("A"), 5)


def test_media_that_is_cached_keeps_its_number(engine: str) -> None:
    s = Scenario(engine, num_pages=(40,))
    image = s.ledger.intern_media(digest("A"), 2)
    s.serve((1, image, P, 2, 3))
    s.ledger.release_media(image)
    with pytest.raises(ERRORS):
        s.match((1, image, P, 2))
    step = s.begin()
    with pytest.raises(ERRORS):  # also where a cached block has the same tokens
        s.admit(step, (1, image, P, 2, 3))
    s.ledger.complete_step(step)
    others = set()
    for other in range(100):
        reference = s.ledger.intern_media(digest(other), 2)
        s.ledger.release_media(reference)
        others.add(reference)
    assert len(others) < 40
    assert image not in others
    assert s.ledger.intern_media(digest("A"), 2) == image
    assert s.match((1, image, P, 2, 3)) == 5


def test_media_that_nothing_uses_is_freed(engine: str) -> None:
    """A cache of 8 blocks sees 1,000 images; the open sequence's image is the only one held."""
    s = Scenario(engine, num_pages=(13,))
    first = s.ledger.intern_media(digest("first"), 2)
    open_handle = s.prefill((first, P, 1, 2, 3))
    s.ledger.release_media(first)
    lowest = 0
    for name in range(1000):
        image = s.ledger.intern_media(digest(name), 2)
        assert image != first
        assert s.match((image, P, 1, 2)) == 0
        s.serve((image, P, 1, 2))
        s.ledger.release_media(image)
        lowest = min(lowest, image)
    assert -lowest <= 2 * (12 + 1) + 16
    assert s.sequence(open_handle)["known"] == 5


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((b"x" * 31, 1), "digest has 31 bytes, must have 32"),
        ((b"x" * 33, 1), "digest has 33 bytes, must have 32"),
        (("x" * 32, 1), "digest is of type str, must be 32 bytes"),
        ((b"x" * 32, 0), r"length\[0\] is 0, must be in 1\.\.=2147483647|length is 0"),
        ((b"x" * 32, -1), "length is -1, must be in 1..=2147483647"),
        ((b"x" * 32, 2**31), "length"),
    ],
)
def test_bad_media_is_an_error(args: tuple[bytes, int], message: str) -> None:
    """runtime-034: a digest of 31 or 33 bytes; a count that is not positive."""
    core = plain_core()
    before = core.digest()
    with pytest.raises(LedgerError, match=message):
        core.intern_media(*args)
    assert core.digest() == before


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("token", [-1, -3, -(2**31), 2**31, 2**32 - 2, -(2**32) - 2])
def test_other_negative_tokens_stay_errors(dtype: type, token: int) -> None:
    core = plain_core()
    for name in "ABC":
        core.intern_media(digest(name), 1)
    core.release_media(-1)
    core.release_media(-3)
    if not np.iinfo(dtype).min <= token <= np.iinfo(dtype).max:
        pytest.skip("no value of this dtype")
    with pytest.raises(LedgerError, match=f"token 1 of item 0 is {token}, must be in 0..="):
        core.match(np.array([1, token], dtype))
    assert core.match(np.array([1, -2], dtype)) == 0


def test_references_are_for_prompts_only(engine: str) -> None:
    s = Scenario(engine)
    image = s.ledger.intern_media(digest("A"), 1)
    step = s.begin()
    handle = s.admit(step, (1, image))
    s.complete(step)
    with pytest.raises(ERRORS):
        s.advance(step, handle, image)
    s.advance(step, handle, 5)
