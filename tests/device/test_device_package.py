"""What a kernel's source file must say and may contain."""

from __future__ import annotations

import importlib
import re

import pytest

from tandemkv.device import kernels


@pytest.mark.parametrize("kernel", kernels.SOURCES)
def test_a_source_names_its_launcher_and_includes_nothing(kernel: str) -> None:
    text = kernels.source(kernel)
    launcher = re.search(r"Launched by ([\w.]+)\.(\w+)\.", text)
    assert launcher is not None
    assert callable(getattr(importlib.import_module(launcher[1]), launcher[2]))
    assert "#include" not in text
    assert f'extern "C" __global__ void {kernel}(' in text
