"""`python -m tandemkv` is `tandemkv`."""

from __future__ import annotations

import sys

from tandemkv.cli import main

sys.exit(main())
