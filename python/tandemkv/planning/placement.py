"""Which pipeline stage holds which layers: an explicit list per stage, checked, never guessed."""

from __future__ import annotations

from collections.abc import Sequence

from tandemkv.errors import ConfigError
from tandemkv.modes import Placement


def even_partition(num_layers: int, pp_size: int) -> tuple[int, ...]:
    """Return layers per stage, as even as possible; the first stages take one more.

    Args:
        num_layers: layers of the model, >= 0.
        pp_size: pipeline stages, >= 1.
    """
    base, more = divmod(num_layers, pp_size)
    return tuple(base + (stage < more) for stage in range(pp_size))


def target_partition(
    num_layers: int, pp_size: int, pp_partition: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the target's layers per stage.

    Raises:
        ConfigError: `pp_partition` does not add up to the model's layers, or there are fewer
            layers than stages.
    """
    if pp_partition is not None:
        if sum(pp_partition) != num_layers:
            raise ConfigError(
                f"pp_partition {list(pp_partition)} adds up to {sum(pp_partition)} layers, but the "
                f"target has {num_layers}",
                field="pp_partition",
                value=tuple(pp_partition),
            )
        return tuple(pp_partition)
    if num_layers < pp_size:
        raise ConfigError(
            f"pp_size is {pp_size}, but the target has {num_layers} layers: a stage would be empty",
            field="pp_size",
            value=pp_size,
        )
    return even_partition(num_layers, pp_size)


def draft_partition(num_layers: int, pp_size: int, placement: Placement) -> tuple[int, ...]:
    """Return the draft's layers per stage; 0 where a stage has none.

    Args:
        num_layers: layers of the draft; 0 if there is none.
        pp_size: pipeline stages.
        placement: `last_rank` puts all of them on the last stage, however many there are;
            `all_ranks` spreads them evenly; `none` has none.
    """
    if placement == "none":
        return (0,) * pp_size
    if placement == "last_rank":
        return (0,) * (pp_size - 1) + (num_layers,)
    return even_partition(num_layers, pp_size)


def layer_ranges(partition: Sequence[int]) -> tuple[range, ...]:
    """Return the numbers of the layers of each stage, counted over the whole model from 0."""
    ranges = []
    first = 0
    for count in partition:
        ranges.append(range(first, first + count))
        first += count
    return tuple(ranges)
