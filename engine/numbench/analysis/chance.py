"""The sensitivity that chance alone would show: levels that are all alike still differ in the means of a few cores.

(best - worst) / best is never below 0 and grows with noise, so that it has to be read beside what it would be if the
levels made no difference. Which cores have which levels is drawn anew for that.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.grid import CLEAN, Grid
from tallymill.engine.numbench.analysis.images import UNKNOWN
from tallymill.engine.numbench.analysis.leaves import HIGH_UNIT, LOW_UNIT
from tallymill.engine.numbench.analysis.sensitivity import APART, AXES, factors_of, mean_spread, with_mean, words_of
from tallymill.engine.numbench.factors import range_codes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PERMUTATIONS = 20
# Levels fit in so many numbers.
_LEVELS = 64


def chance_of(grid: Grid, core: Ints, seed: int, workers: int) -> dict[str, Floats]:
    """By factor the mean of the relative sensitivity over ``PERMUTATIONS``, [S+1] as in ``sensitivity_of``.

    In each cell, cores with the same number of levels exchange their sets of levels, and each core its levels among
    themselves. Permutation b of the k-th factor is drawn by ``default_rng([seed, k, b])``. ``core`` int64 [L] orders
    the cores in a way that does not depend on the order of images.
    """
    found = {}
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        for at, name in enumerate(factors_of(grid.axes)):
            blocks = _blocks(grid, core, name)
            rngs = [np.random.default_rng([seed, at, b]) for b in range(PERMUTATIONS)]
            found[name] = with_mean(_mean(np.stack(list(pool.map(partial(_drawn, blocks), rngs)))))
    return found


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The images of one core in one cell and level, B of them, by ``group`` (cell and number of levels of the core).

    ``first`` and ``group`` int64 [U] are those of each core in a cell, ``place`` int64 [B] what the cell's place is in
    ``shape`` at level 0, ``stride`` the step from level to level along ``axis``.
    """

    shape: tuple[int, ...]
    axis: int
    stride: int
    place: Ints
    level: Ints
    number: Floats
    cw: Floats
    first: Ints
    group: Ints


def _blocks(grid: Grid, core: Ints, name: str) -> _Blocks:
    where, shape = _places(grid, name)
    axis = len(shape) + AXES["appearance" if name in APART else name]
    stride = int(np.prod(shape[axis + 1 :]))
    level = where[axis]
    known = (level < shape[axis]) & (where[-1] < shape[-1]) & (grid.leaves.number(0) > 0)
    leaf = np.flatnonzero(known)
    cell = np.ravel_multi_index([x[leaf] if at != axis else 0 * leaf for at, x in enumerate(where)], shape)
    owner, key = core[leaf], level[leaf]
    order = np.lexsort((key, owner, cell))
    leaf, cell, owner, key = leaf[order], cell[order], owner[order], key[order]
    new_unit = np.ones(len(leaf), np.bool_)
    new_unit[1:] = (cell[1:] != cell[:-1]) | (owner[1:] != owner[:-1])
    new = new_unit.copy()
    new[1:] |= key[1:] != key[:-1]
    start = np.flatnonzero(new)
    sizes = np.diff(np.flatnonzero(new_unit[start]), append=len(start))
    # By cell and number of levels, so that those who may exchange stand together.
    group = cell[new_unit] * _LEVELS + sizes
    by_group = np.argsort(np.repeat(group, sizes), kind="stable")
    number, high, low = (_added(x[leaf], start)[by_group] for x in (grid.leaves.number(0), *grid.leaves.sums(0)))
    sizes, group = sizes[np.argsort(group, kind="stable")], np.sort(group)
    return _Blocks(
        shape=shape,
        axis=axis - len(shape),
        stride=stride,
        place=cell[start][by_group],
        level=key[start][by_group],
        number=number.astype(np.float64),
        cw=high * HIGH_UNIT + low * LOW_UNIT,
        first=np.cumsum(sizes) - sizes,
        group=np.unique(group, return_inverse=True)[1].astype(np.int64),
    )


def _places(grid: Grid, name: str) -> tuple[list[Ints], tuple[int, ...]]:
    """The place of each leaf by S, C, K, L and appearance; one that tells not all of them lies outside the last."""
    axes = grid.axes
    looks = [CLEAN, UNKNOWN] if name in APART else axes.appearances
    appearance = np.array([looks.index(look) if look in looks else len(looks) for look, _ in axes.looks])
    shape = (*axes.shape[:4], len(looks))
    if name in APART:
        appearance = np.array([0 if a == CLEAN else 1 if g == APART[name] else 2 for a, g in axes.looks])
    where = [grid.system, grid.composition, range_codes(grid.count), grid.layout, appearance[grid.look]]
    for factor, words in words_of(axes, name).items():
        if UNKNOWN in words and len(words) > 1:
            where[-1] = np.where(where[AXES[factor]] == words.index(UNKNOWN), shape[-1], where[-1])
    return [x.astype(np.int64) for x in where], shape


def _drawn(blocks: _Blocks, rng: np.random.Generator) -> Floats:
    """The relative sensitivity of each system, [S], with levels drawn anew."""
    units, number = len(blocks.first), len(blocks.level)
    sizes = np.diff(blocks.first, append=number)
    unit = np.repeat(np.arange(units), sizes)
    other = np.argsort(blocks.group + rng.random(units))
    given = blocks.level[blocks.first[other][unit] + np.arange(number) - blocks.first[unit]]
    if number > units:
        given = given[np.argsort(unit + rng.random(number))]
    place, size = blocks.place + given * blocks.stride, int(np.prod(blocks.shape))
    images, cw = (
        np.bincount(place, values, size).astype(np.float64).reshape(blocks.shape)
        for values in (blocks.number, blocks.cw)
    )
    return mean_spread(images, cw, blocks.axis)[0]


def _mean(values: Floats) -> Floats:
    """The mean over the first axis of the values that there are."""
    has = ~np.isnan(values)
    number = has.sum(axis=0)
    total = np.where(has, values, 0.0).sum(axis=0)
    mean: Floats = np.divide(total, number, out=np.full(number.shape, np.nan), where=number > 0)
    return mean


def _added(values: Ints, start: Ints) -> Ints:
    return np.add.reduceat(values, start) if len(start) else values
