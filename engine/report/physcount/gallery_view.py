"""Cards of PhysCount's groups as the page wants them: marks of appearances, replies in few words, ways to choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tallymill.engine.physcount.data import FAMILIES, MODES, Group
from tallymill.engine.report.canvas import SERIES
from tallymill.engine.report.physcount.gallery import KINDS, Asked, Card, Gallery, Reply
from tallymill.engine.report.physcount.tables import FAMILY_LETTERS, FAMILY_WORDS
from tallymill.engine.report.thumbnails import data_uri

# Of more models a question tells how often each answer was given, not who gave it.
MOST_COLUMNS = 4
# Characters of a raw response that are shown; fewer where there are many models. Beyond FOLD it is folded.
MOST_SHOWN, LEAST_SHOWN, FOLD = 2_000, 200, 240
# (x, y) of an image as it is stored -> of the upright one, for the orientations that swap its sides.
_TURNS = {5: (False, False), 6: (True, False), 7: (True, True), 8: (False, True)}


@dataclass(frozen=True, slots=True)
class Mark:
    """An appearance on the image: ``left`` and ``top`` in per cent, the ``number`` of its entity from 1."""

    left: float
    top: float
    number: int
    colour: str
    ink: str
    mode: str


@dataclass(frozen=True, slots=True)
class Told:
    """A raw response of ``model``, cut where it is very long: to the question of this ``number``, or, without one, to
    all of a group at once. ``long``: it is folded until it is asked for.
    """

    number: int | None
    model: str
    text: str
    long: bool


@dataclass(frozen=True, slots=True)
class ShownQuestion:
    """A question with one cell a model, or with what many models answered."""

    it: Asked
    number: int
    letter: str
    family: str
    cells: list[Reply | None]
    tally: list[tuple[str, int, bool]]


@dataclass(frozen=True, slots=True)
class ShownCard:
    """A card with what its element is made from; ``failed`` and ``modes`` are what the filters compare."""

    it: Card
    source: str | None
    ratio: float
    alt: str
    marks: list[Mark]
    entities: int
    failed: str
    modes: str
    questions: list[ShownQuestion]
    each: list[tuple[str, list[Reply]]]
    told: list[Told]


def shown_cards(gallery: Gallery) -> list[ShownCard]:
    """All cards, in order."""
    return [_shown(card, gallery.models) for card in gallery.cards]


def _shown(card: Card, models: Sequence[str]) -> ShownCard:
    group = card.group
    width, height = card.thumbnail_size if card.thumbnail is not None else (group.width, group.height)
    entities = len({one.entity_id for one in group.appearances})
    modes = Counter(one.mode for one in group.appearances)
    shown = ", ".join(f"{modes[mode]} {mode_words(mode)}" for mode in MODES if modes[mode])
    return ShownCard(
        it=card,
        source=data_uri(card.thumbnail),
        ratio=round(width / max(height, 1), 4),
        alt=f"Group {group.group_id}: {len(group.appearances)} appearances of {entities} entities ({shown or 'none'})",
        marks=marks_of(group, card.turned),
        entities=entities,
        failed=" ".join(card.failed) or "none",
        modes=" ".join(mode for mode in MODES if modes[mode]) or "none",
        questions=[_question(number, asked, len(models)) for number, asked in enumerate(card.asked, 1)],
        each=_each(card, models),
        told=_told(card, models),
    )


def _question(number: int, asked: Asked, models: int) -> ShownQuestion:
    by_place = {reply.place: reply for reply in asked.replies}
    few = models <= MOST_COLUMNS
    counted = Counter((reply.said, reply.exact) for reply in asked.replies)
    return ShownQuestion(
        it=asked,
        number=number,
        letter=FAMILY_LETTERS[asked.question.family],
        family=FAMILY_WORDS[asked.question.family],
        cells=[by_place.get(place) for place in range(models)] if few else [],
        tally=[] if few else [(said, times, exact) for (said, exact), times in counted.most_common()],
    )


def _each(card: Card, models: Sequence[str]) -> list[tuple[str, list[Reply]]]:
    """The replies of every model that was asked, question by question."""
    rows: dict[int, list[Reply]] = {}
    for asked in card.asked:
        for reply in asked.replies:
            rows.setdefault(reply.place, []).append(reply)
    return [(models[place], rows[place]) for place in sorted(rows)]


def _told(card: Card, models: Sequence[str]) -> list[Told]:
    most = max(LEAST_SHOWN, min(MOST_SHOWN, 4 * MOST_SHOWN // max(len(models), 1)))
    found = [
        (number, reply.place, reply.response)
        for number, asked in enumerate(card.asked, 1)
        for reply in asked.replies
        if reply.response is not None
    ]
    rows = [*((None, place, text) for place, text in card.joint), *found]
    return [Told(number, models[place], _cut(text, most), len(text) > FOLD) for number, place, text in rows]


def _cut(text: str, most: int) -> str:
    """The beginning and the end; the end is what is read for the answer."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} […] {text[-most // 3 :]} ({len(text):,} characters)"


def marks_of(group: Group, turned: int = 1) -> list[Mark]:
    """Where the appearances are on the upright image, entities numbered in order of appearance."""
    numbers: dict[str, int] = {}
    marks = []
    for one in group.appearances:
        number = numbers.setdefault(one.entity_id, len(numbers) + 1)
        x, y = one.x, one.y
        if turned in _TURNS:
            across, down = _TURNS[turned]
            x, y = (1 - y if across else y), (1 - x if down else x)
        colour = SERIES[(number - 1) % len(SERIES)]
        marks.append(Mark(round(100 * x, 2), round(100 * y, 2), number, colour, _ink(colour), one.mode))
    return marks


def _ink(colour: str) -> str:
    """Black or white, whichever stands out more (WCAG's relative luminance)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return "#000000" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 else "#ffffff"


def mode_words(mode: str) -> str:
    """``through_glass`` -> ``through glass``."""
    return mode.replace("_", " ")


def filters(gallery: Gallery) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(name of the data attribute, label, [(value, words)]) of each way to choose groups."""
    cards = gallery.cards
    kinds = [(kind, kind) for kind in KINDS if any(card.kind == kind for card in cards)]
    failed = {family for card in cards for family in card.failed}
    families = [(family, FAMILY_WORDS[family]) for family in FAMILIES if family in failed]
    if any(not card.failed for card in cards):
        families.append(("none", "no family"))
    modes = {one.mode for card in cards for one in card.group.appearances}
    return [
        ("kind", "Groups", kinds),
        ("failed", "Not all exact in", families),
        ("mode", "With appearances", [(mode, mode_words(mode)) for mode in MODES if mode in modes]),
    ]
