"""The example scheduler serves all its requests, under pressure, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tandemkv as tkv

EXAMPLE = Path(__file__).parents[1] / "examples" / "scheduler.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("scheduler_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_the_example_reports_what_it_did(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("40 requests in ")
    assert int(lines[1].split()[0]) > 0  # prompt tokens reused
    assert lines[2].startswith(f"{40 * 40} tokens generated, ")  # 40 requests of 40 tokens each
    assert int(lines[3].split()[0]) > 0  # preemptions


def test_the_example_serves_everything_and_leaves_nothing(example: ModuleType) -> None:
    managers = example.build()
    requests = [
        example.Request(f"{number}", list(range(number, number + 40)), 90) for number in range(12)
    ]
    scheduler = example.Scheduler(managers, requests, seed=3)
    scheduler.serve()
    assert {request.name for request in scheduler.finished} == {f"{n}" for n in range(12)}
    assert all(len(request.tokens) == 90 for request in scheduler.finished)
    assert any(request.preemptions for request in scheduler.finished)
    managers.ledger.validate()
    (states,) = managers.ledger.stats()["classes"]
    assert states["live"] == states["fenced"] == 0
    managers.reset_reuse_state()
    (states,) = managers.ledger.stats()["classes"]
    assert states["free"] == states["total"] - 1


@pytest.mark.parametrize("seed", range(12))
def test_the_example_serves_prompts_of_any_length(example: ModuleType, seed: int) -> None:
    """A chunk may end one token before its prompt; that is no decode step."""
    chooser = random.Random(seed)
    requests = []
    for number in range(24):
        prompt = [*range(32), *(chooser.randrange(1000) for _ in range(chooser.randrange(4, 60)))]
        requests.append(example.Request(f"{number}", prompt, len(prompt) + 40))
    scheduler = example.Scheduler(example.build(), requests, seed)
    scheduler.serve()
    assert all(request.done for request in scheduler.finished)
    assert len(scheduler.finished) == 24


def test_the_example_waits_for_pages_from_disk(example: ModuleType, tmp_path: Path) -> None:
    layer = tkv.Layer(kind="attention", kv_dtype="fp16", num_kv_heads=2, head_dim=16)
    plan = tkv.plan(
        tkv.ModelGeometry(layers=(layer,) * 4, name="small"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=40 * 8 * 4 * 2 * 2 * 16 * 2,
            host_cache_size="1MiB",
            disk_cache_size="4MiB",
            tokens_per_block=8,
            max_batch_size=16,
            max_seq_len=256,
        ),
        speculative=tkv.SpeculativeConfig(mode="ngram", max_draft_len=example.DRAFT_LEN),
    )
    loaded = []
    for _ in range(2):
        managers = tkv.build_managers(plan, disk=tmp_path, persistent=True, fingerprint=b"weights")
        requests = [
            example.Request(f"{number}", list(range(60 * number, 60 * number + 60)), 90)
            for number in range(12)
        ]
        scheduler = example.Scheduler(managers, requests)
        scheduler.serve()
        assert len(scheduler.finished) == 12
        assert managers.tiers is not None
        loaded.append(managers.tiers.stats()["counters"]["disk_to_device"])
        managers.tiers.flush(device=True)
        managers.tiers.close()
    assert loaded[0] == 0
    assert loaded[1] > 0


def test_the_example_says_what_can_never_be_served(example: ModuleType) -> None:
    request = example.Request("too long", list(range(250)), 256)
    managers = example.build()
    managers.add_dummy_requests(["pad"], [200])
    with pytest.raises(RuntimeError, match=r"nothing fits: .*too long"):
        example.Scheduler(managers, [request]).serve()
