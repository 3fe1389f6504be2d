"""How much host memory a tier may take, found out before anything is allocated."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from tandemkv.config import check_count
from tandemkv.errors import TierError

_CAP_IPC_LOCK = 14
"""The capability with which a process may lock any amount (Linux, capabilities(7))."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLimits:
    """What the machine leaves to this process.

    Attributes:
        available_bytes: host memory that can be taken without swapping; None: not known.
        memlock_bytes: how much the process may lock; None: no limit.
    """

    available_bytes: int | None
    memlock_bytes: int | None


def host_limits(root: Path = Path("/")) -> HostLimits:
    """Read the limits of this process; what the system does not tell is no limit.

    Args:
        root: where `proc` and `sys` are.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY or _may_lock_all(root)
    sizes = [*_mem_available(root), *_cgroup_available(root)]
    return HostLimits(
        available_bytes=min(sizes) if sizes else None,
        memlock_bytes=None if unlimited else soft,
    )


def check_host_memory(
    num_bytes: int,
    *,
    pinned: bool = False,
    local_ranks: int = 1,
    reserved_bytes: int = 0,
    limits: HostLimits | None = None,
) -> None:
    """Refuse a host tier that cannot be had.

    Args:
        num_bytes: bytes of the tier on one rank, target and draft together.
        pinned: whether it will be locked.
        local_ranks: ranks on this host that take as much, each.
        reserved_bytes: what comes off first on each of them: the device budget where the device's
            memory is the host's and the pools are not built yet.
        limits: what there is; None: of this machine, now.

    Raises:
        TierError: it does not fit; one line with the numbers.
    """
    check_count("local_ranks", local_ranks)
    limits = host_limits() if limits is None else limits
    if pinned and limits.memlock_bytes is not None and num_bytes > limits.memlock_bytes:
        raise TierError(
            f"host tier: {num_bytes} bytes cannot be pinned, RLIMIT_MEMLOCK is "
            f"{limits.memlock_bytes} bytes; raise it (ulimit -l) or do not pin",
            tier="host",
        )
    needed = (num_bytes + reserved_bytes) * local_ranks
    if limits.available_bytes is not None and needed > limits.available_bytes:
        beside = f" beside {reserved_bytes} of the device" if reserved_bytes else ""
        raise TierError(
            f"host tier: {num_bytes} bytes{beside} on each of {local_ranks} local ranks are "
            f"{needed} bytes; {limits.available_bytes} are available",
            tier="host",
        )


def _may_lock_all(root: Path) -> bool:
    for line in _lines(root / "proc/self/status"):
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False


def _mem_available(root: Path) -> list[int]:
    return [
        int(line.split()[1]) * 1024
        for line in _lines(root / "proc/meminfo")
        if line.startswith("MemAvailable:")
    ]


def _cgroup_available(root: Path) -> list[int]:
    """Return what each control group (version 2) around this process leaves."""
    top = root / "sys/fs/cgroup"
    paths = [line[4:] for line in _lines(root / "proc/self/cgroup") if line.startswith("0::/")]
    sizes = []
    for path in paths:
        folder = top / path
        for group in (folder, *folder.parents):
            if not group.is_relative_to(top):
                break
            most, used = _lines(group / "memory.max"), _lines(group / "memory.current")
            if most and used and most[0] != "max":
                # The page cache counts as used, but gives way.
                stat = dict(line.split() for line in _lines(group / "memory.stat"))
                cache = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
                sizes.append(max(0, int(most[0]) - max(0, int(used[0]) - cache)))
    return sizes


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
