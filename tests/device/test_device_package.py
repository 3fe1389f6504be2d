"""Where the kernels' sources lie, and what they may contain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tandemkv.device import kernels

ROOT = Path(__file__).parents[2]


def test_the_package_links_every_source_by_itself() -> None:
    """One symlink per file: a symlinked folder would be dropped from the wheel without a word."""
    folder = ROOT / "python" / "tandemkv" / "device" / "cuda"
    assert not folder.is_symlink()
    files = sorted(path.name for path in (ROOT / "cuda").iterdir())
    assert sorted(path.name for path in folder.iterdir()) == files
    for path in folder.iterdir():
        assert path.resolve() == ROOT / "cuda" / path.name


def test_no_python_in_the_cuda_folder() -> None:
    """NVIDIA ships a namespace package `cuda`; a module here would break `import cupy`."""
    assert not list((ROOT / "cuda").rglob("*.py"))


@pytest.mark.parametrize("kernel", kernels.SOURCES)
def test_a_source_names_its_launcher_and_includes_nothing(kernel: str) -> None:
    text = kernels.source(kernel)
    launcher = re.search(r"Launched by ([\w.]+)\.(\w+)\.", text)
    assert launcher is not None
    module = __import__(launcher[1], fromlist=[launcher[2]])
    assert callable(getattr(module, launcher[2]))
    assert "#include" not in text
    assert f'extern "C" __global__ void {kernel}(' in text
