"""The report of PhysCount: what its page shows, made from the scores of several sets of predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tallymill.engine.estimates import Estimate
from tallymill.engine.physcount.data import FAMILIES, MODES
from tallymill.engine.physcount.published import PublishedRow
from tallymill.engine.physcount.results import Comparison, CountRow, Scores
from tallymill.engine.report.physcount.gallery import Gallery
from tallymill.engine.report.physcount.gallery_view import MOST_COLUMNS, filters, mode_words, shown_cards
from tallymill.engine.report.physcount.plots import MOST_MODELS
from tallymill.engine.report.physcount.sweeps import Sweep
from tallymill.engine.report.physcount.tables import (
    FAMILY_LETTERS,
    FAMILY_WORDS,
    METRIC_WORDS,
    NO_SPREAD,
    PART_MARK,
    apart,
    in_part,
    null_note,
    part_note,
    unlike,
)
from tallymill.engine.report.shell import filled
from tallymill.engine.report.svg import Plot

CONTENTS = (
    ("leaderboard", "Leaderboard"),
    ("families", "Families"),
    ("counts", "Counts"),
    ("joint", "Joint"),
    ("resolution", "Resolution"),
    ("answers", "Answers"),
    ("gallery", "Groups"),
    ("run", "What was run"),
)
FIGURES = ("families", "counts", "resolution")
MOST_TILES, MOST_REASONS = 12, 10


@dataclass(frozen=True, slots=True)
class Data:
    """The dataset: ``full`` is the published one, with which published rows compare."""

    root: str
    images: int
    groups: int
    questions: int
    full: bool


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A set of predictions as it was made: what is listed of it, name by name."""

    name: str
    path: str
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Page:
    """What goes into a report. ``found`` is best first; ``joint`` has joint minus independent of one model each."""

    title: str
    version: str
    data: Data
    found: Sequence[Scores]
    published: Sequence[PublishedRow]
    runs: Sequence[RunFacts]
    joint: Sequence[Comparison] = ()
    sweeps: Sequence[Sweep] = ()
    gallery: Gallery = field(default_factory=Gallery)
    figures: Mapping[str, Plot] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A row of the leaderboard, in the paper's columns: MAE in counts and the rest in per cent.

    A set of which not every question of the data was asked bears a ``mark``; Phys-Gnd is over ``grounded`` groups.
    """

    name: str
    mode: str
    published: bool
    maes: list[float | None]
    naes: list[float | None]
    headline: list[Estimate]
    mark: bool = False
    grounded: int | None = None


def render(page: Page) -> str:
    """The page as HTML. Raises ``MissingExtraError`` without jinja2."""
    published = [row for row in page.published if not row.setting]
    settings = [row for row in page.published if row.setting]
    absent = {"joint": not page.joint, "resolution": not page.sweeps}
    return filled(
        "physcount/report.html",
        version=page.version,
        title=page.title,
        contents=[(anchor, name) for anchor, name in CONTENTS if not absent.get(anchor)],
        all_rows="tallymill physcount score --data DIR --predictions RUN --out FOLDER",
        page=page,
        data=page.data,
        found=page.found,
        models=len(models_of(page.found)),
        tiles=page.found[:MOST_TILES],
        notes=_notes(page),
        board=board(page.found, published),
        letters=[*FAMILY_LETTERS.values()],
        published=published,
        paper_gains=_gains(settings),
        paper_sweep=settings,
        families=FAMILIES,
        family_words=FAMILY_WORDS,
        metric_words=METRIC_WORDS,
        counts=_counts(page.found),
        reasons=_reasons(page.found),
        bootstrapped=any(one.settings["resamples"] for one in page.found),
        no_spread=NO_SPREAD,
        part_mark=PART_MARK,
        part_note=part_note(page.found),
        apart=apart(page.found),
        unlike=unlike,
        null_note=null_note,
        figures={name: page.figures.get(name) for name in FIGURES},
        most_models=MOST_MODELS,
        gallery=page.gallery,
        cards=shown_cards(page.gallery),
        filters=filters(page.gallery),
        modes=[(mode, mode_words(mode)) for mode in MODES],
        few_models=len(page.gallery.models) <= MOST_COLUMNS,
    )


def models_of(found: Sequence[Scores]) -> list[str]:
    """Each model once, however often it was asked; a file stands for itself."""
    return [*dict.fromkeys(one.name if one.record is None else str(one.record["model"]) for one in found)]


def board(found: Sequence[Scores], published: Sequence[PublishedRow]) -> list[BoardRow]:
    """Own and published rows together, best Score first."""
    rows = [_own(one) for one in found] + [_published(row) for row in published]
    return sorted(rows, key=lambda row: -1.0 if row.headline[0].value is None else -row.headline[0].value)


def _own(one: Scores) -> BoardRow:
    headline = [one.headline.score, one.headline.group_acc, one.headline.phys_gnd]
    maes, naes = [row.mae.value for row in one.families], [row.nae.value for row in one.families]
    return BoardRow(one.name, one.mode, False, maes, naes, headline, in_part(one), one.headline.grounded)


def _published(row: PublishedRow) -> BoardRow:
    headline = [Estimate(value) for value in (row.score, row.group_acc, row.phys_gnd)]
    maes, naes = ([of.get(family) for family in FAMILIES] for of in (row.mae, row.nae))
    return BoardRow(row.model, "independent", True, maes, naes, headline)


def _notes(page: Page) -> list[str]:
    """What a reader must know first, with the names of those whom it is about."""
    notes: dict[str, list[str]] = {}
    for one in page.found:
        for note in one.notes:
            notes.setdefault(note, []).append(one.name)
    every = len(page.found)
    told = [note if len(names) == every else f"{'; '.join(names)}: {note}" for note, names in notes.items()]
    return [*page.notes, *told]


def _gains(settings: Sequence[PublishedRow]) -> tuple[str, float, float, float] | None:
    """The published model that was asked both ways, and what joint questions change in the three metrics."""
    by_mode = {mode: row for row in settings for mode in ("independent", "joint") if mode in row.setting}
    if len(by_mode) < 2:
        return None
    joint, alone = by_mode["joint"], by_mode["independent"]
    return (
        joint.model,
        joint.score - alone.score,
        joint.group_acc - alone.group_acc,
        joint.phys_gnd - alone.phys_gnd,
    )


def _counts(found: Sequence[Scores]) -> list[tuple[str, list[tuple[str, CountRow]]]]:
    """By family, "all" first, the rows that have questions, each with the name of its set."""
    rows = [(row.family, one.name, row) for one in found for row in one.counts if row.questions]
    rows.sort(key=lambda row: ("all", *FAMILIES).index(row[0]))
    return [(family, [(name, row) for _, name, row in own]) for family, own in groupby(rows, key=lambda row: row[0])]


def _reasons(found: Sequence[Scores]) -> list[tuple[str, str, int, list[tuple[str, int, str]], int]]:
    """Of each set with refused or failed questions: which of the two, how many, its commonest reasons (reason,
    questions, first id), and how many reasons are left.
    """
    told = []
    for one in found:
        for what, errors in (("refused", one.refused), ("failed", one.failed)):
            numbers = Counter(errors.values())
            first = {reason: key for key, reason in reversed(errors.items())}
            common = [(reason, number, first[reason]) for reason, number in numbers.most_common(MOST_REASONS)]
            if common:
                told.append((one.name, what, len(errors), common, len(numbers) - len(common)))
    return told
