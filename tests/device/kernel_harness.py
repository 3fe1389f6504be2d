"""Compiles the unmodified kernels of `cuda/` for the CPU and runs them behind the public calls."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tandemkv.device import cpu_backend, kernels
from tandemkv.device.groups import OffsetGroups
from tandemkv.device.launches import (
    CopyArguments,
    Launch,
    MoveArguments,
    TokenMoveArguments,
    UpdateArguments,
    copy_launch,
    move_launch,
    token_move_launch,
    update_launch,
)
from tandemkv.device.page_moves import PageSegments

HERE = Path(__file__).parent
PARAMETERS_MAX = 64

COMPILER = shutil.which("g++")
SKIP_REASON = "g++ is needed to run the kernels on the CPU"


def write_sources(folder: Path, texts: Mapping[str, str] | None = None) -> Path:
    """Write one translation unit that includes every kernel, and return its path.

    `texts` replaces the source of files by name; the others are the package's own.
    """
    lines = []
    files = sorted(set(kernels.SOURCES.values()))
    for file in files:
        kernel = next(name for name, holder in kernels.SOURCES.items() if holder == file)
        text = kernels.source(kernel) if texts is None or file not in texts else texts[file]
        (folder / file).write_text(text)
        lines.append(f'#include "{file}"')
    lines += [f"SHIM_KERNEL({kernel})" for kernel in kernels.SOURCES]
    unit = folder / "kernels.cpp"
    unit.write_text("\n".join(lines) + "\n")
    return unit


def compile_shim(
    folder: Path,
    texts: Mapping[str, str] | None = None,
    sanitizers: Sequence[str] = (),
    *,
    flags: Sequence[str] = ("-O1", "-g"),
) -> Path:
    """Compile the kernels into a shared library in `folder` and return its path."""
    assert COMPILER is not None, SKIP_REASON
    unit = write_sources(folder, texts)
    library = folder / "kernels.so"
    checks = [f"-fsanitize={','.join(sanitizers)}", "-fno-sanitize-recover=all"]
    command = [
        *(COMPILER, "-std=c++17", "-shared", "-fPIC", "-Wall", "-Werror"),
        *flags,
        *(checks if sanitizers else []),
        *("-include", str(HERE / "shim.h"), "-x", "c++", str(unit), "-o", str(library)),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return library


COUNTING = (
    *("-O1", "-fsanitize=kernel-address", "--param", "asan-instrumentation-with-call-threshold=0"),
    *("--param", "asan-stack=0", "--param", "asan-globals=0", str(HERE / "count_accesses.cpp")),
)
"""Flags of `compile_shim` for a library whose accesses can be counted."""


class AccessCount:
    """Bytes that kernels load and store, per array, in a library compiled with `COUNTING`.

    Args:
        library: its path.
        arrays: the arrays to watch, by name; all other memory is ignored.
    """

    def __init__(self, library: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._library = ctypes.CDLL(str(library))
        self._arrays = dict(arrays)

    def __enter__(self) -> AccessCount:
        bounds = (ctypes.c_void_p * (2 * len(self._arrays)))()
        for number, array in enumerate(self._arrays.values()):
            bounds[2 * number] = array.ctypes.data
            bounds[2 * number + 1] = array.ctypes.data + array.nbytes
        self._library.count_start(bounds, len(self._arrays))
        return self

    def __exit__(self, *_: object) -> None:
        totals = (ctypes.c_ulonglong * (2 * len(self._arrays)))()
        self._library.count_read(totals)
        self.loaded = dict(zip(self._arrays, totals[::2], strict=True))
        self.stored = dict(zip(self._arrays, totals[1::2], strict=True))


def sanitizer_environment(*, stack_traces: bool = True) -> dict[str, str]:
    """Return the environment in which Python may load a library built with ASan.

    Without stack traces a report takes milliseconds instead of a good part of a second.
    """
    assert COMPILER is not None, SKIP_REASON
    found = subprocess.run(
        [COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    library = str(Path(found.stdout.strip()).resolve())
    return {
        **os.environ,
        "LD_PRELOAD": library,
        # CPython and NumPy keep memory until the end; leaks of theirs are not the subject.
        "ASAN_OPTIONS": f"detect_leaks=0:symbolize={int(stack_traces)}",
        "UBSAN_OPTIONS": f"print_stacktrace={int(stack_traces)}:symbolize={int(stack_traces)}",
        "PYTHONMALLOC": "malloc",
    }


class Shim:
    """A compiled library of kernels.

    Args:
        library: its path.
        reverse: whether blocks and threads run in reverse order.
    """

    def __init__(self, library: Path, *, reverse: bool = False) -> None:
        self._library = ctypes.CDLL(str(library))
        self._reverse = reverse

    def parameter_sizes(self, kernel: str) -> list[int]:
        """Return the size of each parameter of a kernel, in bytes."""
        sizes = (ctypes.c_size_t * PARAMETERS_MAX)()
        count = getattr(self._library, f"sizes_{kernel}")(sizes, PARAMETERS_MAX)
        return list(sizes[:count])

    def launch(self, launch: Launch) -> None:
        """Run a launch to its end."""
        have = [argument.dtype.itemsize for argument in launch.args]
        assert have == self.parameter_sizes(launch.kernel), launch.kernel
        values = [np.array([argument]) for argument in launch.args]
        parameters = (ctypes.c_void_p * len(values))(*[value.ctypes.data for value in values])
        grid = (ctypes.c_uint * 3)(*launch.grid)
        block = (ctypes.c_uint * 3)(*launch.block)
        getattr(self._library, f"launch_{launch.kernel}")(
            grid, block, int(self._reverse), parameters
        )

    def copy(self, arguments: CopyArguments, groups: OffsetGroups) -> None:
        """Stand in for the backend's `copy_batch_block_offsets`."""
        self.launch(copy_launch(arguments, groups.descriptors.ctypes.data, len(groups)))

    def update(self, arguments: UpdateArguments, groups: OffsetGroups | None) -> None:
        """Stand in for the backend's `apply_block_table_updates`."""
        pointer = 0 if groups is None else groups.descriptors.ctypes.data
        self.launch(update_launch(arguments, pointer, 0 if groups is None else len(groups)))

    def move(self, arguments: MoveArguments, segments: PageSegments) -> None:
        """Stand in for the backend's `apply_page_moves`."""
        pointer = segments.descriptors.ctypes.data
        self.launch(move_launch(arguments, pointer, len(segments), segments.units_max))

    def move_tokens(self, arguments: TokenMoveArguments, segments: PageSegments) -> None:
        """Stand in for the backend's `apply_token_moves`."""
        pointer = segments.descriptors.ctypes.data
        self.launch(token_move_launch(arguments, pointer, len(segments), segments.token_units_max))

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let the public calls run this library in place of the NumPy backend."""
        with (
            mock.patch.object(cpu_backend, "copy_batch_block_offsets", self.copy),
            mock.patch.object(cpu_backend, "apply_block_table_updates", self.update),
            mock.patch.object(cpu_backend, "apply_page_moves", self.move),
            mock.patch.object(cpu_backend, "apply_token_moves", self.move_tokens),
        ):
            yield
