"""What detectors with one score for every cell and class have in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.errors import ModelError


def select(scores: NDArray[np.float32], floor: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Scores [C, N] of the C asked classes -> (class, cell) int64 [P] each, where a score is >= ``floor``.

    Classes come in the order asked, cells ascending within each. Raises ``ModelError`` when a score is not finite.
    """
    if not np.isfinite(scores).all():
        raise ModelError("non-finite scores")
    # The least float32 that is >= floor, so that float32 comparison says what float64 would.
    least = np.float32(floor)
    if float(least) < floor:
        least = np.nextafter(least, np.float32(np.inf))
    # On flat indices nonzero is several times faster than on pairs.
    request, cell = np.divmod(np.flatnonzero(scores >= least), scores.shape[1])
    return request, cell
