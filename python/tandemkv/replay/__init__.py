"""Replay of request traces through the ledger: how well a budget serves a real load."""

from __future__ import annotations

from tandemkv.replay.cache_only import replay_cache
from tandemkv.replay.formats import read_trace
from tandemkv.replay.report import PageSeries, ReplayReport, ServingReport
from tandemkv.replay.serving import ServingOptions, serve
from tandemkv.replay.tier_report import TierReport
from tandemkv.replay.trace import HashRule, TimeUnit, Trace
from tandemkv.replay.transfers import Links, ModelledExecutor

__all__ = [
    "HashRule",
    "Links",
    "ModelledExecutor",
    "PageSeries",
    "ReplayReport",
    "ServingOptions",
    "ServingReport",
    "TierReport",
    "TimeUnit",
    "Trace",
    "read_trace",
    "replay_cache",
    "serve",
]
