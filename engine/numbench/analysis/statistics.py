"""Every statistic that has an interval, from sums.

One function gives those of scores, for the images as they are and for every resample. Another gives the shares and
errors of resamples; those of the images as they are come from exact sums (``tabulate_counts.counts_on``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.grid import MODIFIED, Axes, Sums, of_units
from tallymill.engine.numbench.analysis.images import UNKNOWN

Floats = NDArray[np.float64]
# Positions of the axes of ``Sums.number``, from the end.
_COMPOSITION, _RANGE, _LAYOUT, _LOOK = -4, -3, -2, -1


def statistics(sums: Sums, axes: Axes) -> dict[str, Floats]:
    """Statistics by name, NaN where they do not exist; the axes are those of ``Sums``, leading ones first.

    Where a composition or range may be "all", that stands last on its axis.
    """
    number, cw, b = sums.number, sums.cw, sums.b
    found = _cells(sums)
    found |= _named("level.layout", number, cw, b, drop=(_COMPOSITION, _RANGE, _LOOK))
    for name, levels in (("appearance", axes.appearances), ("modifier_group", axes.groups)):
        member = membership(axes, name, levels)
        of_level = (
            np.moveaxis(np.tensordot(x, member, axes=(at, 0)), -1, at) for x, at in ((number, -1), (cw, -2), (b, -2))
        )
        found |= _named(f"level.{name}", *of_level, drop=(_COMPOSITION, _RANGE, _LAYOUT))
    found["curve.cw_nps"] = ratio(of_units(sums.curve_cw), sums.curve_number)
    found["curve.b_nps"] = ratio(of_units(sums.curve_b), sums.curve_number)
    found["contrast.cw_nps"] = ratio(sums.paired_cw, sums.paired)
    found["contrast.b_nps"] = ratio(sums.paired_b, sums.paired)
    for name in ("cw_nps", "b_nps"):
        cells = found[f"cell.{name}"][..., :-1]
        found[f"loss.{name}"] = 1.0 - ratio(cells[..., -1], cells[..., 0])
    return found


def error_statistics(families: Floats, sides: Floats, errors: Floats, units: Floats) -> dict[str, Floats]:
    """Shares of images by family and of targets by side, [..., S, C+1, K+1, 3], and mean errors, [..., 4]; "all" last.

    ``families`` [..., S, C, K, 3], ``sides`` likewise, and ``errors`` [..., S, C, K, P, 4] are sums, these in pieces
    that are whole numbers of ``units`` [P, 4]. Each mean is rounded once or twice, after everything is added.
    """
    families, sides = with_all(families, -2, -3), with_all(sides, -2, -3)
    errors = (with_all(errors, -3, -4) * units).sum(axis=-2)
    targets = sides.sum(axis=-1, keepdims=True)
    return {
        "family": ratio(families, families.sum(axis=-1, keepdims=True)),
        "side": ratio(sides, targets),
        "error": ratio(errors, targets),
    }


def membership(axes: Axes, factor: str, levels: list[str]) -> Floats:
    """Which looks belong to each level of a factor: 0 or 1, [P, levels]."""

    def has(look: tuple[str, str | None], level: str) -> bool:
        if factor == "appearance":
            return look[0] == level
        return look[0] == MODIFIED and (look[1] or UNKNOWN) == level

    return np.array([[has(look, level) for level in levels] for look in axes.looks], np.float64).reshape(
        len(axes.looks), len(levels)
    )


def ratio(top: Floats, bottom: Floats) -> Floats:
    """top / bottom, NaN where bottom is 0."""
    found: Floats = np.divide(
        top, bottom, out=np.full(np.broadcast_shapes(top.shape, bottom.shape), np.nan), where=bottom != 0
    )
    return found


def with_all(cells: Floats, *axes: int) -> Floats:
    """The same with the sum along each axis as one more level of it, the last."""
    for axis in axes:
        cells = np.concatenate([cells, cells.sum(axis=axis, keepdims=True)], axis=axis)
    return cells


def _cells(sums: Sums) -> dict[str, Floats]:
    number = with_all(sums.number.sum(axis=(_LAYOUT, _LOOK)), -1, -2)
    cw, b = (of_units(with_all(x.sum(axis=(_LAYOUT - 1, _LOOK - 1)), -2, -3)) for x in (sums.cw, sums.b))
    cw, b = ratio(cw, number), ratio(b, number)
    number = with_all(sums.single_number, -2, -3)
    alone, same = (ratio(of_units(with_all(x, -3, -4)), number) for x in (sums.single_cw, sums.same_cw))
    return {
        **{"cell.cw_nps": cw, "cell.b_nps": b, "cell.gap": b - cw},
        **{"cell.single_cw": alone, "cell.ensemble_same": same},
    }


def _named(name: str, number: Floats, cw: Floats, b: Floats, *, drop: tuple[int, ...]) -> dict[str, Floats]:
    below = number.sum(axis=drop)
    scores = {"cw_nps": cw, "b_nps": b}
    return {
        f"{name}.{of}": ratio(of_units(x.sum(axis=tuple(axis - 1 for axis in drop))), below) for of, x in scores.items()
    }
