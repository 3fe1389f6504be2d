"""The exceptions of tandemkv. Each carries its numbers as attributes."""

from __future__ import annotations

from pathlib import Path


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
