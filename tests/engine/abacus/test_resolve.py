from __future__ import annotations

import numpy as np
import pytest

from tallymill.engine.abacus import resolve as module
from tallymill.engine.abacus.resolve import crop, parse_answer, question
from tallymill.errors import ModelError


class Twice:
    scale = 2

    def __init__(self):
        self.calls = 0

    def upscale(self, image):
        self.calls += 1
        return image.repeat(2, 0).repeat(2, 1)


def image(height=100, width=200):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def box(*edges):
    return np.array(edges, np.float32)


def test_the_crop_is_larger_than_its_box():
    whole = image()
    np.testing.assert_array_equal(crop(whole, box(50, 20, 100, 70), 1.2, 1, None).pixels, whole[15:75, 45:105])


def test_a_crop_ends_where_the_image_does():
    whole = image()
    np.testing.assert_array_equal(crop(whole, box(-10, -10, 10, 10), 1.2, 1, None).pixels, whole[:12, :12])
    assert crop(whole, box(300, 300, 310, 310), 1.2, 1, None).pixels.shape == (1, 1, 3)


def test_super_resolution_goes_on_until_the_short_side_is_long_enough():
    upscaler = Twice()
    found = crop(image(), box(50, 20, 90, 80), 1.0, 224, upscaler)
    assert upscaler.calls == 3  # 40 x 60 -> 320 x 480
    assert found.pixels.shape == (480, 320, 3)
    assert found.fault is None
    assert crop(image(), box(50, 20, 90, 80), 1.0, 40, upscaler).pixels.shape == (60, 40, 3)
    assert upscaler.calls == 3


@pytest.mark.parametrize("upscaler", [None, Twice()])
def test_a_single_pixel_becomes_a_crop(upscaler):
    assert min(crop(image(), box(5, 5, 6, 6), 1.0, 224, upscaler).pixels.shape[:2]) >= 224


def test_without_an_upscaler_the_short_side_is_what_is_asked():
    assert crop(image(), box(50, 20, 90, 80), 1.0, 224, None).pixels.shape == (336, 224, 3)


class Failing(Twice):
    """Cannot make more of an image whose longer side is over 100 pixels."""

    def upscale(self, image):
        if max(image.shape) > 100:
            raise ModelError(f"no room for {image.shape[0]} x {image.shape[1]}", hint="never mind")
        return super().upscale(image)


def test_what_the_upscaler_cannot_make_larger_is_finished_bicubic_and_said():
    found = crop(image(), box(50, 20, 90, 80), 1.0, 224, Failing())
    assert found.pixels.shape == (336, 224, 3)
    assert found.fault == "bicubic from 120 x 80: no room for 120 x 80"


def test_crops_are_not_made_larger_without_end(monkeypatch):
    monkeypatch.setattr(module, "MOST_PIXELS", 40_000)
    upscaler = Twice()
    whole = image(4, 900)
    found = crop(whole, box(0, 0, 900, 4), 1.0, 224, upscaler)
    assert upscaler.calls == 1  # 8 x 1800; twice that are more than 40,000 pixels
    assert found.pixels.shape == (13, 3000, 3)
    assert found.fault == "ends at 13 x 3000: more than 40000 pixels"
    assert crop(whole, box(0, 0, 900, 4), 1.0, 224, None).fault == found.fault
    found = crop(image(), box(50, 20, 200, 80), 1.0, 100, upscaler)
    assert upscaler.calls == 2
    assert found.fault is None
    found = crop(image(100, 250), box(0, 0, 250, 100), 1.0, 120, upscaler)
    assert (found.pixels.shape, found.fault) == ((120, 300, 3), "bicubic from 100 x 250: more than 40000 pixels")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("yes", True),
        ("No.", False),
        (" **YES** \n", True),
        ("<think>no? perhaps</think>\nyes", True),
        ("yes, it is", None),
        ("yes no", None),
        ("nothing", None),
        ("", None),
        (None, None),
        ("<think>yes", None),
        (7, None),
    ],
)
def test_an_answer_is_one_word(text, meant):
    assert parse_answer(text) is meant


def test_the_question_has_its_article():
    assert "an apple?" in question("apple")
    assert "a hot dog?" in question("hot dog")
