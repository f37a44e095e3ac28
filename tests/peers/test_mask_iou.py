"""Masks and their IoU against pycocotools, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pycocotools import mask as coco

from tallymill.kernels.mask_iou import Masks, mask_iou

# coco.decode is older than NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIZES = [(1, 1), (7, 9), (33, 64), (64, 33), (100, 130), (256, 256), (480, 640)]


def drawn(rng: np.random.Generator, masks: int, height: int, width: int) -> NDArray[np.bool_]:
    """Ellipses, boxes of noise, scattered pixels, an empty and a full one."""
    y, x = np.mgrid[:height, :width]
    arrays = np.zeros((masks, height, width), np.bool_)
    for k, array in enumerate(arrays):
        cy, cx, ry, rx = rng.random(4) * [height, width, height / 2, width / 2] + [0, 0, 1, 1]
        if k % 3 == 0:
            array[:] = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 <= 1
        elif k % 3 == 1:
            array[:] = (abs(y - cy) < ry) & (abs(x - cx) < rx) & (rng.random((height, width)) < rng.random())
        else:
            array[:] = rng.random((height, width)) < rng.choice([0.001, 0.01, 0.5])
    arrays[:1] = False
    arrays[-1:] = True
    return arrays


def encoded(arrays: NDArray[np.bool_]) -> list[dict[str, Any]]:
    return coco.encode(np.asfortranarray(arrays.transpose(1, 2, 0).astype(np.uint8)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("impl", ["cpu", "portable"])
def test_iou_is_theirs(height: int, width: int, impl: str) -> None:
    for seed in range(4):
        rng = np.random.default_rng([seed, height, width])
        one, other = drawn(rng, 21, height, width), drawn(rng, 30, height, width)
        expected = coco.iou(encoded(one), encoded(other), [0] * len(other))
        iou = mask_iou(Masks.from_arrays(one), Masks.from_rle(encoded(other)), impl=impl)
        np.testing.assert_array_equal(iou, expected)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_run_lengths_are_read_as_they_write_them(height: int, width: int) -> None:
    for seed in range(4):
        arrays = drawn(np.random.default_rng([seed, height, width, 1]), 30, height, width)
        rles = encoded(arrays)
        masks = Masks.from_rle(rles)
        np.testing.assert_array_equal(masks.area, coco.area(rles))
        np.testing.assert_array_equal(masks.to_arrays(), coco.decode(rles).transpose(2, 0, 1).astype(bool))
        np.testing.assert_array_equal(masks.to_arrays(), arrays)
        assert encoded(masks.to_arrays()) == rles
        x1, y1, x2, y2 = masks.box.T
        np.testing.assert_array_equal(coco.toBbox(rles), np.stack([x1, y1, x2 - x1, y2 - y1], axis=1))


def test_uncompressed_run_lengths_and_polygons() -> None:
    crowd = {"size": [3, 4], "counts": [3, 2, 1, 1, 5]}
    masks = Masks.from_rle([crowd])
    assert coco.frPyObjects(crowd, 3, 4)["counts"] == b"321O4"
    np.testing.assert_array_equal(masks.to_arrays()[0], coco.decode(coco.frPyObjects(crowd, 3, 4)).astype(bool))
    polygons = [[10.5, 3.2, 90.1, 40.0, 33.3, 77.7], [0, 0, 100, 0, 100, 80, 0, 80], [5, 5, 6, 5, 6, 6]]
    rles = coco.frPyObjects(polygons, 80, 100)
    masks = Masks.from_rle(rles)
    np.testing.assert_array_equal(masks.to_arrays(), coco.decode(rles).transpose(2, 0, 1).astype(bool))
    np.testing.assert_array_equal(mask_iou(masks, masks), coco.iou(rles, rles, [0] * 3))
