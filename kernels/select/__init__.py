"""Selection of candidates: the entries of a dense score map that reach a floor, and those of them that are peaks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallymill.kernels import arguments
from tallymill.kernels.select import cpu, reference
from tallymill.kernels.select.reference import NonFiniteError

__all__ = ["NonFiniteError", "Selected", "choose", "select", "select_peaks"]

IMPLEMENTATIONS = ("cpu", "reference")


class Selected(NamedTuple):
    """Entries of a score map: ``request`` int64 [P] into the asked classes, never falling; ``cell`` int64 [P] into the
    columns, ascending within a request; ``scores`` float32 [P].
    """

    request: NDArray[np.int64]
    cell: NDArray[np.int64]
    scores: NDArray[np.float32]


def choose(impl: str, device: str = "cpu") -> str:
    """Name the implementation that runs for ``impl`` (auto, cpu, reference); UsageError when there is none."""
    return arguments.choose("select", impl, device, IMPLEMENTATIONS)


def select(scores: NDArray[Any], classes: NDArray[Any], floor: float, *, impl: str = "auto") -> Selected:
    """Find the scores of at least ``floor``, a finite number, compared in float64, in the asked rows.

    ``scores`` float32 [C_all, N] may have any strides: a transposed view is not copied, and only the asked rows are
    read. ``classes`` int64 [C] are rows of it, in any order and also repeated. Every implementation gives the same
    bits. TypeError and ValueError name the argument that is wrong; ``NonFiniteError``, a ValueError, means that an
    asked score is NaN or infinite.
    """
    # The usual case first: in cold caches even a choice takes longer than the pass itself.
    run = cpu.select if impl == "auto" or choose(impl) == "cpu" else reference.select
    return Selected(*run(scores, classes, floor))


def select_peaks(
    scores: NDArray[Any], classes: NDArray[Any], floor: float, width: int, *, impl: str = "auto"
) -> Selected:
    """As :func:`select`, on maps: ``scores`` [C_all, H*width], row after row of a map.

    Keeps an entry when none of its up to eight neighbours in the map exceeds it, so that of equal neighbours all stay
    (the peaks of arXiv 1904.07850, section 4).
    """
    run = cpu.select_peaks if impl == "auto" or choose(impl) == "cpu" else reference.select_peaks
    return Selected(*run(scores, classes, floor, width))
