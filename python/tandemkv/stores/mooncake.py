"""Mooncake Store as an outer store: values in the memory of the clients of one master.

Written for `mooncake-transfer-engine-non-cuda` 0.3.13; the other builds of that package have the
same module.
"""

from __future__ import annotations

import importlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandemkv.config import check_count
from tandemkv.errors import StoreError
from tandemkv.stores.executors import ThreadExecutor
from tandemkv.stores.outcomes import Outcome
from tandemkv.stores.queued import QueuedStore
from tandemkv.stores.values import Bytes, check_bytes

# Mooncake's error codes, which its Python module returns as plain numbers.
_NO_AVAILABLE_HANDLE = -200
_INVALID_PARAMS = -600
_REPLICA_IS_NOT_READY = -703
_OBJECT_NOT_FOUND = -704
_OBJECT_ALREADY_EXISTS = -705
_LEASE_EXPIRED = -707
_TENANT_QUOTA_EXCEEDED = -1700

_PUT = {
    0: Outcome.OK,
    _OBJECT_ALREADY_EXISTS: Outcome.OK,
    _NO_AVAILABLE_HANDLE: Outcome.REJECTED,
    _TENANT_QUOTA_EXCEEDED: Outcome.REJECTED,
}
_GET = {
    _OBJECT_NOT_FOUND: Outcome.ABSENT,
    _REPLICA_IS_NOT_READY: Outcome.ABSENT,  # its writer has not finished
    _LEASE_EXPIRED: Outcome.LATE,
    _INVALID_PARAMS: Outcome.LENGTH,  # longer than the buffer
}
_EXISTS = {0: Outcome.ABSENT, 1: Outcome.OK}


@dataclass(frozen=True, kw_only=True, slots=True)
class MooncakeConfig:
    """How to reach Mooncake, and what this process gives to it.

    Attributes:
        master_address: `host:port` of `mooncake_master`.
        local_hostname: the address at which other clients reach this process.
        metadata_server: address of the metadata server; `P2PHANDSHAKE`: there is none.
        protocol: `tcp` or `rdma`.
        devices: names of the RDMA devices, separated by commas; empty: Mooncake chooses.
        segment_bytes: memory of this process that holds values of all clients, >= 0; they are lost
            when the process ends.
        buffer_bytes: memory for Mooncake's own transfers.
        lease_s: the master's `default_kv_lease_ttl` in seconds: what was read longer than that is
            not used.
        namespace: what the names of all values begin with.
    """

    master_address: str
    local_hostname: str
    metadata_server: str = "P2PHANDSHAKE"
    protocol: str = "tcp"
    devices: str = ""
    segment_bytes: int = 1 << 30
    buffer_bytes: int = 64 << 20
    lease_s: float = 10.0
    namespace: str = "tandemkv"


class MooncakeBackend:
    """The blocking calls of a Mooncake client.

    Values pass through memory that is registered with Mooncake once, one piece per thread. A
    transfer that Mooncake gave up may still touch it, so it is kept until the end, and what is
    read is verified after it was copied from there.

    Args:
        config: how to reach Mooncake.
        connect_timeout_s: seconds until the master must accept a connection. One that accepts it
            and then hangs is waited for as long as Mooncake does, which holds the interpreter.

    Raises:
        StoreError: the package or a library that it needs is missing, a size is none, or Mooncake
            does not answer or refuses.
    """

    # The master gives a lease for every question about a value.
    probe_extends_lease = True

    def __init__(self, config: MooncakeConfig, *, connect_timeout_s: float = 10.0) -> None:
        check_bytes("segment_bytes", config.segment_bytes, least=0)
        check_bytes("buffer_bytes", config.buffer_bytes)
        self._prefix = f"{config.namespace}/"
        self._lease_s = config.lease_s
        self._lock = threading.Lock()
        self._errors: Counter[str] = Counter()
        self._memory = threading.local()
        self._kept: list[Bytes] = []
        self._client = _client()
        _connect(config.master_address, connect_timeout_s)
        code = _setup(self._client, config)
        if code != 0:
            raise StoreError(f"Mooncake at {config.master_address!r} answered {code!r}")

    @property
    def lease_s(self) -> float | None:
        """See `StoreBackend.lease_s`."""
        return self._lease_s

    def put(self, names: Sequence[str], values: Sequence[Bytes]) -> list[Outcome]:
        """See `StoreBackend.put`."""
        sizes = [value.nbytes for value in values]
        pieces = self._pieces(sizes)
        for piece, value in zip(pieces, values, strict=True):
            piece[:] = value
        addresses = [piece.ctypes.data for piece in pieces]
        codes = self._client.batch_put_from(self._named(names), addresses, sizes)
        return [self._outcome(_PUT, "put", code) for code in codes]

    def get(self, names: Sequence[str], value_bytes: int) -> list[Bytes | Outcome]:
        """See `StoreBackend.get`."""
        pieces = self._pieces([value_bytes] * len(names))
        addresses = [piece.ctypes.data for piece in pieces]
        codes = self._client.batch_get_into(
            self._named(names), addresses, [value_bytes] * len(names)
        )
        return [
            piece[:code] if code >= 0 else self._outcome(_GET, "get", code)
            for piece, code in zip(pieces, codes, strict=True)
        ]

    def exists(self, names: Sequence[str]) -> list[Outcome]:
        """See `StoreBackend.exists`."""
        codes = self._client.batch_is_exist(self._named(names))
        return [self._outcome(_EXISTS, "exists", code) for code in codes]

    def drop(self, names: Sequence[str]) -> int:
        """See `StoreBackend.drop`. The lease of the read that found it does not protect a value."""
        return sum(self._client.remove(name, True) == 0 for name in self._named(names))

    def errors(self) -> dict[str, int]:
        """See `StoreBackend.errors`: Mooncake's codes by call."""
        with self._lock:
            return dict(self._errors)

    def close(self) -> None:
        """See `StoreBackend.close`.

        Mooncake holds the interpreter meanwhile, for many seconds where the master is down.
        """
        self._client.close()

    def _named(self, names: Sequence[str]) -> list[str]:
        return [self._prefix + name for name in names]

    def _outcome(self, table: dict[int, Outcome], call: str, code: int) -> Outcome:
        if code in table:
            return table[code]
        with self._lock:
            self._errors[f"{call}: code {code}"] += 1
        return Outcome.FAILED

    def _pieces(self, sizes: Sequence[int]) -> list[Bytes]:
        """Return registered memory of these sizes, this thread's until its next call."""
        memory: Bytes | None = getattr(self._memory, "bytes", None)
        if memory is None or memory.nbytes < sum(sizes):
            memory = np.empty(sum(sizes), np.uint8)
            with self._lock:
                self._kept.append(memory)
            code = self._client.register_buffer(memory.ctypes.data, memory.nbytes)
            if code != 0:
                raise StoreError(f"Mooncake does not register {memory.nbytes} bytes: code {code}")
            self._memory.bytes = memory
        ends = np.cumsum(sizes).tolist()
        return [memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]


class MooncakeStore(QueuedStore):
    """An `OuterStore` on Mooncake Store.

    Args:
        config: how to reach Mooncake.
        num_threads: calls to Mooncake that run at a time, >= 1.
        max_jobs: calls that wait for a thread, >= 1; more are `BUSY`.
        batch_values: values per call to Mooncake, >= 1.
        max_pending_bytes: bytes of values on their way to Mooncake; puts beyond are `BUSY`.
        max_failures: failed calls in a row after which Mooncake is left alone.
        retry_after_s: for how many seconds.
        connect_timeout_s: seconds until the master must accept a connection. One that accepts it
            and then hangs is waited for as long as Mooncake does, which holds the interpreter.
        clock: seconds, monotonic.

    Raises:
        StoreError: Mooncake is not installed, does not answer or refuses, or a size is none.
        ConfigError: a count that is none.
    """

    def __init__(
        self,
        config: MooncakeConfig,
        *,
        num_threads: int = 2,
        max_jobs: int = 256,
        batch_values: int = 32,
        max_pending_bytes: int = 1 << 30,
        max_failures: int = 3,
        retry_after_s: float = 5.0,
        connect_timeout_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_count("num_threads", num_threads)
        check_count("max_jobs", max_jobs)
        super().__init__(
            MooncakeBackend(config, connect_timeout_s=connect_timeout_s),
            ThreadExecutor(num_threads, max_jobs),
            batch_values=batch_values,
            max_pending_bytes=max_pending_bytes,
            max_failures=max_failures,
            retry_after_s=retry_after_s,
            clock=clock,
        )


def _client() -> Any:
    """Return a client that is not set up.

    Raises:
        StoreError: the package, or a library that it needs, is missing.
    """
    try:
        return importlib.import_module("mooncake.store").MooncakeDistributedStore()
    except ImportError as error:
        raise StoreError(
            f"Mooncake cannot be loaded: {error}\n"
            "hint: pip install 'tandemkv[mooncake]'; the package needs libibverbs.so.1 "
            "(Debian: libibverbs1)"
        ) from error


def _connect(address: str, timeout_s: float) -> None:
    """Find out whether anybody listens, which Mooncake itself tries for 90 seconds.

    Raises:
        StoreError: nobody, or the address is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise StoreError(f"master_address is {address!r}; 'host:port' is needed")
    try:
        socket.create_connection((host, int(port)), timeout_s).close()
    except OSError as error:
        raise StoreError(f"Mooncake at {address!r} cannot be reached: {error}") from error


def _setup(client: Any, config: MooncakeConfig) -> object:
    return client.setup(
        config.local_hostname,
        config.metadata_server,
        config.segment_bytes,
        config.buffer_bytes,
        config.protocol,
        config.devices,
        config.master_address,
    )
