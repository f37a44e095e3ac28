from __future__ import annotations

import numpy as np
import pytest

from tallymill.exporters.pairing import FEWEST, MOST, Bounds, apart, strongest

BOUNDS = Bounds()


def answer(scores, seed=0):
    """Boxes far from each other, with these confidences."""
    rng = np.random.default_rng(seed)
    corners = rng.permutation(len(scores))[:, None] * 40.0 + rng.uniform(0, 5, (len(scores), 2))
    boxes = np.concatenate([corners, corners + rng.uniform(10, 30, (len(scores), 2))], 1)
    return boxes.astype(np.float32), np.asarray(scores, np.float32)


def within(off):
    return off.box <= BOUNDS.box and off.score <= BOUNDS.score and off.ratio <= BOUNDS.ratio


def test_the_same_boxes_in_another_order_are_not_apart():
    boxes, scores = answer(np.linspace(0.001, 0.9, 80))
    mixed = np.random.default_rng(1).permutation(80)
    least = int((scores >= 0.05).sum())
    assert FEWEST < least < 80
    assert apart((boxes[mixed], scores[mixed]), (boxes, scores), BOUNDS) == (0.0, 0.0, 0.0, least)


def test_confidences_below_the_floor_are_compared():
    boxes, scores = answer(np.full(60, 1e-4))
    off = apart((boxes + 3, scores), (boxes, scores), BOUNDS)
    assert off.compared == FEWEST
    assert off.box == pytest.approx(3, abs=1e-2)


def test_small_confidences_are_compared_by_their_ratio():
    boxes, scores = answer(np.full(60, 2e-4))
    off = apart((boxes, 2 * scores), (boxes, scores), BOUNDS)
    assert off.score < BOUNDS.score
    assert off.ratio == pytest.approx(np.log(2), abs=1e-3)


def test_boxes_that_the_original_lacks_are_apart():
    boxes, scores = answer([0.9, 0.7, *[0.49] * 50])
    for confident in (0.49, 0.06, 1e-3):
        invented = np.where(scores == np.float32(0.49), np.float32(confident), scores)
        assert not within(apart((boxes, invented), (boxes[:2], scores[:2]), BOUNDS))
        assert not within(apart((boxes[:2], scores[:2]), (boxes, invented), BOUNDS))


def test_no_box_answers_for_two():
    boxes, scores = answer([0.9, 0.8])
    twice = (np.repeat(boxes, 2, axis=0), np.repeat(scores, 2))
    assert within(apart(twice, twice, BOUNDS))
    assert apart((boxes, scores), twice, BOUNDS).box == np.inf
    assert apart(twice, (boxes, scores), BOUNDS).box == np.inf


def test_as_many_as_can_be_have_partners_within_the_bounds():
    # The nearest of each by itself is the middle one; the least sum of differences gives one pair 1.4 pixels.
    scores = np.full(2, 0.5, np.float32)
    wanted = np.array([[0, 0, 9, 9], [0.9, 0, 9, 9]], np.float32)
    found = np.array([[0.8, 0, 9, 9], [-0.6, 0, 9, 9]], np.float32)
    assert apart((found, scores), (wanted, scores), BOUNDS).box == pytest.approx(0.6, abs=1e-6)
    found = np.array([[0.9, 0, 9, 9], [1.8, 0, 9, 9]], np.float32)
    assert apart((found, scores), (wanted, scores), BOUNDS).box == pytest.approx(0.9, abs=1e-6)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_never_within_the_bounds(side, value):
    boxes, scores = answer([0.9, 0.5, 0.01])
    for place, spoilt in ((0, "box"), (2, "box"), (1, "score")):
        changed = (boxes.copy(), scores.copy())
        changed[0 if spoilt == "box" else 1][(place, 1) if spoilt == "box" else place] = value
        pair = [(boxes, scores), (boxes, scores)]
        pair[side] = changed
        assert not within(apart(*pair, BOUNDS))


def test_nothing_beside_nothing_is_nothing_compared_and_beside_something_it_is_apart():
    nothing, something = answer([]), answer([0.3])
    assert apart(nothing, nothing, BOUNDS) == (0, 0, 0, 0)
    assert apart(something, nothing, BOUNDS) == (np.inf, np.inf, np.inf, 0)
    assert apart(nothing, something, BOUNDS) == (np.inf, np.inf, np.inf, 0)


def test_how_many_are_compared_has_a_lower_and_an_upper_end():
    assert len(strongest(np.full(10, 0.01))) == 10
    assert len(strongest(np.full(2000, 0.01))) == FEWEST
    assert len(strongest(np.full(2000, 0.5))) == MOST
    assert strongest(np.array([0.1, 0.3, 0.2, 0.3])).tolist() == [1, 3, 2, 0]


def test_bounds_of_halves_are_wider_and_grow_with_the_picture():
    half = Bounds(box=2.0, score=0.02, half=True)
    assert half.ratio > BOUNDS.ratio
    assert half.of(240, 320) == half
    assert half.of(1500, 900).box == pytest.approx(2 * 1500 / 320)
    assert BOUNDS.of(1500, 900) == BOUNDS
