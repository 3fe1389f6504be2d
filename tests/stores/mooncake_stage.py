"""A network namespace with a Mooncake master, and processes in it that obey line by line.

Mooncake's sockets listen on all addresses, so nothing of it runs outside a namespace.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PORT = 50051
LEASE_S = 5.0
# In a namespace of its own: the loopback device is down at first.
HOLD = """
import fcntl, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x1))  # SIOCSIFFLAGS, IFF_UP
print("up", flush=True)
sys.stdin.read()
"""
KNOCK = f"""
import socket, time
while True:
    try:
        socket.create_connection(("127.0.0.1", {PORT})).close()
        break
    except OSError:
        time.sleep(0.05)
"""
_AS_USER = [] if os.geteuid() == 0 else ["--map-root-user"]


def why_not() -> str | None:
    """Return what is missing here, or None."""
    if importlib.util.find_spec("mooncake") is None:
        return "needs mooncake-transfer-engine-non-cuda"
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return "needs libibverbs.so.1 (Debian: libibverbs1)"
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        return "needs unshare and nsenter (util-linux)"
    probe = subprocess.run(
        ["unshare", *_AS_USER, "--net", "true"], capture_output=True, text=True, check=False
    )
    return f"needs unshare --net: {probe.stderr.strip()}" if probe.returncode else None


class Stage:
    """The namespace, its master and its workers; used as a context, it ends them all."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []
        self._holder = self._start(
            ["unshare", *_AS_USER, "--net", sys.executable, "-c", HOLD], stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"
        self.master = self.start_master()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self._running):
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            process.wait()

    def start_master(self) -> subprocess.Popen[str]:
        """Start a master, and wait until it listens."""
        program = Path(sys.executable).with_name("mooncake_master")
        master = self._start(
            self.inside(
                str(program),
                f"--rpc_port={PORT}",
                f"--default_kv_lease_ttl={int(LEASE_S * 1000)}",
                "--rpc_address=127.0.0.1",
                "--metrics_host=127.0.0.1",
            ),
            stdout=subprocess.DEVNULL,
        )
        subprocess.run(self.inside(sys.executable, "-c", KNOCK), check=True)
        return master

    def worker(self, hash_seed: int = 0, **config: object) -> Worker:
        """Start a process with a `MooncakeStore`."""
        arguments = json.dumps({"master_address": f"127.0.0.1:{PORT}", **config})
        process = self._start(
            self.inside(sys.executable, str(HERE / "mooncake_worker.py"), arguments),
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONHASHSEED": str(hash_seed),
                "MC_TCP_BIND_ADDRESS": "127.0.0.1",
                "PYTHONWARNINGS": "error",
            },
        )
        return Worker(process)

    def inside(self, *command: str) -> list[str]:
        """Return the command that runs another one in the namespace."""
        user = ["--user", "--preserve-credentials"] if _AS_USER else []
        return ["nsenter", "--target", str(self._holder.pid), *user, "--net", *command]

    def _start(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **options
        )
        self._running.append(process)
        return process


class Worker:
    """A process that answers each line with one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.opened = self.ask("ready")

    def ask(self, call: str, **arguments: object) -> dict[str, Any]:
        """Return the answer to one call of `mooncake_worker.py`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([call, arguments]) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError(f"the worker ended with {self.process.wait()} at {call}")

    def kill(self) -> None:
        """End the process without giving it a chance to say goodbye."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def say_no_more(self) -> None:
        """Let the process end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def leave(self) -> int:
        """Let the process end by itself; return its status when it has."""
        self.say_no_more()
        return self.process.wait()
