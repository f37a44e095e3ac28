"""OW-DETR: a checkpoint of its repository, or a folder in the form of transformers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tallymill.engine.detectors.buckets import Buckets, Size
from tallymill.engine.detectors.closed import NO_LABEL
from tallymill.engine.detectors.graphs import part_of
from tallymill.engine.sessions.base import Array
from tallymill.errors import ModelError
from tallymill.exporters.published import edges, normalisation, resampling
from tallymill.exporters.recipes import ow_detr_checkpoint as checkpoint
from tallymill.exporters.recipes.bucketed import batches, pictures, require_levels
from tallymill.exporters.recipes.closed import canonical, examples_of, head, images, is_unnamed, labels_of, original
from tallymill.exporters.recipes.parts import Loaded, Part, WeightsRecipe
from tallymill.exporters.weights import from_pretrained, is_local, model_from

BUCKETS: tuple[Size, ...] = ((800, 800), (800, 1333), (1333, 800))
UNKNOWN = "unknown"
TOP = 100

# The columns follow the order in which the classes were introduced, and the last is what is unknown.
_INTRODUCED = {
    # 19 + 21 + 20 + 20, the split that the paper proposes
    "proposed": """
        aeroplane, bicycle, bird, boat, bus, car, cat, cow, dog, horse, motorbike, sheep, train, elephant, bear, zebra,
        giraffe, truck, person,
        traffic light, fire hydrant, stop sign, parking meter, bench, chair, dining table, potted plant, backpack,
        umbrella, handbag, tie, suitcase, microwave, oven, toaster, sink, refrigerator, bed, toilet, sofa,
        frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket,
        banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake,
        laptop, mouse, remote, keyboard, cell phone, book, clock, vase, scissors, teddy bear, hair drier, toothbrush,
        wine glass, cup, fork, knife, spoon, bowl, tv, bottle
    """,
    # 20 + 20 + 20 + 20, the split of OWOD (arXiv 2103.02603), whose first classes are those of Pascal VOC
    "owod": """
        aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, dining table, dog, horse, motorbike, person,
        potted plant, sheep, sofa, train, tv,
        truck, traffic light, fire hydrant, stop sign, parking meter, bench, elephant, bear, zebra, giraffe, backpack,
        umbrella, handbag, tie, suitcase, microwave, oven, toaster, sink, refrigerator,
        frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket,
        banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake,
        bed, toilet, laptop, mouse, remote, keyboard, cell phone, book, clock, vase, scissors, teddy bear, hair drier,
        toothbrush, wine glass, cup, fork, knife, spoon, bowl
    """,
}

# Classes before a step of training, and those that it introduces; and the folder of data that the repository names.
_STEPS = {
    "proposed": ((0, 19), (19, 21), (40, 20), (60, 20)),
    "owod": ((0, 20), (20, 20), (40, 20), (60, 20)),
}
_FOLDERS = {"proposed": "OWDETR", "owod": "OWOD"}


def labels_of_split(split: str, introduced: int | None = None) -> list[str]:
    """What the 81 columns name; of classes that were not yet ``introduced`` in training, nothing."""
    known = [canonical(name) for name in _INTRODUCED[split].split(",")]
    if introduced is not None:
        known = [name if k < introduced else NO_LABEL for k, name in enumerate(known)]
    return [*known, UNKNOWN]


def load(weights: str | Path, buckets: Sequence[Size] = BUCKETS, split: str = "proposed") -> Loaded:
    """One part a bucket. ``weights``: a checkpoint, a folder with one, or a folder in the form of transformers, whose
    labels are taken from its ``id2label`` if it has been filled in.
    """
    require_levels(buckets)
    if not is_local(weights):
        raise ModelError(
            f"the weights of OW-DETR are on no hub, and there is no file or folder {str(weights)!r}",
            hint="fetch a checkpoint by the links in the README of github.com/akshitac8/OW-DETR; then --weights FILE",
        )
    path = Path(weights)
    read = _folder if (path / "config.json").is_file() else _checkpoint
    model, processor, labels = read(path, split)
    if len(labels) != model.config.num_labels:
        raise ModelError(
            f"{weights}: {model.config.num_labels} columns of logits; OW-DETR has 80 classes and {UNKNOWN!r}",
            hint='name others in "id2label" of config.json, in the form of transformers',
        )
    fallback = UNKNOWN if UNKNOWN in labels else None
    shortest, longest = edges(processor, weights)
    resampling(processor, weights, ["bilinear"])

    def padding(height: int, width: int) -> Mapping[str, Any]:
        bucket = Buckets(buckets).of(*Buckets.rule(height, width, shortest, longest))
        return {"pad_size": {"height": bucket[0], "width": bucket[1]}}

    own = partial(original, model, processor, labels, fallback, padding)
    return Loaded(
        family="ow_detr",
        parts={part_of("image", size): _part(model, size) for size in buckets},
        numbers={
            "shortest": shortest,
            "longest": longest,
            "buckets": [list(size) for size in buckets],
            **normalisation(processor, weights),
            "labels": labels,
            "fallback": fallback,
            "top": TOP,
        },
        original=own,
        in_halves=partial(own, halves=True),
        categories=examples_of(labels),
        pictures=pictures(buckets),
    )


def _part(model: Any, size: Size) -> Part:
    import torch

    return Part(
        head(model, masked=True),
        {"image": torch.zeros(2, 3, *size), "mask": torch.ones(2, *size, dtype=torch.bool)},
        {"image": (0,), "mask": (0,)},
        lambda batch, seed: _padded(batch, seed, size),
        batches=batches(size),
        weights="image.weights",
    )


def _padded(batch: int, seed: int, size: Size) -> Mapping[str, Array]:
    """Images of many sizes in one bucket."""
    inputs = {**images(batch, seed, *size), "mask": np.zeros((batch, *size), np.bool_)}
    rng = np.random.default_rng(seed)
    for row in range(batch):
        height, width = (int(rng.integers(side // 2, side + 1)) for side in size)
        inputs["mask"][row, :height, :width] = True
        inputs["image"][row, :, ~inputs["mask"][row]] = 0
    return inputs


def _folder(path: Path, split: str) -> tuple[Any, Any, list[str]]:
    """Model, image processor and labels of a folder in the form of transformers."""
    from transformers import AutoImageProcessor, DeformableDetrForObjectDetection, DeformableDetrImageProcessorPil

    model = model_from(DeformableDetrForObjectDetection, path)
    model.config.disable_custom_kernels = True
    labels = labels_of_split(split) if is_unnamed(model.config) else labels_of(model.config, path)
    if not (path / "preprocessor_config.json").is_file():
        return model, DeformableDetrImageProcessorPil(), labels
    return model, from_pretrained(AutoImageProcessor.from_pretrained, path, backend="pil"), labels


def _checkpoint(path: Path, split: str) -> tuple[Any, Any, list[str]]:
    """Model, image processor and labels of a checkpoint of the original repository."""
    from transformers import DeformableDetrForObjectDetection, DeformableDetrImageProcessorPil

    file = path if path.is_file() else _only(path)
    weights, args = checkpoint.read(file)
    try:
        model = DeformableDetrForObjectDetection(checkpoint.config_of(weights, args)).eval()
    except KeyError as exc:
        raise ModelError(f"{file}: not a checkpoint of OW-DETR: it has no {exc.args[0]}") from None
    except (ValueError, TypeError, AttributeError, IndexError, ArithmeticError) as exc:
        raise ModelError(f"{file}: not a checkpoint of OW-DETR: its shapes are others: {exc}") from exc
    try:
        model.load_state_dict(checkpoint.renamed(weights))
    except (RuntimeError, ValueError, TypeError, AttributeError) as exc:
        raise ModelError(f"{file}: its weights are not those of OW-DETR: {exc}") from exc
    # 800 and 1333, and the mean and deviation of ImageNet: the same as in the repository.
    return model, DeformableDetrImageProcessorPil(), labels_of_split(split, _introduced(file, args, split))


def _introduced(file: Path, args: argparse.Namespace, split: str) -> int | None:
    """How many classes a checkpoint has met by the arguments of its training, or None where they do not say.

    Raises ``ModelError`` where they tell of another split: every class would answer under another's name.
    """
    root = Path(str(getattr(args, "data_root", ""))).name.upper()
    told = {name for name, folder in _FOLDERS.items() if folder in root}
    step: tuple[Any, Any] = (getattr(args, "PREV_INTRODUCED_CLS", None), getattr(args, "CUR_INTRODUCED_CLS", None))
    if step != (None, None):
        told = {name for name, steps in _STEPS.items() if step in steps} & (told or set(_STEPS))
        if not told:
            raise ModelError(
                f"{file}: args: PREV_INTRODUCED_CLS = {step[0]!r} and CUR_INTRODUCED_CLS = {step[1]!r} are of no split"
                f" of OW-DETR in {root or 'its data_root'}",
                hint="take a checkpoint as its repository wrote it, or name the columns: a folder in the form of"
                ' transformers has "id2label" in config.json',
            )
    if told and split not in told:
        model = "ow-detr" if split == "owod" else "ow-detr-owod"
        raise ModelError(
            f"{file}: its args tell of the other split: data_root {root or 'absent'}, {step[0]} + {step[1]} classes",
            hint=f"tallymill export {model} --weights {file}",
        )
    return None if step == (None, None) else sum(step)


def _only(folder: Path) -> Path:
    files = sorted(each for pattern in ("*.pth", "*.pt") for each in folder.glob(pattern))
    if len(files) != 1:
        raise ModelError(
            f"{folder}: has {len(files)} checkpoints (.pth) and no config.json", hint="--weights FILE names one of them"
        )
    return files[0]


RECIPES = (
    WeightsRecipe("ow-detr", "ow_detr", "akshitac8/OW-DETR", "Apache-2.0", load),
    WeightsRecipe("ow-detr-owod", "ow_detr", "akshitac8/OW-DETR", "Apache-2.0", partial(load, split="owod")),
)
