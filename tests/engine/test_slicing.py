import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymill.engine.slicing import Window, inner, inside, windows


def kept(box, window, height, width, edge=1.0):
    limits = np.array([inner(window, height, width, edge)], np.float32)
    return bool(inside(np.array([box], np.float32), limits)[0])


def test_two_and_three_give_the_whole_image_and_thirteen_windows():
    found = windows(1024, 768, (2, 3))
    assert len(found) == 14
    assert found[0] == Window(0, 0, 1024, 768)
    assert windows(1024, 768, ()) == found[:1]


def test_windows_by_the_formula():
    # k = 2: side ceil(4L/7); k = 3: side ceil(4L/10); starts floor(i(L - side)/(k - 1)).
    found = windows(100, 30, (2, 3))
    assert found[1:5] == [Window(t, x, t + 58, x + 18) for t in (0, 42) for x in (0, 12)]
    assert found[5:] == [Window(t, x, t + 40, x + 12) for t in (0, 30, 60) for x in (0, 9, 18)]


@given(length=st.integers(1, 5000), k=st.integers(2, 16))
def test_windows_lie_in_the_image_and_cover_it(length, k):
    spans = sorted({(w.top, w.bottom) for w in windows(length, 1, (k,))[1:]})
    side = math.ceil(4 * length / (3 * k + 1))
    assert {stop - start for start, stop in spans} == {side}
    assert (spans[0][0], spans[-1][1]) == (0, length)
    assert all(next_start <= stop for (_, stop), (next_start, _) in pairwise(spans))


def test_an_image_of_one_pixel_is_seen_whole_in_every_window():
    found = windows(1, 1, (2, 3))
    assert set(found) == {Window(0, 0, 1, 1)}
    assert all(kept([0, 0, 1, 1], window, 1, 1) for window in found)


INNER = Window(20, 10, 60, 50)


@pytest.mark.parametrize("edge", range(4))
def test_a_box_within_a_pixel_of_an_inner_edge_is_dropped(edge):
    beyond = {0: 0.0, 1: 0.0, 2: 40.0, 3: 40.0}[edge]
    step = 1 if edge < 2 else -1
    for distance, stays in ((-3.0, False), (0.0, False), (0.5, False), (1.0, False), (1.001, True), (5.0, True)):
        box = [8.0, 8.0, 32.0, 32.0]
        box[edge] = beyond + step * distance
        assert kept(box, INNER, 100, 100) is stays, (edge, distance)


@pytest.mark.parametrize(
    ("edge", "distance", "stays"), [(0.0, 0.0, False), (0.0, 0.5, True), (4.0, 4.0, False), (4.0, 4.5, True)]
)
@pytest.mark.parametrize("side", range(4))
def test_the_width_of_the_edge_is_a_setting(side, edge, distance, stays):
    box = [8.0, 8.0, 32.0, 32.0]
    box[side] = distance if side < 2 else 40.0 - distance
    assert kept(box, INNER, 100, 100, edge) is stays


def test_a_box_at_the_images_own_edge_stays():
    touching = [0.0, 0.0, 40.0, 40.0]
    assert not kept(touching, INNER, 100, 100)
    assert kept(touching, Window(0, 0, 40, 40), 40, 40)
    assert kept([0.0, 0.0, 30.0, 30.0], Window(0, 0, 40, 40), 100, 100)
    assert kept([5.0, 5.0, 40.0, 40.0], Window(60, 60, 100, 100), 100, 100)
    assert not kept([5.0, 5.0, 40.0, 30.0], Window(0, 0, 40, 40), 100, 100)


def test_the_whole_image_drops_nothing():
    whole = windows(100, 100, (2,))[0]
    for box in ([0, 0, 100, 100], [-5, -5, 120, 120], [0, 50, 1, 51]):
        assert kept(box, whole, 100, 100)


def test_an_object_on_the_seam_is_whole_in_some_window():
    """Every object of up to a quarter of a window's side is seen whole by at least one window."""
    height = width = 200
    views = windows(height, width, (3,))[1:]
    for left in range(0, width - 15):
        box = np.array([left, 90, left + 15, 105], np.float32)
        seen = 0
        for w in views:
            clipped = np.clip(box, [w.left, w.top] * 2, [w.right, w.bottom] * 2) - np.array([w.left, w.top] * 2)
            whole = np.array_equal(clipped + np.array([w.left, w.top] * 2), box)
            stays = clipped[0] < clipped[2] and clipped[1] < clipped[3] and kept(clipped, w, height, width)
            assert whole or not stays, "a cut object was kept"
            seen += stays
        assert seen >= 1, left


def test_no_boxes():
    assert inside(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).shape == (0,)
