"""What an analysis finds: one dataclass a table, one instance a row. Files, pages and plots are made from these.

Rows are ordered by system (in the order given), then by the factor's own order. ``None`` stands for a value that does
not exist (a mean over nothing); the row is there all the same, with its numbers of images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ALL = "all"
# Of cores, where nobody says how many.
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its 95 % percentile bootstrap interval.

    ``low`` and ``high`` are None without a bootstrap, and where no resample gave a value; ``null_resamples`` counts the
    resamples without one.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    null_resamples: int = 0


@dataclass(frozen=True, slots=True)
class SystemRow:
    """One system: its RUN, and what it has images of.

    ``items`` = ``scored`` + ``error`` + ``uncovered``. ``samples_least`` and ``_most``: images a prompt.
    ``prompts_missing``: prompts that have no image of this system, of those that another system or the prompts file has
    (``items_without_prompt`` are images that name no prompt; they make a core of their own each).
    ``not_1024``: images that are not 1024 x 1024, unreadable ones left aside.
    """

    system: str
    run: str
    items: int
    scored: int
    error: int
    uncovered: int
    prompts: int
    cores: int
    samples_least: int
    samples_most: int
    prompts_missing: int
    items_without_prompt: int
    not_1024: int


@dataclass(frozen=True, slots=True)
class Cell:
    """Means over the scored images of one cell of Table 4; ``composition`` and ``count_range`` may be "all".

    ``gap`` is b - cw; ``single_cw`` is the score that each detector would give alone, over the images of the cell that
    it covers, of which there are ``single_scored``.
    """

    system: str
    composition: str
    count_range: str
    stress_test: bool
    items: int
    scored: int
    error: int
    uncovered: int
    cw_nps: Estimate
    b_nps: Estimate
    gap: Estimate
    single_cw: dict[str, Estimate] = field(default_factory=dict)
    single_scored: dict[str, int] = field(default_factory=dict)


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
class Families:
    """Scored images by failure family (Table 6), from hard errors e_i = n^_i - n_i.

    none: every |e_i| <= .5; binding: k >= 2 and |sum of e_i| <= .5; cardinality: else.
    """

    system: str
    composition: str
    count_range: str
    stress_test: bool
    scored: int
    none: int
    cardinality: int
    binding: int


@dataclass(frozen=True, slots=True)
class SignedError:
    """Counted minus requested over the targets of scored images, in objects and as a share of the request.

    ``under``, ``exact``, ``over`` count targets by their hard error (exact: |e| <= .5).
    """

    system: str
    composition: str
    count_range: str
    stress_test: bool
    targets: int
    hard: float | None
    soft: float | None
    hard_relative: float | None
    soft_relative: float | None
    under: int
    exact: int
    over: int


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


@dataclass(frozen=True, slots=True)
class VisiblePoint:
    """Mean hard and soft counts of single-category scored images of one layout and requested count.

    Only of clean images, and of those whose appearance is not known: modifiers change what is visible by design.
    """

    system: str
    layout: str
    count: int
    scored: int
    hard: float
    soft: float
    stress_test: bool = False


@dataclass(frozen=True, slots=True)
class CollisionFit:
    """A = M/q of equation 3 fitted to the visible (hard) counts of one layout.

    ``verdict`` is "fitted"; "least" (capacity 1, the smallest that there is: no more than one object is visible);
    "infinite" (visible >= requested on average) or "no data" (no image that asks for two or more), which have
    ``capacity`` None. ``coordination`` is lambda = 1 - A_free / A_layout, "if M were equal"; None for free, and where
    no lambda in 0..1 does it: free is infinite, or the layout has less. ``rmse`` in objects, weighted by images.
    """

    system: str
    layout: str
    verdict: str
    capacity: float | None
    coordination: float | None
    rmse: float | None
    points: int
    scored: int


@dataclass(frozen=True, slots=True)
class Saturation:
    """What one detector did on a system's images. ``saturated``: it returned as many boxes as it can."""

    system: str
    detector: str
    items: int
    failed: int
    saturated: int
    proposals: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """Scored images by D of equations 5 and 8: the number of detectors that cover the category, of an image the least.

    Where D differs between images, so does what their counts are means of.
    """

    system: str
    composition: str
    detectors: int
    scored: int


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A category that no detector of the ensemble knows, with the number of a system's images that asked for it."""

    system: str
    category: str
    items: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why images have no score: an error text, how many of a system's images it struck, and the least of their ids."""

    system: str
    reason: str
    items: int
    first_item: str


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """What people saw beside what the detectors counted, over images of one count range (or "all").

    ``images`` have a count of every annotator for each requested category; ``scored`` of them have a score, and
    correlations, means and ``difference`` (the mean of |detector - human|) are over these. ``judged`` pairs of an image
    and a category enter Fleiss' ``kappa``. The human score is that of the consensus (median) counts in place of n^.
    ``ambiguous_any`` and ``ambiguous_most`` count images that an annotator, or more than half of them, marked as
    ambiguous (Table 6, visibility), None where the file has no marks. ``kappa_why`` and ``correlation_why`` say why a
    value is None.
    """

    system: str
    count_range: str
    stress_test: bool
    images: int
    scored: int
    judged: int
    kappa: float | None
    kappa_why: str | None
    pearson: float | None
    spearman: float | None
    correlation_why: str | None
    human_cw: float | None
    detector_cw: float | None
    difference: float | None
    ambiguous_any: int | None
    ambiguous_most: int | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Detectors against annotators: ``rows`` by system ("all" first where there are several), then by count range.

    ``annotators`` is the number of counts that each image and category needs. ``bin_width`` is the width of the bins
    that kappa takes counts by: 1 tells all counts apart, w puts 0, 1..w, w+1..2w and so on together.
    """

    annotations: str
    annotations_sha256: str
    annotators: int
    bin_width: int
    range_by: str
    rows: list[AgreementRow]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that an analysis found. ``settings``: range_by, resamples, seed. ``runs``: what shaped each RUN.

    ``notes`` are sentences that a reader must have seen before the numbers: several images a prompt, images of other
    sizes, systems with different prompt sets, factors that the RUN does not know, and the like.
    """

    settings: dict[str, Any]
    runs: list[dict[str, Any]]
    notes: list[str]
    systems: list[SystemRow]
    overall: list[Cell]
    cells: list[Cell]
    losses: list[Loss]
    levels: list[Level]
    contrasts: list[Contrast]
    sensitivity: list[Sensitivity]
    families: list[Families]
    signed_errors: list[SignedError]
    curve: list[CurvePoint]
    visible: list[VisiblePoint]
    collision: list[CollisionFit]
    saturation: list[Saturation]
    coverage: list[Coverage]
    uncovered: list[Uncovered]
    failures: list[Failure]
    agreement: Agreement | None = None
