"""How far two answers of detectors are apart: every box has a partner of its own in the other answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.sessions.base import Array
from tallymill.kernels.match import assign

FLOOR = 0.05  # confidences below are not recorded in a sweep
FEWEST, MOST = 50, 1000  # boxes of a category that are compared, the most confident first
_LEAST = 1e-6  # confidences below are taken for it where their ratio is what counts


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the whole detector may be from the original: pixels, and confidence. ``half``: it computes in float16."""

    box: float = 1.0
    score: float = 1e-3
    half: bool = False

    @property
    def ratio(self) -> float:
        """How far the logarithms of confidences may be: where all are small, a wrong prompt shows there."""
        return 1.0 if self.half else 0.1

    def of(self, height: int, width: int) -> Bounds:
        """The bounds in a picture. Halves err by fractions of a side, so that theirs grow with pictures above 320."""
        return replace(self, box=self.box * max(1.0, max(height, width) / 320)) if self.half else self


class Apart(NamedTuple):
    """The largest differences of partners: ``box`` in pixels, ``score`` of confidences, ``ratio`` of their logarithms;
    infinite where a box has no partner. ``compared``: how many boxes of the original have one.
    """

    box: float
    score: float
    ratio: float
    compared: int


def apart(found: tuple[Array, Array], wanted: tuple[Array, Array], bounds: Bounds) -> Apart:
    """Boxes [P, 4] and confidences [P] that were ``found`` against those ``wanted``, either way.

    Compared are the ``FEWEST`` most confident boxes of each side and all further ones of at least ``FLOOR``, up to
    ``MOST``, whatever the other side has. Partners are chosen so that as many as can be are within the bounds.
    """
    forth, back = _one_way(wanted, found, bounds), _one_way(found, wanted, bounds)
    box, score, ratio = (float(np.maximum(a, b)) for a, b in zip(forth[:3], back[:3], strict=True))  # NaN stays NaN
    return Apart(box, score, ratio, forth.compared)


def strongest(scores: Array) -> NDArray[np.int64]:
    """Places of the boxes to compare, by falling confidence."""
    count = min(max(int((scores >= FLOOR).sum()), FEWEST), MOST)
    return np.argsort(-scores, kind="stable")[:count]


def _one_way(some: tuple[Array, Array], others: tuple[Array, Array], bounds: Bounds) -> Apart:
    """The strongest of ``some`` against all ``others``."""
    places = strongest(some[1])
    if not len(places):
        return Apart(0.0, 0.0, 0.0, 0)
    scores = some[1][places]
    partner = np.full(len(places), -1)
    worst = np.full((3, len(places)), np.inf)
    if len(others[1]):
        differences = _differences((some[0][places], scores), others)
        limits = np.array([bounds.box, bounds.score, bounds.ratio], np.float32)
        cost = (differences / limits[:, None, None]).max(axis=0)
        near = cost <= 1
        # One pair outside costs more than all inside together.
        partner = assign(np.where(near, cost, cost + len(cost))).column
        paired = np.flatnonzero(partner >= 0)
        worst[:, paired] = differences[:, paired, partner[paired]]
    box, score, ratio = (float(value) for value in worst.max(axis=1))
    return Apart(box, score, ratio, int((partner >= 0).sum()))


def _differences(some: tuple[Array, Array], others: tuple[Array, Array]) -> NDArray[np.float32]:
    """[3, P, Q]: the largest of the four sides, of the confidences, and of their logarithms; NaN where one is."""
    box = np.zeros((len(some[1]), len(others[1])), np.float32)
    for side in range(4):
        np.maximum(box, np.abs(some[0][:, side, None] - others[0][:, side]), out=box)
    score = np.abs(some[1][:, None] - others[1])
    logs = [np.log(np.maximum(each[1], _LEAST)) for each in (some, others)]
    found: NDArray[np.float32] = np.stack([box, score, np.abs(logs[0][:, None] - logs[1])]).astype(np.float32)
    return found
