"""Keys of blocks: values from an independent implementation, and what must not collide."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from reference.keys import block_key, root_key
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse

from tandemkv import _core
from tandemkv.errors import LedgerError

ERRORS = (LedgerError, Misuse)

# Computed once with hashlib from the record in docs/identity.md, written out by hand:
# printf '\x01R' 'f' 0 'b' 4 u32(4), then '\x01B' 'p' 32 root 't' 16 u32 x 4.
PLAIN_GOLDEN = (
    "744b361c7a5cffc4c3c57cb1590943158505beb139552e7dd35126f6e446dc54",
    "3746ee8844afedc4b84df66a737199058927da36cc48fc05339836b40a0e586e",
)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def core(**options: object) -> _core.Ledger:
    fixed = {"tokens_per_block": 4, "num_pages": [33], "max_sequences": 4, "max_seq_len": 300}
    return _core.Ledger(**{**fixed, **options})


def hexes(keys: np.ndarray) -> list[str]:
    return [key.tobytes().hex() for key in keys]


def test_golden_values() -> None:
    """A change of these strands every key that others have stored."""
    assert tuple(hexes(core().keys(np.arange(8, dtype=np.int32)))) == PLAIN_GOLDEN
    assert tuple(hexes(core().keys(np.arange(11, dtype=np.int64)))) == PLAIN_GOLDEN


def test_the_record_of_a_block_written_out() -> None:
    """Independent of our own helpers: the bytes as docs/identity.md lays them down."""
    ledger = core(tokens_per_block=2, fingerprint=b"model")
    image = ledger.intern_media(b"\xaa" * 32, 3)
    scope = ledger.intern_scope(("lora", 2), b"\x00s")
    root = hashlib.sha256(
        b"\x01R"
        b"f\x05\x00\x00\x00model"
        b"b\x04\x00\x00\x00\x02\x00\x00\x00"
        b"n\x04\x00\x00\x00lora"
        b"v\x08\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"
        b"s\x02\x00\x00\x00\x00s"
    ).digest()
    first = hashlib.sha256(
        b"\x01B"
        b"p\x20\x00\x00\x00" + root + b"t\x08\x00\x00\x00\x07\x01\x00\x00\xff\xff\xff\xff"
        b"m\x28\x00\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00" + b"\xaa" * 32
    ).digest()
    second = hashlib.sha256(
        b"\x01Bp\x20\x00\x00\x00" + first + b"t\x08\x00\x00\x00\x09\x00\x00\x00\xff\xff\xff\x7f"
    ).digest()
    keys = ledger.keys(np.array([0x107, image, 9, 2**31 - 1], np.int32), scope)
    assert hexes(keys) == [first.hex(), second.hex()]


def test_keys_are_the_same_in_every_process() -> None:
    """Another hash seed, another number for the same image (vllm#51875, LMCache#2136)."""
    program = (
        "import numpy as np, sys\n"
        "from tandemkv import _core\n"
        "sizes = dict(tokens_per_block=4, num_pages=[9], max_sequences=1, max_seq_len=99)\n"
        "ledger = _core.Ledger(**sizes)\n"
        "for number in range(int(sys.argv[1])):\n"
        "    ledger.intern_media(bytes([number]) * 32, 1)\n"
        "    ledger.intern_scope(None, f'{number}')\n"
        "image = ledger.intern_media(b'x' * 32, 5)\n"
        "scope = ledger.intern_scope(('a', 1), 'tenant')\n"
        "keys = ledger.keys(np.array([1, image, 3, 4, 5, 6, 7, 8], np.int32), scope)\n"
        "print(keys.tobytes().hex(), image, scope)\n"
    )
    seen = []
    for seed in ("0", "1234"):
        result = subprocess.run(
            [sys.executable, "-c", program, str(int(seed) % 97)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.append(result.stdout.split())
    assert seen[0][0] == seen[1][0]
    assert seen[0][1:] != seen[1][1:]
    scope_key = root_key(b"", 4, (("a", 1), "tenant"))
    first = block_key(scope_key, (1, -1, 3, 4), {-1: (b"x" * 32, 5)})
    assert seen[0][0] == (first + block_key(first, (5, 6, 7, 8), {})).hex()


def test_every_combination_has_keys_of_its_own(engine: str) -> None:
    """The exported key knows what the local one knows: adapter, salt and image (vllm#45549)."""
    s = Scenario(engine)
    images = [s.ledger.intern_media(bytes([name]) * 32, 2) for name in range(2)]
    found = set()
    combinations = list(product((None, (7, 1), ("7", 1)), (None, "7", b"7"), (9, *images)))
    for adapter, salt, image in combinations:
        prompt = (1, image, 9, 2, 3, 4, 5, 6)
        scope = s.ledger.intern_scope(adapter, salt)
        handle = s.prefill(prompt, 8, scope=scope)
        keys = s.ledger.block_keys(handle)
        assert keys == s.ledger.keys(prompt, scope)
        s.release(handle)
        found.update(keys)
    assert len(found) == 2 * len(combinations)


def test_images_and_their_offsets_reach_every_later_key(engine: str) -> None:
    """4 per page: T0 T1 P P / P P P T2 (TensorRT-LLM#12306)."""
    s = Scenario(engine)
    a, b = (s.ledger.intern_media(bytes([name]) * 32, 5) for name in range(2))
    longer = s.ledger.intern_media(bytes(32), 6)
    prompts = [(100, 101, image, 9, 9, 9, 9, 102) for image in (a, b, longer, 9)]
    prompts.append((100, a, 9, 9, 9, 9, 101, 102))
    keys = [s.ledger.keys(prompt, 0) for prompt in prompts]
    assert len({key for pair in keys for key in pair}) == 10


def test_the_fingerprint_and_the_block_size_are_part_of_a_key() -> None:
    prompt = np.zeros(8, np.int32)
    ledgers = [core(fingerprint=name) for name in (b"", b"a", b"b")]
    ledgers.append(core(tokens_per_block=8))
    keys = {key for ledger in ledgers for key in hexes(ledger.keys(prompt))}
    assert len(keys) == 2 + 2 + 2 + 1


@pytest.mark.parametrize("length", [0, 1, 7, 32, 33, 257])
def test_in_bulk_and_token_by_token(engine: str, length: int) -> None:
    """runtime-034: both ways give equal keys, of tokens mixed with media."""
    s = Scenario(engine, num_pages=(80,), max_seq_len=300)
    image = s.ledger.intern_media(b"d" * 32, 2)
    text = tuple(image if i % 11 == 3 else i % 7 for i in range(length))
    whole = s.ledger.keys(text, 0)
    assert len(whole) == length // 4
    assert [s.ledger.keys(text[: 4 * n + 4], 0)[n] for n in range(length // 4)] == whole
    if not length:
        return
    # Chunk by chunk, asked after each of them.
    step = s.begin()
    handle = s.admit(step, text, first=3)
    while True:
        s.complete(step)
        s.advance(step, handle)
        done = s.sequence(handle)["committed"] // 4
        assert s.ledger.block_keys(handle) == whole[:done]
        left = length - s.sequence(handle)["reach"]
        if not left:
            break
        step = s.begin()
        assert s.grow(step, handle, min(left, 3))
    assert done == length // 4


def test_lookahead_and_draft_do_not_change_a_key(engine: str) -> None:
    """runtime-062 has the lookahead in its keys; ours leaves it to the comparison of blocks."""
    s = Scenario(engine, has_draft=True, lookahead=1)
    keys = []
    for last, draft_from in ((1, -1), (1, 0), (2, 0)):
        handle = s.prefill((*tokens(4, 10), last), 5, draft_from=draft_from)
        keys.append(s.ledger.block_keys(handle))
    assert s.count("cached") == 3
    assert keys[0] == keys[1] == keys[2]
    assert len(keys[0]) == 1


def test_keys_of_shared_blocks_after_splits_and_merges(engine: str) -> None:
    s = Scenario(engine)
    first = s.prefill(tokens(20), 1)
    assert s.ledger.block_keys(first) == s.ledger.keys(tokens(20), 0)
    for branch in (4, 8, 16):
        text = (*tokens(branch), *range(100, 108))
        handle = s.prefill(text, 1)
        assert s.ledger.block_keys(handle) == s.ledger.keys(text, 0)
        s.release(handle)
    s.release(first)
    handle = s.prefill((*tokens(20), 5, 6, 7, 8), 1)
    assert s.ledger.block_keys(handle) == s.ledger.keys((*tokens(20), 5, 6, 7, 8), 0)


def test_a_reused_record_answers_to_its_new_key() -> None:
    """kvcached#362: a page of key A, evicted and used for B, must not answer to A."""
    s = Scenario("core", num_pages=(5,), max_seq_len=16)
    for start in (0, 100, 200, 0):
        handle = s.prefill(tokens(12, start), 1)
        assert s.ledger.block_keys(handle) == s.ledger.keys(tokens(12, start), 0)
        s.release(handle, publish=0)
        s.ledger.validate()


def test_a_private_sequence_has_no_keys(engine: str) -> None:
    s = Scenario(engine)
    handle = s.prefill(tokens(8), 1, scope=-1)
    assert s.ledger.block_keys(handle) == []
    with pytest.raises(ERRORS):
        s.ledger.keys(tokens(8), -1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.keys(np.zeros(4, np.int32), 3), r"scope\[0\] is 3, which is no scope"),
        (lambda c: c.keys(np.array([1, -1], np.int32)), "token 1 of item 0 is -1"),
        (lambda c: c.keys(np.zeros(4, np.int32), -1), r"scope\[0\] is -1|scope is -1"),
        (lambda c: c.keys(np.zeros((2, 2), np.int32)), "tokens must have 1 dimension"),
        (lambda c: c.block_keys(7), "handle.* 7 names no open sequence"),
    ],
)
def test_errors(call: object, message: str) -> None:
    ledger = core()
    with pytest.raises(LedgerError, match=message):
        call(ledger)  # type: ignore[operator]
