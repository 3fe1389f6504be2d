"""Prints the name of the first GPU, or says why there is none and exits with 1."""

from __future__ import annotations

import sys

from tandemkv.device.kernels import require_cupy
from tandemkv.errors import DeviceUnavailableError

try:
    cupy = require_cupy()
except DeviceUnavailableError as error:
    print(error)
    sys.exit(1)
print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
