"""Every kernel compiles, as the GPU's run-time compiler will see it."""

from __future__ import annotations

import pytest
from nvrtc_compile import CompileError, Nvrtc, libraries

from tandemkv.device import kernels

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
LIBRARIES = libraries()

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="no NVRTC wheel is installed")


@pytest.fixture(params=LIBRARIES, ids=[path.name for path in LIBRARIES])
def nvrtc(request: pytest.FixtureRequest) -> Nvrtc:
    return Nvrtc(request.param)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", kernels.SOURCES)
def test_every_kernel_compiles_without_spills(nvrtc: Nvrtc, kernel: str, architecture: str) -> None:
    compiled = nvrtc.compile(kernels.source(kernel), architecture)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert kernel.encode() in compiled.cubin
    assert "warning" not in compiled.log
    assert compiled.spill_bytes == 0
    assert compiled.stack_bytes == 0
    assert compiled.registers <= 64


def test_a_header_is_refused(nvrtc: Nvrtc) -> None:
    with pytest.raises(CompileError, match="cstdint"):
        nvrtc.compile("#include <cstdint>\n", "sm_90")
