"""From a device's memory to the bytes of its KV cache, and how large a host tier may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from tandemkv.config import check_count, to_fraction
from tandemkv.errors import BudgetError, ConfigError
from tandemkv.sizes import format_size, parse_size


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Where the memory of one device goes. All sizes are bytes.

    `others + weights + peak_activation + graphs + kv + unused` is the device's memory.

    Attributes:
        total_bytes: the device's memory.
        usable_bytes: the fraction of it that may be used by anybody.
        others_bytes: what others held before the engine took anything.
        weights_bytes: weights of the target and of the draft.
        peak_activation_bytes: the most that a step needs besides, without KV.
        graphs_bytes: captured graphs and their workspaces.
        kv_bytes: what is left for the KV of both roles, after the cap.
        unused_bytes: the rest.
    """

    total_bytes: int
    usable_bytes: int
    others_bytes: int
    weights_bytes: int
    peak_activation_bytes: int
    graphs_bytes: int
    kv_bytes: int
    unused_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            ("held by others", self.others_bytes),
            ("weights", self.weights_bytes),
            ("peak of activations", self.peak_activation_bytes),
            ("graphs", self.graphs_bytes),
            ("KV cache", self.kv_bytes),
            ("unused", self.unused_bytes),
            ("sum = device memory", self.total_bytes),
        ]
        return "\n".join(f"{name:<22}{format_size(size):>12}" for name, size in lines)


def estimate_budget(  # noqa: PLR0917 (in the order in which an engine learns them)
    total: int | str,
    free: int | str,
    peak_activation: int | str,
    weights: int | str,
    graphs: int | str = 0,
    fraction: Fraction | float | str = Fraction(9, 10),
    max_bytes: int | str | None = None,
) -> MemoryEstimate:
    """Return what a device has left for KV: `fraction * total` less everything else.

    The fraction is of the device's memory, and what others hold comes off it: on a device of
    80 GiB of which others hold 10, a fraction of 0.9 and 20 GiB of our own leave 42 GiB. Weights
    are those of target and draft together, so that neither is outside the fraction. The cap is
    applied in bytes, before anything is converted to tokens or pages.

    Args:
        total: the device's memory.
        free: what was free before the engine took anything; the rest is held by others.
        peak_activation: the most that a step needs beside weights and KV.
        weights: weights of both models.
        graphs: captured graphs and their workspaces.
        fraction: how much of the device may be used, above 0 and at most 1.
        max_bytes: a cap on the result; None: none.

    Raises:
        BudgetError: nothing is left; the message has every number.
        ConfigError: something that is not a size, `free` above `total`, or another fraction.
    """
    given = {
        "total": total,
        "free": free,
        "peak_activation": peak_activation,
        "weights": weights,
        "graphs": graphs,
    }
    sizes = {field: parse_size(value, field) for field, value in given.items()}
    limit = to_fraction("fraction", fraction)
    if sizes["free"] > sizes["total"]:
        raise ConfigError(
            f"free is {sizes['free']} bytes, more than total {sizes['total']}",
            field="free",
            value=free,
        )
    others = sizes["total"] - sizes["free"]
    usable = sizes["total"] * limit.numerator // limit.denominator
    own = sizes["weights"] + sizes["peak_activation"] + sizes["graphs"]
    left = usable - others - own
    if left <= 0:
        raise BudgetError(
            f"{limit} of {sizes['total']} bytes are {usable}; others hold {others}, weights "
            f"{sizes['weights']}, activations {sizes['peak_activation']} and graphs "
            f"{sizes['graphs']}: {-left} bytes too many, and none for KV",
            tier="device",
            budget_bytes=usable,
            required_bytes=others + own,
            shortfall_bytes=-left,
        )
    kv_bytes = left if max_bytes is None else min(left, parse_size(max_bytes, "max_bytes"))
    return MemoryEstimate(
        total_bytes=sizes["total"],
        usable_bytes=usable,
        others_bytes=others,
        weights_bytes=sizes["weights"],
        peak_activation_bytes=sizes["peak_activation"],
        graphs_bytes=sizes["graphs"],
        kv_bytes=kv_bytes,
        unused_bytes=sizes["total"] - others - own - kv_bytes,
    )


def estimate_host_bytes(
    device_bytes: int | str,
    available: int | str | Sequence[int | str],
    *,
    local_ranks: int = 1,
    memlock_bytes: int | str | None = None,
    unified_memory: bool = False,
) -> int:
    """Return the bytes of a host tier per rank, for target and draft together.

    Half of the host memory that is available, shared by the ranks of the host; at most the device
    budget, and at most 0.8 of what may be locked. Where the device's memory is the host's, the
    device budget comes off first, and 0 is an answer. It is one tier for the pair: a draft gets
    its share of it and no tier of its own.

    Args:
        device_bytes: the device budget of one rank.
        available: available host memory, of the host or of each rank's host; the smallest counts,
            so that all ranks agree.
        local_ranks: ranks on one host.
        memlock_bytes: how much a process may lock; None: no limit. Where it leaves nothing, the
            device budget is the answer, as in TensorRT-LLM.
        unified_memory: whether device and host share one memory.

    Raises:
        ConfigError: something that is not a size or a count.
    """
    device = parse_size(device_bytes, "device_bytes")
    check_count("local_ranks", local_ranks)
    hosts = [available] if isinstance(available, int | str) else list(available)
    if not hosts:
        raise ConfigError("available is empty; one size per rank is needed", field="available")
    least = min(parse_size(size, "available") for size in hosts)
    if unified_memory:
        return max(0, least - device) // local_ranks // 2
    size = min(device, least // local_ranks // 2)
    if memlock_bytes is not None:
        size = min(size, parse_size(memlock_bytes, "memlock_bytes") * 4 // 5)
    return size if size > 0 else device
