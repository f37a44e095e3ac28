"""Detection of two categories an image: tallymill on ONNX Runtime beside transformers, same weights.

There are two of transformers: its pipeline, which passes an image through the model once a category, and its processor
and model as one may call them oneself, with the categories of an image in one pass. The weights are random, the sizes
those that are published. Images lie decoded in memory; each peer prepares, runs and reads them. The model is exported
first, which takes minutes. Needs ``pip install 'tallymill[bench,cpu,export]'``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.bench.decode import photographs
from tallymill.bench.pairs import aligned, in_turns
from tallymill.bench.random_models import make_folder
from tallymill.engine.batch import ItemBatch, batch_of
from tallymill.engine.bundles import Bundle
from tallymill.engine.clock import StageClock
from tallymill.engine.ensemble import open_detector
from tallymill.engine.gathering import Gathering
from tallymill.engine.images import decode
from tallymill.engine.items import read_items
from tallymill.engine.pipeline import class_of_targets
from tallymill.engine.proposer import DetectOptions, WindowProposer
from tallymill.errors import TallymillError
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.pairing import Bounds, apart
from tallymill.exporters.recipes import grounding_dino, owl


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its processor in transformers, how that is asked for a category, and how the peers are compared first.

    ``alone``: the pipeline asks for one category at a time, of which the answer depends; so it is compared for one.
    """

    model: str
    processor: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False


CASES = (
    Case("owlvit-base-patch32", "OwlViTProcessor", owl.TEMPLATE),
    Case(
        "grounding-dino-tiny",
        "GroundingDinoProcessor",
        grounding_dino.TEMPLATE + ".",
        {"buckets": ((800, 800),)},
        alone=True,
    ),
)
MODELS = tuple(case.model for case in CASES)
IMAGES, ROUNDS, THREADS = 16, 3, 2
CATEGORIES = ("cat", "dog")
FLOOR = 0.05
SCORES, PIXELS = 1e-3, 2.0  # the pipeline rounds boxes to whole pixels


def run(images: int = IMAGES, rounds: int = ROUNDS, models: Sequence[str] = MODELS) -> dict[str, Any]:
    """Images a second of each peer (medians of the rounds), and the ratios within a round."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    pictures = [decode(file) for file in photographs(images)]
    return {
        "bench": "detect",
        "images": images,
        "categories": list(CATEGORIES),
        "threads": THREADS,
        "models": {case.model: _model(case, pictures, rounds) for case in CASES if case.model in models},
    }


def _model(case: Case, pictures: list[NDArray[np.uint8]], rounds: int) -> dict[str, Any]:
    name = case.model
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_folder(recipe_of(name).family, Path(scratch) / "weights")
        bundle = export(recipe_of(name), folder, out=Path(scratch) / "bundle", options=case.options)
        ours, pipeline, passes = Ours(bundle, name), _pipeline(folder, case.label), _passes(folder, case)
        agree = _agree_on_boxes if case.alone else _agree
        asked = CATEGORIES[:1] if case.alone else CATEGORIES
        agree(ours(pictures[:2], asked), pipeline(pictures[:2], asked))
        agree(ours(pictures[:2], CATEGORIES[:1]), passes(pictures[:2], CATEGORIES[:1]))
        peers: dict[str, Callable[..., object]] = {
            "tallymill": ours,
            "transformers, pipeline": pipeline,
            "transformers, one pass": passes,
        }
        timing = in_turns({peer: partial(call, pictures) for peer, call in peers.items()}, rounds)
        return {
            "peers": [
                {
                    "name": peer,
                    "images_per_s": round(len(pictures) / seconds, 3),
                    "ratio": round(timing.ratios[peer], 2),
                }
                for peer, seconds in timing.seconds.items()
            ],
            "encoded": sum(each.learned.encoded for each in ours.detectors),
        }


class Ours:
    """A detector a thread, as a sweep has one a worker, each with one thread for its operators."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        self.detectors: list[Any] = [open_detector(bundle, name) for _ in range(THREADS)]

    def __call__(
        self, pictures: Sequence[NDArray[np.uint8]], categories: Sequence[str] = CATEGORIES
    ) -> list[tuple[Any, Any]]:
        """Boxes and confidences of each picture, of all categories."""
        shares = [pictures[k::THREADS] for k in range(THREADS)]
        with ThreadPoolExecutor(THREADS) as pool:
            answers = list(pool.map(partial(_look, categories), self.detectors, shares))
        return [answers[k % THREADS][k // THREADS] for k in range(len(pictures))]


def _look(categories: Sequence[str], detector: Any, pictures: Sequence[NDArray[np.uint8]]) -> list[tuple[Any, Any]]:
    if not pictures:
        return []
    batch = _batch(len(pictures), categories)
    classes = class_of_targets(detector.spec, batch.targets)
    gathering = Gathering(WindowProposer(detector), batch, classes, DetectOptions(FLOOR, 0.5, ()), StageClock())
    for item, picture in enumerate(pictures):
        gathering.look(item, picture)
    raw = gathering.boxes()
    owner = batch.targets.item[raw.segment]
    return [(raw.boxes[owner == k], raw.scores[owner == k]) for k in range(len(pictures))]


def _batch(items: int, categories: Sequence[str]) -> ItemBatch:
    import pyarrow as pa

    targets = [{"category": name, "count": 1} for name in categories]
    rows = [{"item_id": str(k), "image": f"{k}.jpg", "targets": targets} for k in range(items)]
    return batch_of(next(read_items(pa.Table.from_pylist(rows))))


def _pipeline(folder: Path, label: str) -> Callable[..., list[tuple[Any, Any]]]:
    """The pipeline that transformers offers for the task; all its boxes at or above the floor."""
    import torch
    import transformers
    from PIL import Image

    torch.set_num_threads(THREADS)
    pipe = transformers.pipeline(
        "zero-shot-object-detection",
        model=str(folder),
        image_processor=transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"),
    )

    def call(pictures: Sequence[NDArray[np.uint8]], categories: Sequence[str] = CATEGORIES) -> list[tuple[Any, Any]]:
        labels = [label.format(name) for name in categories]
        found = pipe(
            [{"image": Image.fromarray(each), "candidate_labels": labels} for each in pictures], threshold=FLOOR
        )
        return [
            (np.array([list(box["box"].values()) for box in boxes]), np.array([box["score"] for box in boxes]))
            for boxes in found
        ]

    return call


def _passes(folder: Path, case: Case) -> Callable[..., list[tuple[Any, Any]]]:
    """One pass an image for all categories, with the processor of transformers before it and after; of a box only the
    best category is told.
    """
    import torch
    import transformers
    from PIL import Image

    images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    processor = getattr(transformers, case.processor)(images, transformers.AutoTokenizer.from_pretrained(folder))
    model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(folder).eval()

    def call(pictures: Sequence[NDArray[np.uint8]], categories: Sequence[str] = CATEGORIES) -> list[tuple[Any, Any]]:
        labels, answers = [case.label.format(name) for name in categories], []
        for picture in pictures:
            text = " ".join(labels) if case.alone else [labels]  # of an open sentence, or of labels
            inputs = processor(images=Image.fromarray(picture), text=text, return_tensors="pt")
            with torch.no_grad():
                outputs = model(**inputs)
            (found,) = processor.post_process_grounded_object_detection(
                outputs, threshold=FLOOR, target_sizes=[picture.shape[:2]]
            )
            answers.append((found["boxes"].numpy(), found["scores"].numpy()))
        return answers

    return call


def _agree(ours: list[tuple[Any, Any]], peer: list[tuple[Any, Any]]) -> None:
    """The same boxes with the same confidences, or the times would compare nothing."""
    for mine, theirs in zip(ours, peer, strict=True):
        off = apart(mine, theirs, Bounds(PIXELS, SCORES))
        if not off.compared or off.box > PIXELS or off.score > SCORES:
            counts = f"{len(mine[1])} and {len(theirs[1])} boxes"
            raise TallymillError(f"the peers do not agree: {counts}, {off.box:.3g} pixels, {off.score:.3g} apart")


def _agree_on_boxes(ours: list[tuple[Any, Any]], peer: list[tuple[Any, Any]]) -> None:
    """Boxes of ours are among the peer's, whose post-processing takes the best of all tokens, stops among them: so it
    has others besides, and other scores.
    """
    for (mine, _), (theirs, _) in zip(ours, peer, strict=True):
        off = np.abs(mine[:, None] - theirs[None]).max(axis=2, initial=0.0)
        near = (off.min(axis=1) < PIXELS).mean() if off.size else 0.0
        if near < 0.99 or len(mine) < len(theirs) / 2:
            raise TallymillError(f"the peers do not agree: of {len(mine)} boxes {near:.1%} are among {len(theirs)}")


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    rows = [["", "images/s", "peer/ours"]]
    for name, model in result["models"].items():
        rows += [
            [f"{name}, {peer['name']}", f"{peer['images_per_s']:.2f}", f"{peer['ratio']:.2f}"]
            for peer in model["peers"]
        ]
    return aligned(rows)
