"""`python -m tandemkv.bench` is `tandemkv bench`."""

from __future__ import annotations

import sys

from tandemkv.cli import main

sys.exit(main(["bench", *sys.argv[1:]]))
