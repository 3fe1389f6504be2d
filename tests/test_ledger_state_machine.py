"""Hypothesis drives the ledger and its reference with the same calls; they must stay equal."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from reference import configs, operations, tier_operations
from reference.interpreter import Comparison

DATA = st.data()


def pick_from(data: st.DataObject) -> operations.Pick:
    """Let Hypothesis choose, and shrink what it chose."""
    return lambda low, high: data.draw(st.integers(low, high))


class LedgerMachine(RuleBasedStateMachine):
    """Every rule is one operation; `Comparison` checks after it."""

    pair: Comparison
    make_config = staticmethod(configs.config)

    @initialize(data=DATA, flat=st.booleans(), wide=st.booleans())
    def build(self, data: st.DataObject, flat: bool, wide: bool) -> None:
        dtype = np.int64 if wide else np.int32
        self.pair = Comparison(self.make_config(pick_from(data)), flat=flat, dtype=dtype)

    @rule(data=DATA)
    def begin_step(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.begin_step(self.pair, pick_from(data)))

    @rule(data=DATA)
    def complete_step(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.complete_step(self.pair, pick_from(data)))

    @rule(data=DATA)
    def admit(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.admit(self.pair, pick_from(data)))

    @rule(data=DATA)
    def grow(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.grow(self.pair, pick_from(data)))

    @rule(data=DATA)
    def keep(self, data: st.DataObject) -> None:
        pick = pick_from(data)
        kind = (operations.pin, operations.unpin, operations.set_quota)[pick(0, 2)]
        self.pair.apply(*kind(self.pair, pick))

    @rule(data=DATA)
    def retain(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.retain(self.pair, pick_from(data)))

    @rule(data=DATA)
    def fork(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.fork(self.pair, pick_from(data)))

    @rule(data=DATA)
    def advance(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.advance(self.pair, pick_from(data)))

    @rule(data=DATA)
    def path_moves(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.path_moves(self.pair, pick_from(data)))

    @rule(data=DATA)
    def release(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.release(self.pair, pick_from(data)))

    @rule(data=DATA)
    def suspend(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.suspend(self.pair, pick_from(data)))

    @rule(data=DATA)
    def resume(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.resume(self.pair, pick_from(data)))

    @rule(data=DATA)
    def match(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.match(self.pair, pick_from(data)))

    @rule(data=DATA)
    def ask(self, data: st.DataObject) -> None:
        pick = pick_from(data)
        kinds = (
            operations.fits,
            operations.fits_blocks,
            operations.reclaimable,
            operations.victims,
            operations.explain_match,
        )
        self.pair.apply(*kinds[pick(0, 4)](self.pair, pick))

    @rule(data=DATA)
    def read(self, data: st.DataObject) -> None:
        pick = pick_from(data)
        kind = (operations.moves, operations.updates)[pick(0, 1)]
        self.pair.apply(*kind(self.pair, pick))

    @rule(data=DATA)
    def change_identity(self, data: st.DataObject) -> None:
        pick = pick_from(data)
        kind = operations.IDENTITY[pick(0, len(operations.IDENTITY) - 1)]
        self.pair.apply(*kind(self.pair, pick))

    @rule(data=DATA)
    def reset_reuse_state(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.reset_reuse_state(self.pair, pick_from(data)))

    @rule(data=DATA)
    def resize(self, data: st.DataObject) -> None:
        self.pair.apply(*operations.resize(self.pair, pick_from(data)))

    @rule(data=DATA)
    def run_one_step(self, data: st.DataObject) -> None:
        """Follow the usual order of an engine: begin, admit, complete, advance."""
        pick, pair = pick_from(data), self.pair
        pair.apply("begin_step", max(pair.model.now, 0.0))
        step = pair.model.newest
        pair.apply("admit", step, operations.admit(pair, pick)[2], False)
        pair.apply("moves")
        pair.apply("complete_step", step)
        pair.apply(*operations.advance(pair, pick))

    def teardown(self) -> None:
        """Drain the ledger: it owns no page then but those of its cache, and no fence holds one."""
        if not hasattr(self, "pair"):
            return
        pair = self.pair
        pair.apply("moves")
        for step in sorted(pair.model.open_steps):
            pair.apply("complete_step", step)
        pair.apply("release", [(seq.handle, 0) for seq in pair.model.sequences.values()])
        if pair.model.shelves:
            pair.apply("transfers", 4096)
            pair.apply("complete_transfers", [(number, 1) for number in pair.model.handed_out])
        pair.apply("updates", 4096)
        assert not pair.mirror.any(), "a row that was given up still names pages"
        pair.apply("reset_reuse_state")
        for cls in pair.core.stats()["classes"]:
            assert cls["free"] == cls["total"] - 1


class TieredMachine(LedgerMachine):
    """The same with tiers below the device."""

    make_config = staticmethod(configs.with_tiers)

    @rule(data=DATA)
    def serve(self, data: st.DataObject) -> None:
        self.pair.apply(*tier_operations.serve(self.pair, pick_from(data)))

    @rule(data=DATA)
    def transfer(self, data: st.DataObject) -> None:
        pick = pick_from(data)
        kind = (tier_operations.complete_transfers, tier_operations.transfers)[pick(0, 1)]
        self.pair.apply(*kind(self.pair, pick))

    @rule(data=DATA)
    def offload(self, data: st.DataObject) -> None:
        self.pair.apply(*tier_operations.offload(self.pair, pick_from(data)))

    @rule(data=DATA)
    def ask_below(self, data: st.DataObject) -> None:
        pick = pick_from(data)
        kinds = (
            tier_operations.loading,
            tier_operations.match_tiers,
            tier_operations.pending_transfers,
            tier_operations.flush,
            tier_operations.restore,
            tier_operations.adopt,
        )
        self.pair.apply(*kinds[pick(0, 5)](self.pair, pick))


TestLedgerMachine = LedgerMachine.TestCase
TestTieredMachine = TieredMachine.TestCase
