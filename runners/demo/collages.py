"""The demo's images: collages of real photographs with a known number of cats, cups and people in known places."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from tallymill.engine.numbench.prompts.text import ARRANGED
from tallymill.engine.numbench.vocabulary.categories import load_vocabulary
from tallymill.errors import MissingExtraError, UsageError
from tallymill.runners.files import appearing

Box = tuple[int, int, int, int]
Layout = Literal["grid", "random"]
Part = Literal["score", "calibration"]

SIDE = 1024
MOST_IMAGES = 70
# Written first: a folder that has it is a demo's.
MARK = "manifest-calibration.jsonl"
QUALITY = 92
LEAST_VISIBLE = 0.3
LARGEST_COPY = 480
# Share of the canvas that the copies of a random layout would take up if none covered another.
RANDOM_FILL = 0.6


@dataclass(frozen=True, slots=True)
class Photograph:
    """A photograph of one object: the part that is copied, and where the object is (both xyxy in its pixels)."""

    category: str
    file: str
    size: tuple[int, int]
    crop: Box
    thing: Box


# Measured by eye on the files of the scikit-image wheel; all three are free to use (CC0 or public domain).
PHOTOGRAPHS = (
    Photograph("cat", "chelsea.png", (451, 300), (0, 0, 430, 300), (8, 0, 402, 300)),
    Photograph("cup", "coffee.png", (600, 400), (130, 0, 455, 345), (173, 18, 409, 308)),
    Photograph("person", "astronaut.png", (512, 512), (60, 0, 350, 300), (60, 14, 350, 300)),
)

COUNT_RANGES = ("1-25", "26-50", "51-75")
LAYOUTS: tuple[Layout, ...] = ("grid", "random")
# The two parts ask for different things, and so have different cores.
FIRST_CORE: dict[Part, int] = {"score": 0, "calibration": 10_000}
# Requested counts by count range, taken in turn; at most 60 copies an image. A double image's range is that of its
# larger count.
_Counts = dict[str, tuple[tuple[int, ...], ...]]
SCORED: tuple[_Counts, _Counts] = (
    {"1-25": ((12,), (1,), (22,), (6,)), "26-50": ((36,), (28,), (50,), (42,)), "51-75": ((60,), (52,), (55,), (58,))},
    {
        "1-25": ((11, 9), (3, 2), (21, 8), (6, 6)),
        "26-50": ((30, 14), (27, 27), (41, 16), (36, 7)),
        "51-75": ((52, 8), (51, 6), (54, 6), (53, 4)),
    },
)
CALIBRATION: tuple[_Counts, _Counts] = (
    {"1-25": ((9,), (17,), (4,)), "26-50": ((33,), (45,), (27,)), "51-75": ((57,), (51,), (54,))},
    {
        "1-25": ((8, 5), (18, 12), (4, 3)),
        "26-50": ((29, 20), (34, 11), (44, 13)),
        "51-75": ((51, 9), (52, 5), (55, 4)),
    },
)


@dataclass(frozen=True, slots=True)
class Collage:
    """What one image is asked to show: (category, count) targets in a layout; ``core`` is shared by its two layouts."""

    item_id: str
    core: str
    part: Part
    layout: Layout
    count_range: str
    targets: tuple[tuple[str, int], ...]

    @property
    def composition(self) -> str:
        """``single`` or ``double``."""
        return "single" if len(self.targets) == 1 else "double"

    @property
    def prompt_id(self) -> str:
        """As the prompts of NumBench are named, but never one of them."""
        return f"{self.core}-{self.layout}-clean"


@dataclass(frozen=True, slots=True)
class TrueBox:
    """The visible extent of one copy's object (xyxy, pixels), and the share of the object that is visible."""

    target: int
    box: Box
    visible: float


@dataclass(frozen=True, slots=True)
class CollageSet:
    """The files of a set: the manifest of all images, those of its two parts, their prompts, and the truth."""

    manifest: Path
    score: Path
    calibration: Path
    prompts: Path
    truth: Path
    collages: tuple[Collage, ...]


@dataclass(frozen=True, slots=True)
class _Copy:
    target: int
    picture: Image.Image
    thing: Box
    at: tuple[int, int]


def make_collages(out: Path, *, seed: int = 0, scored: int = 48, calibration: int = 16) -> CollageSet:
    """Draw the collages and write them with their manifests and truth under ``out``.

    ``images/ITEM.jpg`` are JPEG (quality 92, 1024 x 1024); ``manifest.jsonl`` has a row an image, and
    ``manifest-score.jsonl`` and ``manifest-calibration.jsonl`` the rows of one part each (no image is in both).
    ``prompts.jsonl`` has the prompts that they refer to, with the columns of NumBench. ``truth.jsonl`` has a row an
    object of which at least 30 % is visible: later copies lie on top of earlier ones, and the box is the extent of
    what can still be seen. Requested counts include the copies that are hidden.
    The same seed gives the same pixels. Raises ``MissingExtraError`` without scikit-image, ``UsageError`` for more
    than 70 images or none to score.
    """
    if scored < 1 or calibration < 0 or scored + calibration > MOST_IMAGES:
        raise UsageError(
            f"{scored} scored and {calibration} calibration images: at least 1 scored and {MOST_IMAGES} in all"
        )
    photographs = {p.category: load_photograph(p) for p in PHOTOGRAPHS}
    collages = (*plan("score", scored, seed), *plan("calibration", calibration, seed))
    written = {name: _write(out / name, rows) for name, rows in _manifests(collages).items()}
    truth: list[dict[str, Any]] = []
    for collage in collages:
        picture, boxes = draw(collage, photographs, Random(collage.item_id))
        with appearing(out / _image(collage), sync_folder=False) as temporary:
            picture.save(temporary, "JPEG", quality=QUALITY, subsampling=0)
        truth += [
            {"item_id": collage.item_id, "target": b.target, "box": list(b.box), "visible": round(b.visible, 4)}
            for b in boxes
        ]
    return CollageSet(
        manifest=written["manifest.jsonl"],
        score=written["manifest-score.jsonl"],
        calibration=written[MARK],
        prompts=written["prompts.jsonl"],
        truth=_write(out / "truth.jsonl", truth),
        collages=collages,
    )


def _manifests(collages: Sequence[Collage]) -> dict[str, list[dict[str, Any]]]:
    """The files that can be written before a picture is drawn, by their names."""
    return {
        MARK: [_row(c) for c in collages if c.part == "calibration"],
        "manifest-score.jsonl": [_row(c) for c in collages if c.part == "score"],
        "manifest.jsonl": [_row(c) for c in collages],
        "prompts.jsonl": [_prompt(c) for c in collages],
    }


def plan(part: Part, images: int, seed: int = 0) -> tuple[Collage, ...]:
    """The first ``images`` collages of a part: all count ranges, layouts and compositions in turn.

    Images of a grid and of a random layout come in pairs that ask for the same targets. The seed is part of the
    ``item_id``, so that a RUN is never continued with the images of another seed.
    """
    endless = (collage for lap in range(images) for collage in _lap(part, lap, seed))
    return tuple(islice(endless, images))


def _lap(part: Part, lap: int, seed: int) -> Iterator[Collage]:
    tables = SCORED if part == "score" else CALIBRATION
    for r, count_range in enumerate(COUNT_RANGES):
        for composition, table in enumerate(tables):
            choices = table[count_range]
            counts = choices[lap % len(choices)]
            first = lap + r + composition
            targets = tuple((PHOTOGRAPHS[(first + k) % len(PHOTOGRAPHS)].category, n) for k, n in enumerate(counts))
            words = "-".join(f"{n}-{category}" for category, n in targets)
            number = FIRST_CORE[part] + lap * len(COUNT_RANGES) + r
            for layout in LAYOUTS:
                item_id = f"{part}-{seed}-{lap:02d}-{words}-{layout}"
                yield Collage(item_id, f"demo-{'sd'[composition]}-{number:05d}", part, layout, count_range, targets)


def draw(
    collage: Collage, photographs: dict[str, tuple[Photograph, Image.Image]], rng: Random
) -> tuple[Image.Image, list[TrueBox]]:
    """One collage as an RGB picture, and the boxes of the objects that can be seen in it.

    Only ``rng.random()`` is drawn from, whose stream Python guarantees for a seed.
    """
    order = _shuffled([t for t, (_, n) in enumerate(collage.targets) for _ in range(n)], rng)
    picture = _background(rng)
    copies = []
    for slot, target in enumerate(order):
        photograph, crop = photographs[collage.targets[target][0]]
        side = _grid_side(len(order), rng) if collage.layout == "grid" else _random_side(len(order), rng)
        small, thing = _copy(photograph, crop, side, rng)
        at = _cell(slot, len(order), small.size, rng) if collage.layout == "grid" else _anywhere(small.size, rng)
        copies.append(_Copy(target, small, thing, at))
    for copy in copies:
        picture.paste(copy.picture, copy.at)
    return picture, visible_boxes(copies)


def visible_boxes(copies: Sequence[_Copy]) -> list[TrueBox]:
    """The visible extent of each object of which at least ``LEAST_VISIBLE`` is not under a later copy."""
    owner = np.full((SIDE, SIDE), -1, dtype=np.int16)
    for i, copy in enumerate(copies):
        (x, y), (width, height) = copy.at, copy.picture.size
        owner[y : y + height, x : x + width] = i
    found = []
    for i, copy in enumerate(copies):
        x, y = copy.at
        x1, y1, x2, y2 = copy.thing
        mine = owner[y + y1 : y + y2, x + x1 : x + x2] == i
        share = float(mine.mean())
        if share >= LEAST_VISIBLE:
            found.append(TrueBox(copy.target, _extent(mine, x + x1, y + y1), share))
    return found


def _extent(mask: NDArray[np.bool_], left: int, top: int) -> Box:
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    return left + int(columns[0]), top + int(rows[0]), left + int(columns[-1]) + 1, top + int(rows[-1]) + 1


def load_photograph(photograph: Photograph) -> tuple[Photograph, Image.Image]:
    """The part of a photograph that is copied. Raises ``MissingExtraError`` without scikit-image."""
    # Read from the installed package: scikit-image's own functions may fetch a file that is not where they look.
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise MissingExtraError.of("scikit-image", "demo")
    path = Path(spec.origin).parent / "data" / photograph.file
    if not path.is_file():
        raise UsageError(f"{path}: this scikit-image does not ship it", hint="pip install 'scikit-image>=0.24'")
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    if picture.size != photograph.size:
        raise UsageError(f"{path}: is {picture.size}, not {photograph.size}", hint="pip install 'scikit-image>=0.24'")
    return photograph, picture.crop(photograph.crop)


def _copy(photograph: Photograph, crop: Image.Image, side: float, rng: Random) -> tuple[Image.Image, Box]:
    """The crop with its longer side scaled to ``side`` pixels, perhaps mirrored, and its object's box."""
    scale = side / max(crop.size)
    width, height = (max(1, math.floor(v * scale + 0.5)) for v in crop.size)
    small = crop.resize((width, height), Image.Resampling.BICUBIC)
    left, top = photograph.crop[:2]
    x1, y1, x2, y2 = (v - o for v, o in zip(photograph.thing, (left, top, left, top), strict=True))
    x1, x2 = math.floor(x1 * width / crop.width), math.ceil(x2 * width / crop.width)
    y1, y2 = math.floor(y1 * height / crop.height), math.ceil(y2 * height / crop.height)
    if rng.random() < 0.5:
        return ImageOps.mirror(small), (width - x2, y1, width - x1, y2)
    return small, (x1, y1, x2, y2)


def _columns(n: int) -> int:
    return math.isqrt(n - 1) + 1


def _grid_side(n: int, rng: Random) -> float:
    return min(SIDE / _columns(n) * (0.84 + 0.12 * rng.random()), LARGEST_COPY)


def _random_side(n: int, rng: Random) -> float:
    return min(SIDE * math.sqrt(RANDOM_FILL / n) * (0.85 + 0.35 * rng.random()), LARGEST_COPY)


def _cell(slot: int, n: int, size: tuple[int, int], rng: Random) -> tuple[int, int]:
    """Top left corner that puts a copy near the middle of its cell and leaves it inside."""
    columns = _columns(n)
    rows = -(-n // columns)
    cell = SIDE / columns
    top = (SIDE - rows * cell) / 2
    x = (slot % columns) * cell + (cell - size[0]) * (0.3 + 0.4 * rng.random())
    y = top + (slot // columns) * cell + (cell - size[1]) * (0.3 + 0.4 * rng.random())
    return math.floor(x), math.floor(y)


def _anywhere(size: tuple[int, int], rng: Random) -> tuple[int, int]:
    return math.floor(rng.random() * (SIDE - size[0] + 1)), math.floor(rng.random() * (SIDE - size[1] + 1))


def _background(rng: Random) -> Image.Image:
    """A soft cloud of muted colour without edges: 5 x 5 random colours, smoothly enlarged."""
    base = [90 + 90 * rng.random() for _ in range(3)]
    values = [math.floor(base[k % 3] + 50 * (rng.random() - 0.5)) for k in range(5 * 5 * 3)]
    coarse = Image.fromarray(np.array(values, dtype=np.uint8).reshape(5, 5, 3))
    return coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def _shuffled(values: list[int], rng: Random) -> list[int]:
    # Fisher and Yates by hand: Random.shuffle may change between Python versions, random() may not.
    for i in range(len(values) - 1, 0, -1):
        j = math.floor(rng.random() * (i + 1))
        values[i], values[j] = values[j], values[i]
    return values


def _image(collage: Collage) -> str:
    return f"images/{collage.item_id}.jpg"


def _row(collage: Collage) -> dict[str, Any]:
    return {
        "item_id": collage.item_id,
        "image": _image(collage),
        "prompt_id": collage.prompt_id,
        "part": collage.part,
    }


def _prompt(collage: Collage) -> dict[str, Any]:
    plural = load_vocabulary().plural
    things = [f"{n} {category if n == 1 else plural(category)}" for category, n in collage.targets]
    return {
        "prompt_id": collage.prompt_id,
        "core_id": collage.core,
        "text": f"generate {' and '.join(things)}{ARRANGED[collage.layout]}",
        "composition": collage.composition,
        "layout": collage.layout,
        "appearance": "clean",
        "modifiers": [],
        "modifier_group": None,
        "targets": [{"category": category, "count": n} for category, n in collage.targets],
        "count_range": collage.count_range,
    }


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    with appearing(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
