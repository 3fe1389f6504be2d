"""Block tables on the device.

`groups.py` says how a page becomes the index that an attention kernel reads. `block_offsets.py` and
`page_moves.py` check the arguments of the calls, with `arguments.py`, and hand them to a backend;
`token_moves.py` does so for the nodes of draft trees:

* `cpu_backend.py`: NumPy, for managers whose pools live on the CPU;
* `cuda_backend.py`: CuPy, the kernels of `cuda/*.cu` on the caller's stream.

`launches.py` turns checked arguments into a grid and kernel parameters, `kernels.py` compiles,
`arrays.py` looks at arrays of any library, and `ring.py` owns the staging buffers from which tables
are published. `backend="auto"` takes the backend of the memory that is written. Nothing falls
back: a GPU that is asked for and missing is a `DeviceUnavailableError`.
"""

from __future__ import annotations

from tandemkv.device.block_offsets import apply_block_table_updates, copy_batch_block_offsets
from tandemkv.device.groups import OffsetGroups, check_offset_range
from tandemkv.device.page_moves import PageSegment, PageSegments, apply_page_moves
from tandemkv.device.ring import StagingRing, StagingSlot
from tandemkv.device.token_moves import apply_token_moves, chains_of

__all__ = [
    "OffsetGroups",
    "PageSegment",
    "PageSegments",
    "StagingRing",
    "StagingSlot",
    "apply_block_table_updates",
    "apply_page_moves",
    "apply_token_moves",
    "chains_of",
    "check_offset_range",
    "copy_batch_block_offsets",
]
