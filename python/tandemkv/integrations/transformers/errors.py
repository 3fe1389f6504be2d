"""What goes wrong between a model and its pages."""

from __future__ import annotations

from tandemkv.errors import TandemkvError


class PagedCacheError(TandemkvError, RuntimeError):
    """A model and a paged cache that do not fit together, or a call out of order."""


class OutOfPagesError(TandemkvError, RuntimeError):
    """The pools have no room for what a forward writes. `generate` cannot wait, so it ends.

    Attributes:
        reason: why, in the words of `tandemkv.Refusal`.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
