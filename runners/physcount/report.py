"""``physcount report``: RUNs and predictions side by side, as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from tallymill import __version__
from tallymill.engine.images import decode
from tallymill.engine.physcount import score as engine
from tallymill.engine.physcount.data import ANNOTATIONS, QUESTIONS, Dataset, Group, read_dataset
from tallymill.engine.physcount.parse import MAX_COUNT, Rule
from tallymill.engine.physcount.predictions import Predictions
from tallymill.engine.physcount.published import is_full, published_rows
from tallymill.engine.physcount.results import Scores
from tallymill.engine.report.canvas import drawing
from tallymill.engine.report.physcount.gallery import Card, Gallery, chosen
from tallymill.engine.report.physcount.page import Data, Page, models_of, render
from tallymill.engine.report.physcount.plots import figures_of
from tallymill.engine.report.physcount.sweeps import notes_of, pairs_of, sweeps_of
from tallymill.engine.report.shell import require_templates
from tallymill.engine.report.thumbnails import thumbnail
from tallymill.engine.words import listed
from tallymill.errors import ImageError, UsageError
from tallymill.runners.files import appearing, encoded
from tallymill.runners.outputs import require_file
from tallymill.runners.physcount.facts import facts_of, notes_on_continuing
from tallymill.runners.physcount.places import require_apart, require_no_image
from tallymill.runners.physcount.score import read_all

# Groups of each kind (worst, typical, random) in the gallery, and the long side of their images.
GROUPS, LONG_SIDE = 8, 640
_ORIENTATION = 0x112


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was written. ``models`` names each set of answers, which are of ``distinct`` models.

    ``failed`` counts refused questions, too; ``groups`` are shown in the gallery, and ``images_gone`` of them could not
    be read.
    """

    out: str
    bytes: int
    models: list[str]
    distinct: int
    questions: int
    failed: int
    groups: int
    images_gone: int
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)


def report(
    data: str | Path,
    runs: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    parse: Rule = "strict",
    max_count: int = MAX_COUNT,
    resamples: int = engine.RESAMPLES,
    groups: int = GROUPS,
    seed: int = 0,
    title: str | None = None,
) -> Report:
    """Score RUN folders or JSONL files as ``score`` does, and write what was found as one HTML file that needs nothing
    else.

    ``groups`` is the number of each kind (worst, typical, random by ``seed``) in the gallery, 0 for none. The same
    predictions and arguments give the same bytes.

    Raises ``UsageError`` for arguments that make no sense, what ``score`` raises, and ``MissingExtraError`` without
    jinja2 or matplotlib. An image that cannot be read is told in the gallery.
    """
    require_templates()
    with drawing():
        pass  # a package that is missing is missed now, and not after the work
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    target = _target(Path(out), Path(data), [Path(path) for path in paths])
    if groups < 0:
        raise UsageError(f"groups {groups}: must be 0 or more")
    dataset = read_dataset(data)
    require_no_image(target, dataset)
    sets = read_all(dataset, paths, parse=parse, max_count=max_count)
    sets, found = _ranked(sets, resamples, parse, max_count)
    gallery = _gallery(dataset, sets, found, groups, seed)
    published, sweeps = published_rows(), sweeps_of(found)
    page = Page(
        title=title or f"{listed(models_of(found), 3)}: PhysCount report",
        version=__version__,
        data=_data(dataset),
        found=found,
        published=published,
        runs=[facts_of(one) for one in sets],
        joint=[
            engine.compare(sets[a], sets[b], resamples=resamples, rule=parse, max_count=max_count)
            for a, b in pairs_of(sets)
        ],
        sweeps=sweeps,
        gallery=gallery,
        figures=figures_of(found, sweeps, [row for row in published if row.setting]),
        notes=[*notes_of(sweeps), *notes_on_continuing(sets)],
    )
    html = encoded(render(page))
    with appearing(target) as path:
        path.write_bytes(html)
    return _told(target, len(html), page)


def _target(out: Path, data: Path, runs: Sequence[Path]) -> Path:
    """The file to write, which is none that is read, and in no RUN nor among the dataset's."""
    target = require_file(out, data / QUESTIONS, data / ANNOTATIONS, *(path for path in runs if path.is_file()))
    require_apart(out, [target], data)
    return target


def _told(target: Path, size: int, page: Page) -> Report:
    found, gallery = page.found, page.gallery
    return Report(
        out=str(target),
        bytes=size,
        models=[one.name for one in found],
        distinct=len(models_of(found)),
        questions=sum(one.statuses.questions for one in found),
        failed=sum(len(one.failed) + len(one.refused) for one in found),
        groups=len(gallery.cards),
        images_gone=gallery.gone,
        notes=[*page.notes, *(f"{one.name}: {note}" for one in found for note in one.notes)],
    )


def _ranked(
    sets: Sequence[Predictions], resamples: int, parse: Rule, max_count: int
) -> tuple[list[Predictions], list[Scores]]:
    """Sets with their scores, the best first."""
    both = [(one, engine.score(one, resamples=resamples, rule=parse, max_count=max_count)) for one in sets]
    both.sort(key=lambda pair: -1.0 if pair[1].headline.score.value is None else -pair[1].headline.score.value)
    return [one for one, _ in both], [scores for _, scores in both]


def _data(dataset: Dataset) -> Data:
    return Data(str(dataset.root), **asdict(dataset.size), full=is_full(dataset.size))


def _gallery(dataset: Dataset, sets: Sequence[Predictions], found: Sequence[Scores], number: int, seed: int) -> Gallery:
    cards = chosen(dataset, sets, found, number, seed=seed)
    return Gallery(tuple(_pictured(card, dataset) for card in cards), tuple(one.name for one in sets))


def _pictured(card: Card, dataset: Dataset) -> Card:
    path = dataset.image_path(card.group)
    try:
        pixels = decode(path.read_bytes())
    except OSError as exc:
        return replace(card, reason=f"{card.group.image}: {exc.strerror or exc}")
    except ImageError as exc:
        return replace(card, reason=f"{card.group.image}: {exc.message}")
    small, size = thumbnail(pixels, LONG_SIDE)
    return replace(card, thumbnail=small, thumbnail_size=size, turned=_turned(path, card.group, *pixels.shape[:2]))


def _turned(path: Path, group: Group, height: int, width: int) -> int:
    """How the annotated image is turned into the upright one; 1 where it was annotated upright."""
    if (group.width, group.height) == (width, height) or (group.height, group.width) != (width, height):
        return 1
    with Image.open(path) as image:
        return int(image.getexif().get(_ORIENTATION, 1))
