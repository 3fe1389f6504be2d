"""What became of one key of a put, a get or a probe."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """What became of one key. Everything but `OK` is a miss, or a value that was not stored.

    Attributes:
        OK: stored; read and verified; found.
        ABSENT: the store has no such value.
        LENGTH: the value has another length than its header or its layout says.
        FOREIGN: the header names another version, layout or key, or is none.
        CORRUPT: the checksum differs.
        REJECTED: the store has no room for the value; it may be offered again.
        FAILED: the store reported an error.
        LATE: the read ended after its deadline or its lease; its bytes were not used.
        TIMED_OUT: no answer until the deadline. A put may have been stored all the same.
        CANCELLED: given up by the caller, or by `close`.
        BUSY: not tried: too much is pending, the store failed again and again, or it is closed.
        PENDING: not known yet.
    """

    OK = 0
    ABSENT = 1
    LENGTH = 2
    FOREIGN = 3
    CORRUPT = 4
    REJECTED = 5
    FAILED = 6
    LATE = 7
    TIMED_OUT = 8
    CANCELLED = 9
    BUSY = 10
    PENDING = 255


# Values that can never be read: whoever meets one drops it, so that a good one can take its place.
INVALID = (Outcome.LENGTH, Outcome.FOREIGN, Outcome.CORRUPT)

# What shows that the store works, whatever it has, and what shows that it does not.
ANSWERS = (Outcome.OK, Outcome.ABSENT, *INVALID, Outcome.REJECTED)
TROUBLE = (Outcome.FAILED, Outcome.LATE, Outcome.TIMED_OUT)
