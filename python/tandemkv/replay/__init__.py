"""Replay of request traces through the ledger: how well a budget serves a real load."""

from __future__ import annotations

from tandemkv.replay.formats import read_trace
from tandemkv.replay.trace import HashRule, TimeUnit, Trace

__all__ = ["HashRule", "TimeUnit", "Trace", "read_trace"]
