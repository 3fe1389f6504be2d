"""The exceptions of tandemkv. Each carries its numbers as attributes."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path


class TandemkvError(Exception):
    """Base class of the errors raised by tandemkv."""


class ConfigError(TandemkvError, ValueError):
    """A value of a configuration that is out of range or contradicts another one.

    Attributes:
        field: the argument or field that holds the value.
        value: the value given.
    """

    def __init__(self, message: str, *, field: str = "", value: object = None) -> None:
        super().__init__(message)
        self.field = field
        self.value = value


class BudgetError(TandemkvError, ValueError):
    """A byte budget that does not hold what is asked of it. All sizes are exact, in bytes.

    Attributes:
        tier: `device`, `host` or `disk`; None where the budget was not compared at all (a number
            beyond 64 bits, more pages than a block table addresses).
        rank: the rank with the largest shortfall.
        budget_bytes: what that rank was given.
        target_fixed_bytes, draft_fixed_bytes: each role's bytes that do not grow with tokens.
        target_page_bytes, draft_page_bytes: each role's bytes of one page (of one token in
            `split_budget`, which knows no pages).
        required_pages: the fewest pages that make a usable pool.
        required_bytes: the fixed bytes and those pages together.
        shortfall_bytes: `required_bytes - budget_bytes`.
        largest_batch_size: the largest batch that would fit; None where no batch changes the
            answer or none fits.
    """

    def __init__(
        self,
        message: str,
        *,
        tier: str | None = None,
        rank: int | None = None,
        budget_bytes: int | None = None,
        target_fixed_bytes: int | None = None,
        draft_fixed_bytes: int | None = None,
        target_page_bytes: int | None = None,
        draft_page_bytes: int | None = None,
        required_pages: int | None = None,
        required_bytes: int | None = None,
        shortfall_bytes: int | None = None,
        largest_batch_size: int | None = None,
    ) -> None:
        super().__init__(message)
        self.tier = tier
        self.rank = rank
        self.budget_bytes = budget_bytes
        self.target_fixed_bytes = target_fixed_bytes
        self.draft_fixed_bytes = draft_fixed_bytes
        self.target_page_bytes = target_page_bytes
        self.draft_page_bytes = draft_page_bytes
        self.required_pages = required_pages
        self.required_bytes = required_bytes
        self.shortfall_bytes = shortfall_bytes
        self.largest_batch_size = largest_batch_size

    @property
    def fixed_bytes(self) -> int | None:
        """Fixed bytes of both roles together."""
        if self.target_fixed_bytes is None or self.draft_fixed_bytes is None:
            return None
        return self.target_fixed_bytes + self.draft_fixed_bytes


class PlanMismatchError(TandemkvError, RuntimeError):
    """Ranks of one group have different plans: none may go on.

    Attributes:
        ranks: those whose plan is not rank 0's.
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class LedgerError(TandemkvError, ValueError):
    """Misuse of the ledger: nothing was changed.

    Attributes:
        code: a short, stable name of the kind of error, such as `stale_handle`.
        details: the numbers in the message, by name.
    """

    def __init__(self, message: str, code: str = "", details: dict[str, int] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = dict(details or {})


class BufferTooSmallError(LedgerError):
    """An output buffer cannot hold the answer; `details["required"]` rows are needed."""


class EventGapError(LedgerError):
    """Events that are not kept any more, or not there yet: the reader takes a snapshot.

    `details` has `after` (the number asked for), `oldest` and `last`: the numbers that are kept.
    """


class SequencesOpenError(LedgerError):
    """The call needs all sequences closed; `details["open_sequences"]` are not."""


class GeometryError(TandemkvError, ValueError):
    """A layer or a model config cannot be read: the message names file, field and value.

    Attributes:
        source: the file, or `config` for a dict, or empty where layers are given by hand.
        field: the field at fault, dotted where it is nested; empty where no single field is.
        value: the value found there; None where the field is missing.
    """

    def __init__(
        self, message: str, *, source: str = "", field: str = "", value: object = None
    ) -> None:
        super().__init__(message)
        self.source = source
        self.field = field
        self.value = value


class UnsupportedModelError(GeometryError):
    """The model keeps KV in a way that is not supported, or its type is not known.

    Attributes:
        model_type: the type found in the config; empty where it has none.
        supported: the model types that can be read.
        nearest: the known model type with the most similar name, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        source: str = "",
        field: str = "",
        value: object = None,
        model_type: str = "",
        supported: tuple[str, ...] = (),
        nearest: str | None = None,
    ) -> None:
        super().__init__(message, source=source, field=field, value=value)
        self.model_type = model_type
        self.supported = supported
        self.nearest = nearest


class ReplayError(TandemkvError, ValueError):
    """A replay cannot be run as asked: nothing was run."""


class TraceError(ReplayError):
    """A trace file is not readable as a trace.

    Attributes:
        path: the file.
        line: the line of the row, from 1; None where the file has no rows by line.
        field: the field; empty where the row as a whole is meant.
        value: what the field holds.
    """

    def __init__(
        self,
        path: Path,
        *,
        problem: str,
        line: int | None = None,
        field: str = "",
        value: object = None,
    ) -> None:
        self.path, self.line, self.field, self.value = path, line, field, value
        where = f"{path}:{line}" if line is not None else f"{path}"
        what = f"field '{field}' is {_shorten(value)}: " if field else ""
        super().__init__(f"{where}: {what}{problem}")


def _shorten(value: object) -> str:
    """Return the value as text on one line, at most 80 characters."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class DeviceUnavailableError(TandemkvError, RuntimeError):
    """A GPU was asked for and there is none, or CuPy is not installed."""


class ArrayError(TandemkvError, ValueError):
    """An array handed to a device call does not have the documented form: nothing was written.

    Attributes:
        argument: the name of the argument.
    """

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(f"{argument}: {message}")
        self.argument = argument


class OffsetRangeError(TandemkvError, ValueError):
    """A pool whose largest kernel index does not fit into 32 bits.

    Attributes:
        largest: the index that the last page would need.
        limit: the largest index that fits.
    """

    def __init__(self, message: str, largest: int, limit: int) -> None:
        super().__init__(message)
        self.largest = largest
        self.limit = limit


class RingFullError(TandemkvError, RuntimeError):
    """Every staging slot is in flight or being filled, and the ring does not wait.

    Attributes:
        num_slots: slots of the ring.
    """

    def __init__(self, message: str, num_slots: int) -> None:
        super().__init__(message)
        self.num_slots = num_slots


class BatchError(TandemkvError, ValueError):
    """A batch, or the tokens given for it, is malformed: nothing was changed.

    Attributes:
        field: the argument at fault.
        item: the index of the request at fault, or None where no single one is.
    """

    def __init__(self, message: str, *, field: str, item: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.item = item


class RequestError(TandemkvError, ValueError):
    """A request id is unknown, already open or not part of a step: nothing was changed.

    Attributes:
        request_ids: the ids at fault.
    """

    def __init__(self, message: str, request_ids: tuple[Hashable, ...]) -> None:
        super().__init__(message)
        self.request_ids = request_ids


class StepError(TandemkvError, ValueError):
    """A step was prepared or updated out of order: nothing was changed.

    Attributes:
        step: the step at fault.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class PoolError(TandemkvError, ValueError):
    """A pool cannot be built or read as asked: the message names the numbers."""


class TierError(TandemkvError, ValueError):
    """A tier below the device cannot be had, or a transfer is malformed: nothing was done.

    Attributes:
        tier: `host` or `disk`; empty where several are meant.
    """

    def __init__(self, message: str, *, tier: str = "") -> None:
        super().__init__(message)
        self.tier = tier


class StoreError(TandemkvError, ValueError):
    """An outer store is used in a way that cannot work, or cannot be reached when it is opened."""
