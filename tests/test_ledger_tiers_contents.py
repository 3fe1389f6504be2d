"""Pages travel between three tiers, and a step still reads what its tokens left.

The fake device of test_ledger_contents with a host and a disk below it. Transfers are handed out,
run late, in any order where the contract allows it, and some fail; what is under way holds junk
meanwhile.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest
from reference import configs
from reference.lifetimes import FULL, STATE
from reference.mirror import Mirror
from reference.scenario import Scenario
from test_ledger_contents import Device, Engine, Running

from tandemkv import _core

JUNK = {0: ("junk",)}


@dataclass
class Transfer:
    """One transfer under way: its rows, and what a copy from the device read at once."""

    rows: list[tuple[int, int, int, int, int]]
    read: list[Any]


class Tiers:
    """Host and disk pages of all classes, and the transfers under way."""

    def __init__(self, device: Device, rng: random.Random, fail: float) -> None:
        self.device, self.rng, self.fail = device, rng, fail
        self.core = device.s.ledger.core
        self.pages: dict[tuple[int, int, int], Any] = {}
        self.open: dict[int, Transfer] = {}
        self.moved: dict[tuple[int, int], int] = {}

    def content(self, tier: int, cls: int, page: int) -> Any:
        """Return a copy of what a page holds in both roles."""
        if tier:
            return self.pages.get((tier, cls, page), JUNK)
        if self.device.rule(cls)[0] == STATE:
            return self.device.states.get((cls, page), ("never",))
        return [dict(self.device.attention.get((cls, role, page), {})) for role in (0, 1)]

    def put(self, tier: int, cls: int, page: int, content: Any) -> None:
        if tier:
            self.pages[tier, cls, page] = content
        elif self.device.rule(cls)[0] == STATE:
            self.device.states[cls, page] = content
        else:
            for role, held in enumerate(content if content is not JUNK else (JUNK, JUNK)):
                self.device.attention[cls, role, page] = dict(held)

    def hand_out(self) -> None:
        """Take the planned rows; copies from the device read at once."""
        out = np.zeros((512, 6), np.int64)
        keys = np.zeros((512, 32), np.uint8)
        for number, cls, *where in out[: self.core.transfers(out, keys)].tolist():
            tier, page, to, there = where
            transfer = self.open.setdefault(number, Transfer([], []))
            transfer.rows.append((cls, tier, page, to, there))
            transfer.read.append(self.content(tier, cls, page) if tier == 0 else None)
            # Nobody may look at the destination before the transfer is completed.
            self.put(to, cls, there, ("junk",) if self.device.rule(cls)[0] == STATE else JUNK)

    def complete(self, share: float) -> None:
        """Run a share of the transfers in any order, and say what became of them."""
        done = [number for number in self.open if self.rng.random() < share]
        self.rng.shuffle(done)
        ok = [self.rng.random() >= self.fail for _ in done]
        for number, arrives in zip(done, ok, strict=True):
            transfer = self.open.pop(number)
            for (cls, tier, page, to, there), read in zip(
                transfer.rows, transfer.read, strict=True
            ):
                content = self.content(tier, cls, page) if read is None else read
                if arrives:
                    self.put(to, cls, there, content)
                    self.moved[tier, to] = self.moved.get((tier, to), 0) + 1
        self.core.complete_transfers(np.array(done, np.int64), np.array(ok, np.uint8))


class TieredEngine(Engine):
    """An engine whose requests may wait for their pages, be suspended, or leave while they wait."""

    def __init__(self, s: Scenario, rng: random.Random, fail: float) -> None:
        super().__init__(s, rng)
        self.tiers = Tiers(self.device, rng, fail)
        self.waiting: dict[int, Running] = {}
        self.left = 0
        self.mirror = Mirror()

    def step(self) -> None:
        for handle, request in list(self.running.items()):
            if len(request.text) >= request.max_total:
                self.texts.append(self.running.pop(handle).text)
                self.s.release(handle)
        super().step()
        rng = self.rng
        if rng.random() < 0.1:
            self.tiers.core.offload(rng.randint(0, 6))
        if rng.random() < 0.05:
            self.tiers.core.flush()
        self.tiers.hand_out()
        self.tiers.complete(rng.choice((0.0, 0.5, 1.0)))
        for handle in list(self.waiting):
            self._look_after(handle)
        for handle in list(self.running):
            request = self.running[handle]
            quiet = not self.s.sequence(handle)["outstanding"]
            quiet = quiet and len(request.text) < request.max_total
            if quiet and rng.random() < 0.05:
                self.s.ledger.core.suspend(np.array([handle]), np.ones(1, np.uint8))
                del self.running[handle]
                request.prompt_length = len(request.text)
                self.waiting[handle] = request
        self.s.ledger.core.validate()
        self.read_events()

    def read_events(self) -> None:
        """Follow the events; they must tell what the ledger holds on each tier."""
        for event in self.tiers.core.events(self.mirror.number):
            self.mirror.apply(event)
        snapshot = self.tiers.core.event_snapshot()
        assert self.mirror.below == {tier: set(snapshot[tier]) for tier in self.mirror.below}
        for shelf in self.tiers.core.tier_stats()["shelves"]:
            if shelf["classes"][0] == 0:
                held = shelf["writing"] + shelf["valid"]
                keys = len(self.mirror.below[shelf["tier"]])
                # With a draft, several entries can be copies of one key; dropped ones are told.
                assert keys <= held

    def _look_after(self, handle: int) -> None:
        out = np.zeros(1, np.uint8)
        self.s.ledger.core.loading(np.array([handle]), out)
        if self.rng.random() < 0.05:
            del self.waiting[handle]
            self.left += 1
            self.s.release(handle, publish=1)
        elif out[0] == 0:
            self.running[handle] = self.waiting.pop(handle)
        elif out[0] == 2:
            self._resume(handle)

    def _resume(self, handle: int) -> None:
        step = self.s.begin()
        ok, hit = np.zeros(1, np.uint8), np.zeros(1, np.int32)
        first = np.array([self.rng.randint(1, 8)], np.int32)
        self.s.ledger.core.resume(step, np.array([handle]), first, ok, hit)
        self.tiers.hand_out()
        self.device.run_moves(self.rng)
        if ok[0] and not self._loads(handle):
            request = self.waiting.pop(handle)
            self.running[handle] = request
            self._zero_states(handle, int(hit[0]))
            [(_, width)] = self.s.sequence(handle)["outstanding"]
            self._run(step, handle, width)
        self.s.ledger.complete_step(step)

    def _loads(self, handle: int) -> bool:
        out = np.zeros(1, np.uint8)
        return bool(self.s.ledger.core.loading(np.array([handle]), out))

    def _zero_states(self, handle: int, hit: int) -> None:
        for cls in range(len(self.s.config.num_pages)):
            if hit == 0 and self.device.rule(cls)[0] == STATE:
                self.device.states[cls, self.s.pages(handle, cls)[0]] = ()

    def _admit(self, step: int, widths: dict[int, int]) -> None:
        text, draft, options = self._request()
        handle, hit = self.s.try_admit(step, tuple(text), **options)
        # What was evicted for it leaves before anything is written.
        self.tiers.hand_out()
        if handle < 0:
            return
        request = Running(text, len(text), options["max_total"], draft)
        if self._loads(handle):
            self.waiting[handle] = request
            return
        self.running[handle] = request
        widths[handle] = self.s.sequence(handle)["outstanding"][0][1]
        self._zero_states(handle, hit)

    def _request(self) -> tuple[list[int], bool, dict[str, int]]:
        rng, config = self.rng, self.s.config
        text = list(rng.choice(self.texts[-12:])) if self.texts and rng.random() < 0.8 else []
        text += [rng.randrange(2) for _ in range(rng.randint(1, 4))]
        text = text[: config.max_seq_len - 4]
        draft = config.has_draft and rng.random() < 0.8
        options = {
            "first": rng.randint(1, len(text)),
            "max_total": min(len(text) + rng.randint(1, 12), config.max_seq_len),
            "draft_from": 0 if draft else -1,
            "scope": 0 if rng.random() < 0.9 else -1,
        }
        return text, draft, options

    def _grow(self, step: int) -> dict[int, int]:
        widths = super()._grow(step)
        self.tiers.hand_out()
        return widths


def tiered(seed: int, kind: str, fail: float, disk: bool) -> TieredEngine:
    rng = random.Random(f"tiers {kind} {seed} {fail} {disk}")
    tpb = (1, 2, 4)[seed % 3]
    makers = configs.CLASS_KINDS[kind]
    lifetimes = tuple(maker(rng.randint, tpb) for maker in makers)
    has_draft = rng.random() < 0.6
    states = [name == STATE for name, _, _ in lifetimes]
    has_full = any(name == FULL for name, _, _ in lifetimes)
    s = Scenario(
        "core",
        tokens_per_block=tpb,
        num_pages=tuple(9 if state else 60 // tpb + 10 for state in states),
        max_sequences=6,
        max_seq_len=40,
        has_draft=has_draft,
        lookahead=rng.choice((0, 1, 3)) if has_draft else 0,
        reserve_tokens=3,
        lifetimes=lifetimes,
        num_blocks=None if has_full else 80 // tpb,
        snapshot_interval=tpb if any(states) else 0,
        partial_reuse=rng.random() < 0.7,
        policy=rng.choice(("lru", "lfu", "adaptive")),
    )
    fields = {**asdict(s.config), "num_pages": list(s.config.num_pages)}
    fields["events"] = 4096
    fields["host_pages"] = [rng.randint(4, 40) for _ in lifetimes]
    fields["disk_pages"] = [rng.randint(4, 80) for _ in lifetimes] if disk else None
    s.ledger.core = _core.Ledger(**fields)
    return TieredEngine(s, rng, fail)


WITHOUT_FULL = ("sliding", "sinks, state", "state")


@pytest.mark.parametrize("kind", WITHOUT_FULL)
def test_models_without_full_attention_load_as_well(kind: str) -> None:
    loaded = 0
    for seed in range(4):
        engine = tiered(seed, kind, 0.0, disk=True)
        for _ in range(250):
            engine.step()
        loaded += engine.s.stats()["loaded_blocks"]
    assert loaded > 10


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("fail", [0.0, 0.3])
@pytest.mark.parametrize("kind", configs.CLASS_KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_steps_read_what_their_tokens_left_on_any_tier(
    seed: int, kind: str, fail: float, disk: bool
) -> None:
    engine = tiered(seed, kind, fail, disk)
    for _ in range(250):
        engine.step()
    core = engine.tiers.core
    for handle in [*engine.running, *engine.waiting]:
        engine.s.release(handle)
    engine.tiers.hand_out()
    engine.tiers.complete(1.0)
    for step in engine.unfinished:
        engine.s.complete(step)
    engine.tiers.hand_out()
    engine.tiers.complete(1.0)
    core.validate()
    stats = engine.s.stats()
    assert all(each["live"] == each["fenced"] == 0 for each in stats["classes"])
    counters = core.tier_stats()["counters"]
    assert counters["device_to_host"] > 0
    assert (counters["host_to_disk"] > 0) == disk
    assert (counters["failed"] > 0) == (fail > 0)
    if fail == 0:
        assert stats["loaded_blocks"] > 0 or kind in WITHOUT_FULL
        assert stats["missed_load_tokens"] == 0 or engine.left
    engine.read_events()
    core.reset_reuse_state()
    engine.read_events()
    assert engine.mirror.below == {"host": set(), "disk": set()}
    for shelf in core.tier_stats()["shelves"]:
        assert shelf["free"] == shelf["total"]
        assert shelf["free"] + shelf["valid"] == shelf["total"]
