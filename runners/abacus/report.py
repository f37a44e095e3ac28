"""``abacus report``: one HTML file about a RUN of edits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tallymill import __version__
from tallymill.engine.abacus.clean import clean
from tallymill.engine.abacus.data import EDITED, SOURCE, Edit
from tallymill.engine.abacus.instructions import REMOVE
from tallymill.engine.abacus.pipeline import Case, _fit
from tallymill.engine.abacus.score import RESAMPLES
from tallymill.engine.images import decode
from tallymill.engine.numbench.scores import SCORED
from tallymill.engine.report.abacus.page import EditCard, EditPage, render
from tallymill.engine.report.shell import require_templates
from tallymill.engine.report.thumbnails import thumbnail
from tallymill.engine.sources.reader import ImageReader, image_hash
from tallymill.errors import ImageError, UsageError
from tallymill.kernels.mask_iou import Masks
from tallymill.runners.abacus.record import model_in_words, read_record
from tallymill.runners.abacus.score import read_run
from tallymill.runners.abacus.work import evidence_path
from tallymill.runners.files import appearing, encoded
from tallymill.runners.outputs import require_file
from tallymill.runners.parts import naming_damage
from tallymill.runners.plan import shards_of

RGB = NDArray[np.uint8]
EDITS = 60
LONG_SIDE = 300
_FIELDS = ("image", "category", "box", "rle", "partner")


@dataclass(frozen=True, slots=True)
class EditReport:
    """A report that was written: ``shown`` of the ``scored`` edits have a strip, of ``gone`` the images are
    gone, or others than were scored.
    """

    out: str
    bytes: int
    edits: int
    scored: int
    shown: int
    gone: int

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)


def report(
    run: str | Path, out: str | Path, *, edits: int = EDITS, resamples: int = RESAMPLES, title: str | None = None
) -> EditReport:
    """Write what a RUN has come to as one HTML file that needs nothing else.

    ``edits`` is how many have a strip of pictures; where more are scored, those are evenly spread over their Scores.
    The images are read again. Raises ``RunError`` for what is no RUN, ``MissingExtraError`` without jinja2.
    """
    if type(edits) is not int or edits < 0:
        raise UsageError(f"edits = {edits!r}: must be a whole number, 0 or more")
    require_templates()
    path = Path(run)
    record = read_record(path)
    summary, results = read_run(path, resamples)
    target = require_file(Path(out))
    rows = [row for row in results.scores.to_pylist() if row["status"] == SCORED]
    rows.sort(key=lambda row: (-1 if row["score"] is None else row["score"], row["edit_id"]))
    places = (
        np.unique(np.linspace(0, len(rows) - 1, edits).round().astype(int)) if len(rows) > edits else range(len(rows))
    )
    chosen = [rows[place] for place in (places if edits else ())]
    cards = list(_cards(path, record, chosen))
    page = EditPage(
        title or f"ABACUS: {path.resolve().name}", __version__, summary.as_dict(), _facts(record), cards, len(rows)
    )
    html = encoded(render(page))
    with appearing(target) as temporary:
        temporary.write_bytes(html)
    gone = sum(card.pictures is None for card in cards)
    return EditReport(str(out), len(html), summary.edits, len(rows), len(cards), gone)


def _cards(run: Path, record: Mapping[str, Any], chosen: list[dict[str, Any]]) -> Iterator[EditCard]:
    evidence = _evidence(run, record, {row["edit_id"] for row in chosen})
    reader = ImageReader(record["manifest"]["image_root"])
    for row in chosen:
        seen = evidence[row["edit_id"]]
        size = (seen["width"], seen["height"])
        try:
            images = _images(row, reader, record["settings"]["max_pixels"])
        except ImageError as exc:
            yield EditCard(row, seen["instances"], size, None, exc.message)
            continue
        images["clean"] = _clean(row, seen["instances"], images, record["settings"])
        pictures = {name: thumbnail(pixels, LONG_SIDE)[0] for name, pixels in images.items()}
        yield EditCard(row, seen["instances"], size, pictures)
    reader.close()


def _images(row: dict[str, Any], reader: ImageReader, max_pixels: int) -> dict[str, RGB]:
    """Both images as they were when the edit was scored. One that is another now, or gone, is an ``ImageError``."""
    case = Case(Edit.of(row), row, None)
    for name in (SOURCE, EDITED):
        data = reader.read(row[name])
        if image_hash(data) != row[f"{name}_hash"]:
            raise ImageError(f"{row[name]}: the image is not the one that was scored")
        case.pixels[name] = decode(data, max_pixels=max_pixels)
    _fit(case)
    return case.pixels


def _evidence(run: Path, record: Mapping[str, Any], wanted: set[str]) -> dict[str, dict[str, Any]]:
    """The evidence of some edits, without crops."""
    columns = ["edit_id", "width", "height", *(f"instances.list.element.{name}" for name in _FIELDS)]
    found: dict[str, dict[str, Any]] = {}
    for shard in shards_of(record["manifest"]["rows"], record["shard_items"]):
        path = evidence_path(run, shard)
        if not path.exists():
            continue
        with naming_damage(path):
            rows = pq.ParquetFile(path).read(columns).to_pylist()
        found |= {row["edit_id"]: row for row in rows if row["edit_id"] in wanted}
    return found


def _clean(
    row: Mapping[str, Any], instances: list[dict[str, Any]], images: Mapping[str, RGB], settings: Mapping[str, Any]
) -> RGB:
    """The clean image that decides what was delivered: of a removal the source's, else the edited one's."""
    image = SOURCE if row["operation"] == REMOVE else EDITED
    category = row["target"] if row["target"] is not None else row["category"]
    own = [one for one in instances if one["image"] == image and one["category"] == category]
    height, width = images[image].shape[:2]
    sides = [[one for one in own if (one["partner"] >= 0) == kept] for kept in (True, False)]
    size = [height, width]
    kept, new = (
        Masks.from_rle([{"size": size, "counts": one["rle"]} for one in side], (height, width)) for side in sides
    )
    return clean(images[image], kept, new, settings["erase_margin"], settings["erase_radius"])


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    suite, manifest = record["suite"], record["manifest"]
    found = [
        ("manifest", f"{manifest['source']}: {manifest['rows']:,} edits, {manifest['sha256'][:12]}"),
        ("annotations", "none" if record["panoptic"] is None else str(record["panoptic"]["file"])),
        ("suite", str(suite["name"])),
        ("instances", str(record["instances"])),
        *((part, model_in_words(model)) for part, model in record["models"].items()),
        *((name, str(value)) for name, value in record["settings"].items()),
        ("device", str(record["device"])),
        ("begun", str(record["created"])),
    ]
    question = record.get("question")
    if question is not None:
        found.append(("asked", f"{question['model']} at {question['endpoint']}: {question['prompt']}"))
    return [*found, *((name, str(value)) for name, value in record["versions"].items())]
