"""Source text and compiled modules of the kernels in `cuda/`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from tandemkv.errors import DeviceUnavailableError
from tandemkv.extras import install_hint

SOURCES = {
    "copy_batch_block_offsets": "block_offsets.cu",
    "apply_block_table_updates": "table_updates.cu",
    "apply_page_moves": "page_moves.cu",
    "apply_token_moves": "token_moves.cu",
}
"""The file that holds each kernel."""


def source(kernel: str) -> str:
    """Return the CUDA source that defines a kernel.

    Raises:
        KeyError: there is no kernel of this name.
    """
    folder = resources.files("tandemkv.device") / "cuda"
    return (folder / SOURCES[kernel]).read_text(encoding="utf-8")


def require_cupy() -> Any:
    """Return the `cupy` module when it can use a GPU.

    Raises:
        DeviceUnavailableError: CuPy is not installed, or finds no GPU.
    """
    try:
        import cupy  # noqa: PLC0415 (an extra; importing tandemkv must not need it)
    except ImportError as error:
        raise DeviceUnavailableError(
            "device 'cuda' needs CuPy, which is not installed\n"
            f"hint: {install_hint('cuda12')}, or cuda13"
        ) from error
    if not cupy.cuda.is_available():
        raise DeviceUnavailableError(
            "device 'cuda' was asked for, but CuPy finds no GPU with a working driver"
        )
    return cupy


@cache
def load(kernel: str, device: int) -> Any:
    """Compile a kernel for one GPU and returns its `cupy.RawKernel`; once per kernel and GPU.

    The module is loaded into the context of the device that is current when it is first used, so
    the pair (kernel, device) is the key, not the kernel alone.
    """
    cupy = require_cupy()
    with cupy.cuda.Device(device):
        function = cupy.RawModule(code=source(kernel), options=("-std=c++17",)).get_function(kernel)
        function.compile()
    return function
