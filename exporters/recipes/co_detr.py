"""Co-DETR from ONNX files that its user exported from mmdetection; docs/detectors.md has the contract."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tallymill.engine.detectors.buckets import Size
from tallymill.engine.detectors.closed import NO_LABEL
from tallymill.engine.detectors.co_detr import ANY
from tallymill.engine.detectors.coco import COCO_80
from tallymill.engine.detectors.graphs import part_of
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.errors import ModelError
from tallymill.exporters.published import MOST_PIXELS, are_three, is_number, is_whole
from tallymill.exporters.recipes.parts import Given, WeightsRecipe
from tallymill.exporters.weights import is_local

HINT = "docs/detectors.md says what the file must take and give"

# Of the configurations co_dino_5scale_*_coco.py of mmdetection.
DEFAULTS: dict[str, Any] = {
    "shortest": 800,
    "longest": 1333,
    "padding": None,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "labels": list(COCO_80),
    "top": 300,
    "soft_nms": 0.8,
    "least": 0.001,
}


def _are_labels(value: Any) -> bool:
    if not (isinstance(value, list) and value and all(isinstance(label, str) for label in value)):
        return False
    named = [label for label in value if label != NO_LABEL]
    return len(set(named)) == len(named)


_Check = tuple[Callable[[Any], bool], str]
_PIXELS: _Check = (lambda value: is_whole(value, 1, MOST_PIXELS), "a whole number of pixels")
_WANTED: Mapping[str, _Check] = {
    "shortest": _PIXELS,
    "longest": _PIXELS,
    "padding": (lambda value: value is None or is_whole(value, 0, 255), "a level from 0 to 255, or null"),
    "mean": (are_three, "three numbers"),
    "std": (lambda value: are_three(value) and min(value) > 0, "three numbers above 0"),
    "labels": (_are_labels, 'a list of names, each once, "" for none'),
    "top": (lambda value: is_whole(value, 1), "a whole number from 1"),
    "soft_nms": (lambda value: value is None or (is_number(value) and 0 <= value <= 1), "an IoU from 0 to 1, or null"),
    "least": (lambda value: is_number(value) and 0 <= value <= 1, "a score from 0 to 1"),
}


def load(weights: str | Path) -> Given:
    """``weights``: an ONNX file, or a folder of several for images of other sizes; beside it may lie a JSON file of the
    same name (in a folder: ``co-detr.json``) with numbers other than ``DEFAULTS``.
    """
    if not is_local(weights):
        raise ModelError("Co-DETR comes as an ONNX file that you export yourself: --weights FILE.onnx", hint=HINT)
    path = Path(weights)
    files = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
    if not files:
        raise ModelError(f"{path}: has no .onnx file", hint=HINT)
    sizes = [_size(file) for file in files]
    for size in sizes:
        if sizes.count(size) > 1 or (size is None and len(sizes) > 1):
            what = "images of any size" if size is None else f"images of {size[0]} x {size[1]}"
            raise ModelError(
                f"{path}: several files, of which one takes {what}", hint="one file a size, or one for all"
            )
    return Given(
        family="co_detr",
        parts={ANY if size is None else part_of(ANY, size): file for size, file in zip(sizes, files, strict=True)},
        numbers={
            **DEFAULTS,
            **_numbers(path / "co-detr.json" if path.is_dir() else path.with_suffix(".json")),
            "buckets": [list(size) for size in sizes if size is not None],
        },
        hint=HINT,
    )


def _size(file: Path) -> Size | None:
    """Height and width that a graph takes, or None for any."""
    inputs = OnnxRuntimeSession(file).inputs
    shape = inputs[0].shape if len(inputs) == 1 else None
    if shape is None or len(shape) != 4:
        listed = "; ".join(map(str, inputs)) or "nothing"
        raise ModelError(f"{file}: takes {listed}; wanted one input, image float32 [?, 3, ?, ?]", hint=HINT)
    _, _, height, width = shape
    if (height is None) != (width is None):
        raise ModelError(f"{file}: takes images of {height or 'any'} height and {width or 'any'} width", hint=HINT)
    return None if height is None or width is None else (height, width)


def _numbers(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as exc:
        raise ModelError(f"{file}: not a JSON file: {exc}", hint=HINT) from None
    if not isinstance(found, dict):
        raise ModelError(f"{file}: wanted an object with some of {', '.join(DEFAULTS)}", hint=HINT)
    if unknown := sorted(set(found) - set(DEFAULTS)):
        raise ModelError(f"{file}: unknown key {unknown[0]!r}; known: {', '.join(DEFAULTS)}", hint=HINT)
    for key, value in found.items():
        fits, wanted = _WANTED[key]
        if not fits(value):
            raise ModelError(f"{file}: {key} = {json.dumps(value)}; wanted {wanted}", hint=HINT)
    return found


RECIPES = (WeightsRecipe("co-detr", "co_detr", "Sense-X/Co-DETR", "MIT", load, given=True),)
