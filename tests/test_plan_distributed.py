"""One plan on four gloo processes: 2 tp x 2 pp with uneven memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from budget_cases import GIB, gqa, model

import tandemkv as tkv

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)

TIMEOUT_S = 240
SIZES = [10 * GIB, 10 * GIB - 12_345, 9 * GIB, 11 * GIB]

# What each rank has, and the block size that it was called with.
SCENARIOS: dict[str, dict[str, list[Any]]] = {
    "uneven": {"device_bytes": SIZES, "tokens_per_block": [32] * 4},
    "too_small": {"device_bytes": [*SIZES[:3], 1_000_000], "tokens_per_block": [32] * 4},
    "different": {"device_bytes": SIZES, "tokens_per_block": [32, 32, 64, 32]},
    "no_size": {"device_bytes": [SIZES[0], "much", *SIZES[2:]], "tokens_per_block": [32] * 4},
}

# Every process runs all scenarios, one after the other, in one group.
WORKER = """
import json, sys
from datetime import timedelta
import torch.distributed as dist
import tandemkv as tkv
from test_plan_distributed import SCENARIOS, arguments

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=4, timeout=timedelta(seconds=200)
)
answers = {}
for name, given in SCENARIOS.items():
    try:
        plan = tkv.plan_distributed(
            **arguments(given["tokens_per_block"][rank]), device_bytes=given["device_bytes"][rank]
        )
        mine = plan.ranks[rank]
        answers[name] = {
            "digest": plan.digest(),
            "num_blocks": plan.num_blocks,
            "rank": mine.rank,
            "budget_bytes": mine.budget_bytes,
            "draft": mine.draft is not None,
        }
    except tkv.TandemkvError as error:
        numbers = {"rank": getattr(error, "rank", None), "ranks": getattr(error, "ranks", None)}
        answers[name] = {"error": type(error).__name__, "message": str(error), **numbers}
print(json.dumps(answers))
dist.barrier()
dist.destroy_process_group()
"""


def arguments(tokens_per_block: int = 32) -> dict[str, Any]:
    return {
        "target": model(gqa(7) + gqa(1, window=512)),
        "draft": model(gqa(2), "draft"),
        "config": tkv.KvCacheConfig(
            max_gpu_total_bytes=20 * GIB,
            max_seq_len=4096,
            max_batch_size=4,
            tokens_per_block=tokens_per_block,
        ),
        "mapping": tkv.Mapping(tp_size=2, pp_size=2),
        "speculative": tkv.SpeculativeConfig(mode="eagle3", max_draft_len=4),
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return what the four ranks said in each scenario, in rank order."""
    store = tmp_path_factory.mktemp("distributed") / "store"
    # One thread each: four processes share the machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(store)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    said = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, err
            said.append(json.loads(out))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return {name: [answer[name] for answer in said] for name in SCENARIOS}


Answers = dict[str, list[dict[str, Any]]]


def test_all_ranks_have_the_same_plan_and_their_own_part(answers: Answers):
    said = answers["uneven"]
    expected = tkv.plan(**arguments(), device_bytes=SIZES)
    assert {answer["digest"] for answer in said} == {expected.digest()}
    assert [answer["rank"] for answer in said] == [0, 1, 2, 3]
    assert [answer["budget_bytes"] for answer in said] == SIZES
    assert [answer["draft"] for answer in said] == [False, False, True, True]
    assert {answer["num_blocks"] for answer in said} == {expected.num_blocks}


def test_one_rank_too_small_is_named_on_all(answers: Answers):
    said = answers["too_small"]
    assert {answer["error"] for answer in said} == {"BudgetError"}
    assert {answer["rank"] for answer in said} == {3}
    assert len({answer["message"] for answer in said}) == 1
    assert "rank 3 is 1000000 bytes" in said[0]["message"]


def test_a_rank_that_was_called_differently_is_named_on_all(answers: Answers):
    said = answers["different"]
    assert {answer["error"] for answer in said} == {"PlanMismatchError"}
    assert [answer["ranks"] for answer in said] == [[2]] * 4


def test_a_rank_without_a_size_is_named_on_all(answers: Answers):
    said = answers["no_size"]
    assert {answer["error"] for answer in said} == {"ConfigError"}
    assert all("rank 1: device_bytes is 'much'" in answer["message"] for answer in said)


def test_a_plan_is_the_same_in_every_process():
    # Hash seeds differ between processes; the digest must not.
    made = tkv.plan(**arguments(), device_bytes=SIZES)
    again = tkv.plan(**arguments(), device_bytes=list(SIZES))
    assert made.digest() == again.digest()
    other = tkv.plan(**arguments(), device_bytes=[*SIZES[:3], 11 * GIB - 1])
    assert made.digest() != other.digest()


def test_without_a_process_group_it_says_what_is_missing():
    with pytest.raises(tkv.DeviceUnavailableError, match="init_process_group"):
        tkv.plan_distributed(**arguments(), device_bytes=GIB)


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(tkv.DeviceUnavailableError, match="not installed"):
        tkv.plan_distributed(**arguments(), device_bytes=GIB)
