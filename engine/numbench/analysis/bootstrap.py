"""Resamples of cores inside (composition, range): the statistics of each, as exact as those of the images.

What a core brings to any sum is a whole number, of images or of a small fraction of a score, small enough that every
sum of resampled cores is a whole number below 2^53. Sums of such floats are exact in any order, so that a matrix
product gives them all, whatever its number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.counting import FAMILIES, SIDES
from tallymill.engine.numbench.analysis.grid import RANGES, Axes, Sums
from tallymill.engine.numbench.analysis.leaves import HIGH_UNIT
from tallymill.engine.numbench.analysis.statistics import error_statistics, statistics
from tallymill.engine.numbench.analysis.units import Block, Units, block_of
from tallymill.engine.numbench.factors import GREATEST_COUNT

Floats = NDArray[np.float64]
# Weights of so many bytes at once, and matrices that are kept rather than made for each of these chunks.
_WEIGHT_BYTES, _KEPT_BYTES = 1 << 28, 1 << 30
_MOST_AT_ONCE, _CUBE_NUMBERS = 128, 1 << 25
_EXACT_BITS, _MOST_BITS = 52, 40


def resampled(units: Units, resamples: int, seed: int, workers: int) -> dict[str, Floats]:
    """Every statistic of each resample, [resamples, ...]; resample b is drawn by ``default_rng([seed, b])``.

    It takes from each stratum, in order, as many cores as there are with a scored image of any system.
    """
    axes = units.grid.axes
    bits = scale_bits(units)
    size = int(np.prod(axes.shape)) + int(np.prod(axes.shape[:2])) * GREATEST_COUNT
    at_once = min(_MOST_AT_ONCE, max(_WEIGHT_BYTES // max(len(units), 1), 1), max(_CUBE_NUMBERS // size, 1))
    matrices = _Matrices(units, bits)
    chunks = []
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        for start in range(0, resamples, at_once):
            numbers = range(start, min(start + at_once, resamples))
            weights = np.stack(list(pool.map(lambda b: weights_of(units, seed, b), numbers)))
            chunks.append(_statistics(weights, matrices, units, bits))
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def weights_of(units: Units, seed: int, number: int) -> NDArray[np.uint8]:
    """How often one resample takes each unit: uint8 [U]."""
    rng = np.random.default_rng([seed, number])
    found = np.zeros(len(units), np.uint8)
    for stratum in units.strata():
        size = stratum.stop - stratum.start
        times = np.bincount(rng.integers(0, size, size), minlength=size)
        assert times.max() < 256, "no unit is drawn so often"
        found[stratum] = times
    return found


def scale_bits(units: Units) -> int:
    """Scores are taken as whole numbers of 2^-bits, so that no sum reaches 2^53."""
    numbers = units.grid.leaves.number(0)[units.order]
    most = int(np.add.reduceat(numbers, units.first[:-1]).max()) if len(units) else 1
    return min(_EXACT_BITS - int(np.ceil(np.log2(most * max(len(units), 1)))), _MOST_BITS)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A block as whole numbers: ``columns`` [U, F] in the order of ``_PARTS``, ``curve`` [R, 3 S] with its ``rows``."""

    stratum: int
    ranges: NDArray[np.int32]
    columns: Floats
    rows: NDArray[np.int64]
    curve: Floats


# Fields of ``Block`` side by side, and whether they are scores, which are scaled.
_PARTS = {
    "number": False,
    "cw": True,
    "b": True,
    "single_number": False,
    "single_cw": True,
    "same_cw": True,
    "families": False,
    "sides": False,
    "errors": False,  # whole numbers already
    "paired": False,
    "paired_cw": True,
    "paired_b": True,
}


class _Matrices:
    """The blocks of all units; kept after the first time as far as memory allows."""

    def __init__(self, units: Units, bits: int) -> None:
        self._units, self._bits = units, bits
        self._kept: dict[int, Matrix] = {}
        self._bytes = 0

    def __iter__(self) -> Iterator[tuple[slice, Matrix]]:
        for of in self._units.blocks():
            matrix = self._kept.get(of.start)
            if matrix is None:
                matrix = matrix_of(block_of(self._units, of), int(self._units.stratum[of.start]), self._bits)
                size = matrix.columns.nbytes + matrix.curve.nbytes + matrix.rows.nbytes
                if self._bytes + size <= _KEPT_BYTES:
                    self._kept[of.start] = matrix
                    self._bytes += size
            yield of, matrix


def matrix_of(block: Block, stratum: int, bits: int) -> Matrix:
    """Scale and round what is a score, and put everything side by side."""
    size = len(block.number)

    def whole(values: Floats, scaled: bool) -> Floats:
        return np.rint(np.ldexp(values, bits)) if scaled else values

    parts = [whole(getattr(block, name), scaled).reshape(size, -1) for name, scaled in _PARTS.items()]
    curve = [whole(values, at > 0) for at, values in enumerate(block.curve)]
    return Matrix(stratum, block.ranges, np.concatenate(parts, axis=1), block.rows, np.concatenate(curve, axis=1))


def _statistics(weights: NDArray[np.uint8], matrices: _Matrices, units: Units, bits: int) -> dict[str, Floats]:
    """The statistics of some resamples, with these as the first axis."""
    axes, errors = units.grid.axes, units.errors
    totals = _empty(units, len(weights))
    curve = np.zeros((len(weights), *axes.shape[:2], GREATEST_COUNT, 3))
    for of, matrix in matrices:
        drawn = weights[:, of].astype(np.float64)
        _spread(drawn @ matrix.columns, matrix, axes, totals)
        composition = matrix.stratum // RANGES
        rows, counts = matrix.rows
        drawn = drawn[:, rows]
        edges = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)]
        for start, stop in pairwise(edges):
            values = (drawn[:, start:stop] @ matrix.curve[start:stop]).reshape(len(weights), 3, -1)
            curve[:, :, composition, counts[start] - 1] += values.transpose(0, 2, 1)
    unit = 2.0**-bits
    scaled = {name: values * unit if _PARTS[name] else values for name, values in totals.items()}
    in_units = {name: scaled[name][..., None] / HIGH_UNIT for name in ("cw", "b", "single_cw", "same_cw")}
    number, cw, b = np.moveaxis(curve, -1, 0)
    curves = {name: values[..., None] * (unit / HIGH_UNIT) for name, values in (("curve_cw", cw), ("curve_b", b))}
    families, sides, off = (scaled.pop(name) for name in ("families", "sides", "errors"))
    found = statistics(Sums(**{**scaled, **in_units, **curves, "curve_number": number}), axes)
    return found if errors is None else found | error_statistics(families, sides, off, errors.units)


def _empty(units: Units, resamples: int) -> dict[str, Floats]:
    axes = units.grid.axes
    cells, errors = axes.shape[:3], units.errors is not None
    pieces = (0, 0) if units.errors is None else units.errors.places.shape
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("number", "cw", "b"), axes.shape),
        **dict.fromkeys(("single_number", "single_cw", "same_cw"), (*cells, len(axes.detectors))),
        "families": (*cells, len(FAMILIES) * errors),
        "sides": (*cells, len(SIDES) * errors),
        "errors": (*cells, *pieces),
        **dict.fromkeys(("paired", "paired_cw", "paired_b"), (axes.shape[0], len(units.contrasts))),
    }
    return {name: np.zeros((resamples, *shape)) for name, shape in shapes.items()}


def _spread(products: Floats, matrix: Matrix, axes: Axes, totals: dict[str, Floats]) -> None:
    """Add the columns of a block's product to the sums that they belong to."""
    composition, ranges = matrix.stratum // RANGES, len(matrix.ranges)
    at = 0
    for name, total in totals.items():
        if name.startswith("paired"):
            shape: tuple[int, ...] = total.shape[1:]
        else:
            shape = (axes.shape[0], ranges, *total.shape[4:])
        size = int(np.prod(shape))
        values = products[:, at : at + size].reshape(len(products), *shape)
        at += size
        if name.startswith("paired"):
            total += values
        else:
            for place, k in enumerate(matrix.ranges.tolist()):
                total[:, :, composition, k] += values[:, :, place]
