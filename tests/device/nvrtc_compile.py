"""Compiles CUDA source with the NVRTC libraries of the installed wheels; needs no GPU."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
OPTIONS = ("-std=c++17", "--ptxas-options=-v")


def libraries() -> list[Path]:
    """Return the NVRTC libraries that are installed as packages."""
    found = []
    for name in DISTRIBUTIONS:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        found += [
            Path(file.locate()) for file in files if re.search(r"libnvrtc\.so\.\d+$", file.name)
        ]
    return found


@dataclass(frozen=True)
class Compiled:
    """What came of a compilation: `log` is the compiler's, `cubin` the machine code."""

    log: str
    cubin: bytes

    @property
    def registers(self) -> int:
        """Registers per thread."""
        return int(self._number(r"Used (\d+) registers"))

    @property
    def spill_bytes(self) -> int:
        """Bytes spilled to local memory, stores and loads together."""
        stores = self._number(r"(\d+) bytes spill stores")
        return int(stores) + int(self._number(r"(\d+) bytes spill loads"))

    @property
    def stack_bytes(self) -> int:
        """Bytes of the stack frame: an indexed array that did not fit into registers."""
        return int(self._number(r"(\d+) bytes stack frame"))

    def _number(self, pattern: str) -> str:
        match = re.search(pattern, self.log)
        assert match is not None, f"{pattern!r} is not in the compiler's log: {self.log}"
        return match[1]


class CompileError(Exception):
    """NVRTC refused the source; the message is its log."""


class Nvrtc:
    """One NVRTC library."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def compile(self, source: str, architecture: str) -> Compiled:
        """Compile a source for an architecture such as `sm_90`."""
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            *(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None),
        )
        try:
            flags = [flag.encode() for flag in (f"--gpu-architecture={architecture}", *OPTIONS)]
            options = (ctypes.c_char_p * len(flags))(*flags)
            status = self._library.nvrtcCompileProgram(program, len(flags), options)
            log = self._text(program, "nvrtcGetProgramLog").rstrip(b"\0").decode()
            if status != 0:
                raise CompileError(log)
            return Compiled(log, self._text(program, "nvrtcGetCUBIN"))
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, call: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{call}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(call, program, text)
        return text.raw

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        assert status == 0, f"{name} returned {status}"
