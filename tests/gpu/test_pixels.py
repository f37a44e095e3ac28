from __future__ import annotations

import numpy as np
import pytest
import torch

from tallymill.engine.detectors import pixels, pixels_gpu
from tallymill.engine.detectors.parts import Normalise, parts_for

RNG = np.random.default_rng(7)
SIZES = [(37, 50), (300, 451), (33, 200), (2, 3), (1, 1), (64, 64)]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def picture(height, width):
    return RNG.integers(0, 256, (height, width, 3)).astype(np.uint8)


def tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array))


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wanted", [(20, 24), (64, 64), (3, 300), (96, 1)])
def test_a_resized_image_is_that_of_pillow_to_the_last_level(size, wanted, resample):
    image = picture(*size)
    found = pixels_gpu.resize(tensor(image), *wanted, resample)
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found.numpy(), pixels.resize(image, *wanted, resample))


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_axes_are_resized_in_the_order_of_pillow(resample):
    for height, width, to_height, to_width in ((99, 64, 83, 56), (99, 64, 82, 56), (60, 40, 20, 90), (20, 90, 60, 40)):
        image = picture(height, width)
        found = pixels_gpu.resize(tensor(image), to_height, to_width, resample)
        np.testing.assert_array_equal(found.numpy(), pixels.resize(image, to_height, to_width, resample))


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_black_and_white_overshoot_is_cut_where_pillow_cuts_it(resample):
    stripes = np.where(RNG.random((80, 90, 3)) < 0.5, 0, 255).astype(np.uint8)
    for wanted in ((60, 70), (200, 130), (80, 40)):
        found = pixels_gpu.resize(tensor(stripes), *wanted, resample)
        np.testing.assert_array_equal(found.numpy(), pixels.resize(stripes, *wanted, resample))


def test_an_image_that_shrinks_a_hundredfold_is_still_exact():
    image = np.full((3, 6000, 3), 255, np.uint8)
    image[:, ::7] = 1
    found = pixels_gpu.resize(tensor(image), 3, 50, "bicubic")
    np.testing.assert_array_equal(found.numpy(), pixels.resize(image, 3, 50, "bicubic"))


def test_a_window_of_an_image_is_resized_as_its_copy():
    whole = picture(60, 80)
    cut = tensor(whole)[10:50, 5:70]
    np.testing.assert_array_equal(
        pixels_gpu.resize(cut, 32, 32, "bicubic").numpy(), pixels.resize(whole[10:50, 5:70], 32, 32, "bicubic")
    )


@pytest.mark.parametrize("side", [20, 37, 50, 64])
@pytest.mark.parametrize("size", [(37, 50), (50, 37), (50, 50), (300, 451), (5, 64), (1, 1), (1, 2), (300, 1)])
def test_a_square_differs_in_the_last_bits(size, side):
    image = picture(*size)
    found = pixels_gpu.square(tensor(image), side)
    assert found.shape == (side, side, 3)
    np.testing.assert_allclose(found.numpy(), pixels.square(image, side), atol=2e-6)


def test_a_warp_differs_in_the_last_bits():
    planes = RNG.random((3, 400, 901), np.float32)
    for side in (300, 450, 200, 1000):
        found = pixels_gpu.warp(torch.from_numpy(planes), side)
        np.testing.assert_allclose(found.numpy(), pixels.warp(planes, side), atol=1e-6)
    same = torch.from_numpy(planes[:, :, :400].copy())
    assert pixels_gpu.warp(same, 400) is same


def test_normalising_reads_the_same_table():
    image, ours = picture(21, 34), Normalise(MEAN, STD)
    np.testing.assert_array_equal(ours(tensor(image)).numpy(), ours(image))
    fractions = RNG.random((21, 34, 3), np.float32)
    np.testing.assert_array_equal(ours.of_fractions(torch.from_numpy(fractions)).numpy(), ours.of_fractions(fractions))


def test_an_image_is_placed_alike():
    planes = RNG.random((3, 4, 6), np.float32)
    for bucket in ((4, 6), (5, 9)):
        for ours, theirs in zip(
            pixels_gpu.place(torch.from_numpy(planes), bucket), pixels.place(planes, bucket), strict=True
        ):
            np.testing.assert_array_equal(ours.numpy(), theirs)


def test_the_parts_are_chosen_by_what_the_image_is():
    assert parts_for(picture(2, 2)) is pixels
    assert parts_for(tensor(picture(2, 2))) is pixels_gpu


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_card_resizes_as_pillow_does():
    image = picture(1024, 771)
    for wanted, resample in (((768, 768), "bicubic"), ((1062, 800), "bilinear"), ((40, 30), "bicubic")):
        found = pixels_gpu.resize(tensor(image).cuda(), *wanted, resample)
        np.testing.assert_array_equal(found.cpu().numpy(), pixels.resize(image, *wanted, resample))
    np.testing.assert_allclose(
        pixels_gpu.square(tensor(image).cuda(), 960).cpu().numpy(), pixels.square(image, 960), atol=2e-6
    )
