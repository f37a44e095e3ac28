from __future__ import annotations

import numpy as np
import pytest

from tallymill.engine.abacus.models import MaskSegmenter, _flow
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.abacus.suite import ImageModel
from tallymill.engine.clock import StageClock
from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.detectors.sam3 import Segments
from tallymill.errors import ModelError


class Sam:
    """Stands in for SAM 3: two instances of a cat, one of them without a pixel; no word but two is known."""

    spec = DetectorSpec(name="sam3", family="sam3", labels=(), open_vocabulary=True)

    def __init__(self):
        self.runs = []

    def learn(self, categories):
        return {k: f"sam3: {name!r} is too long" for k, name in enumerate(categories) if len(name) > 5}

    def preprocess(self, image):
        return {"image": image[None].astype(np.float32)}

    def run(self, inputs, asked):
        if inputs["image"].max() == 0:
            raise ModelError("too dark")
        self.runs.append([classes.tolist() for classes in asked])
        return {}

    def segment(self, outputs, index, place, size, floor):
        del outputs, index
        masks = np.zeros((2 - place, *size), bool)
        masks[0, 2:5, 3:9] = True
        boxes = np.array([[3, 2, 9, 5], [0, 0, 1, 1]])[: len(masks)]
        return Segments(boxes, np.full(len(masks), floor), masks)


def test_a_segmenter_of_masks_is_asked_image_by_image():
    image, dark = np.full((10, 12, 3), 9, np.uint8), np.zeros((10, 12, 3), np.uint8)
    sam = Sam()
    found = MaskSegmenter(sam, EditSettings()).segment(
        [(image, ("dog", "cat")), (image, ("elephant",)), (dark, ("cat",))], StageClock()
    )
    assert {name: each.masks.area.tolist() for name, each in found[0].items()} == {"dog": [18], "cat": [18]}
    assert found[1:] == ["sam3: 'elephant' is too long", "sam3: too dark"]
    assert sam.runs == [[[1, 0]]]  # places among all that were learned


def test_a_flow_without_its_model_is_no_other_flow():
    with pytest.raises(ModelError, match="the family 'raft' needs a model"):
        _flow(ImageModel("raft", "raft"), None, "cpu")
