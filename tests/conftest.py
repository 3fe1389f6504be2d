"""Settings shared by all tests.

Hypothesis runs a bounded, derandomized set of examples by default, so that a run of the suite is
repeatable. `TANDEMKV_HYPOTHESIS_PROFILE=full` runs many more; `=search` looks for new ones, at
random.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# `reference` is a package of helpers, not of tests.
sys.path.insert(0, str(Path(__file__).parent))

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "default",
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile("full", settings.get_profile("default"), max_examples=2000)
settings.register_profile("search", settings.get_profile("full"), derandomize=False)
settings.load_profile(os.environ.get("TANDEMKV_HYPOTHESIS_PROFILE", "default"))
