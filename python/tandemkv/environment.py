"""What this machine and this installation look like: a report that cannot fail.

Each fact is looked up on its own. What cannot be found is reported as the reason why, never as an
exception, because the report is most needed where something is broken. The CUDA driver is asked
directly, so that the answer does not depend on a CUDA package being installed or working.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import tandemkv
from tandemkv import _core

# Module name -> the distributions that may provide it.
PACKAGES: dict[str, tuple[str, ...]] = {
    "numpy": ("numpy",),
    "torch": ("torch",),
    "cupy": ("cupy-cuda12x", "cupy-cuda13x", "cupy"),
    "transformers": ("transformers",),
}

# CUDA driver API, cuda.h: CUdevice_attribute values of the compute capability.
_ATTRIBUTE_MAJOR = 75
_ATTRIBUTE_MINOR = 76


def collect_environment(driver_library: str = "libcuda.so.1") -> dict[str, Any]:
    """Return versions, build kind and devices as plain values, ready for JSON.

    Args:
        driver_library: name or path of the CUDA driver's library.

    Returns:
        `tandemkv` (version, build, extension), `python` (version, implementation, executable),
        `platform` (system, machine, libc, cpu_count), `packages` (module -> version, distribution,
        error; the first two None when it is not installed), `cuda` (driver_version, devices,
        error). Memory sizes are in bytes. A part that could not be looked up is
        `{"error": reason}`.
    """
    return {
        "tandemkv": _guarded(_tandemkv),
        "python": _guarded(_python),
        "platform": _guarded(_platform),
        "packages": {
            module: _guarded(partial(_package, module, names)) for module, names in PACKAGES.items()
        },
        "cuda": _guarded(partial(_cuda, driver_library)),
    }


def _guarded(probe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a probe and turn a failure into its reason."""
    try:
        return probe()
    except Exception as error:  # any failure of a probe is an answer here
        return {"error": _reason(error)}


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _tandemkv() -> dict[str, Any]:
    return {
        "version": tandemkv.__version__,
        "build": "debug" if _core.DEBUG_BUILD else "release",
        "extension": str(Path(str(_core.__file__)).resolve()),
    }


def _python() -> dict[str, Any]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
    }


def _platform() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "cpu_count": os.cpu_count(),
    }


def _package(module: str, distributions: Iterable[str]) -> dict[str, Any]:
    """Version from the installed metadata; `error`: why an installed package does not import."""
    for distribution in distributions:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        return {
            "version": version,
            "distribution": distribution,
            "error": _import_error(module),
        }
    return {"version": None, "distribution": None, "error": None}


def _import_error(module: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except Exception as error:  # an import runs foreign code, which may raise anything
        return _reason(error)
    return None


def _cuda(driver_library: str) -> dict[str, Any]:
    """Ask the CUDA driver API for its version and the visible devices."""
    try:
        driver = ctypes.CDLL(driver_library)
    except OSError as error:
        return {"driver_version": None, "devices": [], "error": f"no CUDA driver: {error}"}
    status = driver.cuInit(ctypes.c_uint(0))
    if status != 0:
        return {"driver_version": None, "devices": [], "error": f"cuInit returned {status}"}
    version = _integer(driver.cuDriverGetVersion)
    count = _integer(driver.cuDeviceGetCount)
    return {
        "driver_version": f"{version // 1000}.{version % 1000 // 10}",
        "devices": [_guarded(partial(_device, driver, index)) for index in range(count)],
        "error": None,
    }


def _device(driver: ctypes.CDLL, index: int) -> dict[str, Any]:
    handle = ctypes.c_int()
    _check("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(handle), ctypes.c_int(index)))
    name = ctypes.create_string_buffer(256)
    _check("cuDeviceGetName", driver.cuDeviceGetName(name, ctypes.c_int(len(name)), handle))
    memory = ctypes.c_size_t()
    _check("cuDeviceTotalMem", driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle))
    major = _integer(driver.cuDeviceGetAttribute, ctypes.c_int(_ATTRIBUTE_MAJOR), handle)
    minor = _integer(driver.cuDeviceGetAttribute, ctypes.c_int(_ATTRIBUTE_MINOR), handle)
    return {
        "index": index,
        "name": name.value.decode(errors="replace"),
        "compute_capability": f"{major}.{minor}",
        "memory_bytes": memory.value,
    }


def _integer(function: Any, *arguments: Any) -> int:
    """Call a driver function whose first parameter is an `int *` that it fills."""
    value = ctypes.c_int()
    _check(function.__name__, function(ctypes.byref(value), *arguments))
    return value.value


def _check(name: str, status: int) -> None:
    if status != 0:
        raise RuntimeError(f"{name} returned {status}")
