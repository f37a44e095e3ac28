"""An analysis as tables for a reader: a terminal shows them, and Markdown keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tallymill.engine.estimates import Estimate
from tallymill.engine.numbench.analysis.results import ALL, Agreement, Analysis, Sensitivity
from tallymill.engine.numbench.factors import COMPOSITIONS, COUNT_RANGES, STRESS_RANGES

STRESS_MARK = "‡"
STRESS_NOTE = f"{STRESS_MARK} Above 50: a stress test, for people and detectors agree less there."
CHANCE_NOTE = "By chance: the relative value that is expected if the levels make no difference."
NOTHING = "–"
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Table:
    """A table for a reader: every row has a text for each of the ``columns``; ``text`` columns are set to the left."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    text: int = 1
    note: str | None = None


COVERAGE = "Scored images by the number of detectors that know their categories"


def tables_of(analysis: Analysis) -> list[Table]:
    """Everything but the curves, in the order of reading; tables without rows are left out."""
    found = [
        systems_table(analysis),
        scores_table(analysis),
        differences_table(analysis),
        detectors_table(analysis),
        _levels(analysis),
        _contrasts(analysis),
        sensitivity_table(analysis),
        families_table(analysis),
        _signed_errors(analysis),
        _collision(analysis),
        *([] if analysis.agreement is None else [agreement_table(analysis.agreement)]),
        _saturation(analysis),
        _few(COVERAGE, ["system", "composition", "detectors", "images"], analysis.coverage),
        _few("Categories that no detector covers", ["system", "category", "images"], analysis.uncovered),
        _few("Why images have no score", ["system", "reason", "images", "first"], analysis.failures),
    ]
    return [table for table in found if table.rows]


def systems_table(analysis: Analysis) -> Table:
    """What there is of each system, and its means over everything."""
    whole = {cell.system: cell for cell in analysis.overall}
    columns = ["system", "images", "scored", "failed", "uncovered", "prompts", "cw-NPS", "b-NPS", "b - cw"]
    rows = []
    for row in analysis.systems:
        cell = whole[row.system]
        numbers = (row.items, row.scored, row.error, row.uncovered, row.prompts)
        means = [estimate(cell.cw_nps), estimate(cell.b_nps), estimate(cell.gap, signed=True)]
        rows.append([row.system, *(f"{n:,}" for n in numbers), *means])
    return Table("Systems", columns, rows)


def scores_table(analysis: Analysis) -> Table:
    """Table 4: mean scores by composition and count range, and the loss from the first range to the last."""
    cells = {(c.system, c.composition, c.count_range): c for c in [*analysis.cells, *analysis.overall]}
    losses = {(loss.system, loss.composition): loss for loss in analysis.losses}
    rows = []
    for (system, composition), loss in losses.items():
        own = [cells[system, composition, name] for name in (*COUNT_RANGES, ALL)]
        if composition not in (*COMPOSITIONS, ALL) and not own[-1].items:
            continue
        for label, name in (("cw-NPS", "cw_nps"), ("b-NPS", "b_nps")):
            values = [estimate(getattr(of, name)) for of in (*own, loss)]
            rows.append([system, composition, label, *values])
    columns = ["system", "composition", "score", *map(ranged, COUNT_RANGES), ALL, f"loss {STRESS_MARK}"]
    return Table("Scores by count range (Table 4)", columns, rows, text=3, note=STRESS_NOTE)


def differences_table(analysis: Analysis, *, whole: bool = False) -> Table:
    """What systems differ by, cell by cell of Table 4; with ``whole`` only over everything."""
    rows = [
        [
            f"{row.system} - {row.reference}",
            row.composition,
            ranged(row.count_range),
            *(f"{n:,}" for n in (row.cores, row.cores_reference, row.cores_both)),
            estimate(row.cw_nps, signed=True),
            estimate(row.b_nps, signed=True),
        ]
        for row in analysis.differences
        if (row.composition == row.count_range == ALL if whole else row.cw_nps.value is not None)
    ]
    note = (
        "Each mean is over the images that its system has scored. Where the numbers of cores (of the first, of the "
        "second, of both) differ, so do the prompts, and the difference is partly theirs."
    )
    note = note if whole else f"{note} {STRESS_NOTE}"
    columns = ["systems", "composition", "count range", "cores", "of the other", "of both", "cw-NPS", "b-NPS"]
    return Table("Differences between systems", columns, rows, text=3, note=note)


def detectors_table(analysis: Analysis) -> Table:
    """The score of each detector alone beside the ensemble's over the same images, where it covers any."""
    rows = [
        [
            cell.system,
            name,
            f"{cell.single_scored[name]:,}",
            estimate(alone),
            estimate(cell.ensemble_same[name]),
        ]
        for cell in analysis.overall
        for name, alone in cell.single_cw.items()
        if alone.value is not None
    ]
    note = "Each over the images that the detector covers; the ensemble over the same ones."
    columns = ["system", "detector", "images", "alone", "ensemble"]
    return Table("cw-NPS of single detectors", columns, rows, text=2, note=note)


def shown_sensitivity(analysis: Analysis) -> list[Sensitivity]:
    """The rows for a reader: of a single system without the mean over all systems, which says the same again."""
    if len(analysis.systems) > 1:
        return analysis.sensitivity
    first: dict[str, Sensitivity] = {}
    for row in analysis.sensitivity:
        if any(row.system == one.system for one in analysis.systems):
            first.setdefault(row.factor, row)  # the mean comes last, should the system too be called "all"
    return [*first.values()]


def sensitivity_table(analysis: Analysis) -> Table:
    """(best - worst) / best by factor."""
    columns = ["system", "factor", "relative", "by chance", "absolute", "cells", "best is 0", "one level"]
    rows = [
        [
            row.system,
            row.factor.replace("_", " "),
            estimate(row.relative),
            number(row.chance),
            estimate(row.absolute),
            *(f"{n:,}" for n in (row.cells, row.cells_best_zero, row.cells_one_level)),
        ]
        for row in shown_sensitivity(analysis)
    ]
    return Table("Sensitivity to the factors: (best - worst) / best of cw-NPS", columns, rows, text=2, note=CHANCE_NOTE)


def families_table(analysis: Analysis) -> Table:
    """Table 6: shares of scored images by failure family."""
    columns = ["system", "composition", "count range", "scored", "none", "cardinality", "binding"]
    rows = [
        [
            row.system,
            row.composition,
            ranged(row.count_range),
            f"{row.scored:,}",
            *(share(of) for of in (row.none_share, row.cardinality_share, row.binding_share)),
        ]
        for row in analysis.families
        if row.scored
    ]
    note = f"From hard counts, to half an object. {STRESS_NOTE}"
    return Table("Failure families (Table 6)", columns, rows, text=3, note=note)


def _levels(analysis: Analysis) -> Table:
    columns = ["system", "factor", "level", "images", "scored", "cw-NPS", "b-NPS"]
    rows = [
        [r.system, _words(r.factor), r.level, f"{r.items:,}", f"{r.scored:,}", estimate(r.cw_nps), estimate(r.b_nps)]
        for r in analysis.levels
    ]
    return Table("Means by layout and appearance", columns, rows, text=3)


def _contrasts(analysis: Analysis) -> Table:
    rows = [
        [
            row.system,
            f"{row.level} - {row.reference}",
            f"{row.cores:,}",
            estimate(row.cw_nps, signed=True),
            estimate(row.b_nps, signed=True),
        ]
        for row in analysis.contrasts
    ]
    note = "The mean over cores that have both of the difference of their means."
    return Table("Paired contrasts", ["system", "contrast", "cores", "cw-NPS", "b-NPS"], rows, text=2, note=note)


def _signed_errors(analysis: Analysis) -> Table:
    columns = ["system", "composition", "count range", "targets", "hard", "soft", "hard / n", "soft / n"]
    rows = [
        [
            row.system,
            row.composition,
            ranged(row.count_range),
            f"{row.targets:,}",
            *(estimate(v, signed=True) for v in (row.hard, row.soft, row.hard_relative, row.soft_relative)),
            *(share(v) for v in (row.under_share, row.exact_share, row.over_share)),
        ]
        for row in analysis.signed_errors
        if row.targets
    ]
    note = f"Counted minus requested, in objects and as a share; under and over by more than half. {STRESS_NOTE}"
    return Table("Signed error", [*columns, "under", "exact", "over"], rows, text=3, note=note)


def _collision(analysis: Analysis) -> Table:
    columns = ["system", "layout", "verdict", "A = M/q", "lambda", "RMSE", "counts", "images"]
    rows = [
        [
            row.system,
            row.layout,
            row.verdict,
            *(number(value) for value in (row.capacity, row.coordination, row.rmse)),
            f"{row.points:,}",
            f"{row.scored:,}",
        ]
        for row in analysis.collision
        if row.points
    ]
    note = (
        "Each layout is fitted to its own hard counts of images with one category; "
        "lambda = 1 - A_free / A_layout, if M were equal."
    )
    return Table("Collision model", columns, rows, text=3, note=note)


def _saturation(analysis: Analysis) -> Table:
    columns = ["system", "detector", "images", "failed", "saturated", "boxes"]
    rows = [
        [row.system, row.detector, *(f"{n:,}" for n in (row.items, row.failed, row.saturated, row.proposals))]
        for row in analysis.saturation
    ]
    note = "Saturated: the detector returned as many boxes as it can, so that counts may be cut off."
    return Table("Detectors", columns, rows, text=2, note=note)


def agreement_table(agreement: Agreement) -> Table:
    """Annotators with one another and with the detectors; ambiguous: the share that any annotator marked."""
    columns = ["system", "count range", "images", "kappa", "Pearson", "Spearman", "human", "detectors", "ambiguous"]
    rows = [
        [
            row.system,
            ranged(row.count_range),
            f"{row.images:,}",
            *(number(v) for v in (row.kappa, row.pearson, row.spearman, row.human_cw, row.detector_cw)),
            NOTHING if row.ambiguous_any is None or not row.images else f"{row.ambiguous_any / row.images:.1%}",
        ]
        for row in agreement.rows
    ]
    return Table("Agreement with people", columns, rows, text=2, note=STRESS_NOTE)


def _few(title: str, columns: list[str], given: Sequence[Any]) -> Table:
    rows = [[f"{v:,}" if isinstance(v, int) else v for v in asdict(row).values()] for row in given[:_SHOWN]]
    more = len(given) - _SHOWN
    return Table(title, columns, rows, text=2, note=f"and {more:,} more" if more > 0 else None)


def ranged(name: str) -> str:
    """A count range with its mark."""
    return f"{name} {STRESS_MARK}" if name in STRESS_RANGES else name


def number(value: float | None, *, signed: bool = False) -> str:
    """Three digits after the point."""
    return NOTHING if value is None else f"{value:{'+' if signed else ''}.3f}"


def estimate(value: Estimate, *, signed: bool = False) -> str:
    """A value with its interval, where it has one."""
    text = number(value.value, signed=signed)
    if value.low is None:
        return text
    return f"{text} [{number(value.low, signed=signed)}, {number(value.high, signed=signed)}]"


def share(value: Estimate) -> str:
    """A share in per cent with its interval, where it has one."""
    if value.value is None:
        return NOTHING
    if value.low is None or value.high is None:
        return f"{value.value:.1%}"
    return f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"


def _words(name: str) -> str:
    return name.replace("_", " ")
