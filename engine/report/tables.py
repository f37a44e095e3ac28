"""An analysis as text: tables for a terminal and for Markdown, rows for CSV, and JSON that can be read back."""

from __future__ import annotations

import csv
import io
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from tallymill.engine.numbench.analysis.results import ALL, Agreement, Analysis, Estimate, Sensitivity
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


def detectors_table(analysis: Analysis) -> Table:
    """The score of each detector alone beside the ensemble's."""
    names = list(dict.fromkeys(name for cell in analysis.overall for name in cell.single_cw))
    rows = [
        [
            cell.system,
            estimate(cell.cw_nps),
            *(estimate(cell.single_cw[n]) if n in cell.single_cw else NOTHING for n in names),
        ]
        for cell in analysis.overall
        if any(value.value is not None for value in cell.single_cw.values())
    ]
    return Table("cw-NPS of single detectors", ["system", "ensemble", *names], rows)


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
            *(f"{n / row.scored:.1%}" for n in (row.none, row.cardinality, row.binding)),
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
            *(number(v, signed=True) for v in (row.hard, row.soft, row.hard_relative, row.soft_relative)),
            *(f"{n / row.targets:.1%}" for n in (row.under, row.exact, row.over)),
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
    note = "Fitted to the hard counts of images with one category; lambda = 1 - A_free / A_layout, if M were equal."
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


def _words(name: str) -> str:
    return name.replace("_", " ")


def markdown(analysis: Analysis) -> str:
    """All tables and notes as one document."""
    settings = analysis.settings
    lines = ["# NumBench analysis", ""]
    lines += [f"- {_escaped(run['run'])}: {_escaped(_detectors(run))}" for run in analysis.runs]
    if settings["resamples"]:
        lines.append(
            f"- In brackets: 95 % percentile bootstrap over cores, {settings['resamples']:,} resamples, "
            f"seed {settings['seed']}"
        )
    lines.append(f"- The range of an image with several counts: {settings['range_by']}")
    notes = [*analysis.notes, *([] if analysis.agreement is None else analysis.agreement.notes)]
    if notes:
        lines += ["", "## Notes", "", *(f"- {_escaped(note)}" for note in notes)]
    for table in tables_of(analysis):
        lines += ["", f"## {table.title}", "", *_grid(table)]
        if table.note:
            lines += ["", _escaped(table.note)]
    return "\n".join(lines) + "\n"


def _detectors(run: Mapping[str, Any]) -> str:
    return ", ".join(f"{detector['name']} (tau {detector['tau']:g})" for detector in run["detectors"])


def _grid(table: Table) -> Iterator[str]:
    yield _line(table.columns)
    yield _line(["---" if at < table.text else "---:" for at in range(len(table.columns))], raw=True)
    yield from map(_line, table.rows)


def _line(texts: Iterable[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(text if raw else _escaped(text) for text in texts) + " |"


def _escaped(text: str) -> str:
    """Text that means nothing to Markdown or HTML, on one line."""
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else "&amp;" if c == "&" else c for c in flat)


def csv_tables(analysis: Analysis) -> dict[str, str]:
    """One CSV text a table of rows, by its name; also of those that are empty. An estimate x is x, x_low, x_high,
    x_null; a single detector's is ``single_cw:NAME`` and so on."""
    hints = typing.get_type_hints(Analysis)
    kinds = {f.name: typing.get_args(hints[f.name]) for f in fields(Analysis)}
    found = {name: kind[0] for name, kind in kinds.items() if kind and is_dataclass(kind[0]) and name != "agreement"}
    texts = {name: _csv(kind, getattr(analysis, name)) for name, kind in found.items()}
    if analysis.agreement is not None:
        texts["agreement"] = _csv(typing.get_type_hints(Agreement)["rows"].__args__[0], analysis.agreement.rows)
    return texts


def _csv(kind: Any, rows: Sequence[Any]) -> str:
    flat = [dict(_flat(row)) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row)) or [f.name for f in fields(kind)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Any) -> Iterator[tuple[str, Any]]:
    for name in (f.name for f in fields(row)):
        value = getattr(row, name)
        if isinstance(value, Estimate):
            yield from _flat_estimate(name, value)
        elif isinstance(value, dict):
            for key, one in value.items():
                if isinstance(one, Estimate):
                    yield from _flat_estimate(f"{name}:{key}", one)
                else:
                    yield f"{name}:{key}", one
        else:
            yield name, value


def _flat_estimate(name: str, value: Estimate) -> Iterator[tuple[str, Any]]:
    yield name, value.value
    yield f"{name}_low", value.low
    yield f"{name}_high", value.high
    yield f"{name}_null", value.null_resamples


def as_json(analysis: Analysis) -> dict[str, Any]:
    """A JSON-ready form, which ``from_json`` reads back."""
    return asdict(analysis)


def from_json(value: Any) -> Analysis:
    """The analysis that ``as_json`` gave. Anything else is a ``ValueError``."""
    found = _typed(Analysis, value)
    assert isinstance(found, Analysis)
    return found


def _typed(kind: Any, value: Any) -> Any:
    """A value of JSON as the type that a field declares."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _typed(next(part for part in parts if part is not type(None)), value)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        if not isinstance(value, dict) or not value.keys() <= hints.keys():
            raise ValueError(f"not a {kind.__name__}")
        try:
            return kind(**{name: _typed(hints[name], one) for name, one in value.items()})
        except TypeError as exc:
            raise ValueError(f"not a {kind.__name__}: {exc}") from None
    if origin is list and isinstance(value, list):
        return [_typed(parts[0], one) for one in value]
    if origin is dict and isinstance(value, dict):
        return {name: _typed(parts[1], one) for name, one in value.items()}
    if kind is Any or (isinstance(kind, type) and isinstance(value, kind)) or (kind is float and type(value) is int):
        return value
    raise ValueError(f"{value!r} is not {kind}")
