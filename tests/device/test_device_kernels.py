"""The kernels' own source text, run on the CPU behind the public calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kernel_harness as harness
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import random_copy, random_update
from kernel_large_strides import check_large_strides

from tandemkv.device import (
    OffsetGroups,
    apply_block_table_updates,
    copy_batch_block_offsets,
    kernels,
)
from tandemkv.device.arrays import view
from tandemkv.device.launches import CopyArguments, copy_launch

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason=harness.SKIP_REASON)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(params=[False, True], ids=["in-order", "reverse"])
def shim(request: pytest.FixtureRequest, library: Path) -> harness.Shim:
    return harness.Shim(library, reverse=request.param)


def test_random_copies(shim: harness.Shim) -> None:
    with shim.installed():
        for seed in range(150):
            case = random_copy(np.random.default_rng([1, seed]))
            copy_batch_block_offsets(**case.arguments)
            case.check()


def test_random_updates(shim: harness.Shim) -> None:
    with shim.installed():
        for seed in range(150):
            case = random_update(np.random.default_rng([2, seed]))
            apply_block_table_updates(**case.arguments)
            case.check()


def test_offsets_beyond_32_bits(shim: harness.Shim) -> None:
    with shim.installed():
        check_large_strides()


def test_the_largest_index_of_a_pool(shim: harness.Shim) -> None:
    """2**31 - 1 is reached exactly: 64 * 33,554,431 + 63."""
    groups = OffsetGroups([0], [64], [63], [2**25])
    source = np.full((1, 1, 4), 2**25 - 1, np.int32)
    destination = np.zeros((1, 1, 2, 4), np.int32)
    with shim.installed():
        copy_batch_block_offsets(source, np.zeros(1, np.int32), groups, destination)
    assert (destination[0, 0, 0] == 2**31 - 64).all()
    assert (destination[0, 0, 1] == 2**31 - 1).all()


def test_indices_that_the_host_cannot_see_become_padding(shim: harness.Shim) -> None:
    """A replayed graph reads its index from device memory: no value may lead outside the table."""
    groups = OffsetGroups([0], [2], [1], [100])
    index = np.array([0, 3, -7, 2**31 - 1, -(2**31), 2], np.int32)
    destination = np.full((1, 6, 2, 5), 77, np.int32)
    arguments = CopyArguments(
        source=view("source", np.full((1, 3, 5), 9, np.int32)),
        copy_index=view("copy_index", index),
        used=None,
        count=None,
        destination=view("destination", destination),
        num_copied=6,
        first_page=1,
        empty=0,
    )
    shim.copy(arguments, groups)
    assert destination[0, :, 0].tolist() == [[18] * 5, *[[0] * 5] * 4, [18] * 5]
    assert destination[0, :, 1].tolist() == [[19] * 5, *[[0] * 5] * 4, [19] * 5]


def test_a_graph_replays_with_new_contents_at_fixed_addresses(shim: harness.Shim) -> None:
    """One launch, built once for the largest batch, serves every later batch through memory."""
    groups = OffsetGroups([0], [3], [1], [1000])
    source, index = np.zeros((1, 4, 8), np.int32), np.full(4, -1, np.int32)
    used, count = np.zeros((1, 4), np.int32), np.zeros(1, np.int32)
    destination = np.full((1, 4, 2, 8), 55, np.int32)
    launch = copy_launch(
        CopyArguments(
            source=view("source", source),
            copy_index=view("copy_index", index),
            used=view("used", used),
            count=view("count", count),
            destination=view("destination", destination),
            num_copied=4,
            first_page=1,
            empty=0,
        ),
        groups.descriptors.ctypes.data,
        len(groups),
    )
    rng = np.random.default_rng(5)
    for batch in (4, 1, 0, 3, 4):
        source[...] = rng.integers(1, 1000, source.shape)
        used[...] = rng.integers(0, 9, used.shape)
        index[:] = rng.permutation(4)
        index[max(batch - 1, 0) : batch] = -1  # the graph's last row is padding
        count[0] = batch
        before = destination.copy()
        shim.launch(launch)
        assert (destination[:, batch:] == before[:, batch:]).all()
        for sequence in range(batch):
            length = used[0, sequence] if index[sequence] >= 0 else 0
            keys = 3 * source[0, index[sequence], :length]
            assert destination[0, sequence, 0].tolist() == [*keys, *[0] * (8 - length)]
            assert destination[0, sequence, 1].tolist() == [*(keys + 1), *[0] * (8 - length)]


@given(data=st.data())
def test_updates_equal_the_full_copy(library: Path, data: st.DataObject) -> None:
    """After any changes, the scattered tables hold what a full copy of the same state writes.

    The state is a ledger's: rows grow and shrink at their end, pages are >= 1, and entries that a
    row has given up read 0.
    """
    num_classes, num_rows, width = 2, 3, 6
    groups = OffsetGroups([0, 1, 0], [4, 6, 2], [1, 3, 0], [50, 50])
    state = np.zeros((num_classes, num_rows, width), np.int32)
    reported = state.copy()
    table = np.zeros_like(state)
    destination = np.zeros((len(groups), num_rows, 2, width), np.int32)
    with harness.Shim(library).installed():
        for _ in range(data.draw(st.integers(1, 6), label="steps")):
            for _ in range(data.draw(st.integers(0, 3), label="changes")):
                row = data.draw(st.integers(0, num_rows - 1), label="row")
                used = data.draw(st.integers(0, width), label="used")
                keep = data.draw(st.integers(0, used), label="kept")
                state[:, row, used:] = 0
                for column in range(keep, used):
                    state[:, row, column] = data.draw(st.integers(1, 49), label="page")
            classes, rows, columns = np.nonzero(state != reported)
            pages = state[classes, rows, columns]
            records = np.stack([rows, classes, columns, pages], axis=1).astype(np.int32)
            reported[...] = state
            apply_block_table_updates(records, table=table, groups=groups, destination=destination)
            full = np.full_like(destination, 99)
            copy_batch_block_offsets(state, np.arange(num_rows, dtype=np.int32), groups, full)
            np.testing.assert_array_equal(table, state)
            np.testing.assert_array_equal(destination, full)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitized")
    return harness.compile_shim(folder, sanitizers=("address", "undefined"))


def test_no_sanitizer_complains(sanitized: Path) -> None:
    """Random cases under ASan and UBSan; memory that a call need not read is poisoned."""
    result = subprocess.run(
        [sys.executable, str(harness.HERE / "kernel_runner.py"), "40", "3", str(sanitized)],
        env=harness.sanitizer_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == ["ok", str(sanitized)], result.stderr


def test_the_shim_notices_a_wrong_parameter_size(library: Path) -> None:
    case = random_copy(np.random.default_rng(0))
    arguments = CopyArguments(
        source=view("source", np.zeros((1, 1, 4), np.int32)),
        copy_index=view("copy_index", np.zeros(1, np.int32)),
        used=None,
        count=None,
        destination=view("destination", np.zeros((1, 1, 2, 4), np.int32)),
        num_copied=1,
        first_page=1,
        empty=0,
    )
    launch = copy_launch(arguments, case.arguments["groups"].descriptors.ctypes.data, 1)
    wrong = (*launch.args[:-1], np.int64(0))
    with pytest.raises(AssertionError, match="copy_batch_block_offsets"):
        harness.Shim(library).launch(type(launch)(launch.kernel, launch.grid, launch.block, wrong))


def test_every_kernel_of_the_folder_is_known() -> None:
    """A kernel file that is not in SOURCES would be neither compiled nor tested here."""
    files = sorted(path.name for path in (harness.HERE.parents[1] / "cuda").iterdir())
    assert files == sorted(set(kernels.SOURCES.values()))
