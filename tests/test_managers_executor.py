"""What the managers owe the executor of their tiers: one call at a time, and no lost transfer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from managers_setup import new
from test_managers_tiers import SlowExecutor, ask, prompt, serve, tiered_plan

from tandemkv.errors import ArrayError, TierError
from tandemkv.managers import Managers, build_managers
from tandemkv.tiers import TransferPlan


class WatchedExecutor(SlowExecutor):
    """Asks in every call whether another thread could be in a call of the managers."""

    def __init__(self) -> None:
        super().__init__()
        self.managers: Managers | None = None
        self.calls: list[str] = []

    def watch(self, name: str) -> None:
        free: list[bool] = []

        def knock() -> None:
            assert self.managers is not None
            free.append(self.managers.lock.acquire(blocking=False))
            if free[0]:
                self.managers.lock.release()

        thread = threading.Thread(target=knock)
        thread.start()
        thread.join()
        assert free == [False], f"{name} runs while others may call the managers"
        self.calls.append(name)

    def submit(self, plan: TransferPlan, stream: object | None = None) -> None:
        self.watch("submit")
        super().submit(plan, stream)
        self.finish()

    def poll(self, wait: bool = False) -> tuple[np.ndarray, np.ndarray]:
        self.watch("poll")
        return super().poll(wait)

    def clear_disk(self) -> None:
        self.watch("clear_disk")

    def close(self) -> None:
        self.watch("close")


CALLS: dict[str, tuple[Callable[[Managers], object], str]] = {
    "collect": (lambda managers: managers.tiers.collect(), "poll"),
    "run": (lambda managers: managers.tiers.run(), "submit"),
    "drain": (lambda managers: managers.tiers.drain(), "submit"),
    "flush": (lambda managers: managers.tiers.flush(), "submit"),
    "close": (lambda managers: managers.tiers.close(), "close"),
    "moves": (lambda managers: managers.moves(), "submit"),
    "reset": (lambda managers: managers.reset_reuse_state(), "clear_disk"),
    "prepare": (lambda managers: managers.prepare_resources(ask("z", prompt(900))), "submit"),
    "dummies": (lambda managers: managers.add_dummy_requests(["d"], [20]), "submit"),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_two_threads_are_in_the_executor(name: str) -> None:
    executor = WatchedExecutor()
    managers = build_managers(
        tiered_plan(), materialize=False, executor=executor, num_dummy_requests=0
    )
    executor.managers = managers
    for start in (100, 200):
        serve(managers, "x", prompt(start), fill=False)
    assert managers.ledger.offload(2) == 2
    executor.calls.clear()
    call, expected = CALLS[name]
    call(managers)
    assert expected in executor.calls


class RefusingExecutor(SlowExecutor):
    """Refuses plans, as one that is closed or has no stream does."""

    error: Exception | None = None

    def submit(self, plan: TransferPlan, stream: object | None = None) -> None:
        if self.error is not None:
            raise self.error
        super().submit(plan, stream)


@pytest.mark.parametrize(
    "error", [TierError("the executor is closed"), ArrayError("stream", "no stream")]
)
def test_nothing_waits_for_transfers_that_the_executor_refused(error: Exception) -> None:
    executor = RefusingExecutor()
    managers = build_managers(
        tiered_plan(), materialize=False, executor=executor, num_dummy_requests=0
    )
    assert managers.tiers is not None
    serve(managers, "a", prompt(100), fill=False)
    executor.error = error
    assert managers.ledger.offload(3) == 3  # the partial block at the end is only dropped
    with pytest.raises(type(error), match=str(error)):
        managers.tiers.run()
    assert managers.stats().to_dict()["tiers"]["counters"]["failed"] == 2
    assert managers.stats().to_dict()["tiers"]["open_transfers"] == 0
    managers.tiers.drain()  # it returns
    assert managers.ledger.match_tiers(np.array(prompt(100), np.int32)) == (12, 0, 0)
    executor.error = None
    assert managers.prepare_resources(new("b", prompt(500), max_total=23)).all()
    managers.ledger.validate()


def test_a_step_is_refused_before_it_begins_once_the_tiers_are_closed() -> None:
    managers = build_managers(tiered_plan(), num_dummy_requests=0)
    serve(managers, "x", prompt(100))
    managers.tiers.close()
    before = managers.ledger.digest()
    with pytest.raises(TierError, match="the tiers are closed"):
        managers.prepare_resources(ask("y", prompt(200)))
    assert managers.ledger.digest() == before
    assert managers.ledger.stats()["open_steps"] == 0
    managers.tiers.close()


def test_completions_outlive_what_raises_between_executor_and_ledger() -> None:
    executor = SlowExecutor()
    managers = build_managers(
        tiered_plan(), materialize=False, executor=executor, num_dummy_requests=0
    )
    for number, start in enumerate((100, 200)):
        serve(managers, f"{number}", prompt(start), fill=False)
    tiers = managers.tiers
    open_transfers = tiers.stats()["open_transfers"]
    assert open_transfers > 0

    def broken(ids: np.ndarray, ok: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise RuntimeError("no network")

    tiers.agree = broken
    executor.finish()
    with pytest.raises(RuntimeError, match="no network"):
        tiers.collect()
    assert tiers.stats()["open_transfers"] == open_transfers
    tiers.agree = None
    assert tiers.collect() == open_transfers
    assert tiers.stats()["open_transfers"] == 0


def test_an_executor_that_loses_a_transfer_is_named() -> None:
    executor = SlowExecutor()
    managers = build_managers(
        tiered_plan(), materialize=False, executor=executor, num_dummy_requests=0
    )
    for number, start in enumerate((100, 200)):
        serve(managers, f"{number}", prompt(start), fill=False)
    executor.open.clear()
    with pytest.raises(TierError, match="transfers are under way, and the executor has none"):
        managers.tiers.drain()
