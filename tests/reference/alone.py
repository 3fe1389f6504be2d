"""Drives the reference alone, with the operations that `Comparison` takes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from reference import invariants
from reference.ledger import ReferenceLedger
from reference.state import Config, Misuse


class Alone:
    """A reference ledger whose invariants are checked after every operation."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.model = ReferenceLedger(config)
        self.core = SimpleNamespace(dtype=np.int64)  # the token type that operations ask for
        self.outcomes: Counter[str] = Counter()
        self.applied: list[tuple[Any, ...]] = []

    def apply(self, name: str, *args: Any) -> Any:
        """Apply one operation; return the answer, or None after an error."""
        self.applied.append((name, *args))
        if name == "updates":
            return None
        try:
            answer = getattr(self.model, name)(*args)
            self.outcomes[name] += 1
            invariants.check(self.model)
        except Misuse:
            self.outcomes[f"{name} error"] += 1
            return None
        except Exception as error:
            error.add_note(f"{self.config!r}\noperations: {self.applied!r}")
            raise
        return answer
