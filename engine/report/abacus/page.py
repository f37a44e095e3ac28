"""The report of verified edits: tables, and a strip of pictures an edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tallymill.engine.abacus.data import EDITED, SOURCE
from tallymill.engine.abacus.instructions import OPERATIONS
from tallymill.engine.abacus.tiers import TIERS
from tallymill.engine.abacus.verdicts import FAILURES, KEPT, VERDICTS
from tallymill.engine.report.abacus.tables import tables_of
from tallymill.engine.report.gallery import outline
from tallymill.engine.report.shell import filled
from tallymill.engine.report.tables import Table
from tallymill.engine.report.thumbnails import data_uri

CONTENTS = (("scores", "Scores"), ("gallery", "Edits"), ("run", "What was run"))
# Told apart by people who see colours badly, on light and on dark; what is of the source alone is dashed.
COLOURS = {
    "kept": "#4c9be8",
    "added": "#2fb36f",
    "removed": "#e07b1a",
    "transformed": "#a66be0",
    "missing": "#e5384a",
    "ambiguous": "#e6c229",
    "rejected": "#9aa3ad",
    "unasked": "#c8ced4",
}
MEANINGS = {
    "undershoot": "too few delivered",
    "overshoot": "too many delivered",
    "overwritten": "originals overwritten",
    "elsewhere": "painted elsewhere",
}
UNITS = 1000


@dataclass(frozen=True, slots=True)
class EditCard:
    """One edit: its row of ``scores.parquet``, the instances of its evidence, and small pictures as WebP files.

    ``pictures`` are of source, edited and clean; None where an image could not be read again, and ``reason`` says why.
    """

    row: Mapping[str, Any]
    instances: Sequence[Mapping[str, Any]]
    size: tuple[int, int]  # width and height of the source
    pictures: Mapping[str, bytes] | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class EditPage:
    """What goes into a report. ``edits`` is how many were scored, of which the cards are some."""

    title: str
    version: str
    summary: Mapping[str, Any]
    facts: Sequence[tuple[str, str]]
    cards: Sequence[EditCard] = field(default_factory=tuple)
    edits: int = 0


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of a strip, with (verdict, dashed, path) of its boxes and (x, y, text) of its labels."""

    name: str
    source: str | None
    paths: list[tuple[str, bool, str]]
    labels: list[tuple[int, int, str]]


@dataclass(frozen=True, slots=True)
class ShownEdit:
    """A card with what its element is made from."""

    it: EditCard
    panels: list[Panel]
    view: str
    ratio: float
    failures: list[str]
    verdicts: list[tuple[str, int]]


def render(page: EditPage) -> str:
    """The page as HTML. Raises ``MissingExtraError`` without jinja2."""
    tables = tables_of(page.summary)
    whole: Table | None = tables[0] if page.summary["table"] else None
    return filled(
        "abacus/report.html",
        version=page.version,
        title=page.title,
        summary=page.summary,
        counts=page.summary["counts"],
        overall=page.summary["table"][0] if page.summary["table"] else None,
        scores=whole,
        others=[table for table in tables if table is not whole],
        cards=[shown(card) for card in page.cards],
        edits=page.edits,
        filters=filters(page.cards),
        facts=page.facts,
        colours=COLOURS,
        meanings=MEANINGS,
        contents=CONTENTS,
        all_rows="tallymill abacus score",
    )


def shown(card: EditCard) -> ShownEdit:
    """A card's strip: source, edited, matched, clean, verdicts."""
    width, height = card.size
    units = UNITS / max(width, height, 1)
    verdicts = card.row["verdicts"]
    pictures = {name: data_uri(picture) for name, picture in (card.pictures or {}).items()}
    numbers = {name: verdicts.count(name) for name in VERDICTS}
    panels = [
        Panel("source", pictures.get(SOURCE), [], []),
        Panel("edited", pictures.get(EDITED), [], []),
        _matched(card, pictures.get(EDITED), units),
        Panel("clean", pictures.get("clean"), [], []),
        _judged(card, pictures.get(EDITED), units),
    ]
    return ShownEdit(
        card,
        panels if card.pictures is not None else [],
        f"0 0 {round(width * units)} {round(height * units)}",
        round(width / max(height, 1), 4),
        list(card.row["failures"]),
        [(name, number) for name, number in numbers.items() if number],
    )


def _matched(card: EditCard, picture: str | None, units: float) -> Panel:
    """Instances of the edited image that were there before, each with a number, and those that were not."""
    paths: list[tuple[str, bool, str]] = []
    labels: list[tuple[int, int, str]] = []
    for one in card.instances:
        if one["image"] == EDITED and one["partner"] >= 0:
            paths.append((KEPT, False, _path([one["box"]], card.size, units)))
            x, y = one["box"][0], one["box"][1]
            labels.append((round(max(x, 0) * units) + 12, round(max(y, 0) * units) + 62, str(len(labels) + 1)))
    return Panel("matched", picture, [path for path in paths if path[2]], labels)


def _judged(card: EditCard, picture: str | None, units: float) -> Panel:
    """The boxes of every verdict: those of the edited image, and dashed those that are of the source alone."""
    found = []
    for verdict in VERDICTS:
        for image, dashed in ((EDITED, False), (SOURCE, True)):
            if dashed and verdict == KEPT:
                continue
            own = [
                one["box"]
                for one, given in zip(card.instances, card.row["verdicts"], strict=True)
                if given == verdict and one["image"] == image
            ]
            found.append((verdict, dashed, _path(own, card.size, units)))
    return Panel("verdicts", picture, [path for path in found if path[2]], [])


def _path(boxes: Sequence[Sequence[float]], size: tuple[int, int], units: float) -> str:
    return outline(np.array(boxes, np.float32).reshape(-1, 4), size, units)


def filters(cards: Sequence[EditCard]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(name of the data attribute, label, [(value, words)]) of each way to choose edits."""
    editors = sorted({card.row["editor"] for card in cards if card.row["editor"] is not None})
    there = {name for card in cards for name in card.row["failures"]}
    failures = [(name, MEANINGS[name]) for name in FAILURES if name in there]
    if any(not card.row["failures"] for card in cards):
        failures.append(("none", "none"))
    found = [("failure", "Failure", failures)]
    for name, label, order in (("operation", "Operation", OPERATIONS), ("tier", "Tier", TIERS)):
        values = {card.row[name] for card in cards}
        found.append((name, label, [(value, value) for value in order if value in values]))
    found.append(("editor", "Editor", [(str(place), name) for place, name in enumerate(editors)]))
    return found
