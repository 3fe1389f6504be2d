"""Mooncake Store: a real master and processes that share nothing but tokens."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from mooncake_stage import Stage, why_not

from tandemkv.errors import StoreError
from tandemkv.stores import MooncakeConfig, MooncakeStore

MISSING = why_not()
real = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

TOKENS = list(range(1000, 1000 + 16 * 20 + 5))  # 20 full blocks


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


@real
def test_another_process_finds_by_tokens_what_one_stored(stage: Stage):
    writer, reader = stage.worker(hash_seed=1), stage.worker(hash_seed=2)
    assert writer.opened == reader.opened == {"ready": True}
    stored = writer.ask("put", tokens=TOKENS)
    assert stored["outcomes"] == ["OK"] * 20
    assert reader.ask("exists", tokens=TOKENS) == {"outcomes": ["OK"] * 20}
    read = reader.ask("get", tokens=TOKENS)
    assert read["keys"] == stored["keys"]
    assert len(set(read["keys"])) == 20
    assert read["outcomes"] == ["OK"] * 20
    assert read["equal"] == [True] * 20
    # A prompt that differs in block 5 shares the five blocks before it and nothing more.
    other = [*TOKENS[: 5 * 16], 7, *TOKENS[5 * 16 + 1 :]]
    answer = reader.ask("get", tokens=other)
    assert answer["outcomes"] == ["OK"] * 5 + ["ABSENT"] * 15
    assert answer["equal"] == [True] * 5 + [False] * 15
    assert reader.ask("stats") == {
        "outcomes": {"put": {}, "get": {"ok": 25, "absent": 15}, "exists": {"ok": 20}},
        "errors": {},
        "dropped": 0,
        "suspended": False,
    }
    # What is there already stays, and counts as stored.
    assert reader.ask("put", tokens=TOKENS)["outcomes"] == ["OK"] * 20
    for worker in (reader, writer):
        assert worker.ask("close") == {"closed": True}
        assert worker.leave() == 0


@real
def test_an_engine_takes_over_what_one_in_another_process_computed(stage: Stage):
    writer, reader = stage.worker(hash_seed=1), stage.worker(hash_seed=2)
    assert writer.ask("compute", starts=[100])["offered"] >= 5
    # Five blocks of both roles, each checked token by token in the pools of the other engine.
    assert reader.ask("reuse", start=100) == {"asked": 5, "hit": 20}
    assert reader.ask("reuse", start=500) == {"asked": 5, "hit": 0}


@real
def test_values_that_somebody_spoiled_are_misses_and_give_way(stage: Stage):
    writer, reader = stage.worker(), stage.worker()
    for number, (num_bytes, outcome) in enumerate(
        [(1, "LENGTH"), (200_128, "FOREIGN"), (200_129, "LENGTH")]
    ):
        tokens = [number] * 16
        assert writer.ask("spoil", tokens=tokens, num_bytes=num_bytes) == {"codes": [0]}
        assert reader.ask("get", tokens=tokens)["outcomes"] == [outcome]
        assert reader.ask("get", tokens=tokens)["outcomes"] == ["ABSENT"]
        assert reader.ask("put", tokens=tokens)["outcomes"] == ["OK"]
        answer = writer.ask("get", tokens=tokens)
        assert (answer["outcomes"], answer["equal"]) == (["OK"], [True])
    assert reader.ask("stats")["dropped"] == 3


@real
def test_a_full_store_rejects(stage: Stage):
    worker = stage.worker()
    # 84 values of 200,128 bytes do not fit into 16 MiB.
    outcomes = worker.ask("put", tokens=list(range(84 * 16)))["outcomes"]
    assert outcomes[:10] == ["OK"] * 10
    assert set(outcomes) == {"OK", "REJECTED"}
    stats = worker.ask("stats")
    assert stats["outcomes"]["put"]["rejected"] == outcomes.count("REJECTED")
    assert (stats["errors"], stats["suspended"]) == ({}, False)


@real
def test_a_killed_master_is_a_miss(stage: Stage):
    writer, reader = stage.worker(), stage.worker(max_failures=100)
    assert writer.ask("put", tokens=TOKENS[:32])["outcomes"] == ["OK"] * 2
    assert reader.ask("get", tokens=TOKENS[:32])["outcomes"] == ["OK"] * 2
    stage.master.kill()
    stage.master.wait()
    assert reader.ask("get", tokens=TOKENS[:32])["outcomes"] == ["FAILED"] * 2
    assert reader.ask("put", tokens=TOKENS[:32])["outcomes"] == ["FAILED"] * 2
    assert reader.ask("exists", tokens=TOKENS[:32])["outcomes"] == ["FAILED"] * 2
    stats = reader.ask("stats")
    assert stats["outcomes"] == {
        "put": {"failed": 2},
        "get": {"ok": 2, "failed": 2},
        "exists": {"failed": 2},
    }
    assert sum(stats["errors"].values()) == 6


@real
def test_a_master_that_hangs_is_a_miss_and_then_works_again(stage: Stage):
    writer, reader = stage.worker(), stage.worker(max_failures=100)
    assert writer.ask("put", tokens=TOKENS[:16])["outcomes"] == ["OK"]
    os.kill(stage.master.pid, signal.SIGSTOP)
    assert reader.ask("get", tokens=TOKENS[:16], timeout_s=0.2)["outcomes"] == ["TIMED_OUT"]
    assert reader.ask("put", tokens=TOKENS[16:32], timeout_s=0.2)["outcomes"] == ["TIMED_OUT"]
    assert reader.ask("exists", tokens=TOKENS[:16], timeout_s=0.2)["outcomes"] == ["TIMED_OUT"]
    os.kill(stage.master.pid, signal.SIGCONT)
    answer = reader.ask("get", tokens=TOKENS[:16])
    assert (answer["outcomes"], answer["equal"]) == (["OK"], [True])


@real
def test_values_of_a_killed_process_are_misses(stage: Stage):
    writer = stage.worker()
    reader = stage.worker(segment_bytes=0, max_failures=100)
    assert writer.ask("put", tokens=TOKENS[:16])["outcomes"] == ["OK"]
    assert reader.ask("get", tokens=TOKENS[:16])["equal"] == [True]
    writer.kill()
    answer = reader.ask("get", tokens=TOKENS[:16], timeout_s=30.0)
    assert answer["outcomes"][0] in ("FAILED", "TIMED_OUT", "ABSENT")


@real
def test_a_master_that_is_not_there_is_an_error_when_the_store_is_opened(stage: Stage):
    worker = stage.worker(master_address="127.0.0.1:1")
    assert "Mooncake at '127.0.0.1:1' cannot be reached" in worker.opened["refused"]
    assert worker.leave() == 0


@real
def test_the_end_of_a_process_waits_for_a_call_that_hangs(stage: Stage):
    worker = stage.worker()
    os.kill(stage.master.pid, signal.SIGSTOP)
    assert worker.ask("get", tokens=TOKENS, timeout_s=0.2)["outcomes"] == ["TIMED_OUT"] * 20
    assert worker.ask("close", timeout_s=0.2) == {"closed": False}
    worker.say_no_more()
    os.kill(stage.master.pid, signal.SIGCONT)
    assert worker.leave() == 0


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(StoreError, match=r"tandemkv\[mooncake\]"):
        MooncakeStore(MooncakeConfig(master_address="a:1", local_hostname="b"))


@pytest.mark.parametrize("address", ["host", ":50051", "host:", "host:port"])
def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, address: str):
    monkeypatch.setattr("tandemkv.stores.mooncake._client", object)
    with pytest.raises(StoreError, match="'host:port' is needed"):
        MooncakeStore(MooncakeConfig(master_address=address, local_hostname="b"))


@pytest.mark.parametrize("field", ["segment_bytes", "buffer_bytes"])
def test_sizes_are_checked_before_anything_else(field: str):
    config = MooncakeConfig(master_address="a:1", local_hostname="b", **{field: -1})
    with pytest.raises(StoreError, match=f"{field} is -1"):
        MooncakeStore(config)
