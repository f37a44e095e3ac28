import cv2
import numpy as np
import pytest
from PIL import Image

from tallymill.engine.detectors.pixels import Normalise, place, resize, sigmoid, square, to_corners, warp

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (37, 50, 3)).astype(np.uint8)


def test_resize_is_pillow_with_antialiasing():
    expected = np.asarray(Image.fromarray(PICTURE).resize((20, 24), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(resize(PICTURE, 24, 20, "bicubic"), expected)


def test_a_view_that_is_not_contiguous_is_resized_as_its_copy():
    np.testing.assert_array_equal(
        resize(PICTURE[:, ::-1], 24, 20, "bilinear"), resize(PICTURE[:, ::-1].copy(), 24, 20, "bilinear")
    )


def test_normalise_is_its_definition():
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    expected = np.moveaxis((PICTURE / 255 - mean) / std, 2, 0)
    found = Normalise(mean, std)(PICTURE)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(Normalise(mean, std).of_fractions(PICTURE / np.float32(255)), expected, atol=1e-5)


def test_a_square_has_the_image_in_its_upper_left_corner():
    found = square(PICTURE, 50)
    np.testing.assert_allclose(found[:37], PICTURE / 255, atol=1e-6)
    assert not found[37:].any()


@pytest.mark.parametrize("side", [20, 64])
def test_a_square_is_interpolated_between_pixel_centres(side):
    whole = np.full((50, 50, 3), 100, np.uint8)
    np.testing.assert_allclose(square(whole, side), 100 / 255, atol=1e-6)  # the mirrored edge adds no black
    ramp = np.repeat(np.arange(50, dtype=np.uint8)[None, :, None], 50, 0).repeat(3, 2)
    expected = ((np.arange(side) + 0.5) * 50 / side - 0.5) / 255
    inner = slice(side // 4, -side // 4)
    np.testing.assert_allclose(square(ramp, side)[side // 2, inner, 0], expected[inner], atol=1e-6)


def test_a_smaller_square_is_smoothed_before_it_is_sampled():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 200
    assert np.ptp(square(stripes, 16)[8, 3:-3, 0]) < 0.02
    assert np.ptp(cv2.resize(stripes, (16, 16), interpolation=cv2.INTER_NEAREST)[8, :, 0]) in (0, 200)


def test_sigmoid_is_its_definition_without_overflow():
    logits = np.array([-1e4, -88.8, -1, 0, 1, 88.8, 1e4], np.float32)
    with np.errstate(all="raise", under="ignore"):
        found = sigmoid(logits)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0, 2.7e-39, 0.26894143, 0.5, 0.7310586, 1, 1], atol=1e-7)
    assert np.isnan(sigmoid(np.array([np.nan], np.float32))).all()


def test_centre_and_size_become_corners():
    np.testing.assert_allclose(to_corners(np.array([[0.5, 0.25, 0.5, 0.5]], np.float32)), [[0.25, 0, 0.75, 0.5]])


def test_a_warp_reads_between_pixel_centres_and_smooths_nothing():
    planes = np.random.default_rng(0).random((3, 40, 90), np.float32)
    found = warp(planes, 30)
    y, x = np.meshgrid((np.arange(30) + 0.5) * 40 / 30 - 0.5, (np.arange(30) + 0.5) * 3 - 0.5, indexing="ij")
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    down, along = y - top, x - left
    bottom, right = np.minimum(top + 1, 39), np.minimum(left + 1, 89)
    upper = planes[:, top, left] * (1 - along) + planes[:, top, right] * along
    lower = planes[:, bottom, left] * (1 - along) + planes[:, bottom, right] * along
    np.testing.assert_allclose(found, upper * (1 - down) + lower * down, atol=1e-6)
    assert warp(found, 30) is found


def test_an_image_lies_in_the_upper_left_of_its_bucket():
    image = np.arange(3 * 2 * 4, dtype=np.float32).reshape(3, 2, 4) + 1
    padded, mask = place(image, (3, 5))
    assert padded.shape == (3, 3, 5)
    assert np.array_equal(padded[:, :2, :4], image)
    assert padded.sum() == image.sum()
    assert mask.dtype == np.bool_
    assert np.array_equal(np.argwhere(mask), np.argwhere(np.ones((2, 4))))


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 1), (1, 300), (300, 1)])
def test_images_of_few_pixels_have_a_square(shape):
    found = square(np.full((*shape, 3), 255, np.uint8), 16)
    assert found.shape == (16, 16, 3)
    assert np.isfinite(found).all()
    assert found.max() <= 1 + 1e-6
    if shape == (1, 1):
        np.testing.assert_array_equal(found, 1)


@pytest.mark.parametrize("shape", [(64, 30), (480, 640), (300, 20), (2000, 40), (65, 3)])
@pytest.mark.parametrize("side", [37, 64, 200])
def test_the_black_that_nothing_reaches_needs_no_room(shape, side):
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    whole = np.zeros((max(shape), max(shape), 3), np.uint8)
    whole[: shape[0], : shape[1]] = picture
    np.testing.assert_array_equal(square(picture, side), square(whole, side))
