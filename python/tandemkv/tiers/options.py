"""What an engine may say about its lower tiers beyond their sizes, which the plan has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tandemkv.config import check_count
from tandemkv.errors import ConfigError
from tandemkv.tiers.executor import WhenFull
from tandemkv.tiers.restoring import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """How the memory of lower tiers is had, and how it is moved.

    Attributes:
        pin: whether host memory is pinned; None: where the pools are on a GPU.
        local_ranks: ranks on this host, each of which takes the host memory of the plan.
        reserved_bytes: what comes off the host's memory first; see `check_host_memory`.
        threads: threads that read and write the disk.
        staging_pages: pages on their way between device and disk, each way.
        when_full: what becomes of an eviction to disk without a staging page: `fail`, which is a
            miss, or `wait`.
        agree_restored: where several ranks decide alike, what makes them start with the same pages:
            it is given what this rank found on its disk and returns what all ranks found.

    Raises:
        ConfigError: a value of another kind or out of range.
    """

    pin: bool | None = None
    local_ranks: int = 1
    reserved_bytes: int = 0
    threads: int = 4
    staging_pages: int = 16
    when_full: WhenFull = "fail"
    agree_restored: Callable[[Iterable[Found]], Iterable[Found]] | None = None

    def __post_init__(self) -> None:
        """Refuse what could only fail later, in the middle of something."""
        for name in ("local_ranks", "threads", "staging_pages"):
            check_count(name, getattr(self, name))
        size, agree = self.reserved_bytes, self.agree_restored
        wrong = {
            "pin": (self.pin is not None and not isinstance(self.pin, bool), "True, False or None"),
            "reserved_bytes": (
                isinstance(size, bool) or not isinstance(size, int) or size < 0,
                "an integer from 0 on",
            ),
            "when_full": (self.when_full not in ("fail", "wait"), "'fail' or 'wait'"),
            "agree_restored": (agree is not None and not callable(agree), "a callable or None"),
        }
        for name, (is_wrong, needed) in wrong.items():
            if is_wrong:
                value = getattr(self, name)
                raise ConfigError(f"{name} is {value!r}; {needed} is needed", field=name)
