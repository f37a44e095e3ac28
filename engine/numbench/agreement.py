"""How well annotators agree on counts, and detectors with their consensus (paper, Table 5)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tallymill.engine.numbench.analysis.results import ALL, AgreementRow
from tallymill.engine.numbench.factors import COUNT_RANGES, STRESS_RANGES, RangeBy, range_codes
from tallymill.errors import MissingExtraError, UsageError
from tallymill.kernels.count import score

LEAST_IMAGES = 3


@dataclass(frozen=True, slots=True)
class Judged:
    """I images with R counts of each of their T targets.

    ``system`` and ``item`` name each image; ``offsets`` int64 [I+1] into ``requested`` uint16 [T] (1 to 100),
    ``counts`` int64 [T, R] of the annotators (in any order) and ``soft`` float64 [T], n^ of the detectors. ``cw_nps``
    float64 [I] is their score; NaN stands for none in both. ``marks`` int64 [T] is the number of annotators that marked
    a target as ambiguous and ``image_marks`` int64 [I] of those that marked any of an image's; None where marks were
    not asked for.
    """

    system: Sequence[str]
    item: Sequence[str]
    offsets: NDArray[np.int64]
    requested: NDArray[np.uint16]
    counts: NDArray[np.int64]
    soft: NDArray[np.float64]
    cw_nps: NDArray[np.float64]
    marks: NDArray[np.int64] | None
    image_marks: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.system)


def agreement_rows(
    judged: Judged, systems: Sequence[str], *, range_by: RangeBy = "max", bin_width: int = 1
) -> list[AgreementRow]:
    """Agreement by system and count range: of all systems together first (where there are several), then of each.

    ``range_by`` says how an image with several counts gets its range; by "per-target" each target stands for itself,
    as an image of its own with its own error. The order of images and of annotators leaves no trace. Raises
    ``MissingExtraError`` without scipy.
    """
    if bin_width < 1:
        raise UsageError(f"bin_width {bin_width}: must be at least 1")
    units = _units(judged, range_by)
    known = {name: code for code, name in enumerate(systems)}
    system = np.array([known[judged.system[i]] for i in units.image], np.int64)
    groups = [(ALL, np.ones(len(system), np.bool_))] if len(systems) > 1 else []
    groups += [(name, system == code) for name, code in known.items()]
    rows = []
    for name, mine in groups:
        rows.append(_row(name, ALL, judged, units, mine, bin_width))
        for code, count_range in enumerate(COUNT_RANGES):
            rows.append(_row(name, count_range, judged, units, mine & (units.range == code), bin_width))
    return rows


def consensus(counts: ArrayLike) -> NDArray[np.float64]:
    """The median of each row's counts [T, R]: float64 [T], the mean of the two middle ones where R is even."""
    middle: NDArray[np.float64] = np.median(np.asarray(counts, np.float64), axis=1)
    return middle


def human_scores(
    counts: NDArray[np.int64], requested: NDArray[np.uint16], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Equation 8 with consensus counts in place of n^: float64 [I], to the bit what a detector with them would get."""
    one = np.ones(len(requested), np.uint8)
    return np.asarray(score(consensus(counts), np.zeros(len(requested), np.int64), one, requested, offsets).cw_nps)


def fleiss_kappa(counts: ArrayLike, bin_width: int = 1) -> float | None:
    """Fleiss' kappa of N subjects that R annotators counted [N, R], the counts taken as categories.

    (P - Pe)/(1 - Pe) with P the mean share of agreeing pairs and Pe the sum of squared shares of the categories, in
    exact arithmetic. ``bin_width`` w makes one category of 0, of 1..w, of w+1..2w and so on. None without subjects,
    with fewer than two annotators, and where chance agreement is 1, all counts falling into one category.
    """
    values = -(-np.asarray(counts, np.int64) // bin_width)
    subjects, annotators = values.shape
    if subjects == 0 or annotators < 2:
        return None
    _, category, sizes = np.unique(values, return_inverse=True, return_counts=True)
    if len(sizes) == 1:
        return None
    keys = np.repeat(np.arange(subjects), annotators) * len(sizes) + category.reshape(-1)
    alike = np.unique(keys, return_counts=True)[1]
    total = subjects * annotators
    observed = Fraction(int((alike * (alike - 1)).sum()), total * (annotators - 1))
    chance = Fraction(sum(size * size for size in sizes.tolist()), total * total)
    return float((observed - chance) / (1 - chance))


def correlations(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float] | str:
    """Pearson's and Spearman's correlation, or why there is none. ``MissingExtraError`` without scipy."""
    if len(x) < LEAST_IMAGES:
        return f"fewer than {LEAST_IMAGES} images with a score"
    for values, whose in ((x, "detectors'"), (y, "annotators'")):
        if values.min() == values.max():
            return f"the {whose} scores are all {values[0]:g}"
    statistics = _scipy_statistics()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scores that are nearly alike
        pearson, spearman = (float(test(x, y).statistic) for test in (statistics.pearsonr, statistics.spearmanr))
    return pearson, spearman


@dataclass(frozen=True, slots=True)
class _Units:
    """What counts as one image, sorted by system, item and target: ``image`` int64 [U] of the ``Judged``, ``range``
    int64 [U] as an index into COUNT_RANGES, the detectors' and the annotators' score float64 [U], and the targets
    ``first[u]:last[u]`` (int64 [U]). ``each_target``: every target is a unit of its own.
    """

    image: NDArray[np.int64]
    range: NDArray[np.int64]
    detector: NDArray[np.float64]
    human: NDArray[np.float64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    each_target: bool = False


def _units(judged: Judged, range_by: RangeBy) -> _Units:
    order = sorted(range(len(judged)), key=lambda i: (judged.system[i], judged.item[i]))
    image = np.array(order, np.int64)
    first, last = judged.offsets[:-1][image], judged.offsets[1:][image]
    if range_by == "per-target":
        image = np.repeat(image, last - first)
        target = np.concatenate([np.empty(0, np.int64), *map(np.arange, first, last)])
        single = np.arange(len(judged.requested) + 1)
        human = human_scores(judged.counts, judged.requested, single)[target]
        n = judged.requested[target].astype(np.float64)
        detector = np.maximum(0.0, 1.0 - np.abs(judged.soft[target] - n) / n)
        # Where an image has no score, none of its targets has one.
        detector = np.where(np.isnan(judged.cw_nps[image]), np.nan, detector)
        return _Units(
            image, range_codes(judged.requested[target].astype(np.int64)), detector, human, target, target + 1, True
        )
    human = human_scores(judged.counts, judged.requested, judged.offsets)[image]
    size = _sizes(judged, range_by)[image]
    return _Units(image, range_codes(size), judged.cw_nps[image], human, first, last)


def _sizes(judged: Judged, range_by: RangeBy) -> NDArray[np.int64]:
    """The count that an image's range goes by."""
    if not len(judged):
        return np.empty(0, np.int64)
    counts, starts = judged.requested.astype(np.int64), judged.offsets[:-1]
    if range_by == "max":
        return np.asarray(np.maximum.reduceat(counts, starts))
    return np.asarray(-(-np.add.reduceat(counts, starts) // np.diff(judged.offsets)))


def _row(system: str, name: str, judged: Judged, units: _Units, mine: NDArray[np.bool_], width: int) -> AgreementRow:
    targets = np.array([t for u in np.flatnonzero(mine) for t in range(units.first[u], units.last[u])], np.int64)
    kappa = fleiss_kappa(judged.counts[targets], width)
    has = mine & ~np.isnan(units.detector)
    detector, human = units.detector[has], units.human[has]
    found = correlations(detector, human)
    pearson, spearman = (None, None) if isinstance(found, str) else found
    some, most = _marked(judged, units, mine)
    return AgreementRow(
        system=system,
        count_range=name,
        stress_test=name in STRESS_RANGES,
        images=int(mine.sum()),
        scored=len(detector),
        judged=len(targets),
        kappa=kappa,
        kappa_why=None if kappa is not None else _why_no_kappa(judged.counts[targets]),
        pearson=pearson,
        spearman=spearman,
        correlation_why=found if isinstance(found, str) else None,
        human_cw=_mean(human),
        detector_cw=_mean(detector),
        difference=_mean(np.abs(detector - human)),
        ambiguous_any=some,
        ambiguous_most=most,
    )


def _marked(judged: Judged, units: _Units, mine: NDArray[np.bool_]) -> tuple[int | None, int | None]:
    """Units that anyone, and that most, marked: a target by its own marks where each stands for itself."""
    if judged.marks is None or judged.image_marks is None:
        return None, None
    marks = judged.marks[units.first[mine]] if units.each_target else judged.image_marks[units.image[mine]]
    return int((marks > 0).sum()), int((2 * marks > judged.counts.shape[1]).sum())


def _why_no_kappa(counts: NDArray[np.int64]) -> str:
    if not len(counts):
        return "no images"
    if counts.shape[1] < 2:
        return "a single annotator"
    return "all counts are of one kind, so that annotators agree by chance alone"


def _mean(values: NDArray[np.float64]) -> float | None:
    return math.fsum(values.tolist()) / len(values) if len(values) else None


def _scipy_statistics() -> Any:
    with MissingExtraError.unless("scipy", extra="report"):
        import scipy.stats
    return scipy.stats
