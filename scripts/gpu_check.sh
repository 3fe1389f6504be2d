#!/usr/bin/env bash
# Runs the tests of device and tiers and the device benchmark on a machine with a GPU, in under five minutes, and
# writes benchmarks/results/<date>-<device>.json. Goals: full copies and page moves within 3 times the
# bytes over the bandwidth, an incremental table update under 10 us; a missed goal is exit status 1.
# PYTHON names the interpreter that has tandemkv, CuPy and the test packages; without it .venv's is
# taken.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-.venv/bin/python}

if ! reason=$("$PYTHON" scripts/gpu_present.py 2>&1); then
  echo "gpu_check: ${reason%%$'\n'*}" >&2
  exit 2
fi
echo "gpu_check: $reason"
timeout 150 "$PYTHON" -m pytest tests/device tests/tiers/test_tiers_cuda.py -q -p no:cacheprovider
timeout 140 "$PYTHON" benchmarks/device_tables.py --results benchmarks/results
