"""The random cases notice every way in which `scripts/mutate_kernels.py` breaks a kernel."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import kernel_harness as harness
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutate_kernels.py"


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate_kernels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


# One of each kind of break; `make test-full` runs all.
SHORT = (
    "copy: lost K/V offset",
    "copy: vector load beyond the length",
    "copy: table narrowed to 32 bits",
    "update: missing entry kept in K",
    "update: row without a position written",
    "moves: written row narrowed to 32 bits",
    "moves: vector store beyond the run",
)


@pytest.mark.skipif(harness.COMPILER is None, reason=harness.SKIP_REASON)
def test_one_mutation_of_each_kind_is_noticed(mutate: ModuleType) -> None:
    chosen = [mutation for mutation in mutate.MUTATIONS if mutation.name in SHORT]
    assert len(chosen) == len(SHORT)
    assert mutate.survivors(chosen, cases=12, seed=11) == []


def test_every_mutation_applies_to_the_kernels_of_today(mutate: ModuleType) -> None:
    for mutation in mutate.MUTATIONS:
        assert mutation.new in mutation.apply()


@pytest.mark.full
@pytest.mark.skipif(harness.COMPILER is None, reason=harness.SKIP_REASON)
def test_every_mutation_is_noticed(mutate: ModuleType) -> None:
    assert mutate.survivors(mutate.MUTATIONS, cases=25, seed=11) == []


def test_a_mutation_of_other_text_is_an_error(mutate: ModuleType) -> None:
    """A kernel that changed must not leave its mutations behind, silently without effect."""
    stale = mutate.Mutation("stale", mutate.COPY, "no such text", "")
    with pytest.raises(
        ValueError, match=r"mutation 'stale': block_offsets\.cu holds 'no such text'"
    ):
        stale.apply()
