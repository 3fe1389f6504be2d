"""The lower tiers of one rank: whether there are any, where, and what moves their pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandemkv._core import Ledger
from tandemkv.errors import ConfigError, TierError
from tandemkv.managers.classes import CacheClass, cache_classes
from tandemkv.managers.layout import KvLayout
from tandemkv.managers.pools import Pool
from tandemkv.planning import Plan
from tandemkv.tiers import (
    DiskStore,
    Executor,
    TierOptions,
    TierPages,
    build_executor,
    open_disk_store,
    restore_entries,
    tier_pages,
)
from tandemkv.tiers.restoring import Found


def check_arguments(tiers: object, executor: object, options: object) -> None:
    """Refuse arguments of `build_managers` that are something else.

    Raises:
        ConfigError: names the argument and the value.
    """
    calls = ("submit", "poll", "close")
    can = executor is None or all(callable(getattr(executor, name, None)) for name in calls)
    wrong = (
        ("tiers", tiers, tiers is None or isinstance(tiers, bool), "True, False or None"),
        ("executor", executor, can, "an object with submit, poll and close, or None,"),
        (
            "tier_options",
            options,
            options is None or isinstance(options, TierOptions),
            "a TierOptions or None",
        ),
    )
    for name, value, is_right, needed in wrong:
        if not is_right:
            raise ConfigError(f"{name} is {value!r}; {needed} is needed", field=name)


def lower_pages(
    plan: Plan, classes: tuple[CacheClass, ...], tiers: bool | None, *, movable: bool
) -> TierPages | None:
    """Return the pages of the lower tiers that the managers use, None without such tiers.

    Raises:
        ConfigError: tiers are asked for that there are not, or that nothing can be found in.
    """
    pages = tier_pages(plan)
    planned = any(pages.host) or any(pages.disk) or plan.num_disk_blocks > 0
    if tiers is False or (tiers is None and not (planned and movable)):
        return None
    problem = ""
    if not planned:
        problem = "the plan has neither host nor disk pages"
    elif not movable:
        problem = "no pools are built (materialize=False): an executor has to move the pages"
    elif not plan.config.enable_block_reuse:
        problem = "nothing is reused (enable_block_reuse=False), so nothing on lower tiers is"
    elif plan.num_disk_blocks and not any(pages.disk):
        problem = (
            f"the plan has {plan.num_disk_blocks} pages on disk, and no room for one with what a "
            "store writes beside it, in blocks of 4096 bytes"
        )
    else:
        problem = _missing_class(classes, pages)
    if problem:
        raise ConfigError(f"tiers: {problem}; tiers=False builds without", field="tiers")
    return pages


def _missing_class(classes: Sequence[CacheClass], pages: TierPages) -> str:
    """Say which window or state has no pages on a tier, so that no hit could ever end there."""
    for tier, counts in (("host", pages.host), ("disk", pages.disk)):
        for item, count in zip(classes, counts, strict=True):
            if any(counts) and not count and item.lifetime[0] != "cross_attention":
                return (
                    f"the plan has no pages for {item.lifetime[0]} on {tier}, without which "
                    "nothing there can be found: give `cached_endpoints`"
                )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlace:
    """Where a rank has its disk tier.

    Attributes:
        disk: a folder, or a store that is open; None: nowhere.
        rank, kv_layout, fingerprint, persistent: see `build_managers`.
    """

    disk: str | Path | DiskStore | None
    rank: int
    kv_layout: KvLayout
    fingerprint: bytes
    persistent: bool

    def check(
        self,
        plan: Plan,
        lower: TierPages | None,
        executor: Executor | None,
        options: TierOptions,
    ) -> None:
        """Refuse a disk tier without a place, a place without a disk tier, and poison.

        Raises:
            ConfigError: names what is missing or too much.
        """
        disk, field = self.disk, "disk"
        pages = max(lower.disk) if lower is not None and executor is None else 0
        problem = ""
        if not (disk is None or isinstance(disk, DiskStore) or _is_folder(disk)):
            raise ConfigError(
                f"disk is {disk!r}; the name of a folder, a Path or an open DiskStore is needed",
                field=field,
            )
        if not pages and (disk is not None or self.persistent):
            problem = f"disk is {disk!r}; these managers have no disk tier of their own"
        elif pages and disk is None:
            problem = (
                f"disk is None; the plan has {pages} pages on disk: name a folder, or build with "
                "tiers=False"
            )
        elif isinstance(disk, DiskStore) and self.persistent:
            problem = "persistent is True; a store that is open has been told already"
        elif self.persistent and not self.fingerprint:
            field = "fingerprint"
            problem = (
                "fingerprint is empty; pages that outlive the process need one that names the "
                "weights, or another model would find them"
            )
        elif self.persistent and len(plan.ranks) > 1 and options.agree_restored is None:
            field = "tier_options"
            problem = (
                f"persistent is True in a plan of {len(plan.ranks)} ranks; they decide alike only "
                "if they start alike: tier_options needs agree_restored"
            )
        if problem:
            raise ConfigError(problem, field=field)

    def open(self, plan: Plan) -> DiskStore | None:
        """Open the store of a rank; None where there is none.

        Raises:
            TierError: it is another engine's, in use, damaged, or cannot be made.
        """
        if self.disk is None or isinstance(self.disk, DiskStore):
            return self.disk
        folder = Path(self.disk) / f"rank{self.rank}"
        try:
            return open_disk_store(
                plan,
                folder,
                rank=self.rank,
                kv_layout=self.kv_layout,
                fingerprint=self.fingerprint,
                persistent=self.persistent,
            )
        except OSError as error:
            raise TierError(f"disk tier in {folder}: {error}", tier="disk") from error


def _is_folder(disk: object) -> bool:
    """Whether a value can name a folder."""
    return isinstance(disk, (str, Path)) and str(disk) != "" and "\0" not in str(disk)


def tier_executor(
    ledger: Ledger,
    plan: Plan,
    lower: TierPages,
    pools: Sequence[Pool],
    *,
    place: DiskPlace,
    options: TierOptions,
) -> Executor:
    """Build what moves the pages of a rank, and tell its ledger what lies on disk.

    Raises:
        TierError: the memory or the disk cannot be had; nothing stays open.
    """
    classes = cache_classes(plan)
    store = place.open(plan)
    try:
        executor = build_executor(
            pools,
            len(classes),
            host_pages=lower.host if any(lower.host) else None,
            disk=store,
            pin=options.pin,
            local_ranks=options.local_ranks,
            reserved_bytes=options.reserved_bytes,
            threads=options.threads,
            staging_pages=options.staging_pages,
            when_full=options.when_full,
        )
    except BaseException:
        if store is not None:
            store.close()
        raise
    if store is not None:
        together = [at for at, item in enumerate(classes) if item.keeps_all_tokens]
        found: Iterable[Found] = store.entries()
        try:
            if options.agree_restored is not None:
                found = options.agree_restored(found)
            restore_entries(ledger, together, found)
        except BaseException:
            executor.close()
            raise
    return executor
