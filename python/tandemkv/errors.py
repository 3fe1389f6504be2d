"""The exceptions of tandemkv. Each carries its numbers as attributes."""

from __future__ import annotations


class TandemkvError(Exception):
    """Base class of the errors raised by tandemkv."""


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


class SequencesOpenError(LedgerError):
    """The call needs all sequences closed; `details["open_sequences"]` are not."""
