"""The report of NumBench: what its page shows, made from an analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallymill.engine.numbench.analysis.differences import MOST_COMPARED
from tallymill.engine.numbench.analysis.results import ALL, Agreement, Analysis, Cell, Difference, Loss, SystemRow
from tallymill.engine.numbench.calibration import CalibrationResult
from tallymill.engine.numbench.factors import COMPOSITIONS, COUNT_RANGES, STRESS_RANGES, ordered
from tallymill.engine.report import text
from tallymill.engine.report.figures import MOST_SYSTEMS
from tallymill.engine.report.gallery import Gallery
from tallymill.engine.report.gallery_view import colour, dash, filters, shown_cards
from tallymill.engine.report.plots import MOST_BANDS
from tallymill.engine.report.shell import filled
from tallymill.engine.report.svg import Plot
from tallymill.engine.report.tables import shown_sensitivity

FIGURES = ("curve", "layout", "appearance", "sensitivity", "detectors", "families", "collision", "reliability")
CONTENTS = (
    ("scores", "Scores"),
    ("curve", "Curve"),
    ("factors", "Factors"),
    ("detectors", "Detectors"),
    ("errors", "Errors"),
    ("failed", "Failed images"),
    ("validity", "Validity"),
    ("gallery", "Images"),
    ("run", "What was run"),
)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A RUN as it is told on the page: where it lies, its ``run.json``, and what of that is listed."""

    path: str
    record: Mapping[str, Any]
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Page:
    """What goes into a report. ``figures`` have names of ``FIGURES``; an absent one leaves no gap."""

    title: str
    version: str
    analysis: Analysis
    runs: Sequence[RunRecord]
    gallery: Gallery = field(default_factory=Gallery)
    figures: Mapping[str, Plot] = field(default_factory=dict)
    calibration: CalibrationResult | None = None


@dataclass(frozen=True, slots=True)
class HeadlineRow:
    """One system's cells in the order of the columns, None where it has no images of that range."""

    system: str
    cells: list[Cell | None]
    loss: Loss | None


@dataclass(frozen=True, slots=True)
class HeadlineBlock:
    """The scores of one composition: ``ranges`` are (name, whether it is a stress test)."""

    title: str
    ranges: list[tuple[str, bool]]
    rows: list[HeadlineRow]

    @property
    def has_loss(self) -> bool:
        """Whether any system has images of the first and of the last range."""
        return any(row.loss is not None and row.loss.cw_nps.value is not None for row in self.rows)


def render(page: Page) -> str:
    """The page as HTML. Raises ``MissingExtraError`` without jinja2."""
    return filled(
        "report.html",
        page=page,
        version=page.version,
        figures={name: page.figures.get(name) for name in FIGURES},
        title=page.title,
        analysis=page.analysis,
        totals=_totals(page.analysis),
        tiles=_tiles(page.analysis),
        notes=page.analysis.notes,
        headline=headline(page.analysis),
        empty_ranges=_empty_ranges(page.analysis),
        sensitivity=shown_sensitivity(page.analysis),
        singles=_singles(page.analysis),
        differences_whole=[row for row in page.analysis.differences if _whole(row)],
        differences_parts=[
            row for row in page.analysis.differences if not _whole(row) and row.cw_nps.value is not None
        ],
        any_stress=any(cell.stress_test for cell in page.analysis.cells),
        bootstrapped=any(cell.cw_nps.low is not None for cell in page.analysis.overall),
        curve_intervals=any(point.cw_nps.low is not None for point in page.analysis.curve),
        same_images=any(n != c.scored for c in page.analysis.overall for n in c.single_scored.values()),
        many_systems=len(page.analysis.systems) > MOST_BANDS,
        most_systems=MOST_SYSTEMS,
        most_compared=MOST_COMPARED,
        contents=CONTENTS,
        all_rows="tallymill analyse RUN --out FOLDER",
        gallery=page.gallery,
        cards=shown_cards(page.gallery),
        filters=filters(page.gallery),
        many_targets=any(len(card.asked) > 1 for card in page.gallery.cards),
        gallery_empty="No images were asked for." if page.analysis.systems else "There are no images.",
        temperatures=_temperatures(page.runs),
        reasons=_reasons(page.analysis.agreement),
        colour=colour,
        dash=dash,
    )


def _temperatures(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Of each detector the temperatures that its RUNs were scored with."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for detector in run.record["ensemble"]["detectors"]:
            found.setdefault(detector["name"], {})[f"{detector['tau']:g}"] = None
    return {name: ", ".join(values) for name, values in found.items()}


def _reasons(agreement: Agreement | None) -> list[str]:
    """Why kappas and correlations are missing, each reason once, with the ranges that it is about."""
    found: dict[str, list[str]] = {}
    for row in agreement.rows if agreement else []:
        where = f"{row.system}, {row.count_range.replace('-', '–')}{'‡' if row.stress_test else ''}"
        for what, why in (("no kappa", row.kappa_why), ("no correlation", row.correlation_why)):
            if why:
                found.setdefault(f"{what}: {why}", []).append(where)
    return [text.shown(f"{why} ({'; '.join(where)})", 400) for why, where in found.items()]


def headline(analysis: Analysis) -> list[HeadlineBlock]:
    """Table 4 by composition: a block a composition (all of them first), a row a system, a column a range."""
    cells = {(c.system, c.composition, c.count_range): c for c in [*analysis.overall, *analysis.cells]}
    losses = {(row.system, row.composition): row for row in analysis.losses}
    systems = [row.system for row in analysis.systems]
    ranges = ordered({key[2] for key, cell in cells.items() if cell.items}, [ALL, *COUNT_RANGES])
    compositions = ordered({key[1] for key, cell in cells.items() if cell.items}, [ALL, *COMPOSITIONS])
    if len(compositions) == 2 and ALL in compositions:  # one composition only: its block would say the same again
        compositions.remove(ALL)
    return [
        HeadlineBlock(
            title="All compositions" if composition == ALL else _composition(composition),
            ranges=[(name, name in STRESS_RANGES) for name in ranges],
            rows=[
                HeadlineRow(
                    system,
                    [_cell(cells, system, composition, name) for name in ranges],
                    losses.get((system, composition)),
                )
                for system in systems
            ],
        )
        for composition in compositions
    ]


def _empty_ranges(analysis: Analysis) -> list[tuple[str, bool]]:
    """Count ranges that the analysis has cells of, none of them with an image."""
    cells = [*analysis.overall, *analysis.cells]
    full = {cell.count_range for cell in cells if cell.items}
    empty = ordered({cell.count_range for cell in cells} - full - {ALL}, COUNT_RANGES)
    return [(name, name in STRESS_RANGES) for name in empty]


def _cell(cells: Mapping[tuple[str, str, str], Cell], system: str, composition: str, count_range: str) -> Cell | None:
    return cells.get((system, composition, count_range))


def _whole(row: Cell | Difference) -> bool:
    return (row.composition, row.count_range) == (ALL, ALL)


def _composition(name: str) -> str:
    words = {"single": "One category", "double": "Two categories", "multiple": "Three categories or more"}
    return words.get(name, text.shown(name, 60))


@dataclass(frozen=True, slots=True)
class _Totals:
    systems: int
    items: int
    scored: int
    error: int
    uncovered: int


def _totals(analysis: Analysis) -> _Totals:
    rows = analysis.systems
    return _Totals(len(rows), *(sum(getattr(r, n) for r in rows) for n in ("items", "scored", "error", "uncovered")))


@dataclass(frozen=True, slots=True)
class _Tile:
    row: SystemRow
    cell: Cell | None


def _tiles(analysis: Analysis) -> list[_Tile]:
    whole = {c.system: c for c in analysis.overall if _whole(c)}
    return [_Tile(row, whole.get(row.system)) for row in analysis.systems]


@dataclass(frozen=True, slots=True)
class _Singles:
    names: list[str]
    whole: list[Cell]
    parts: list[Cell]


def _singles(analysis: Analysis) -> _Singles:
    rows = [cell for cell in [*analysis.overall, *analysis.cells] if cell.single_cw and cell.scored]
    places = {row.system: place for place, row in enumerate(analysis.systems)}
    rows.sort(key=lambda cell: places.get(cell.system, len(places)))
    names = list(dict.fromkeys(name for cell in rows for name in cell.single_cw))
    whole = [cell for cell in rows if cell.composition == ALL]
    return _Singles(names, whole or rows, [cell for cell in rows if whole and cell.composition != ALL])
