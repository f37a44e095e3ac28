"""The images that a gallery shows, read again from where the sweep found them, with the boxes that counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tallymill.engine.images import decode
from tallymill.engine.numbench.analysis.gather import SystemKey
from tallymill.engine.numbench.factors import STRESS_RANGES
from tallymill.engine.numbench.scores import MAX_COUNT, ScorePlan
from tallymill.engine.proposals import Proposals
from tallymill.engine.report.gallery import Asked, Card, Layer
from tallymill.engine.report.thumbnails import thumbnail
from tallymill.engine.sources.reader import ImageReader, image_hash
from tallymill.errors import ImageError, MissingExtraError
from tallymill.kernels.count import calibrate
from tallymill.runners.numbench.gallery import Chosen
from tallymill.runners.parts import read_part
from tallymill.runners.plan import ItemFile, Shard
from tallymill.runners.run import Run
from tallymill.runners.run_folder import plan_of

LONG_SIDE = 400
_TEXTS = ("text", "prompt")
_FACTORS = ("layout", "appearance")

TextOf = Callable[[str], str | None]


def make_cards(
    runs: Sequence[Run], chosen: Sequence[Chosen], names: Mapping[SystemKey, str], text_of: TextOf | None = None
) -> list[Card]:
    """A card for each image, in order. An image that cannot be read any more has a card that says why.

    ``names`` are what the systems are called. ``text_of`` gives the text of a prompt id, for RUNs that do not know it.
    """
    cards: dict[Chosen, Card] = {}
    for place, run in enumerate(runs):
        own = sorted((c for c in chosen if c.run == place), key=lambda c: c.row)
        cards |= _cards_of(run, own, text_of or _unknown)
    return [replace(cards[c], system=names[c.cell.system]) for c in chosen]


def _unknown(_prompt: str) -> None:
    return None


def _cards_of(run: Run, chosen: Sequence[Chosen], text_of: TextOf) -> dict[Chosen, Card]:
    plan = plan_of(run.record)
    size = run.record["shard_items"]
    cards = {}
    with closing(ImageReader(run.record["manifest"]["image_root"])) as reader:
        for index in sorted({c.row // size for c in chosen}):
            shard = run.shards[index]
            own = [c for c in chosen if c.row // size == index]
            scores = read_part(run.path / "scores" / shard.part)
            # Without proposals, which the analysis tells, images are shown without boxes.
            names = run.detectors if run.proposals_folder.is_dir() else []
            found = {name: run.proposals_of_shard(name, shard) for name in names}
            for c in own:
                row = scores.slice(c.row - shard.start, 1).to_pylist()[0]
                layers = [
                    _layer(name, table.slice(c.row - shard.start, 1), row, plan, tau)
                    for (name, table), tau in zip(found.items(), plan.taus, strict=bool(found))
                    if table is not None
                ]
                card = _card(c, row, layers, text_of)
                cards[c] = _with_image(card, run, c.row, row["image_hash"], reader)
    return cards


def _layer(
    name: str, table: pa.Table, row: dict[str, Any], plan: ScorePlan, tau: float
) -> tuple[Layer, tuple[int, int]]:
    """The boxes that count, and the (width, height) that they refer to."""
    found = Proposals.from_arrow(table).survivors()
    requested = np.array([target["requested"] for target in row["targets"]], np.int64)
    target = found.target.astype(np.int64)
    rho = calibrate(found.confidence, tau).astype(np.float64)
    counts = rho >= np.asarray(plan.schedule)[np.clip(requested, 1, MAX_COUNT) - 1][target]
    soft = tuple(
        float(rho[counts & (target == t)].sum()) if covered else None
        for t, covered in enumerate(found.covered.tolist())
    )
    height, width = found.sizes[0].tolist()
    return Layer(name, found.boxes[counts], target[counts], soft), (width, height)


def _card(
    chosen: Chosen,
    row: dict[str, Any],
    layers: Sequence[tuple[Layer, tuple[int, int]]],
    text_of: TextOf,
) -> Card:
    texts = [row.get(name) for name in _TEXTS]
    if row["prompt_id"] is not None:
        texts.append(text_of(row["prompt_id"]))
    factors = [row.get(name) for name in _FACTORS]
    width, height = max((size for _, size in layers), default=(0, 0))
    return Card(
        system=chosen.cell.system[1] or "",
        group=chosen.group,
        item_id=row["item_id"],
        composition=chosen.cell.composition,
        count_range=chosen.cell.count_range,
        stress_test=chosen.cell.count_range in STRESS_RANGES,
        factors=tuple(word for word in factors if isinstance(word, str) and word),
        prompt=next((text for text in texts if isinstance(text, str) and text), None),
        cw_nps=row["cw_nps"],
        b_nps=row["b_nps"],
        asked=tuple(Asked(t["category"], t["requested"], t["soft"], t["hard"]) for t in row["targets"]),
        layers=tuple(layer for layer, _ in layers),
        width=width,
        height=height,
    )


def _with_image(card: Card, run: Run, row: int, seen: str | None, reader: ImageReader) -> Card:
    try:
        reference = _reference(run, row)
        data = reader.read(reference)
        if seen is not None and image_hash(data) != seen:
            return replace(card, reason=f"{reference}: the file has changed since it was scored")
        pixels = decode(data, max_pixels=run.record["settings"]["max_pixels"])
    except (ImageError, MissingExtraError) as error:
        return replace(card, reason=error.message)
    height, width = pixels.shape[:2]
    small, size = thumbnail(pixels, LONG_SIDE)
    # Boxes refer to the size that the detectors saw; where none looked there are no boxes.
    return replace(card, thumbnail=small, thumbnail_size=size, width=card.width or width, height=card.height or height)


def _reference(run: Run, row: int) -> str:
    path = run.items_path
    if not path.is_file():
        raise ImageError(f"{path} is gone, so nobody knows where the image is")
    with ItemFile(path, ("image",)) as file:
        batch = next(iter(file.rows(Shard(0, row, row + 1))))
        reference: str = batch.column("image")[0].as_py()
    return reference
