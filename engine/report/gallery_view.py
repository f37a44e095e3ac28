"""The cards of a gallery as the page wants them: colours, dashes, data URIs, and the ways to choose among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallymill.engine.numbench.draw import PALETTE
from tallymill.engine.numbench.factors import COMPOSITIONS, COUNT_RANGES, STRESS_RANGES, ordered
from tallymill.engine.report import text
from tallymill.engine.report.gallery import GROUPS, Card, Gallery, Layer, box_paths
from tallymill.engine.report.thumbnails import data_uri

# Dashes go with colours, for readers who tell colours apart badly.
DASHES = ("none", "7 3", "2 2", "10 3 2 3")


def colour(place: int) -> str:
    """The colour of a detector's boxes, by its place in the ensemble."""
    return "#{:02x}{:02x}{:02x}".format(*PALETTE[place % len(PALETTE)])


def dash(place: int) -> str:
    """Its dashes, as SVG wants them."""
    return DASHES[place % len(DASHES)]


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """A layer with the place of its detector among those of the gallery."""

    place: int
    name: str
    it: Layer


@dataclass(frozen=True, slots=True)
class ShownCard:
    """A card with what its element is made from; ``place`` and ``composition`` are what the filters compare."""

    it: Card
    place: int
    composition: int
    source: str | None
    view: str
    ratio: float
    alt: str
    paths: list[tuple[int, int, str]]
    layers: list[PlacedLayer]


def shown_cards(gallery: Gallery) -> list[ShownCard]:
    """All cards, in order."""
    systems, compositions = _systems(gallery), _compositions(gallery)
    return [
        _shown_card(card, systems.index(card.system), compositions.index(card.composition), gallery.detectors)
        for card in gallery.cards
    ]


def _shown_card(card: Card, place: int, composition: int, detectors: Sequence[str]) -> ShownCard:
    units = 1000 / max(card.width, card.height, 1)
    asked = " and ".join(f"{a.requested} {a.category or 'objects'} (counted {text.amount(a.soft)})" for a in card.asked)
    return ShownCard(
        it=card,
        place=place,
        composition=composition,
        source=data_uri(card.thumbnail),
        view=f"0 0 {round(card.width * units)} {round(card.height * units)}",
        ratio=round(max(card.width, 1) / max(card.height, 1), 4),
        alt=f"Image by {card.system}: asked for {asked}",
        paths=box_paths(card, detectors),
        layers=[PlacedLayer(detectors.index(layer.detector), layer.detector, layer) for layer in card.layers],
    )


def filters(gallery: Gallery) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(name of the data attribute, label, [(value, words)]) of each way to choose images."""
    cards = gallery.cards
    ranges = ordered({card.count_range for card in cards}, COUNT_RANGES)
    stressed = {name: f"{name.replace('-', '–')}{'‡' if name in STRESS_RANGES else ''}" for name in ranges}
    groups = [name for name in GROUPS if any(card.group == name for card in cards)]
    return [
        ("system", "System", [(str(place), name) for place, name in enumerate(_systems(gallery))]),
        ("group", "Images", [(name, name) for name in groups]),
        ("composition", "Composition", [(str(place), name) for place, name in enumerate(_compositions(gallery))]),
        ("range", "Counts", list(stressed.items())),
    ]


def _compositions(gallery: Gallery) -> list[str]:
    return ordered({card.composition for card in gallery.cards}, COMPOSITIONS)


def _systems(gallery: Gallery) -> list[str]:
    return list(dict.fromkeys(card.system for card in gallery.cards))
