from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tallymill.engine.bundles import Bundle
from tallymill.engine.padding import extend
from tallymill.engine.upscaling.swin2sr import OVERLAP, Swin2Sr
from tallymill.errors import ModelError
from tallymill.exporters.recipes.swin2sr import BUCKETS

BUNDLE = Bundle(
    folder=Path("bundle"),
    name="swin2sr-x2",
    family="swin2sr",
    runtime="onnx",
    precision="fp32",
    parts={"image-8x8": "image-8x8.onnx"},
    numbers={"buckets": [[8, 8]], "scale": 2},
    tokenizer=None,
    sha256="0",
)


class Session:
    """Every pixel four times, a little brighter or darker."""

    def __init__(self, more=0.0):
        self.more = more

    def run(self, inputs):
        self.image = inputs["image"]
        return {"enlarged": inputs["image"].repeat(2, axis=2).repeat(2, axis=3) + np.float32(self.more)}


def enlarged(session, image, buckets=((8, 8),)):
    model = Swin2Sr(replace(BUNDLE, numbers={"buckets": [list(size) for size in buckets], "scale": 2}))
    model._graphs.of = lambda _bucket: session
    return model.upscale(image)


def test_an_image_is_mirrored_up_to_its_bucket_and_cut_again():
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    session = Session()
    np.testing.assert_array_equal(enlarged(session, image), image.repeat(2, 0).repeat(2, 1))
    wanted = np.pad(image, ((0, 3), (0, 1), (0, 0)), mode="symmetric")
    np.testing.assert_allclose(session.image[0], np.moveaxis(wanted, 2, 0) / 255, atol=1e-7)


# Most are shapes of crops that no bucket of the default export holds: of a bus, of a mast, of a whole photograph.
@pytest.mark.parametrize("shape", [(64, 64), (65, 20), (257, 256), (90, 400), (223, 1000), (1, 300), (400, 600)])
def test_an_image_that_no_bucket_holds_is_enlarged_in_tiles(shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    np.testing.assert_array_equal(enlarged(Session(), image, BUCKETS), image.repeat(2, 0).repeat(2, 1))


def test_tiles_are_of_the_largest_bucket_and_cut_in_the_middle_of_what_they_share():
    class Edged(Session):
        """Black along the edges of a tile, as far as the half of what two share."""

        def __init__(self):
            super().__init__()
            self.shapes = []

        def run(self, inputs):
            self.shapes.append(inputs["image"].shape[2:])
            found = super().run(inputs)["enlarged"]
            for side in range(2):
                found = np.moveaxis(found, 2 + side, 0).copy()
                found[: 2 * (OVERLAP // 2)] = found[-2 * (OVERLAP // 2) :] = 0
                found = np.moveaxis(found, 0, 2 + side)
            return {"enlarged": found}

    session = Edged()
    found = enlarged(session, np.full((300, 600, 3), 200, np.uint8), BUCKETS)
    assert session.shapes == [(256, 256)] * 6  # two by three
    edge = 2 * (OVERLAP // 2)
    assert (found[edge:-edge, edge:-edge] == 200).all()
    assert not found[:edge].any()


def test_a_tile_that_is_not_finite_is_an_error():
    with pytest.raises(ModelError, match="not finite"):
        enlarged(Session(np.nan), np.zeros((20, 20, 3), np.uint8))


def test_levels_are_held_and_rounded():
    image = np.array([[[0, 128, 255]]], np.uint8)
    assert enlarged(Session(1.4 / 255), image)[0, 0].tolist() == [1, 129, 255]
    assert enlarged(Session(-1.6 / 255), image)[0, 0].tolist() == [0, 126, 253]
    with pytest.raises(ModelError, match="not finite"):
        enlarged(Session(np.nan), image)


def test_a_bundle_that_says_too_little_is_refused():
    with pytest.raises(ModelError, match="its numbers lack scale"):
        Swin2Sr(replace(BUNDLE, numbers={"buckets": [[8, 8]]}))


def test_nothing_is_copied_where_nothing_is_missing():
    image = np.zeros((2, 2, 3), np.uint8)
    assert extend(image, (0, 0), (0, 0), "edge") is image
