"""Outer stores: pages by key, outside this process; see `docs/stores.md`."""

from __future__ import annotations

from tandemkv.stores.bridge import BridgeStats, StoreBridge
from tandemkv.stores.executors import Executor, InlineExecutor, ThreadExecutor
from tandemkv.stores.memory import MemoryBackend, MemoryStore
from tandemkv.stores.mooncake import MooncakeConfig, MooncakeStore
from tandemkv.stores.outcomes import Outcome
from tandemkv.stores.protocol import OuterStore, StoreBackend
from tandemkv.stores.queued import QueuedStore
from tandemkv.stores.statistics import StoreStats
from tandemkv.stores.tickets import Ticket
from tandemkv.stores.values import ValueLayout

__all__ = [
    "BridgeStats",
    "Executor",
    "InlineExecutor",
    "MemoryBackend",
    "MemoryStore",
    "MooncakeConfig",
    "MooncakeStore",
    "Outcome",
    "OuterStore",
    "QueuedStore",
    "StoreBackend",
    "StoreBridge",
    "StoreStats",
    "ThreadExecutor",
    "Ticket",
    "ValueLayout",
]
