"""What counting on a GPU returns: torch tensors, and what was wrong with a segment, since the host does not wait."""

from __future__ import annotations

from typing import Any, NamedTuple

from tallymill.kernels.nms.device import refuse_faults

FAULTY = -(2**62)  # a hard count that stays below 0 whatever is added


class DeviceTally(NamedTuple):
    """``soft`` float64 [S, C] and ``hard`` int64 [S, C] as in ``Tally``; ``status`` int8 [S, C], not 0 where a segment
    has a fault (see ``tallymill.kernels.nms.device.FAULTS``), whose counts are NaN and :data:`FAULTY` then.
    """

    soft: Any
    hard: Any
    status: Any

    def check(self) -> DeviceTally:
        """Wait for the card; ValueError for the first segment that has a fault."""
        refuse_faults("tally", self.status)
        return self
