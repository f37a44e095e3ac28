from __future__ import annotations

import cv2
import numpy as np
import pytest

from tallymill.engine.flow.dis import Dis


def picture(height, width, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return cv2.GaussianBlur(values, (0, 0), 2)


@pytest.mark.parametrize("size", [(64, 64), (480, 854), (101, 100), (8, 8), (1, 1), (20, 300), (3, 2)])
def test_any_size_has_a_finite_flow(size):
    found = Dis().flow(picture(*size), picture(*size, seed=1))
    assert found.shape == (*size, 2)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()


def test_the_flow_leads_from_the_first_image_to_the_second():
    first = picture(200, 240)
    second = np.roll(first, (2, 3), axis=(0, 1))  # what was at (x, y) is at (x + 3, y + 2)
    inner = Dis().flow(first, second)[20:-20, 20:-20]
    np.testing.assert_allclose(np.median(inner, axis=(0, 1)), [3, 2], atol=0.1)


def test_equal_images_have_no_flow():
    image = picture(120, 90)
    assert not Dis().flow(image, image.copy()).any()


def test_images_of_two_sizes_are_refused():
    with pytest.raises(ValueError, match="one size"):
        Dis().flow(picture(70, 70), picture(70, 71))
