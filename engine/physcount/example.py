"""A small dataset in the format of PhysCount's release: drawn rooms whose true answers are known by construction.

Each picture has a room, perhaps a pane of glass with things behind it, and up to two mirrors. A thing stands in the
room, behind the glass, or behind the viewer; a mirror shows it or does not. Every appearance is drawn where its
annotation says, and every answer is computed from the annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

WIDTH, HEIGHT = 768, 512
KINDS = {"ball": "balls", "cube": "cubes", "cone": "cones"}
DIRECT, REFLECTION, GLASS = "direct", "reflection", "through_glass"
_COLOURS = ("#c0392b", "#2471a3", "#229954", "#d68910", "#7d3c98", "#17a589", "#5d6d7e", "#af601a")
_RADIUS = 0.038


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the picture: its box as shares of width and height, and how many things fit in columns and rows."""

    box: tuple[float, float, float, float]
    columns: int
    rows: int

    def slots(self) -> list[tuple[float, float]]:
        """The middles of all places, as shares."""
        left, top, right, bottom = self.box
        return [
            (left + (right - left) * (column + 0.5) / self.columns, top + (bottom - top) * (row + 0.5) / self.rows)
            for row in range(self.rows)
            for column in range(self.columns)
        ]


ROOM = Region((0.04, 0.52, 0.58, 0.96), 5, 2)
PANE = Region((0.04, 0.06, 0.58, 0.44), 5, 2)
MIRRORS = (Region((0.64, 0.06, 0.96, 0.46), 3, 2), Region((0.64, 0.54, 0.96, 0.94), 3, 2))


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture, uint8 [512, 768, 3], with its annotation groups and questions as rows of the release's files."""

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    groups: list[dict[str, Any]]
    questions: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Seen:
    kind: str
    entity: str
    colour: str
    mode: str
    x: float
    y: float


def scenes(number: int, *, seed: int = 0) -> Iterator[Scene]:
    """``number`` scenes, the same for the same seed; ids and image names count from 1."""
    for place in range(1, number + 1):
        yield _scene(place, np.random.default_rng([seed, place]))


def image_name(place: int) -> str:
    """Where a picture lies: JPEG and PNG in turn, as in the release."""
    return f"images/{place:06d}.{'jpg' if place % 2 else 'png'}"


def _scene(place: int, rng: np.random.Generator) -> Scene:
    kinds = sorted(rng.permutation(list(KINDS))[: int(rng.integers(1, 3))].tolist())
    # The first scene has all that there is, so that the smallest dataset asks of all four families.
    glass, mirrors = (True, 2) if place == 1 else (bool(rng.random() < 0.6), int(rng.integers(0, 3)))
    seen = _arranged(kinds, glass, mirrors, rng)
    groups: list[dict[str, Any]] = []
    questions: list[dict[str, Any]] = []
    for kind in kinds:
        own = [one for one in seen if one.kind == kind]
        group = {
            "group_id": f"{place:06d}-{kind}",
            "image_id": f"{place:06d}",
            "image": image_name(place),
            "width": WIDTH,
            "height": HEIGHT,
            "appearances": [
                {
                    "appearance_id": f"a{number}",
                    "entity_id": one.entity,
                    "mode": one.mode,
                    "x": round(one.x, 4),
                    "y": round(one.y, 4),
                }
                for number, one in enumerate(own, 1)
            ],
        }
        groups.append(group)
        questions += _questions(group, KINDS[kind], glass, mirrors)
    return Scene(_drawn(seen, glass, mirrors), groups, questions)


def _arranged(kinds: Sequence[str], glass: bool, mirrors: int, rng: np.random.Generator) -> list[_Seen]:
    """Things of every kind, and where each is seen: no two appearances share a place."""
    free = {region: rng.permutation(region.slots()).tolist() for region in (ROOM, PANE, *MIRRORS)}
    seen: list[_Seen] = []
    for kind in kinds:
        colours = rng.permutation(_COLOURS).tolist()  # one of a kind each, or nobody could tell which is reflected
        for number in range(1, int(rng.integers(2, 7)) + 1):
            where = rng.choice(["room", "glass", "viewer"], p=[0.55, 0.25, 0.2])
            views = [mirror for mirror in MIRRORS[:mirrors] if rng.random() < 0.5]
            if where == "viewer" and not views:
                views = [*MIRRORS[:mirrors][:1]]
            first = {"room": (ROOM, DIRECT), "glass": (PANE, GLASS) if glass else (ROOM, DIRECT)}.get(str(where))
            if first is None and not views:
                first = ROOM, DIRECT
            looks = [*([] if first is None else [first]), *((mirror, REFLECTION) for mirror in views)]
            for region, mode in looks:
                if free[region]:
                    x, y = free[region].pop()
                    seen.append(_Seen(kind, f"{kind}{number}", colours[number], mode, x, y))
    return seen


def _questions(group: dict[str, Any], name: str, glass: bool, mirrors: int) -> Iterator[dict[str, Any]]:
    modes: dict[str, list[str]] = {}
    for one in group["appearances"]:
        modes.setdefault(one["entity_id"], []).append(one["mode"])
    found = modes.values()
    every = [mode for own in found for mode in own]
    direct = sum(DIRECT in own for own in found)
    reflected = sum(REFLECTION in own for own in found)
    asked = [
        ("appearance", f"How many {name} can be seen, counting every appearance of them?", len(every)),
        ("entity", f"How many different physical {name} does the picture show?", len(found)),
        ("entity", f"How many physical {name} can be seen directly, not in a mirror and not through glass?", direct),
    ]
    if mirrors:
        asked += [
            ("image_formation", f"How many appearances of {name} are reflections?", every.count(REFLECTION)),
            ("correspondence", f"How many physical {name} have at least one reflection?", reflected),
            (
                "correspondence",
                f"How many physical {name} are seen both directly and in a mirror?",
                sum({DIRECT, REFLECTION} <= {*own} for own in found),
            ),
            (
                "correspondence",
                f"How many physical {name} can be seen in mirrors only?",
                sum({*own} == {REFLECTION} for own in found),
            ),
        ]
    if glass:
        asked.append(("image_formation", f"How many appearances of {name} are seen through glass?", every.count(GLASS)))
    for number, (family, text, answer) in enumerate(asked, 1):
        yield {
            "question_id": f"{group['group_id']}-{number}",
            "group_id": group["group_id"],
            "image_id": group["image_id"],
            "image": group["image"],
            "question_type": family,
            "question": text,
            "answer": answer,
        }


def _drawn(seen: Sequence[_Seen], glass: bool, mirrors: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    picture = Image.new("RGB", (WIDTH, HEIGHT), "#efe6d8")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, HEIGHT // 2, WIDTH, HEIGHT), fill="#cdb79b")
    if glass:
        draw.rectangle(_pixels(PANE.box), fill="#d3ebf2", outline="#4a6670", width=5)
    for mirror in MIRRORS[:mirrors]:
        draw.rectangle(_pixels(mirror.box), fill="#dfe3e6", outline="#8a6d3b", width=7)
    for one in seen:
        _draw_thing(draw, one)
    if glass:  # a gleam, in front of what stands behind the pane
        left, top, right, bottom = _pixels(PANE.box)
        for shift in (0.25, 0.3):
            x = left + (right - left) * shift
            draw.line((x, bottom - 8, x + 60, top + 8), fill="#ffffff", width=3)
    return np.asarray(picture)


def _draw_thing(draw: ImageDraw.ImageDraw, one: _Seen) -> None:
    x, y, r = one.x * WIDTH, one.y * HEIGHT, _RADIUS * WIDTH
    # What a mirror shows is smaller, and lit from the other side.
    size, side = (0.75 * r, -1) if one.mode == REFLECTION else (r, 1)
    box = (x - size, y - size, x + size, y + size)
    if one.kind == "ball":
        draw.ellipse(box, fill=one.colour, outline="#222222", width=2)
    elif one.kind == "cube":
        draw.rectangle(box, fill=one.colour, outline="#222222", width=2)
    else:
        draw.polygon([(x, y - size), (x + size, y + size), (x - size, y + size)], fill=one.colour, outline="#222222")
    shine = 0.2 * size
    at = x - side * 0.35 * size if one.kind != "cone" else x
    draw.ellipse((at - shine, y - 0.1 * size - shine, at + shine, y - 0.1 * size + shine), fill="#ffffff")


def _pixels(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = box
    return left * WIDTH, top * HEIGHT, right * WIDTH, bottom * HEIGHT
