"""The models of a suite, opened: instances of categories in images, boxes of two detectors, a flow, an upscaler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.abacus.data import FOUND, Instances
from tallymill.engine.abacus.resolve import Upscaler
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.abacus.suite import ImageModel, Suite
from tallymill.engine.arrays import Picture
from tallymill.engine.batch import ItemBatch, batch_of
from tallymill.engine.bundles import load_bundle
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.detectors.sam3 import Sam3
from tallymill.engine.ensemble import build_proposer
from tallymill.engine.flow.dis import FAMILY as DIS
from tallymill.engine.flow.dis import Dis
from tallymill.engine.gathering import Gathering
from tallymill.engine.items import CORE_COLUMNS
from tallymill.engine.pipeline import class_of_targets
from tallymill.engine.proposer import DetectOptions, WindowProposer
from tallymill.engine.retained import retained
from tallymill.engine.sessions.base import stack
from tallymill.engine.upscaling.conv2x import FAMILY as CONV2X
from tallymill.errors import ModelError
from tallymill.kernels.mask_iou import Masks

RGB = NDArray[np.uint8]
Look = tuple[RGB, Sequence[str]]  # an image, and the categories that are looked for in it


class Flow(Protocol):
    """Where each pixel of one image is in another."""

    def flow(self, first: Any, second: Any) -> Any:
        """RGB uint8 [H, W, 3] twice -> float32 [H, W, 2], x and y in pixels."""
        ...


class Segmenter(Protocol):
    """Instances of categories. ``masks``: it gives masks, and not only boxes."""

    spec: DetectorSpec
    masks: bool

    def segment(self, looks: Sequence[Look], clock: StageClock) -> list[dict[str, Instances] | str]:
        """For each image the instances of each category, or why there are none to be had."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """A detector's boxes of one category in one image: float32 [P, 4] xyxy in pixels, and their confidences [P]."""

    boxes: NDArray[np.float32]
    confidence: NDArray[np.float32]


class BoxDetector:
    """One detector over many images: boxes after NMS, in batches as large as the model takes."""

    def __init__(self, proposer: WindowProposer, settings: EditSettings, floor: float) -> None:
        self.spec = proposer.spec
        self._proposer = proposer
        self._options = DetectOptions(floor, settings.nms_iou, settings.slices)

    def look(self, looks: Sequence[Look], clock: StageClock) -> list[dict[str, Seen] | str]:
        """For each image its boxes by category, or the error that the model made of it."""
        if not looks:
            return []
        batch = _batch(looks)
        classes = class_of_targets(self.spec, batch.targets)
        gathering = Gathering(self._proposer, batch, classes, self._options, clock)
        for place, (image, _) in enumerate(looks):
            gathering.look(place, Picture(image).at(gathering.place))
        found = retained(batch, classes, gathering.boxes(), self._options)
        answers: list[dict[str, Seen] | str] = []
        for place, (_, categories) in enumerate(looks):
            error = found.errors[place]
            if error is not None:
                answers.append(error)
                continue
            rows = slice(found.offsets[place], found.offsets[place + 1])
            target, boxes, scores = found.target[rows], found.boxes[rows], found.confidence[rows]
            answers.append({name: Seen(boxes[target == k], scores[target == k]) for k, name in enumerate(categories)})
        return answers


class BoxSegmenter:
    """A detector in the place of a segmenter: the box of each object is its mask."""

    masks = False

    def __init__(self, detector: BoxDetector) -> None:
        self.spec, self._detector = detector.spec, detector

    def segment(self, looks: Sequence[Look], clock: StageClock) -> list[dict[str, Instances] | str]:
        """See ``Segmenter``."""
        answers: list[dict[str, Instances] | str] = []
        for (image, _), seen in zip(looks, self._detector.look(looks, clock), strict=True):
            if isinstance(seen, str):
                answers.append(seen)
                continue
            size = image.shape[:2]
            answers.append({name: Instances.of_boxes(s.boxes, s.confidence, FOUND, *size) for name, s in seen.items()})
        return answers


class MaskSegmenter:
    """SAM 3: each image is encoded once, and decoded for each category that is asked of it."""

    masks = True

    def __init__(self, detector: Sam3, settings: EditSettings) -> None:
        self.spec, self._detector, self._least = detector.spec, detector, settings.presence

    def segment(self, looks: Sequence[Look], clock: StageClock) -> list[dict[str, Instances] | str]:
        """See ``Segmenter``."""
        names = sorted({name for _, categories in looks for name in categories})
        with clock("text"):
            unknown = self._detector.learn(names)
        answers: list[dict[str, Instances] | str] = []
        for image, categories in looks:
            bad = [unknown[names.index(name)] for name in categories if names.index(name) in unknown]
            try:
                answers.append(bad[0] if bad else self._of_image(image, categories, names, clock))
            except ModelError as exc:
                answers.append(f"{self.spec.name}: {exc.message}")
        return answers

    def _of_image(
        self, image: RGB, categories: Sequence[str], names: Sequence[str], clock: StageClock
    ) -> dict[str, Instances]:
        with clock("preprocess"):
            inputs = self._detector.preprocess(image)
        classes = np.array([names.index(name) for name in categories], np.int64)
        with clock("model"):
            outputs = self._detector.run(stack([inputs]), [classes])
        found = {}
        with clock("boxes"):
            for place, name in enumerate(categories):
                segments = self._detector.segment(outputs, 0, place, (image.shape[0], image.shape[1]), self._least)
                shown = segments.masks.any(axis=(1, 2))  # an instance without a pixel cannot be compared
                found[name] = Instances(
                    Masks.from_arrays(segments.masks[shown]),
                    segments.boxes[shown].astype(np.float32),
                    segments.scores[shown].astype(np.float32),
                    (FOUND,) * int(shown.sum()),
                )
        return found


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a suite."""

    segmenter: Segmenter
    confirmers: tuple[BoxDetector, BoxDetector]
    flow: Flow
    upscaler: Upscaler | None

    def unknown(self, categories: Sequence[str]) -> str | None:
        """Which model does not know which of the categories; None where all know all."""
        for category in categories:
            specs = [each.spec for each in (self.segmenter, *self.confirmers)]
            names = [s.name for s in specs if not s.open_vocabulary and s.class_of(category) is None]
            if names:
                return f"category {category!r} is not known to {' and '.join(names)}"
        return None


def open_models(suite: Suite, paths: Mapping[str, Path | None], settings: EditSettings, device: str = "cpu") -> Models:
    """Load the models of a suite, each from the path of its role (see ``Suite.models``), to a device."""

    def proposer(config: Any) -> WindowProposer:
        made = build_proposer(config, paths[config.name], device)
        if not isinstance(made, WindowProposer):
            raise ModelError(f"{config.name}: a detector of the family {config.family!r} looks at no images")
        return made

    first = proposer(suite.segmenter)
    segmenter: Segmenter
    if isinstance(first.detector, Sam3):
        segmenter = MaskSegmenter(first.detector, settings)
    else:
        segmenter = BoxSegmenter(BoxDetector(first, settings, settings.presence))
    a, b = (BoxDetector(proposer(config), settings, settings.confirm_confidence) for config in suite.confirmers)
    upscaler = None if suite.upscaler is None else _upscaler(suite.upscaler, paths["upscaler"], device)
    return Models(segmenter, (a, b), _flow(suite.flow, paths.get("flow"), device), upscaler)


def _flow(config: ImageModel, path: Path | None, device: str) -> Flow:
    if config.family == DIS:
        return Dis()
    if path is None:
        raise ModelError(f"flow: the family {config.family!r} needs a model")
    from tallymill.engine.flow.raft import Raft

    return Raft(load_bundle(path).on(device))


def _upscaler(config: ImageModel, path: Path | None, device: str) -> Upscaler:
    assert path is not None, "every upscaler has a model"
    if config.family == CONV2X:
        from tallymill.engine.sessions.ort import OnnxRuntimeSession
        from tallymill.engine.upscaling.conv2x import Conv2x

        return Conv2x(OnnxRuntimeSession(path, device=device))
    from tallymill.engine.upscaling.swin2sr import Swin2Sr

    return Swin2Sr(load_bundle(path).on(device))


def _batch(looks: Sequence[Look]) -> ItemBatch:
    """The images as items that ask for their categories, as detectors are driven."""
    targets = [[{"category": name, "count": 1} for name in categories] for _, categories in looks]
    columns: dict[str, list[Any]] = {name: [None] * len(looks) for name in CORE_COLUMNS.names}
    columns |= {"item_id": [str(place) for place in range(len(looks))], "targets": targets}
    return batch_of(pa.RecordBatch.from_pydict(columns, schema=CORE_COLUMNS))
