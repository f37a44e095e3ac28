"""Tables of mean scores, and of what scores depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallymill.engine.estimates import Estimate


@dataclass(frozen=True, slots=True)
class Cell:
    """Means over the scored images of one cell of Table 4; ``composition`` and ``count_range`` may be "all".

    ``gap`` is b - cw; ``single_cw`` is the score that each detector would give alone, over the images of the cell that
    it covers, of which there are ``single_scored``; ``ensemble_same`` is the ensemble's over these very images, for
    detectors that cover different images do not compare otherwise. ``cores`` have a scored image: what is resampled.
    """

    system: str
    composition: str
    count_range: str
    stress_test: bool
    items: int
    scored: int
    error: int
    uncovered: int
    cores: int
    cw_nps: Estimate
    b_nps: Estimate
    gap: Estimate
    single_cw: dict[str, Estimate] = field(default_factory=dict)
    single_scored: dict[str, int] = field(default_factory=dict)
    ensemble_same: dict[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """Means of a system minus those of ``reference`` in a cell of Table 4, with intervals from the same resamples.

    Each mean is over the images that its own system has scored there, which come from ``cores`` and
    ``cores_reference`` cores, ``cores_both`` of them the same. Where the three differ, the difference is partly one of
    prompts. All systems share the resamples, so that what makes a core hard for both weighs on neither side.
    """

    system: str
    reference: str
    composition: str
    count_range: str
    stress_test: bool
    cores: int
    cores_reference: int
    cores_both: int
    cw_nps: Estimate
    b_nps: Estimate


@dataclass(frozen=True, slots=True)
class Loss:
    """The share of the score in range 1-25 that is lost in range 76-100: 1 - last / first."""

    system: str
    composition: str
    cw_nps: Estimate
    b_nps: Estimate


@dataclass(frozen=True, slots=True)
class Level:
    """Means of one level of a factor: layout, appearance, or modifier_group (over modified images)."""

    system: str
    factor: str
    level: str
    items: int
    scored: int
    cw_nps: Estimate
    b_nps: Estimate


@dataclass(frozen=True, slots=True)
class Contrast:
    """A level minus its reference, paired: the mean over cores that have both of the difference of their means.

    ``factor`` "layout": grid, scene, random and "guided" (the three together) against free, within the same appearance;
    "appearance": modified, and its groups quality, evidence and mixed, against clean, within the same layout.
    """

    system: str
    factor: str
    level: str
    reference: str
    cores: int
    cw_nps: Estimate
    b_nps: Estimate


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """(best - worst) / best over a factor's levels, averaged over the cells of the other factors (paper, Experiments).

    ``system`` "all" is the mean over systems. ``absolute`` is best - worst likewise. ``cells`` entered the mean;
    ``cells_best_zero`` were left out because their best is 0, ``cells_one_level`` because fewer than two levels have
    images.
    Factors: count_range, layout, composition, appearance; and "appearance: quality", "appearance: evidence", which
    compare clean images with those of that group alone.
    Neither value has an interval: a spread of noisy means is too large on average, and resamples would add the same
    once more. ``chance`` is the ``relative`` that is expected if the levels make no difference: the mean over
    permutations of the cores' levels inside each cell (None without resamples). Where levels do differ much it is
    rather too large, for what they differ by is then part of the noise.
    """

    system: str
    factor: str
    relative: Estimate
    absolute: Estimate
    cells: int
    cells_best_zero: int
    cells_one_level: int
    chance: float | None = None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Scores against requested count: scored images of one composition whose count (see ``range_by``) is ``count``."""

    system: str
    composition: str
    count: int
    stress_test: bool
    scored: int
    cw_nps: Estimate
    b_nps: Estimate
