"""``abacus example``: edits whose truth is known because they were made of copies of photographs, in known places."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tallymill.engine.numbench.vocabulary.categories import load_vocabulary
from tallymill.errors import UsageError
from tallymill.runners.demo.collages import PHOTOGRAPHS, Photograph, load_photograph
from tallymill.runners.files import appearing

RGB = NDArray[np.uint8]
# Copies lie in cells of a square grid; their long side is so long that small detectors see each of them.
SIDE, CELLS = 768, 3
CELL = SIDE // CELLS
QUALITY = 95
MANIFEST, PANOPTIC, TRUTH = "edits.jsonl", "panoptic.json", "truth.jsonl"
# Small detectors are sure of every copy with this seed; with others they may miss one here and there.
LAPS, MOST_LAPS, SEED = 2, 100, 6
COCO_IDS = {"person": 1, "cat": 17}
SHIFT = (3, 2)
RIM = 10  # pixels of a photograph around its object


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a photograph's object in a cell; ``seed`` decides its size, and its place there."""

    category: str
    cell: int
    seed: int


@dataclass(frozen=True, slots=True)
class Made:
    """An edit: the copies in both images, what was asked for, and what must come of it.

    ``after`` changes the edited image as a whole. ``delivered``, ``lost``, ``originals`` are d, N_rem and N_GT.
    """

    name: str
    instruction: str
    operation: str
    category: str
    target: str | None
    count: int
    source: tuple[Copy, ...]
    edited: tuple[Copy, ...]
    delivered: int
    lost: int
    originals: int
    editor: str
    after: str = "nothing"


@dataclass(frozen=True, slots=True)
class ExampleSet:
    """The files of an example set, and how many edits it has."""

    manifest: Path
    panoptic: Path
    truth: Path
    edits: int


def example(out: str | Path, *, laps: int = LAPS, seed: int = SEED) -> ExampleSet:
    """Write images, ``edits.jsonl``, the panoptic annotations of the sources, and ``truth.jsonl`` into a new folder.

    A lap is one edit of each kind; laps differ in categories, places and sizes. The same seed gives the same pixels.
    Raises ``UsageError`` for a folder that holds something and for numbers that make no sense, ``MissingExtraError``
    without scikit-image.
    """
    root = Path(out)
    if not 1 <= laps <= MOST_LAPS or seed < 0:
        raise UsageError(f"laps {laps}, seed {seed}: 1 to {MOST_LAPS} laps, and a seed of 0 or more")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(f"--out {root} is not an empty folder", hint="name a folder that does not exist yet")
    things = {p.category: _thing(p) for p in PHOTOGRAPHS if p.category in COCO_IDS}
    made = [each for lap in range(laps) for each in edits_of(lap, seed)]
    annotations = []
    for place, each in enumerate(made):
        source, ids = draw(each.source, things, Random(f"{seed} {each.name}"))
        edited, _ = draw(each.edited, things, Random(f"{seed} {each.name}"))
        _save(root / f"images/{each.name}-source.jpg", source)
        if each.edited == each.source and each.after == "nothing":
            shutil.copyfile(root / f"images/{each.name}-source.jpg", root / f"images/{each.name}-edited.jpg")
        else:
            _save(root / f"images/{each.name}-edited.jpg", AFTER[each.after](edited))
        annotations.append(_annotate(root, place, each, ids))
    _write(root / PANOPTIC, [json.dumps(_panoptic(annotations, made), indent=1)])
    _write(root / TRUTH, (json.dumps(_truth(each)) for each in made))
    _write(root / MANIFEST, (json.dumps(_row(each)) for each in made))
    return ExampleSet(root / MANIFEST, root / PANOPTIC, root / TRUTH, len(made))


def edits_of(lap: int, seed: int = 0) -> list[Made]:
    """One edit of each kind: additions, removals and changes that did what was asked, and those that did not."""
    rng = Random(f"{seed} lap {lap}")
    first, second = ("cat", "person") if lap % 2 == 0 else ("person", "cat")
    found = []
    for kind, make in enumerate(_KINDS):
        cells = sorted(range(CELLS * CELLS), key=lambda _: rng.random())
        copies = [Copy(first, cell, rng.randrange(1 << 30)) for cell in cells]
        made = make(copies, second)
        found.append(replace(made, name=f"{lap:02d}-{kind:02d}-{made.name}"))
    return found


def draw(copies: Sequence[Copy], things: dict[str, Image.Image], rng: Random) -> tuple[RGB, NDArray[np.uint32]]:
    """A picture, and the number (from 1) of the copy that each of its pixels shows, 0 for none."""
    picture = Image.fromarray(_ground(rng))
    ids = np.zeros((SIDE, SIDE), np.uint32)
    for number, copy in enumerate(copies, 1):
        thing, own = things[copy.category], Random(copy.seed)
        scale = CELL * (0.96 + 0.03 * own.random()) / max(thing.size)
        width, height = (round(side * scale) for side in thing.size)
        x = copy.cell % CELLS * CELL + round((CELL - width) * (0.4 + 0.2 * own.random()))
        y = copy.cell // CELLS * CELL + round((CELL - height) * (0.4 + 0.2 * own.random()))
        picture.paste(thing.resize((width, height), Image.Resampling.BICUBIC), (x, y))
        ids[y : y + height, x : x + width] = number
    return np.array(picture), ids


def _thing(photograph: Photograph) -> Image.Image:
    """The object of a photograph with little of what is around it."""
    _, part = load_photograph(photograph)
    x1, y1, x2, y2 = (edge - first for edge, first in zip(photograph.thing, photograph.crop[:2] * 2, strict=True))
    box = (max(x1 - RIM, 0), max(y1 - RIM, 0), min(x2 + RIM, part.width), min(y2 + RIM, part.height))
    return part.crop(box)


def _ground(rng: Random) -> RGB:
    """A cloud of muted colours with grain, so that a flow has something to hold on to."""
    generator = np.random.default_rng(rng.randrange(1 << 30))
    coarse = generator.integers(90, 150, (6, 6, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float32)
    grain = np.asarray(
        Image.fromarray(generator.integers(0, 255, (SIDE // 4, SIDE // 4), np.uint8)).resize(
            (SIDE, SIDE), Image.Resampling.BICUBIC
        ),
        np.float32,
    )
    return np.clip(smooth + (grain[..., None] - 127) * 0.05, 0, 255).astype(np.uint8)


def _shifted(picture: RGB) -> RGB:
    """Everything a few pixels to the right and down; what comes in repeats the border."""
    across, down = SHIFT
    return np.asarray(np.pad(picture, ((down, 0), (across, 0), (0, 0)), "edge")[:SIDE, :SIDE], np.uint8)


def _warmer(picture: RGB) -> RGB:
    """Other colours everywhere, as an editor leaves them that repaints the scene."""
    found: RGB = np.clip(picture * np.array([1.12, 1.0, 0.82]) + np.array([6, 0, -4]), 0, 255).astype(np.uint8)
    return found


AFTER: dict[str, Callable[[RGB], RGB]] = {"nothing": lambda picture: picture, "shift": _shifted, "colour": _warmer}


def _words(count: int, category: str) -> str:
    return f"{count} {category if count == 1 else load_vocabulary().plural(category)}"


def _added(
    name: str, there: int, asked: int, new: int, lost: int = 0, editor: str = "careful", after: str = "nothing"
) -> Any:
    def make(copies: list[Copy], _: str) -> Made:
        source, category = tuple(copies[:there]), copies[0].category
        edited = source[lost:] + tuple(copies[there : there + new])
        asking = f"add {_words(asked, category)}"
        return Made(name, asking, "add", category, None, asked, source, edited, new, lost, there, editor, after)

    return make


def _removed(name: str, there: int, asked: int, gone: int, painted: int = 0, editor: str = "careful") -> Any:
    def make(copies: list[Copy], _: str) -> Made:
        source, category = tuple(copies[:there]), copies[0].category
        edited = source[gone:] + tuple(copies[there : there + painted])
        asking = f"remove {_words(asked, category)}"
        return Made(name, asking, "remove", category, None, asked, source, edited, gone, painted, there, editor)

    return make


def _changed(name: str, there: int, asked: int, *, in_place: bool, editor: str = "careful") -> Any:
    def make(copies: list[Copy], target: str) -> Made:
        source, category = tuple(copies[:there]), copies[0].category
        places = copies[:asked] if in_place else copies[there : there + asked]
        edited = source[asked:] + tuple(replace(copy, category=target) for copy in places)
        asking = f"change {_words(asked, category)} to {load_vocabulary().plural(target)}"
        delivered, lost = (asked, 0) if in_place else (0, asked)
        return Made(name, asking, "change", category, target, asked, source, edited, delivered, lost, there, editor)

    return make


_KINDS: tuple[Callable[[list[Copy], str], Made], ...] = (
    _added("add-exact", 2, 2, 2),
    _added("add-overwriting", 3, 2, 2, lost=1, editor="careless"),
    _added("add-fewer", 2, 3, 1, editor="careless"),
    _added("add-more", 1, 1, 3, editor="careless"),
    _removed("remove-exact", 4, 2, 2),
    _removed("remove-too-many", 4, 1, 3, editor="careless"),
    _removed("remove-painted-elsewhere", 3, 1, 1, painted=1, editor="careless"),
    _changed("change-in-place", 3, 2, in_place=True),
    _changed("change-elsewhere", 3, 2, in_place=False, editor="careless"),
    _added("add-shifted", 3, 1, 1, editor="drifting", after="shift"),
    _added("add-recoloured", 2, 1, 1, editor="drifting", after="colour"),
    _added("untouched", 2, 2, 0, editor="idle"),
)


def _annotate(root: Path, place: int, made: Made, ids: NDArray[np.uint32]) -> dict[str, Any]:
    """Write the PNG of a source's ids; its entry among the annotations."""
    segments = []
    for number, copy in enumerate(made.source, 1):
        y, x = np.nonzero(ids == number)
        box = [int(x.min()), int(y.min()), int(np.ptp(x)) + 1, int(np.ptp(y)) + 1]
        segments.append(
            {"id": number, "category_id": COCO_IDS[copy.category], "area": len(x), "bbox": box, "iscrowd": 0}
        )
    colours = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=2).astype(np.uint8)
    with appearing(root / "panoptic" / f"{made.name}.png", sync_folder=False) as temporary:
        Image.fromarray(colours).save(temporary, "PNG")
    return {"image_id": place + 1, "file_name": f"{made.name}.png", "segments_info": segments}


def _panoptic(annotations: list[dict[str, Any]], made: Sequence[Made]) -> dict[str, Any]:
    images = [
        {"id": place + 1, "file_name": f"{each.name}-source.jpg", "width": SIDE, "height": SIDE}
        for place, each in enumerate(made)
    ]
    categories = [{"id": number, "name": name, "isthing": 1} for name, number in COCO_IDS.items()]
    return {"images": images, "annotations": annotations, "categories": categories}


def _row(made: Made) -> dict[str, Any]:
    """A row of the manifest: the instruction says what is asked for; people count what was really done."""
    return {
        "edit_id": made.name,
        "source": f"images/{made.name}-source.jpg",
        "edited": f"images/{made.name}-edited.jpg",
        "instruction": made.instruction,
        "editor": made.editor,
        "capacity": CELLS * CELLS - len(made.source),
        "human_count": made.delivered,
    }


def _truth(made: Made) -> dict[str, Any]:
    names = ("operation", "category", "target", "count", "delivered", "lost", "originals", "after")
    whole = asdict(made)
    return {"edit_id": made.name, **{name: whole[name] for name in names}}


def _save(path: Path, pixels: RGB) -> None:
    with appearing(path, sync_folder=False) as temporary:
        Image.fromarray(pixels).save(temporary, "JPEG", quality=QUALITY, subsampling=0)


def _write(path: Path, lines: Iterable[str]) -> None:
    with appearing(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
