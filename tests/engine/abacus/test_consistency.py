from __future__ import annotations

import cv2
import numpy as np
import pytest
import skimage.data

from tallymill.engine.abacus import consistency as module
from tallymill.engine.abacus.consistency import appearance, background, consistency, luma, structure

PHOTOGRAPH = skimage.data.astronaut()


def noisy(image, level, seed=0):
    return np.clip(image + np.random.default_rng(seed).normal(0, level, image.shape), 0, 255).astype(np.uint8)


def everything(image):
    return np.ones(image.shape[:2], bool)


def plain_ms_ssim(a, b):
    """By the definition, without masks, in float64: windows inside the image, five scales."""
    x = np.arange(11) - 5.0
    kernel = np.exp(-(x**2) / (2 * 1.5**2))
    kernel /= kernel.sum()

    def blur(image):
        rows = np.stack([np.convolve(row, kernel, "valid") for row in image])
        return np.stack([np.convolve(column, kernel, "valid") for column in rows.T]).T

    a, b = a.astype(np.float64), b.astype(np.float64)
    result = 1.0
    for scale, power in enumerate((0.0448, 0.2856, 0.3001, 0.2363, 0.1333)):
        if scale:
            h, w = a.shape[0] // 2 * 2, a.shape[1] // 2 * 2
            a, b = (each[:h, :w].reshape(h // 2, 2, w // 2, 2).mean(axis=(1, 3)) for each in (a, b))
        ma, mb = blur(a), blur(b)
        va, vb, cov = blur(a * a) - ma**2, blur(b * b) - mb**2, blur(a * b) - ma * mb
        contrast = (2 * cov + 58.5225) / (va + vb + 58.5225)
        likeness = (2 * ma * mb + 6.5025) / (ma**2 + mb**2 + 6.5025) * contrast
        result *= max((likeness if scale == 4 else contrast).mean(), 0) ** power
    return result


@pytest.mark.parametrize("level", [5, 40])
@pytest.mark.parametrize("shape", [(512, 512), (201, 339), (176, 176)])
def test_without_a_mask_it_is_ms_ssim(level, shape):
    image = PHOTOGRAPH[: shape[0], : shape[1]]
    a, b = luma(image), luma(noisy(image, level))
    assert appearance(a, b, everything(image)) == pytest.approx(plain_ms_ssim(a, b), abs=1e-6)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_mask_neither_lifts_nor_lowers_it(share):
    """Of a texture that is alike everywhere the value of a part is that of the whole; zeroed pixels would lift it."""
    image = np.random.default_rng(1).integers(0, 256, (512, 512), np.uint8)
    image = np.asarray(cv2.GaussianBlur(image, (0, 0), 3))
    other = noisy(image, 6)
    whole = appearance(luma(image), luma(other), everything(image))
    mask = np.kron(np.random.default_rng(2).random((8, 8)) >= share, np.ones((64, 64))).astype(bool)
    assert appearance(luma(image), luma(other), mask) == pytest.approx(whole, abs=0.01)


def test_what_is_masked_has_no_part_in_it():
    mask = everything(PHOTOGRAPH)
    mask[100:300, 50:400] = False
    painted = PHOTOGRAPH.copy()
    painted[~mask] = np.random.default_rng(0).integers(0, 256, (int((~mask).sum()), 3), np.uint8)
    assert appearance(luma(PHOTOGRAPH), luma(painted), mask) == 1.0
    other = noisy(PHOTOGRAPH, 20)
    painted_too = np.where(mask[..., None], other, painted)
    assert appearance(luma(painted), luma(painted_too), mask) == appearance(luma(PHOTOGRAPH), luma(other), mask)


def test_an_image_against_itself_is_1_and_against_its_negative_finite():
    a = luma(PHOTOGRAPH)
    assert appearance(a, a, everything(PHOTOGRAPH)) == 1.0
    assert appearance(a, luma(255 - PHOTOGRAPH), everything(PHOTOGRAPH)) == 0.0


@pytest.mark.parametrize("side", [160, 161, 175, 176, 20])
def test_small_images_are_scaled_up(side):
    small = PHOTOGRAPH[:side, :300]
    value = appearance(luma(small), luma(noisy(small, 10)), everything(small))
    assert value is not None
    assert 0.5 < value < 1


def test_bytes_and_fractions_are_the_same():
    pair = PHOTOGRAPH, noisy(PHOTOGRAPH, 10)
    a, b = (luma(each) for each in pair)
    c, d = (luma(each / 255.0) for each in pair)
    assert appearance(a, b, everything(a)) == appearance(c, d, everything(a))
    e, f = (luma((each / 255.0).astype(np.float32)) for each in pair)
    assert appearance(e, f, everything(a)) == pytest.approx(appearance(a, b, everything(a)), abs=1e-6)


def test_no_background_is_no_value():
    a = luma(PHOTOGRAPH)
    nothing = np.zeros(a.shape, bool)
    assert appearance(a, a, nothing) is None
    assert structure(np.zeros((*a.shape, 2), np.float32), nothing) is None
    found = consistency(PHOTOGRAPH, PHOTOGRAPH, np.zeros((*a.shape, 2), np.float32), nothing)
    assert (found.structure, found.appearance, found.scene, found.background) == (None, None, None, 0.0)


def masked_ms_ssim(a, b, mask):
    """By the definition in float64: windows inside the image, or over its edge at scales where those see nothing."""
    x = np.arange(11) - 5.0
    kernel = np.exp(-(x**2) / (2 * 1.5**2))

    def blur(plane):
        rows = np.stack([np.convolve(row, kernel, "same") for row in plane])
        return np.stack([np.convolve(column, kernel, "same") for column in rows.T]).T

    a, b, w = a.astype(np.float64), b.astype(np.float64), mask.astype(np.float64)
    result = 1.0
    for scale, power in enumerate((0.0448, 0.2856, 0.3001, 0.2363, 0.1333)):
        if scale:
            h, width = w.shape[0] // 2, w.shape[1] // 2
            sums = [each[: 2 * h, : 2 * width].reshape(h, 2, width, 2).sum(axis=(1, 3)) for each in (w, w * a, w * b)]
            w, (a, b) = sums[0] / 4, (each / np.maximum(sums[0], 1e-300) for each in sums[1:])
        norm = np.maximum(blur(w), 1e-300)
        ma, mb, aa, bb, ab = (blur(w * each) / norm for each in (a, b, a * a, b * b, a * b))
        contrast = (2 * (ab - ma * mb) + 58.5225) / (aa - ma**2 + bb - mb**2 + 58.5225)
        likeness = (2 * ma * mb + 6.5025) / (ma**2 + mb**2 + 6.5025) * contrast
        centres = np.zeros_like(w)
        centres[5:-5, 5:-5] = w[5:-5, 5:-5]
        centres = centres if centres.any() else w
        result *= max((centres * (likeness if scale == 4 else contrast)).sum() / centres.sum(), 0) ** power
    return result


def frame(height, width, border):
    """All but a border is covered."""
    mask = np.ones((height, width), bool)
    mask[border:-border, border:-border] = False
    return mask


# Sizes of image, and borders narrower than the 80 pixels that windows of the coarsest scale leave out on each side.
@pytest.mark.parametrize(("height", "width", "border"), [(480, 640, 72), (240, 320, 60), (256, 256, 76), (177, 400, 3)])
def test_background_at_the_border_alone_is_looked_at_by_windows_over_the_edge(height, width, border):
    image = cv2.resize(PHOTOGRAPH, (width, height))
    a, b = luma(image), luma(noisy(image, 20))
    mask = frame(height, width, border)
    assert appearance(a, b, mask) == pytest.approx(masked_ms_ssim(a, b, mask), abs=2e-5)
    assert appearance(a, a, mask) == 1.0
    painted = np.where(mask, b, np.random.default_rng(0).uniform(0, 255, b.shape)).astype(np.float32)
    assert appearance(a, painted, mask) == appearance(a, b, mask)  # what is masked has no part in it
    assert appearance(a, 255 - a, mask) < 0.1


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_windows_over_the_edge_are_looked_through_only_where_there_are_no_others(share):
    a, b = luma(PHOTOGRAPH[:300, :420]), luma(noisy(PHOTOGRAPH[:300, :420], 30))
    mask = np.kron(np.random.default_rng(5).random((6, 7)) >= share, np.ones((50, 60))).astype(bool)
    assert appearance(a, b, mask) == pytest.approx(masked_ms_ssim(a, b, mask), abs=2e-5)
    mask = frame(300, 420, 40)
    mask[140:150, 200:210] = True  # few centres, and they decide the coarse scales alone
    assert appearance(a, b, mask) == pytest.approx(masked_ms_ssim(a, b, mask), abs=2e-5)


def test_windows_over_the_edge_neither_lift_nor_lower_it():
    """Of a texture that is alike everywhere a frame has the value of the whole."""
    image = np.random.default_rng(1).integers(0, 256, (512, 512), np.uint8)
    image = np.asarray(cv2.GaussianBlur(image, (0, 0), 3))
    a, b = luma(image), luma(noisy(image, 6))
    assert appearance(a, b, frame(512, 512, 70)) == pytest.approx(appearance(a, b, everything(image)), abs=0.01)


def test_background_that_no_coarser_scale_has_is_no_value():
    a = luma(PHOTOGRAPH[:201, :301])
    last = np.zeros(a.shape, bool)
    last[-1] = True  # an odd row, left out where rows are halved
    assert appearance(a, a, last) is None


@pytest.mark.parametrize("shape", [(2, 3000), (3000, 2), (1, 1000)])
def test_an_image_that_is_too_thin_to_be_grown_is_no_value(shape, monkeypatch):
    monkeypatch.setattr(module, "_large_enough", None)  # nothing is made larger
    a = np.zeros(shape, np.float32)
    assert appearance(a, a, np.ones(shape, bool)) is None
    found = consistency(a, a, np.zeros((*shape, 2), np.float32), np.ones(shape, bool))
    assert (found.structure, found.appearance, found.scene, found.background) == (1.0, None, None, 1.0)


@pytest.mark.parametrize("shape", [(4, 500), (500, 4), (176, 24000)])
def test_long_images_are_compared_as_far_as_they_need_no_more_room(shape):
    a = np.random.default_rng(0).uniform(0, 255, shape).astype(np.float32)
    assert appearance(a, a, np.ones(shape, bool)) == 1.0


def test_drift_is_measured_by_the_diagonal():
    flow = np.zeros((300, 400, 2), np.float32)
    flow[..., 0], flow[..., 1] = 3, 4
    assert structure(flow, np.ones((300, 400), bool)) == pytest.approx(np.exp(-1))
    half = np.zeros((300, 400), bool)
    half[:, :200] = True
    flow[:, :200] = 0
    assert structure(flow, half) == 1.0


def test_instances_are_grown_by_eight_pixels():
    instance = np.zeros((60, 80), bool)
    instance[30, 40] = True
    kept = background(60, 80, [instance])
    assert (~kept).sum() == 17 * 17
    assert not kept[22:39, 32:49].any()
    assert background(60, 80, []).all()


def test_the_scene_is_the_harmonic_mean():
    flow = np.full((512, 512, 2), 1.0, np.float32)
    found = consistency(PHOTOGRAPH, noisy(PHOTOGRAPH, 20), flow, everything(PHOTOGRAPH))
    s, a = found.structure, found.appearance
    assert found.scene == pytest.approx(2 / (1 / s + 1 / a))
    assert consistency(PHOTOGRAPH, 255 - PHOTOGRAPH, flow, everything(PHOTOGRAPH)).scene == 0.0
