"""Detectors that score a fixed set of boxes, queries or patches, by columns of logits: arrays and tensors alike.

What the model gave stays where it is until ``kernels.candidates`` has picked, for all windows of a batch at once, the
boxes that answer what was asked.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.arrays import is_array
from tallymill.engine.detectors.base import Candidates, Detector, Found
from tallymill.engine.detectors.pixels import sigmoid
from tallymill.engine.sessions.base import Array
from tallymill.errors import ModelError
from tallymill.kernels.candidates import candidates
from tallymill.kernels.floats import float_not_below


class Heads(NamedTuple):
    """What a batch of B windows is answered by: see ``kernels.candidates.candidates``.

    ``logits`` float32 [B, N, T] and ``boxes`` float32 [B, N, 4] where the model left them. On the host: ``columns``, of
    each request of the batch those that answer it, and ``scale`` float32 [B, 4], from corners to pixels. A family whose
    original keeps only the best pairs of box and column gives the ``least`` logit of those, float32 [B], by which a
    window is saturated, and whether all its logits are ``finite``, bool [B].
    """

    logits: Array
    boxes: Array
    columns: Sequence[NDArray[np.int64]]
    scale: NDArray[np.float32]
    least: Array | None = None
    finite: Array | None = None


class QueryDetector(Detector):
    """A detector whose batch is read in one step. ``implementation``: of ``kernels.candidates``."""

    tensors: ClassVar[bool] = True
    implementation = "auto"

    @abstractmethod
    def heads(
        self, outputs: Mapping[str, Array], sizes: Sequence[tuple[int, int]], asked: Sequence[NDArray[np.int64]]
    ) -> Heads:
        """Of the outputs of a batch, with the sizes (height, width) of its windows and the classes asked of each."""

    def read(
        self,
        outputs: Mapping[str, Array],
        sizes: Sequence[tuple[int, int]],
        asked: Sequence[NDArray[np.int64]],
        floor: float,
    ) -> Found:
        """See ``Detector.read``; nothing is copied from a device."""
        heads = self.heads(outputs, sizes, asked)
        found = candidates(
            heads.logits,
            heads.boxes,
            np.concatenate(heads.columns).astype(np.int32),
            np.cumsum([0, *map(len, heads.columns)]).astype(np.int32),
            np.cumsum([0, *map(len, asked)]).astype(np.int32),
            heads.scale,
            floor,
            impl=self.implementation,
        )
        finite = found.finite if heads.finite is None else found.finite & heads.finite
        saturated = found.saturated if heads.least is None else _reaches(heads.least, floor)
        return Found(found.boxes, found.scores, found.request, saturated & finite, finite)

    def decode(
        self,
        outputs: Mapping[str, Array],
        index: int,
        size: tuple[int, int],
        classes: NDArray[np.int64],
        floor: float,
    ) -> Candidates:
        """See ``Detector.decode``; candidates of a class are in the order of queries. Boxes are not clipped."""
        found = self.read({name: value[index : index + 1] for name, value in outputs.items()}, [size], [classes], floor)
        if not found.finite[0]:
            raise ModelError("non-finite scores")
        return Candidates(found.boxes, found.scores, found.request, bool(found.saturated[0]))


def _reaches(logits: Array, floor: float) -> Array:
    return (sigmoid(logits) if is_array(logits) else logits.sigmoid()) >= float_not_below(floor)


def to_pixels(sizes: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
    """(height, width) of B windows -> float32 [B, 4], what takes xyxy as fractions of a window to its pixels."""
    return np.array([[width, height, width, height] for height, width in sizes], np.float32)
