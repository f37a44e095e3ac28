"""Scores of edits (ABACUS, "One unforgiving score"): count fidelity x scene consistency x conservation of originals.

A table averages each factor over edits and multiplies the averages; intervals are 95 % percentile bootstraps over
source images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.estimates import Estimate, Estimates
from tallymill.engine.resampling import resampled_sums

Floats = NDArray[np.float64]
RESAMPLES = 2_000
FACTORS = ("cf", "sc", "oc")


def count_fidelity(delivered: int, requested: int) -> float:
    """CF = 2 min(d, K) / (d + K): 1 when as many were delivered as requested, over and under alike."""
    if requested < 1 or delivered < 0:
        raise ValueError(f"wanted delivered >= 0 and requested >= 1, got {delivered} and {requested}")
    return 2 * min(delivered, requested) / (delivered + requested)


def conservation(lost: int, originals: int) -> float:
    """OC = 1 - N_rem / N_GT, within [0, 1]; 1 where there was nothing to lose."""
    if originals <= 0:
        return 1.0
    return min(max(1 - lost / originals, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Edits:
    """N scored edits: ``image`` int64 [N], the number of the source image; ``delivered`` and ``requested`` int64 [N];
    ``factors`` float64 [N, 3], CF, SC and OC, NaN where one is not defined.
    """

    image: NDArray[np.int64]
    delivered: NDArray[np.int64]
    requested: NDArray[np.int64]
    factors: Floats

    def only(self, chosen: NDArray[np.bool_]) -> Edits:
        """Some of the edits."""
        return Edits(self.image[chosen], self.delivered[chosen], self.requested[chosen], self.factors[chosen])


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. ``edits`` are in the averages; ``undefined`` lack a factor, and are in none of them.

    ``score`` is the product of the averages, ``mean_product`` the average of the products; ``exact`` the share of all
    edits with as many delivered as requested.
    """

    edits: int
    undefined: int
    cf: Estimate
    sc: Estimate
    oc: Estimate
    score: Estimate
    mean_product: Estimate
    exact: Estimate


def row_of(edits: Edits, resamples: int = RESAMPLES) -> Row:
    """What a group of edits comes to; every number is None when there are no edits."""
    sums = _image_sums(edits)
    point = _statistics(sums.sum(axis=0, keepdims=True))
    drawn = _statistics(resampled_sums(sums, resamples)) if resamples and len(sums) else {}
    estimates = Estimates(point, drawn)
    defined = int(_defined(edits).sum())
    return Row(defined, len(edits.image) - defined, *(estimates(name) for name in _NAMES))


_NAMES = (*FACTORS, "score", "mean_product", "exact")


def _defined(edits: Edits) -> NDArray[np.bool_]:
    return np.asarray(~np.isnan(edits.factors).any(axis=1), np.bool_)


def _image_sums(edits: Edits) -> Floats:
    """By source image float64 [I, 7]: the three factors, their product, defined edits, exact edits, all edits."""
    defined = _defined(edits)
    factors = np.where(defined[:, None], edits.factors, 0.0)
    exact = edits.delivered == edits.requested
    columns = np.column_stack([factors, factors.prod(axis=1), defined, exact, np.ones(len(defined))])
    images, place = np.unique(edits.image, return_inverse=True)
    found = np.zeros((len(images), columns.shape[1]))
    np.add.at(found, place, columns)
    return found


def _statistics(sums: Floats) -> dict[str, Floats]:
    """By name float64 [B] of sums [B, 7]; NaN where nothing is averaged."""
    *factors, product, defined, exact, every = sums.T
    means = [_ratio(factor, defined) for factor in factors]
    found = [*means, np.prod(means, axis=0), _ratio(product, defined), _ratio(exact, every)]
    return dict(zip(_NAMES, found, strict=True))


def _ratio(top: Floats, number: Floats) -> Floats:
    found: Floats = np.divide(top, number, out=np.full(top.shape, np.nan), where=number > 0)
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Rank correlation of scores and ratings; None where either does not vary."""
    from tallymill.engine.abacus.tiers import ranks

    x, y = (ranks(np.asarray(values, np.float64)) for values in (a, b))
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])
