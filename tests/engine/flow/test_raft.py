from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.buckets import Buckets
from tallymill.engine.flow.raft import Raft, ends_of, size_of
from tallymill.errors import ModelError

NUMBERS = {"buckets": [], "mean": [0.5] * 3, "std": [0.5] * 3, "updates": 12}
BUNDLE = Bundle(Path("bundle"), "raft-large", "raft", "onnx", "fp32", {"flow": "flow.onnx"}, NUMBERS, None, "0")


class Session:
    """Answers with the level of the first image in x and where each pixel lies in y."""

    def __init__(self, fill=0.0):
        self.fill = fill

    def run(self, inputs):
        self.shape = inputs["first"].shape
        _, _, height, width = self.shape
        rows = np.broadcast_to(np.arange(height, dtype=np.float32)[:, None], (height, width))
        return {"flow": np.stack([inputs["first"][0, 0], rows + self.fill])[None]}


def opened(session, **numbers):
    raft = Raft(replace(BUNDLE, numbers={**NUMBERS, **numbers}))
    raft._graphs.of = lambda _size: session
    return raft


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((64, 64), (128, 128)),
        ((480, 854), (480, 856)),
        ((128, 129), (128, 136)),
        ((1, 1000), (128, 1000)),
    ],
)
def test_sides_become_multiples_of_eight_from_128(size, wanted):
    assert size_of(*size, None) == wanted
    session = Session()
    found = opened(session).flow(np.zeros((*size, 3), np.uint8), np.zeros((*size, 3), np.uint8))
    assert session.shape == (1, 3, *wanted)
    assert found.shape == (*size, 2)
    assert found[0, 0, 1] == ends_of(size[0], wanted[0])[0]


def test_levels_become_minus_one_to_one_and_edges_are_repeated():
    image = np.zeros((100, 128, 3), np.uint8)
    image[0] = 255

    class Keeping(Session):
        def run(self, inputs):
            self.first = inputs["first"]
            return super().run(inputs)

    session = Keeping()
    found = opened(session).flow(image, image)
    assert found.dtype == np.float32
    assert set(np.unique(found[..., 0])) == {-1.0, 1.0}
    assert (session.first[0, :, :15] == 1).all()
    assert (session.first[0, :, 15:] == -1).all()


def test_a_bucket_is_the_smallest_that_holds_an_image():
    buckets = Buckets([(128, 256), (256, 256)])
    assert size_of(100, 200, buckets) == (128, 256)
    with pytest.raises(ModelError, match="fits none of the sizes exported"):
        size_of(300, 200, buckets)


@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_an_error(fill):
    image = np.zeros((128, 128, 3), np.uint8)
    with pytest.raises(ModelError, match="not finite"):
        opened(Session(fill)).flow(image, image)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (np.zeros((8, 8, 3), np.uint8), np.zeros((8, 9, 3), np.uint8), "two images of one size"),
        (np.zeros((8, 8, 3), np.float32), np.zeros((8, 8, 3), np.uint8), "RGB uint8"),
        (np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), np.uint8), "RGB uint8"),
        (np.zeros((0, 8, 3), np.uint8), np.zeros((0, 8, 3), np.uint8), "RGB uint8"),
    ],
)
def test_images_that_are_none(first, second, said):
    with pytest.raises(ValueError, match=said):
        opened(Session()).flow(first, second)


def test_a_bundle_of_another_family_is_refused():
    with pytest.raises(ModelError, match="of the family 'owlvit', not 'raft'"):
        Raft(replace(BUNDLE, family="owlvit"))
    with pytest.raises(ModelError, match="its numbers lack mean"):
        Raft(replace(BUNDLE, numbers={"buckets": [], "std": [0.5] * 3}))
