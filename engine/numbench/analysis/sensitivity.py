"""How much scores vary with a factor while the others are held: (best - worst) / best, averaged over cells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.grid import CLEAN, MODIFIED, Axes, Sums, of_units
from tallymill.engine.numbench.analysis.images import UNKNOWN
from tallymill.engine.numbench.factors import EVIDENCE, QUALITY

Floats = NDArray[np.float64]
APART = {f"appearance: {group}": group for group in (QUALITY, EVIDENCE)}
# Positions in the shape S, C, K, L and the appearance (or a choice of looks), from the end.
AXES = {"count_range": -3, "layout": -2, "composition": -4, "appearance": -1}


def factors_of(axes: Axes) -> list[str]:
    """The factors with a level that is known; ``APART`` where their group is."""
    words = {"layout": axes.layouts, "appearance": axes.appearances}
    known = [name for name in AXES if set(words.get(name, "known")) - {UNKNOWN}]
    return known + [name for name, group in APART.items() if (MODIFIED, group) in axes.looks]


def sensitivity_of(sums: Sums, axes: Axes) -> tuple[dict[str, Floats], dict[str, NDArray[np.int64]]]:
    """Statistics ``sensitivity.FACTOR.relative`` and ``.absolute`` [..., S+1], the mean over systems last; and by
    factor the numbers of cells [..., S, 3] that were used, whose best is 0, that have one level only.
    """
    found, cells = {}, {}
    for name in factors_of(axes):
        number, cw, axis = _levels(sums, axes, name)
        relative, absolute, counts = mean_spread(number, cw, axis)
        found[f"sensitivity.{name}.relative"] = with_mean(relative)
        found[f"sensitivity.{name}.absolute"] = with_mean(absolute)
        cells[name] = counts
    return found, cells


def _levels(sums: Sums, axes: Axes, name: str) -> tuple[Floats, Floats, int]:
    """Numbers and sums of cw by S, C, K, L and appearance, only levels that are known; the axis of the factor."""
    if name in APART:
        chosen = [[look[0] == CLEAN for look in axes.looks], [look == (MODIFIED, APART[name]) for look in axes.looks]]
    else:
        chosen = [[look[0] == word for look in axes.looks] for word in axes.appearances]
    member = np.array(chosen, np.float64).T
    number = sums.number @ member
    cw = of_units(np.moveaxis(np.moveaxis(sums.cw, -1, -2) @ member, -1, -2))
    axis = AXES["appearance" if name in APART else name]
    for factor, words in words_of(axes, name).items():
        if UNKNOWN in words and len(words) > 1:  # what nobody knows is no level, and no condition to hold either
            kept = [at for at, word in enumerate(words) if word != UNKNOWN]
            number, cw = (np.take(x, kept, AXES[factor]) for x in (number, cw))
    return number, cw, axis


def words_of(axes: Axes, name: str) -> dict[str, list[str]]:
    """The levels of the factors whose levels are words, as the sensitivity to one of them has them."""
    appearances = [CLEAN, MODIFIED] if name in APART else axes.appearances
    return {"layout": axes.layouts, "appearance": appearances, "composition": axes.compositions}


def mean_spread(number: Floats, cw: Floats, axis: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Means over cells of the relative and the absolute spread, [..., S]; how many cells were used and were not."""
    has = number > 0
    mean = np.divide(cw, number, out=np.zeros_like(cw), where=has)
    best = np.where(has, mean, -np.inf).max(axis=axis)
    worst = np.where(has, mean, np.inf).min(axis=axis)
    levels = has.sum(axis=axis)
    zero, used = (levels >= 2) & (best == 0), (levels >= 2) & (best > 0)
    difference = np.where(used, best - worst, 0.0)
    share = np.divide(difference, best, out=np.zeros_like(best), where=used)
    over = (-3, -2, -1)
    cells = np.stack([mask.sum(axis=over) for mask in (used, zero, levels == 1)], axis=-1)
    with np.errstate(invalid="ignore"):
        relative, absolute = (x.sum(axis=over) / cells[..., 0] for x in (share, difference))
    return relative, absolute, cells


def with_mean(values: Floats) -> Floats:
    """With the mean over the systems that have a value as one more of them."""
    has = ~np.isnan(values)
    total = np.where(has, values, 0.0).sum(axis=-1, keepdims=True)
    number = has.sum(axis=-1, keepdims=True)
    mean = np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0)
    return np.concatenate([values, mean], axis=-1)
