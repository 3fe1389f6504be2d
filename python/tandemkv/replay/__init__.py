"""Replay of request traces through the ledger: how well a budget serves a real load."""

from __future__ import annotations

from tandemkv.replay.cache_only import replay_cache
from tandemkv.replay.formats import read_trace
from tandemkv.replay.report import PageSeries, ReplayReport, ServingReport
from tandemkv.replay.serving import ServingOptions, serve
from tandemkv.replay.trace import HashRule, TimeUnit, Trace

__all__ = [
    "HashRule",
    "PageSeries",
    "ReplayReport",
    "ServingOptions",
    "ServingReport",
    "TimeUnit",
    "Trace",
    "read_trace",
    "replay_cache",
    "serve",
]
