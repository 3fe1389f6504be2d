"""Arguments of tiers that are something else are refused before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tandemkv as tkv
from tandemkv.errors import ConfigError, LedgerError, StoreError
from tandemkv.stores import MemoryStore, StoreBridge
from tandemkv.tiers import TierOptions


def tiered_plan() -> tkv.Plan:
    layer = tkv.Layer(kind="attention", kv_dtype="bf16", num_kv_heads=2, head_dim=64)
    return tkv.plan(
        tkv.ModelGeometry(layers=(layer,), name="target"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes="1MiB",
            host_cache_size="1MiB",
            disk_cache_size="1MiB",
            tokens_per_block=16,
            max_seq_len=64,
        ),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("pin", value) for value in ("yes", 1, [])],
        *[("reserved_bytes", value) for value in (-1, "1GiB", 1.5, True, None)],
        *[("agree_restored", value) for value in (5, "agree", [])],
        *[("threads", value) for value in (0, -1, "4", True, 2**31)],
        *[("staging_pages", value) for value in (0, 1.5, 2**63)],
        *[("local_ranks", value) for value in (0, None)],
        ("when_full", "drop"),
    ],
)
def test_options_of_another_kind_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        TierOptions(**{name: value})
    assert str(raised.value).startswith(f"{name} is {value!r}; ")
    assert raised.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("tiers", "no"), ("tiers", 2), ("executor", 5), ("executor", object()), ("tier_options", {})],
)
def test_build_managers_takes_nothing_else_for_tiers(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        tkv.build_managers(tiered_plan(), disk=tmp_path, **{name: value})
    assert str(raised.value).startswith(f"{name} is {value!r}; ")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_whose_pages_cannot_be_agreed_upon_is_given_up(tmp_path: Path) -> None:
    """Another attempt finds the folder free."""
    keys, pages = np.zeros((1, 32), np.uint8), np.array([2**31 - 1], np.int32)
    options = TierOptions(agree_restored=lambda found: [(0, keys, pages)])
    terms: dict[str, Any] = {"disk": tmp_path, "persistent": True, "fingerprint": b"weights"}
    with pytest.raises(LedgerError, match="2147483647") as raised:
        tkv.build_managers(tiered_plan(), tier_options=options, **terms)
    managers = tkv.build_managers(tiered_plan(), **terms)
    assert raised.tb is not None  # which holds what was built, so that nothing else has closed it
    assert managers.tiers is not None
    managers.tiers.close()


@pytest.mark.parametrize("name", ["put_timeout_s", "get_timeout_s"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", None, True])
def test_a_bridge_refuses_timeouts_before_it_is_used(name: str, value: Any, tmp_path: Path) -> None:
    plan = tiered_plan()
    managers = tkv.build_managers(plan, disk=tmp_path)
    assert managers.tiers is not None
    with pytest.raises(StoreError) as raised:
        StoreBridge(managers, plan, MemoryStore(1 << 20), **{name: value})
    assert str(raised.value) == f"{name} is {value!r}; a number >= 0 is needed"
    assert managers.tiers.observer is None
    bridge = StoreBridge(managers, plan, MemoryStore(1 << 20))
    assert bridge.fetch("empty", []) == 0
    assert not bridge.is_pending("empty")
    managers.tiers.close()
