"""Score one image in this process: for a person with a question, and for programs that hold an image in memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.batch import ItemBatch, batch_of
from tallymill.engine.ensemble import EnsembleConfig, load_ensemble
from tallymill.engine.items import read_items
from tallymill.engine.numbench.scores import ScorePlan, count_batch
from tallymill.engine.pipeline import Pipeline
from tallymill.engine.proposals import Proposals
from tallymill.engine.settings import Settings
from tallymill.engine.sources.reader import ImageReader, image_hash
from tallymill.errors import ImageError, UsageError
from tallymill.runners.acceptance import require_not_refused
from tallymill.runners.build import build_pipeline, find_models, paths_of, plan_for, read_prompt
from tallymill.runners.devices import choose_devices, require_device

TargetsLike = str | Mapping[str, int] | Iterable[tuple[str, int]]
ImageLike = str | Path | bytes | bytearray | memoryview | NDArray[np.uint8]
_BYTES = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True)
class TargetScore:
    """One requested category: what was asked, and what was counted.

    ``soft`` and ``hard`` are the ensemble's counts (equations 8 and 5), None where nothing covers the category or the
    image failed; ``detectors`` maps each detector that covers it to its own (soft, hard) count.
    """

    category: str
    requested: int
    soft: float | None
    hard: float | None
    detectors: dict[str, tuple[float, int]]


@dataclass(frozen=True, slots=True)
class ImageScore:
    """The scores of one image, as a row of a sweep would have them, and the retained boxes behind them."""

    image: str
    status: str
    error: str | None
    cw_nps: float | None
    b_nps: float | None
    targets: tuple[TargetScore, ...]
    proposals: Mapping[str, Proposals]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form, without the boxes."""
        return {
            "image": self.image,
            "status": self.status,
            "error": self.error,
            "cw_nps": self.cw_nps,
            "b_nps": self.b_nps,
            "targets": [asdict(target) for target in self.targets],
        }


def score(
    image: ImageLike,
    targets: TargetsLike,
    *,
    ensemble: str | Path | EnsembleConfig = "coco-cpu",
    settings: Settings | None = None,
    device: str = "auto",
    unaccepted: bool = False,
) -> ImageScore:
    """Score one image: a path or URL, the bytes of an image file, or RGB uint8 [H, W, 3].

    ``targets`` is a prompt ("3 cats and 2 dogs"), a mapping {"cat": 3} or pairs. Models stay loaded between calls with
    the same ensemble, settings and device; ``unaccepted`` as in ``sweep``. An image that cannot be read gives a result
    with ``status`` "error".
    """
    require_device(device)
    if "," in device:
        raise UsageError(f"device {device!r}: one image is looked at on one device", hint="name one, such as cuda:0")
    if not isinstance(image, (str, Path, *_BYTES, np.ndarray)):
        raise UsageError(f"image: got {type(image).__name__}; must be a path, a URL, bytes, or RGB uint8 [H, W, 3]")
    if settings is not None and not isinstance(settings, Settings):
        raise UsageError(f"settings = {settings!r}: must be tallymill.Settings(...)")
    config = ensemble if isinstance(ensemble, EnsembleConfig) else load_ensemble(ensemble)
    pipe = _pipeline(config, settings or Settings(), device, unaccepted)
    batch = batch_of(_row(image, targets))
    _load(batch, image)
    proposals = pipe.detect(batch, [d.name for d in config.detectors])
    row = pipe.score(batch, proposals).to_pylist()[0]
    return ImageScore(
        image=row["item_id"],
        status=row["status"],
        error=row["error"],
        cw_nps=row["cw_nps"],
        b_nps=row["b_nps"],
        targets=tuple(_targets(row["targets"], batch, proposals, pipe.plan)),
        proposals=proposals,
    )


@functools.lru_cache(maxsize=4)
def _pipeline(config: EnsembleConfig, settings: Settings, device: str, unaccepted: bool) -> Pipeline:
    plan = plan_for(config, settings)
    plan.require_floor(settings.floor)
    models = paths_of(find_models(config))
    choice = choose_devices(device, models)
    require_not_refused(models, choice.kind, unaccepted=unaccepted)
    return build_pipeline(config, models, settings, plan, device=choice.devices[0])


@functools.lru_cache(maxsize=1)
def _reader(folder: str) -> ImageReader:
    """Relative paths start from the current folder, which may change between calls."""
    return ImageReader(folder)


def _row(image: ImageLike, targets: TargetsLike) -> pa.RecordBatch:
    """The canonical row that a manifest with this image and these targets would give."""
    reference = str(image) if isinstance(image, str | Path) else "(memory)"
    pairs = _pairs(read_prompt(targets) if isinstance(targets, str) else targets)
    try:
        table = pa.Table.from_pylist([{"item_id": reference, "image": reference, "targets": pairs}])
    except UnicodeEncodeError:
        raise UsageError(f"{reference!a}: a name that is not UTF-8 cannot be recorded") from None
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise UsageError(f"targets {targets!r}: must be category names with whole numbers") from None
    return next(read_items(table))


def _pairs(targets: Mapping[str, int] | Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    pairs = list(targets.items() if isinstance(targets, Mapping) else targets)
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise UsageError(f"targets {pairs!r}: must be category names with whole numbers, at least one")
    return [{"category": category, "count": count} for category, count in pairs]


def _load(batch: ItemBatch, image: ImageLike) -> None:
    """Put the image's bytes, or the pixels that were given, into the batch."""
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise UsageError(f"image array: got {image.dtype} {list(image.shape)}; must be RGB uint8 [H, W, 3]")
        batch.contents[0] = np.ascontiguousarray(image)
        return
    try:
        data = bytes(image) if isinstance(image, _BYTES) else _reader(str(Path.cwd())).read(str(image))
        batch.contents[0], batch.hashes[0] = data, image_hash(data)
    except ImageError as exc:
        batch.errors[0] = batch.errors[0] or f"image: {exc.message}"


def _targets(
    rows: list[dict[str, Any]], batch: ItemBatch, proposals: Mapping[str, Proposals], plan: ScorePlan
) -> Iterable[TargetScore]:
    alone = {
        name: count_batch(batch, [proposals[name]], ScorePlan((name,), (tau,), "covered", plan.schedule))
        for name, tau in zip(plan.detectors, plan.taus, strict=True)
    }
    for t, row in enumerate(rows):
        counted = {
            name: (float(counts.soft[t]), int(counts.hard[t]))
            for name, counts in alone.items()
            if counts.covering[t] and row["soft"] is not None
        }
        yield TargetScore(row["category"], batch.targets.count[t].item(), row["soft"], row["hard"], counted)
