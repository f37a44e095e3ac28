from __future__ import annotations

import numpy as np

from tallymill.engine.abacus.clean import clean
from tallymill.kernels.mask_iou import Masks


def masks(*edges):
    return Masks.from_boxes(np.array(edges, np.int64).reshape(-1, 4), 60, 80)


def scene():
    """Grey, with a red thing and a green one."""
    image = np.full((60, 80, 3), 120, np.uint8)
    image[10:30, 10:30] = 255, 0, 0
    image[10:30, 26:46] = 0, 255, 0
    return image


def test_preserved_instances_are_painted_over_and_candidates_stay():
    image = scene()
    found = clean(image, masks((10, 10, 30, 30)), masks((26, 10, 46, 30)), 7, 3)
    np.testing.assert_array_equal(found[10:30, 26:46], image[10:30, 26:46])
    assert found[..., 0].max() <= 130  # of the red nothing is left
    np.testing.assert_array_equal(found[:, 60:], image[:, 60:])
    np.testing.assert_array_equal(scene(), image)


def test_what_is_erased_grows_by_the_margin():
    image = np.full((60, 80, 3), 120, np.uint8)
    image[17:43, 27:53] = 200
    found = clean(image, masks((30, 20, 50, 40)), masks(), 7, 3)
    np.testing.assert_allclose(found, 120, atol=4)
    assert clean(image, masks((30, 20, 50, 40)), masks(), 1, 3).max() >= 190


def test_nothing_to_erase_is_the_image_itself():
    image = scene()
    assert clean(image, masks(), masks((26, 10, 46, 30)), 7, 3) is image


def test_an_image_that_is_covered_leaves_nothing():
    assert not clean(scene(), masks((0, 0, 80, 60)), masks(), 7, 3).any()
