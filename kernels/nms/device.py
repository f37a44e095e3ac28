"""What suppression on a GPU returns: torch tensors, and what was wrong with a segment, since the host does not wait."""

from __future__ import annotations

from typing import Any, NamedTuple

FINE, TOO_LONG, MISPLACED, NOT_VALID = range(4)

FAULTS = {
    TOO_LONG: "has more boxes than `longest` says",
    MISPLACED: "has offsets that fall, or that do not reach from 0 to the number of boxes",
    NOT_VALID: "has a box that is degenerate or not finite, or a score that is not finite or out of range",
}


class DeviceKept(NamedTuple):
    """``indices`` int64 [N*C] as in ``Kept``, filled up with -1; ``offsets`` int64 [S*C+1]; ``status`` int8 [S*C], not
    0 where a segment has a fault (see :data:`FAULTS`), of which nothing is kept then.
    """

    indices: Any
    offsets: Any
    status: Any

    def check(self) -> DeviceKept:
        """Wait for the card; ValueError for the first segment that has a fault."""
        refuse_faults("nms", self.status)
        return self


class DeviceSoftKept(NamedTuple):
    """The same for soft-NMS; ``scores`` float32 [N*C], lowered, filled up with NaN."""

    indices: Any
    offsets: Any
    scores: Any
    status: Any

    def check(self) -> DeviceSoftKept:
        """Wait for the card; ValueError for the first segment that has a fault."""
        refuse_faults("soft_nms", self.status)
        return self


def refuse_faults(operation: str, status: Any) -> None:
    """Wait for ``status`` int8 [S*C] or [S, C]; ValueError for the first segment that is not fine."""
    values = status.flatten().cpu().numpy()
    faulty = values.nonzero()[0]
    if len(faulty):
        at = int(faulty[0])
        raise ValueError(f"{operation}: segment {at} {FAULTS[int(values[at])]} ({len(faulty)} segments have a fault)")
